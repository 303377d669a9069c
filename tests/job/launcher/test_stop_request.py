"""A thread asks a job to stop, exactly once, wherever its coordinator is."""

from collections.abc import Iterator

import pytest

from megaflow.control.client.conversation import MOVES_MAX
from megaflow.control.messages import StopJob
from megaflow.job.launcher.processes.stop_request import Stop
from tests.bench import Bench
from tests.job.offices import SECRET, Office


class StopBench(Bench):
    """A launcher's request to stop, with its messages."""

    def __init__(self) -> None:
        super().__init__("megaflow-stop")
        self.stop = Stop(SECRET, self.said.append)

    def ask(self, *offices: Office) -> None:
        """Ask, and wait for the outcome."""
        self.stop.ask(office.address for office in offices)
        self.join()


@pytest.fixture
def bench() -> Iterator[StopBench]:
    made = StopBench()
    yield made
    made.stop.close()


def test_the_request_follows_the_coordinator(bench: StopBench) -> None:
    with Office() as last, Office(last.address) as second, Office(second.address) as first:
        bench.ask(first)
        assert last.asked == [StopJob()] and bench.said == []


def test_when_the_coordinator_has_left_any_other_process_knows_where_the_next_one_is(bench: StopBench) -> None:
    with Office() as here, Office(here.address) as other, Office() as left:
        left.close()
        bench.ask(left, other)
        assert here.asked == [StopJob()] and bench.said == []


def test_request_follows_a_coordinator_that_leaves_as_it_is_asked(bench: StopBench) -> None:
    with Office() as here, Office(here.address) as other, Office(leaves="asked") as first:
        bench.ask(first, other)
        assert first.asked == here.asked == [StopJob()] and bench.said == []


def test_the_end_of_the_job_is_no_news_once_it_was_asked_and_else_it_is_told(bench: StopBench) -> None:
    for leaves in ("asked", "accepted"):
        with Office(leaves=leaves) as office:
            bench.ask(office)
        assert office.asked == [StopJob()] and bench.said == []
    bench.ask(office)
    assert len(bench.said) == 1 and bench.said[0].startswith("the job is already ending: ")


def test_what_the_coordinator_does_not_answer_ends_with_the_launcher(bench: StopBench) -> None:
    with Office() as office:
        office.door.keep(())
        bench.stop.ask([office.address])
        bench.stop.close()
        assert not bench.is_running() and bench.said == []


def test_a_job_that_sends_it_in_circles_is_not_asked_for_ever(bench: StopBench) -> None:
    with Office() as one, Office(one.address) as other:
        one.door.redirect(*other.address)
        bench.ask(one)
        moves = f"the job's coordinator moved {MOVES_MAX} times during one request: try again"
        assert bench.said == [f"the job was not stopped: {moves}"]
