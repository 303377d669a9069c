"""Event timers give the oracle's outputs through moves, joins, leaves, checkpoints and restarts."""

import pytest

from tests.simulation import cuts

SEEDS = 200
_SEEDS_PER_TEST = 10


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _SEEDS_PER_TEST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_event_timers_fire_when_those_of_one_worker_do_whatever_moves_joins_or_restarts(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        cuts.run_eventful(seed)
