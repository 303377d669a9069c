"""A job is told once to stop, wherever its coordinator is."""

import selectors
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from megaflow.control.messages import StopJob
from megaflow.job.launcher.stop_request import MOVES_MAX, Stop
from tests.job.offices import SECRET, Office

WAIT_SECONDS = 20.0


class Bench:
    """The launcher's loop."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.said: list[str] = []
        self.stop = Stop(SECRET, self.selector, self.said.append)

    def run_until(self, true: Callable[[], Any]) -> None:
        while not true():
            events = self.selector.select(WAIT_SECONDS)
            assert events, self.said
            for key, _ in events:
                key.data()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.stop.close()
    made.selector.close()


def test_the_request_follows_the_coordinator(bench: Bench) -> None:
    with Office() as last, Office(last.address) as second, Office(second.address) as first:
        bench.stop.ask([first.address])
        bench.run_until(lambda: last.asked)
        assert last.asked == [StopJob()] and bench.said == []


def test_when_the_coordinator_has_left_any_other_process_knows_where_the_next_one_is(bench: Bench) -> None:
    with Office() as here, Office(here.address) as other, Office() as left:
        left.close()
        bench.stop.ask([left.address, other.address])
        bench.run_until(lambda: here.asked)
        assert here.asked == [StopJob()] and bench.said == []


def test_the_end_of_the_job_is_no_news_once_it_was_asked_and_else_it_is_told(bench: Bench) -> None:
    office = Office()
    bench.stop.ask([office.address])
    office.close()
    bench.run_until(lambda: not bench.selector.get_map())
    assert bench.said == []
    bench.stop.ask([office.address])
    assert len(bench.said) == 1 and bench.said[0].startswith("the job is ending already: ")


def test_a_job_that_sends_it_in_circles_is_not_asked_for_ever(bench: Bench) -> None:
    with Office() as one, Office(one.address) as other:
        one.door.redirect(*other.address)
        bench.stop.ask([one.address])
        bench.run_until(lambda: bench.said)
        assert bench.said == [f"the job was not stopped: its coordinator has moved {MOVES_MAX + 1} times"]
