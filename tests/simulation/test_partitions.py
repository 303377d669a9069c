"""A key's values of one partition are applied in order, through moves, joins and leaves."""

import pytest

from tests.simulation import partitions

SEEDS = 250
_SEEDS_PER_TEST = 20
_FAST = 20


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_a_keys_values_of_one_partition_are_applied_in_its_order_whatever_moves(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        partitions.run(seed)


@pytest.mark.slow
def test_these_runs_see_readers_leave_with_lines_unread() -> None:
    read_on = 0
    for seed in range(20):
        cluster = partitions.run(seed)
        left = (each for each in getattr(cluster, "happened", ()) if each.startswith("Leave"))
        read_on += any("record=0" not in each for each in left)
    assert read_on > 2, "else the test above shows little"
