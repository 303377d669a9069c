"""Aggregates give one worker's results for each key and time, through moves, joins, leaves and restarts.

By hand: `python -m tests.simulation.search aggregates 5000`, and `"aggregates in jobs" 1000`.
"""

import pytest

from tests.simulation.aggregates import run, run_job

SEEDS = 203
_FAST = 3
_SEEDS_PER_TEST = 40
JOB_SEEDS = 61
_FAST_JOBS = 1
_JOBS_PER_TEST = 30


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_outputs_and_checkpoints_are_those_of_one_worker_whatever_happens(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST_JOBS), *(pytest.param(first, _JOBS_PER_TEST, marks=pytest.mark.slow)
                        for first in range(_FAST_JOBS, JOB_SEEDS, _JOBS_PER_TEST))],
)  # fmt: skip
def test_so_they_are_in_jobs_whose_processes_and_disks_fail(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run_job(seed)
