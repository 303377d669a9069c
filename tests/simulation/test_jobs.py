"""Whole jobs in one thread, with clients and with crashes: see `jobs`.

By hand: `python -m tests.simulation.search jobs 10000`, and `crashes 10000`.
"""

from collections import Counter
from typing import Any

import pytest

from megaflow.errors import ClusterError
from megaflow.testing.simulated_clients import add, move, remove_first
from megaflow.testing.simulated_job import SimulatedJob
from tests.simulation.jobs import dataflow, draw, run, run_crash

SEEDS = 200
_FAST = 20
CRASH_SEEDS = 200
_FAST_CRASHES = 40
_SEEDS_PER_TEST = 20


def chunks(seeds: int, fast: int) -> list[Any]:
    """Return the first seed of each test; those from `fast` on are slow."""
    firsts = range(0, seeds, _SEEDS_PER_TEST)
    return [pytest.param(first, marks=[pytest.mark.slow] if first >= fast else []) for first in firsts]


@pytest.mark.parametrize("first", chunks(SEEDS, _FAST))
def test_a_job_counts_each_line_once_and_in_order_whatever_is_asked_of_it(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + _SEEDS_PER_TEST):
        job, launch = run(seed)
        seen["joined"] += sum("joined" in report for report in launch.reports)
        seen["another coordinated"] += launch.address[1] != 5001
        seen["had more processes"] += len(job.processes) > job.spec.processes
    assert len(seen) == 3 and all(seen.values()), f"the runs have become too tame: {seen}"


@pytest.mark.parametrize("first", chunks(CRASH_SEEDS, _FAST_CRASHES))
def test_a_job_that_loses_a_process_ends_with_an_error_and_what_it_has_written_is_right(first: int) -> None:
    failed = sum(run_crash(seed)[1].error is not None for seed in range(first, first + _SEEDS_PER_TEST))
    assert failed, "nobody was missed"


def test_a_seed_that_fails_fails_again() -> None:
    seed = next(seed for seed in range(100) if any(add in scripts for _, scripts in draw(seed).clients))
    (one, first), (two, second) = run(seed), run(seed)
    assert (one.actions, one.now(), one.refusals) == (two.actions, two.now(), two.refusals)
    assert first.file.content == second.file.content


@pytest.mark.parametrize("action", range(10, 400, 40))
def test_whenever_a_member_is_killed_the_error_names_it(action: int) -> None:
    lines = [f"word{number % 7} part {number} {'.' * 3000}" for number in range(60)]
    job = SimulatedJob(action, dataflow, processes=3, files={"part": lines}, rate=100)
    job.client(move, add, remove_first)
    victims = job.processes

    def kill() -> None:
        job.kill(victims[1])

    job.at(action, kill)
    launch = job.run()
    assert isinstance(launch.error, ClusterError)
    assert "worker 1 (simulated:5002, pid 101) was killed by SIGKILL" in str(launch.error)


def test_a_users_error_ends_the_job_and_is_shown() -> None:
    def fails(flow: Any) -> Any:
        return flow.lines().map(lambda line: 1 // (10 - len(line)))

    launch = SimulatedJob(1, fails, files={"part": ["a", "b" * 10, "c"]}).run()
    assert launch.error is not None and "ZeroDivisionError" in str(launch.error)
