"""The launcher's loop, and which side is blamed when the feed of Spark's lines fails."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from megaflow.control.checkpoint_messages import LeftOut
from megaflow.control.launcher_messages import Coordinates, Ended, ToldOnce
from megaflow.errors import PeerLost, SourceError
from megaflow.job.exit_report import ReportPipe
from megaflow.job.job_file import Job
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import DrainLimit
from megaflow.job.launcher.processes.wakeups import Signals
from megaflow.job.launcher.run.loop import Loop
from megaflow.job.launcher.run.machine import JobParts, Machine


class Voice:
    """The connection of a process that says what a test has it say."""

    has_unsent = False

    def __init__(self) -> None:
        self._said: list[object] = []
        self._near, self._far = socket.socketpair()

    def say(self, message: object) -> None:
        self._said.append(message)
        self._far.send(b".")

    def fileno(self) -> int:
        return self._near.fileno()

    def flush(self) -> None:
        """Do nothing: nothing waits to be sent."""

    def post(self, message: object) -> None:
        """Forget the message."""

    def receive_available(self) -> list[object]:
        if self._said:
            self._near.recv(len(self._said))
        said, self._said = self._said, []
        return said

    def close(self) -> None:
        self._near.close()
        self._far.close()


class Talking(Child):
    """A process with a voice."""

    def __init__(self, port: int, worker: int) -> None:
        super().__init__(("h", port), pipe=ReportPipe())
        self.join([worker])
        self.voice = Voice()

    def connect(self, *_: Any) -> Any:
        self.client = cast(Any, self.voice)
        return self.voice

    def hang_up(self) -> None:
        assert self.pipe is not None
        self.pipe.close()
        self.pipe.close_writing()
        self.voice.close()


class LoopBench:
    """A loop with a feed that has failed and two processes, of which the first coordinates."""

    def __init__(self) -> None:
        self.children = Children()
        self.talking = [Talking(5000, 0), Talking(5001, 1)]
        self.children.all += self.talking
        self.said: list[str] = []
        self.feed: Any = SimpleNamespace(error=SourceError("the query failed"), move=lambda address: None,
                                         start=lambda: None, stop=lambda: None, join=lambda seconds: None)  # fmt: skip
        job = Job("job", 1, None, "h", 5000, "secret")
        machine = Machine(feed=lambda *_: self.feed, publish=lambda job: None)
        self.signals, self.output, self.end = Signals(), OutputQueue(Writer()), DrainLimit(b"", self.children)
        parts = JobParts(self.children, self.output, self.signals, self.said.append, self.end, machine=machine)
        self.loop = Loop(parts, cast(Any, lambda *_: []), JobInput(spark=cast(Any, "a query")), job)
        self.attempt = self.loop.turns(1.0, None)
        next(self.attempt)

    def say(self, worker: int, message: object) -> None:
        self.talking[worker].voice.say(message)
        self.attend()

    def look_at_feed(self) -> None:
        """Let the loop notice what has become of the feed, as when a thread wakes it."""
        self.end.wake()
        self.attend()

    def attend(self) -> None:
        for key, _ in self.loop.selector.select(0.0):
            key.data()

    def close(self) -> None:
        self.loop.close()
        self.output.close()
        self.signals.close()
        for each in self.talking:
            each.hang_up()


@pytest.fixture
def bench() -> Iterator[LoopBench]:
    made = LoopBench()
    yield made
    made.close()


def test_a_feed_that_fails_fails_the_job(bench: LoopBench) -> None:
    bench.say(1, Ended(1, 0, 0))  # which may have left
    with pytest.raises(SourceError, match="the query failed"):
        bench.look_at_feed()


def test_what_is_to_be_told_once_is_told_by_whichever_worker_meets_it_first(bench: LoopBench) -> None:
    for worker, name in ((0, "orders"), (1, "orders"), (1, "payments")):
        bench.say(worker, ToldOnce(worker, f"lines of {name}", f"line {worker} of {name}"))
    assert bench.said == ["line 0 of orders", "line 1 of payments"]


def test_the_lines_that_workers_have_skipped_are_added_up(bench: LoopBench) -> None:
    for worker, skipped in ((0, {"orders": 2}), (1, {"orders": 1, "payments": 4})):
        bench.say(worker, Ended(worker, 9, 9, left_out=LeftOut(skipped)))
    assert bench.loop.summary.skipped == {"orders": 3, "payments": 4}


def test_a_feed_that_fails_because_the_stopped_job_is_over_does_not(bench: LoopBench) -> None:
    bench.say(0, Ended(0, 0, 0))
    bench.look_at_feed()


def test_a_feed_that_a_stopped_job_closes_does_not_fail_it(bench: LoopBench) -> None:
    bench.feed.error = PeerLost("h:5000 has closed the connection")
    with pytest.raises(PeerLost):
        bench.look_at_feed()
    bench.end.is_draining = True
    bench.look_at_feed()


def test_a_feed_that_fails_while_the_coordinator_moves_fails_the_job_when_the_next_one_says_so(
    bench: LoopBench,
) -> None:
    bench.say(0, Ended(0, 0, 0))
    bench.look_at_feed()
    with pytest.raises(SourceError, match="the query failed"):
        bench.say(1, Coordinates("h", 5001))
