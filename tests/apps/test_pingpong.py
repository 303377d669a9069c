"""apps/pingpong.py: the numbers that go around are counted, and the loop ends."""

import pytest

from apps.pingpong import main
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY


@pytest.mark.parametrize("workers", EVERY)
def test_100_numbers_pass_the_exchange_1001_times_each(workers: int) -> None:
    """Case 18."""
    found = run_threads(workers, main, "1000", "100")
    assert sum(passed for passed, _ in found) == 100_100
    assert sorted(number for _, last in found for number in last) == list(range(1001, 1101))
    for index, (_, last) in enumerate(found):
        assert all((number - 1) % workers == index for number in last), "a number stays where its last exchange led"


@pytest.mark.parametrize("workers", EVERY)
def test_without_rounds_each_number_passes_once(workers: int) -> None:
    found = run_threads(workers, main, "0", "10")
    assert sum(passed for passed, _ in found) == 10
    assert sorted(number for _, last in found for number in last) == list(range(1, 11))
