"""Timers that set timers fire in the order of a reference without epochs: see `timer_order`.

By hand: `python -m tests.simulation.search "timer order" 1000`.
"""

import pytest

from tests.simulation.timer_order import run

SEEDS = 210
_FAST = 10
_SEEDS_PER_TEST = 50


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_timers_fire_in_order_whatever_the_epochs(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)
