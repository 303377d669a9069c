"""Whole durable jobs in one thread, and restarts of them: see `durable_jobs`.

By hand: python -m tests.simulation.search "durable jobs" 1000.
"""

from collections import Counter

import pytest

from tests.simulation.durable_jobs import run

SEEDS = 60
_SEEDS_PER_TEST = 20


@pytest.mark.parametrize("seed", range(6))
def test_a_restart_goes_on_where_the_checkpoint_was(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_what_was_put_out_before_a_checkpoint_and_after_a_restart_from_it_is_what_one_job_puts_out(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + _SEEDS_PER_TEST):
        seen += run(seed)
    assert len(seen) == 7 and all(seen.values()), f"the runs have become too tame: {seen}"


def test_a_durable_seed_that_fails_fails_again() -> None:
    assert run(7) == run(7)
