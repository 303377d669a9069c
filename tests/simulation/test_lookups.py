"""The answer to a request for a key is its state at the time of the request, through moves, joins and leaves.

By hand: `python -m tests.simulation.search lookups 10000`.
"""

import pytest

from tests.simulation import lookups

SEEDS = 100
_SEEDS_PER_TEST = 10


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.slow] if first else []) for first in range(0, SEEDS, _SEEDS_PER_TEST)],
)
def test_a_key_is_answered_once_with_what_the_oracle_has(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        lookups.run(seed)
