"""The matches of apps/hashjoin.py, compared with two nested loops."""

from collections import Counter
from itertools import islice

import pytest

from apps.hashjoin import main
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, numbers


def nested_loops(rows: int, keys: int) -> Counter[tuple[int, int, int]]:
    drawn = [number % keys for number in islice(numbers(), 4 * rows)]
    left, right = list(zip(drawn[0::4], drawn[1::4])), list(zip(drawn[2::4], drawn[3::4]))
    return Counter((key, one, other) for key, one in left for same, other in right if same == key)


@pytest.mark.parametrize("workers", EVERY)
def test_two_tables_of_1000_rows_match_10127_times(workers: int) -> None:
    """Case 24."""
    found = run_threads(workers, main)
    together = [match for part in found for match in part]
    assert len(together) == 10127
    assert sum(one * other for _, one, other in together) == 25239234
    assert all(key % workers == index for index, part in enumerate(found) for key, _, _ in part)
    assert Counter(together) == nested_loops(1000, 100)


@pytest.mark.slow
@pytest.mark.parametrize("workers", EVERY)
def test_every_pair_of_rows_meets_once_however_few_the_keys(workers: int) -> None:
    together = [match for part in run_threads(workers, main, "1500", "2") for match in part]
    assert Counter(together) == nested_loops(1500, 2)
