"""The best values depend on the values alone, not on their order or grouping."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial, reduce
from math import inf, nan
from random import Random
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProgramError
from megaflow.megaphone.folds.ranking import Ranking, Stamped
from megaflow.timely.communication.codec.encode import encode

NUMBERS: list[Any] = [0, 0.0, -0.0, 1, 1.0, True, False, 2.5, -3, 2**70, inf, -inf, nan, Decimal("1.0")]


def form(items: list[Any]) -> list[bytes]:
    """Equal values may be distinguishable, and NaN differs from itself."""
    return [encode(item) for item in items]


def kept(ranking: Ranking[Any], items: list[Stamped]) -> list[Stamped]:
    found: list[Stamped] = []
    ranking.take(found, items)
    return found


def by_the_book(items: list[Stamped], count: int, by: Any, greatest: bool) -> list[Stamped]:
    """Sort by encoding, then by timestamp, then by rank, with NaN first; each sort is stable."""
    items = sorted(sorted(items, key=lambda item: encode(item[1])), key=lambda item: item[0])
    nans = [item for item in items if by(item[1]) != by(item[1])]
    others = [item for item in items if by(item[1]) == by(item[1])]
    others.sort(key=lambda item: by(item[1]), reverse=greatest)  # a reverse sort is also stable
    return [*nans, *others][:count]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(NUMBERS)), max_size=12), st.integers(1, 5), st.booleans(),
    st.integers(),
)
def test_any_order_and_any_grouping_give_what_sorting_gives(
    items: list[Stamped], count: int, greatest: bool, seed: int
) -> None:
    for by in (None, abs):
        ranking = Ranking("t", "top", count, by, greatest)
        expected = form(by_the_book(items, count, by or (lambda value: value), greatest))
        random = Random(seed)
        shuffled = random.sample(items, len(items))
        cuts = sorted(random.choices(range(len(items) + 1), k=3))
        parts = [kept(ranking, shuffled[start:end]) for start, end in zip([0, *cuts], [*cuts, len(items)])]
        random.shuffle(parts)
        assert all(len(part) <= count for part in parts)
        assert form(reduce(lambda one, other: kept(ranking, one + other), parts)) == expected


@given(st.lists(st.sampled_from(NUMBERS), min_size=1), st.booleans())
def test_the_best_of_plain_values_is_the_first_of_all(values: list[Any], greatest: bool) -> None:
    ranking = Ranking("t", "max", 1, None, greatest)
    [(_, first)] = by_the_book([(0, value) for value in values], 1, lambda value: value, greatest)
    assert encode(ranking.best(values)) == encode(first)


@pytest.mark.parametrize("values", [[3, 1, 2], ["b", "a"], [1.5, 1.5, -2.0], [0.0, -0.0], [1, 2.5], [10**400, 0.5]])
def test_the_best_of_plain_values_is_what_python_says(values: list[Any]) -> None:
    assert Ranking("t", "max", 1, None, True).best(values) == max(values)
    assert Ranking("t", "min", 1, None, False).best(values) == min(values)


def test_nan_within_a_rank_comes_first() -> None:
    ranking: Ranking[Any] = Ranking("t", "top", 3, lambda value: (value[0], value[1]), True)
    items = [(0, (5, 1.0)), (0, (1, nan)), (0, (9, 2.0))]
    for order in (items, items[::-1]):
        assert form([value for _, value in kept(ranking, order)]) == form([(1, nan), (9, 2.0), (5, 1.0)])


def test_equal_moments_of_two_zones_have_one_order() -> None:
    noon = datetime(2026, 11, 26, 12, tzinfo=UTC)
    same = noon.astimezone(timezone(timedelta(hours=2)))
    ranking: Ranking[Any] = Ranking("t", "max", 1, None, True)
    assert str(ranking.best([noon, same])) == str(ranking.best([same, noon]))


@dataclass(order=True)
class Task:
    priority: int
    name: str = field(compare=False)


def test_objects_that_compare_by_one_field_have_one_order() -> None:
    ranking: Ranking[Any] = Ranking("t", "min", 1, None, False)
    tasks = [Task(1, "a"), Task(1, "b"), Task(2, "c")]
    assert {ranking.best(order).name for order in (tasks, tasks[::-1])} == {"a"}


def test_the_earlier_of_equal_values_comes_first() -> None:
    ranking: Ranking[Any] = Ranking("t", "top", 2, len, True)
    assert kept(ranking, [(9, "aa"), (5, "zz"), (7, "mm"), (1, "q")]) == [(5, "zz"), (7, "mm")]


def test_numbers_of_numpy_are_ranked_like_others() -> None:
    ranking: Ranking[Any] = Ranking("t", "top", 2, None, True)
    values = [numpy.float64(2.5), numpy.float64(nan), numpy.float64(7.5)]
    assert form([value for _, value in kept(ranking, [(0, value) for value in values])]) == form([values[1], values[2]])


class Peculiar:
    def __lt__(self, other: object) -> bool:
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("by", "values", "kind", "said"),
    [
        (None, [1, "a"], ProgramError, "t: top cannot compare 'a' of type str with 1 of type int: '<' not supported"),
        (lambda value: 1 + value, [1, "a"], TypeError, "unsupported operand"),
        (len, ["a", 1], TypeError, "has no len"),
        (None, [Peculiar(), Peculiar()], ValueError, "mine"),
        (numpy.array, [[1, 2], [3, 4]], ProgramError, "t: top cannot compare .*truth value of an array"),
        (lambda value: frozenset([value]), [1], ProgramError, "by= returned frozenset.*because sets are ordered by"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_cannot_be_compared_is_refused(by: Any, values: list[Any], kind: Any, said: str, count: int) -> None:
    with pytest.raises(kind, match=said):
        kept(Ranking("t", "top", count, by, True), [(0, value) for value in values])


def test_types_of_by_may_be_partial() -> None:
    ranking: Ranking[Any] = Ranking("t", "max", 1, partial(round, ndigits=0), True)
    assert ranking.best([1.4, 0.2, 1.2]) == 1.2
