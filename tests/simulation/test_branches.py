"""Branches of event time with rare records (see `branches`).

By hand: `python -m tests.simulation.search branches 5000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.branches import run

SEEDS = 200
_SEEDS_PER_TEST = 50
EVENTS = {"changed", "files", "idle", "late"}


@pytest.mark.parametrize("seed", range(5))
def test_branches_without_records_make_none_late_wrongly(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_branches_of_many_more_seeds(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
