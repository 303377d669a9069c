"""The order of times, against brute force over small times."""

import itertools
import operator
import pickle
from collections import Counter
from heapq import heappush
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.order import (
    Product,
    Time,
    alike,
    coordinates,
    from_coordinates,
    in_order,
    is_total,
    least_of,
    less_equal,
    less_than,
    pop_first,
    sort_key,
)
from tests.timely.times import LEASTS, Divisor, times_like

small = st.integers(0, 3)


def times(depth: int) -> st.SearchStrategy[Time]:
    return st.tuples(*[small] * (depth + 1)).map(from_coordinates)


def all_times(depth: int, below: int) -> list[Time]:
    return [from_coordinates(values) for values in itertools.product(range(below), repeat=depth + 1)]


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("other", [Product(1, 2), 3])
def test_products_are_not_compared_with_operators(compare: object, other: object) -> None:
    with pytest.raises(TypeError, match=r"less_equal\(a, b\) or less_than"):
        compare(Product(1, 2), other)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"less_equal\(a, b\) or less_than"):
        compare(other, Product(1, 2))  # type: ignore[operator]


def test_a_product_is_a_hashable_value_that_unpacks_and_pickles() -> None:
    outer, inner = Product(Product(1, 2), 3)
    assert (outer, inner) == (Product(1, 2), 3)
    assert len({Product(1, 2), Product(1, 2), Product(2, 1)}) == 2
    assert pickle.loads(pickle.dumps(Product(1, 2))) == Product(1, 2)
    assert eval(repr(Product(Product(1, 2), 3))) == Product(Product(1, 2), 3)


@given(st.integers(0, 2).flatmap(lambda depth: st.tuples(times(depth), times(depth))))
def test_the_order_is_that_of_all_coordinates(pair: tuple[Time, Time]) -> None:
    a, b = pair
    expected = all(x <= y for x, y in zip(coordinates(a), coordinates(b), strict=True))
    assert less_equal(a, b) == expected
    assert less_than(a, b) == (expected and a != b)
    if expected:
        assert coordinates(a) <= coordinates(b), "sorting by coordinates extends the order"


@given(times(2))
def test_coordinates_round_trip(time: Time) -> None:
    assert from_coordinates(coordinates(time)) == time


def test_the_minimum_is_at_most_every_time() -> None:
    for depth in range(3):
        assert all(less_equal(from_coordinates((0,) * (depth + 1)), time) for time in all_times(depth, below=3))


def test_times_of_different_depth_are_not_compared() -> None:
    for a, b in [(3, Product(3, 0)), (Product(3, 0), 3), (Product(Product(0, 0), 0), Product(0, 0))]:
        with pytest.raises(TypeError, match="different depth"):
            less_equal(a, b)


@given(st.sampled_from(LEASTS).flatmap(lambda least: st.tuples(*[times_like(least)] * 3)))
def test_times_of_any_kind_are_partially_ordered_and_sort_keys_extend_that(abc: tuple[Time, Time, Time]) -> None:
    a, b, c = abc
    assert less_equal(a, a)
    assert not (less_equal(a, b) and less_equal(b, a)) or a == b
    assert not (less_equal(a, b) and less_equal(b, c)) or less_equal(a, c)
    assert less_than(a, b) == (less_equal(a, b) and a != b)
    assert not less_than(a, b) or sort_key(a) < sort_key(b)
    assert (sort_key(a) == sort_key(b)) == (a == b)
    assert from_coordinates(coordinates(a)) == a


def test_tuples_are_ordered_by_the_first_part_that_differs_and_products_by_all_parts() -> None:
    assert less_equal((1, 9), (2, 0)) and not less_equal((2, 0), (1, 9))
    assert not less_equal(Product(1, 9), Product(2, 0)) and not less_equal(Product(2, 0), Product(1, 9))
    assert not less_equal((Product(1, 9), 0), (Product(2, 0), 0)), "where parts have no order, neither have tuples"


def test_times_of_different_kinds_are_not_compared() -> None:
    for a, b in [(3, (3, 0)), ((3, 0), (3, 0, 0)), (Divisor(3), 6), (Product((0, 0), 0), Product(0, 0))]:
        with pytest.raises(TypeError, match="times of different"):
            less_equal(a, b)
        assert not alike(a, b)


@pytest.mark.parametrize("least", LEASTS)
def test_the_least_time_of_a_kind_is_its_minimum(least: Time) -> None:
    assert least_of(least) == least and less_equal(least, least)
    assert (least_of(int), least_of(Divisor)) == (0, Divisor(1))


@given(st.sampled_from(LEASTS).flatmap(lambda least: st.lists(times_like(least), max_size=8)))
def test_work_lists_and_sorting_extend_the_order_of_times(times: list[Time]) -> None:
    for ordered in (in_order(times), emptied(times)):
        assert Counter(ordered) == Counter(times)
        assert not any(less_than(later, time) for place, time in enumerate(ordered) for later in ordered[place:])


def emptied(times: list[Time]) -> list[Time]:
    """Return the times in the order in which a work list gives them out."""
    work: list[Any] = []
    for number, time in enumerate(times):
        heappush(work, (sort_key(time), number))
    pop = pop_first(not times or is_total(sort_key(times[0])))
    return [times[pop(work)[1]] for _ in times]
