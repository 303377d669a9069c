"""Two launchers of one durable job, in one thread: see `two_launchers`.

By hand: `python -m tests.simulation.search "two launchers" 1000`.
"""

from collections import Counter

import pytest

from tests.simulation.two_launchers import run

SEEDS = 60
_FAST = 3


@pytest.mark.parametrize(
    ("first", "last"), [(0, _FAST), pytest.param(_FAST, SEEDS, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_of_two_launchers_the_first_is_fenced_and_the_second_is_as_if_alone(first: int, last: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, last):
        seen += run(seed)
    assert seen["fenced"], f"the runs have become too tame: {seen}"
