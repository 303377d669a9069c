"""Event timers and windows on a simulated cluster while bins move (see `event_moves`).

By hand: `python -m tests.simulation.search "event moves" 1000`.
"""

import pytest

from tests.simulation.event_moves import run

SEEDS = 103
_FAST = 3
_SEEDS_PER_TEST = 25


@pytest.mark.parametrize(
    "first, seeds",
    [(0, _FAST), *(pytest.param(first, _SEEDS_PER_TEST, marks=pytest.mark.slow)
                   for first in range(_FAST, SEEDS, _SEEDS_PER_TEST))],
)  # fmt: skip
def test_windows_and_event_timers_give_at_each_time_what_the_model_gives(first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run(seed)
