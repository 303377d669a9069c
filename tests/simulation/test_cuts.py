"""Checkpoints contain what the oracle expects, and restarts from them change no result; with planted faults."""

import pytest

from tests.simulation import cuts, loop_cuts

SEEDS = 300
_SEEDS_PER_TEST = 10
LOOP_SEEDS = 50
_LOOP_SEEDS_PER_TEST = 5


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _SEEDS_PER_TEST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_checkpoints_have_all_before_their_time_and_restarts_give_the_outputs_that_are_left(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        cuts.run(seed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first else [])
        for first in range(0, LOOP_SEEDS, _LOOP_SEEDS_PER_TEST)
    ],
)
def test_so_they_do_in_loops(first: int) -> None:
    for seed in range(first, first + _LOOP_SEEDS_PER_TEST):
        loop_cuts.run(seed)
