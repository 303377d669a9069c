"""Stores and outside systems that are restored apart (see `restored`).

By hand: `python -m tests.simulation.search restored 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.restored import run

SEEDS = 100
_SEEDS_PER_TEST = 25
EVENTS = {
    "both goes on", "outside goes on", "outside refused", "store goes on", "store refused", "copy goes on",
    "copy refused", "running goes on", "running refused", "lost while running",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_halves_that_were_restored_apart_are_found_out(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_restored_halves_of_many_more_seeds(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
