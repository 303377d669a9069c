"""The steps of apps/collatz.py, compared with a while loop."""

import pytest

from apps.collatz import main
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY


def steps_to_1(x: int) -> int:
    steps = 0
    while steps == 0 or x != 1:
        x = 3 * x + 1 if x % 2 else x // 2
        steps += 1
    return steps


@pytest.mark.parametrize("workers", EVERY)
def test_the_numbers_to_9_take_up_to_19_steps(workers: int) -> None:
    """Cases 15 and 16: the loop ends by itself, and a number reaches 1 at the time of its number of steps."""
    found = run_threads(workers, main)
    together = {start: steps for part in found for start, steps in part.items()}
    assert together == {1: 3, 2: 1, 3: 7, 4: 2, 5: 5, 6: 8, 7: 16, 8: 3, 9: 19}
    assert sum(together.values()) == 64


@pytest.mark.parametrize("workers", EVERY)
def test_a_thousand_numbers_take_the_steps_of_a_plain_loop(workers: int) -> None:
    found = run_threads(workers, main, "1000")
    together = {start: steps for part in found for start, steps in part.items()}
    assert together == {x: steps_to_1(x) for x in range(1, 1001)}


@pytest.mark.parametrize("workers", EVERY)
def test_numbers_that_take_longer_than_the_bound_are_given_up(workers: int) -> None:
    found = run_threads(workers, main, "9", "7")
    assert {start: steps for part in found for start, steps in part.items()} == {1: 3, 2: 1, 3: 7, 4: 2, 5: 5, 8: 3}
