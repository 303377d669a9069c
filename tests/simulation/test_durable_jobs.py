"""Whole durable jobs and their resumed attempts, in one thread: see `durable_jobs`.

By hand: `python -m tests.simulation.search "durable jobs" 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.durable_jobs import run

SEEDS = 300
_SEEDS_PER_TEST = 50
EVENTS = {  # in each of these tests; a run rarely finds nothing to do
    "acknowledged", "ended", "failed", "failed checkpoints", "failed on its disk", "joined", "joined a resumed job",
    "killed", "remembered", "restarted", "stopped", "went on",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_a_job_its_output_is_that_of_one_to_which_nothing_happens(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_so_it_is_in_many_more(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)


def test_a_durable_seed_that_fails_fails_again() -> None:
    assert run(7) == run(7)
