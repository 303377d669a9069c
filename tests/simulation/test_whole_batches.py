"""Whole durable jobs with whole batches of Spark that give the watermark, with crashes and restarts: `whole_batches`.

By hand: `python -m tests.simulation.search "whole batches" 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.whole_batches import run

SEEDS = 40
_SEEDS_PER_TEST = 20
EVENTS = {"committed", "crashed", "ended", "failed", "joined", "replayed", "stopped"}  # in each of these tests


@pytest.mark.parametrize("seed", range(3))
def test_a_fold_gets_each_batch_in_one_call_after_a_restart(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_batches_and_timers_are_those_of_a_plain_loop(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
