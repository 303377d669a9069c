"""Stateful operators in nested scopes: moves, joins and leaves change neither the outputs nor their times."""

import pytest

from tests.simulation.loops import run, run_components

SEEDS = 30  # of each kind
_FAST = 3
_SEEDS_PER_TEST = 3


def some_fast(seeds: int, fast: int, step: int) -> list[object]:
    """Return the first seed of each test; those from `fast` on are slow."""
    firsts = range(0, seeds, step)
    return [pytest.param(first, marks=[pytest.mark.slow] if first >= fast else []) for first in firsts]


@pytest.mark.parametrize("first", some_fast(SEEDS, _FAST, _SEEDS_PER_TEST))
def test_what_goes_round_is_applied_in_order_by_the_owner_of_its_bin_at_its_outer_time(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run(seed)


@pytest.mark.parametrize("first", some_fast(SEEDS, 2 * _FAST, _SEEDS_PER_TEST))
def test_each_node_is_told_its_component_at_each_time_while_bins_move_between_the_rounds(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run_components(seed)
