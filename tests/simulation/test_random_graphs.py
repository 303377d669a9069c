"""Frontiers of random graphs with loops, nested scopes and delays, against a brute-force account of all counts.

The cluster's monitor keeps the account. After each step, no frontier may exclude a time at which a record may still
arrive. Whenever nothing is under way, frontiers are exactly what the counts imply.
"""

import pytest

from tests.simulation.graphs import run

GRAPHS = 500
_GRAPHS_PER_TEST = 25
_FAST = 25


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, GRAPHS, _GRAPHS_PER_TEST)
    ],
)
def test_no_frontier_excludes_what_may_come_and_at_rest_all_are_exact(first: int) -> None:
    """Case 58."""
    for seed in range(first, first + _GRAPHS_PER_TEST):
        run(seed)
