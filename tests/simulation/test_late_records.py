"""Late records follow from the partitions alone (see `late_records`).

By hand: `python -m tests.simulation.search "late records" 5000`.
"""

import pytest

from tests.simulation.late_records import run

SEEDS = 400
_SEEDS_PER_TEST = 50


@pytest.mark.parametrize("seed", range(5))
def test_late_records_follow_from_the_partitions_alone(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_late_records_of_many_more_seeds(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run(seed)
