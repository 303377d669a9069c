"""The same files give the same late records and final windows at any speed: see `reproducible`.

By hand: python -m tests.simulation.search "reproducible" 5000.
"""

import pytest

from tests.simulation.lives import check_all
from tests.simulation.planting import Fault
from tests.simulation.reproducible import run
from tests.simulation.test_planted_faults import check_found

SEEDS = 40
_SEEDS_PER_TEST = 10
EVENTS = {"ended", "joined", "killed", "late", "restarted", "went on"}

FAULTS = {
    "only the watermark decides what is late": Fault("EventClock.begin", "self._out_of_order", "_NO_BOUND"),
}


def test_same_files_give_the_same_results_at_any_speed() -> None:
    run(1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_same_files_of_many_more_seeds_give_the_same_results(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_makes_results_depend_on_speed(name: str) -> None:
    check_found(FAULTS[name], "reproducible")
