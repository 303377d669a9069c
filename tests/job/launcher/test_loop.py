"""The launcher's loop: whose fault it is when the feed of Spark's lines fails."""

from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.launcher_messages import Coordinates, Ended, ToldOnce
from megaflow.errors import PeerLost, SourceError
from megaflow.job.job_file import Job
from megaflow.job.launcher import loop as module
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.early_end import EarlyEnd
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.loop import Loop
from megaflow.job.launcher.output_queue import OutputQueue


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A loop with two processes, the first of which coordinates, and a feed that has failed."""
    monkeypatch.setattr(module, "republish", lambda job: None)
    children = Children()
    for worker, port in enumerate((5000, 5001)):
        children.all.append(Child(("h", port)))
        children.all[-1].join([worker])
    job = Job("job", 1, None, "h", 5000, "secret")
    output = OutputQueue(Writer())
    end = EarlyEnd(b"", children)
    loop: Any = Loop(children, lambda *_: [], JobInput(), output, module.Signals(), lambda text: None, job, end)
    loop._feed = SimpleNamespace(error=SourceError("the query failed"), move=lambda address: None)
    loop._news.wake()
    yield loop
    loop._feed = None
    loop.close()


def test_a_feed_that_fails_fails_the_job(loop: Any) -> None:
    loop._take(loop.children.all[1], Ended(1, 0, 0))  # which may have left
    with pytest.raises(SourceError, match="the query failed"):
        loop._on_news()


def test_what_is_to_be_told_once_is_told_by_whichever_worker_meets_it_first(loop: Any) -> None:
    loop.report = (said := list[str]()).append
    for worker, name in ((0, "orders"), (1, "orders"), (1, "payments")):
        loop._take(loop.children.all[worker], ToldOnce(worker, f"lines of {name}", f"line {worker} of {name}"))
    assert said == ["line 0 of orders", "line 1 of payments"]


def test_the_lines_that_workers_have_skipped_are_added_up(loop: Any) -> None:
    for worker, skipped in ((0, {"orders": 2}), (1, {"orders": 1, "payments": 4})):
        loop._take(loop.children.all[worker], Ended(worker, 9, 9, skipped=skipped))
    assert loop.summary.skipped == {"orders": 3, "payments": 4}


def test_a_feed_that_fails_because_the_stopped_job_is_over_does_not(loop: Any) -> None:
    loop._take(loop.children.all[0], Ended(0, 0, 0))
    loop._on_news()


def test_a_feed_that_a_stopped_job_closes_does_not_fail_it(loop: Any) -> None:
    loop._feed.error = PeerLost("h:5000 has closed the connection")
    with pytest.raises(PeerLost):
        loop._on_news()
    loop.early_end.is_draining = True
    loop._news.wake()
    loop._on_news()


def test_a_feed_that_fails_while_the_coordinator_moves_fails_the_job_when_the_next_one_says_so(loop: Any) -> None:
    loop._take(loop.children.all[0], Ended(0, 0, 0))
    loop._on_news()
    with pytest.raises(SourceError, match="the query failed"):
        loop._take(loop.children.all[1], Coordinates("h", 5001))
