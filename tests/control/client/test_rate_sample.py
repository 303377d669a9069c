"""Samples of a job: the rates that a pair of statuses yields, and the pairs that yield none."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.control.client.rate_sample import Work, processes_of, sample
from megaflow.errors import CommandRefused
from tests.control.client.paper_job import PaperJob


def test_rates_and_shares_are_those_of_the_time_between_the_statuses() -> None:
    job = PaperJob(rate=100.0, costs={"a": 0.001, "b": 0.002}, elsewhere=0.001, processes=2, overhead=0.1)
    job.go_on(50.0)
    seen = sample(*job.sample(4.0))
    assert (seen.seconds, seen.workers, seen.waiting, seen.unbounded) == (4.0, 2, 0, False)
    assert (seen.offered, seen.done) == (pytest.approx(100.0), pytest.approx(100.0))
    assert seen.busy == {0: pytest.approx(0.3), 1: pytest.approx(0.3)}
    assert seen.work == {
        "a": Work(pytest.approx(300.0), pytest.approx(0.1)), "b": Work(pytest.approx(300.0), pytest.approx(0.2))
    }  # fmt: skip


def test_lines_that_wait_have_come_although_they_were_not_read() -> None:
    job = PaperJob(rate=100.0, costs={"a": 0.02})
    seen = sample(*job.sample(10.0))
    assert (seen.offered, seen.done, seen.waiting) == (pytest.approx(100.0), pytest.approx(50.0), pytest.approx(500))


def test_lines_that_were_read_ahead_are_not_yet_worked_off() -> None:
    first, second = PaperJob(rate=100.0, costs={"a": 0.02}).sample(10.0)
    ahead = replace(second.workers[0], lines=1000, waiting=0)  # all lines have come, and half of them are done
    seen = sample(first, replace(second, workers=(ahead,)))
    assert (seen.offered, seen.done, seen.waiting) == (pytest.approx(100.0), pytest.approx(50.0), 0)


def test_nobody_knows_how_many_lines_wait_where_no_rate_says_so() -> None:
    job = PaperJob(rate=100.0, costs={"a": 0.02}, bounded=False)
    job.go_on(1.0)
    seen = sample(*job.sample(10.0))
    assert seen.unbounded and seen.offered == pytest.approx(50.0)
    idle = PaperJob(rate=10.0, costs={"a": 0.02}, bounded=False)
    assert not sample(*idle.sample(10.0)).unbounded, "it keeps up"


def test_processes_are_told_apart_by_their_address_and_sorted_by_age() -> None:
    status = PaperJob(rate=1.0, costs={}, processes=3, each=2).status()
    assert processes_of(replace(status, workers=status.workers[::-1])) == ((0, 1), (2, 3), (4, 5))


JOINING = {"change": "add-workers", "processes": 1, "done": 0, "steps": 2, "waiting": False}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"state": "stopping"}, "'paper' is stopping"),
        ({"changes": [JOINING]}, "add-workers is under way"),
        ({"pending": [{"epoch": 3, "bins": 1}]}, "bins are moving"),
        ({"ledger": [{"bin": 1, "epoch": 4}]}, "bins moved in the meantime"),
        ({"workers": []}, "no worker has answered"),
    ],
)
def test_a_time_in_which_something_changed_tells_nothing(changed: dict[str, Any], said: str) -> None:
    job = PaperJob(rate=10.0, costs={"a": 0.01})
    first = job.status()
    job.go_on(10.0)
    with pytest.raises(CommandRefused, match=said):
        sample(first, job.status(**changed))


def test_other_workers_or_none_that_is_ready_tell_nothing() -> None:
    job = PaperJob(rate=10.0, costs={"a": 0.01})
    first = job.status()
    job.processes = 2
    job.go_on(1.0)
    with pytest.raises(CommandRefused, match="workers joined or left"):
        sample(first, job.status())
    first, second = job.sample()
    joined = replace(second.workers[1], state="joined")
    with pytest.raises(CommandRefused, match="worker 1 is not running yet"):
        sample(first, replace(second, workers=(second.workers[0], joined)))
    with pytest.raises(CommandRefused, match="no time has passed"):
        sample(first, first)
