"""Two launchers of one durable job, in one thread: see `two_launchers`.

By hand: python -m tests.simulation.search "two launchers" 1000.
"""

from collections import Counter

import pytest

from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found
from tests.simulation.two_launchers import run

SEEDS = 60
_FAST = 3

FAULT = Fault("FolderStore.commit", "return False", "return True")


@pytest.mark.parametrize(
    ("first", "last"), [(0, _FAST), pytest.param(_FAST, SEEDS, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_of_two_launchers_the_first_is_fenced_and_the_second_is_as_if_alone(first: int, last: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, last):
        seen += run(seed)
    assert seen["fenced"], f"the runs have become too tame: {seen}"


@pytest.mark.slow
def test_a_commit_of_the_other_launcher_that_is_taken_for_ones_own_is_found() -> None:
    check_found(FAULT, "two launchers")


def test_what_the_fault_makes_wrong_is_there_once() -> None:
    planted(FAULT)
