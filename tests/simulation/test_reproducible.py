"""The same files give the same late records and final windows at any speed: see `reproducible`.

By hand: `python -m tests.simulation.search "reproducible" 5000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.reproducible import run

SEEDS = 40
_SEEDS_PER_TEST = 10
EVENTS = {"ended", "joined", "killed", "late", "restarted", "went on"}


@pytest.mark.slow
def test_same_files_give_the_same_results_at_any_speed() -> None:
    run(1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_same_files_of_many_more_seeds_give_the_same_results(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
