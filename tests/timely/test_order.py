"""The order of times and the algebra of path summaries, against brute force over small times."""

import itertools
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.timely.order import Product, Time, coordinates, from_coordinates, less_equal, less_than
from megaflow.timely.path_summary import Summary, enter, feedback, identity, leave, summary_less_equal

small = st.integers(0, 3)


def times(depth: int) -> st.SearchStrategy[Time]:
    return st.tuples(*[small] * (depth + 1)).map(from_coordinates)


def summaries(source: int, target: int) -> st.SearchStrategy[Summary]:
    """All kinds of summaries that lead from one depth to the other."""
    return st.integers(1, min(source, target) + 1).flatmap(
        lambda kept: st.builds(Summary, st.tuples(*[small] * kept), st.tuples(*[small] * (target + 1 - kept)))
    )


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


def test_the_scope_summaries_do_what_their_names_say() -> None:
    nested = Product(Product(4, 5), 6)
    assert identity(2).apply(nested) == nested
    assert enter(0).apply(4) == Product(4, 0)
    assert enter(1).apply(Product(4, 5)) == Product(Product(4, 5), 0)
    assert leave(1).apply(Product(4, 5)) == 4
    assert leave(2).apply(nested) == Product(4, 5)
    assert feedback(0, 3).apply(4) == 7
    assert feedback(2, 3).apply(nested) == Product(Product(4, 5), 9)


@pytest.mark.parametrize(("adds", "tail"), [((), ()), ((), (0,)), ((-1,), ()), ((0,), (-1,))])
def test_a_summary_that_could_lower_a_time_is_refused(adds: tuple[int, ...], tail: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="never lowers"):
        Summary(adds, tail)


def test_a_time_of_too_shallow_a_scope_is_refused() -> None:
    with pytest.raises(TypeError, match="at least 2 coordinates, not 5"):
        identity(1).apply(5)
    with pytest.raises(TypeError, match="gives only 1 coordinates"):
        identity(0).then(identity(1))


@st.composite
def paths_and_a_time(draw: st.DrawFn) -> tuple[Summary, Summary, Time]:
    a, b, c = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return draw(summaries(a, b)), draw(summaries(b, c)), draw(times(a))


@given(paths_and_a_time())
def test_then_is_one_after_the_other(case: tuple[Summary, Summary, Time]) -> None:
    first, second, time = case
    assert first.then(second).apply(time) == second.apply(first.apply(time))


@st.composite
def paths_alike(draw: st.DrawFn) -> tuple[int, Summary, Summary]:
    source, target = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return source, draw(summaries(source, target)), draw(summaries(source, target))


@given(paths_alike())
def test_summaries_are_ordered_as_their_results_for_every_time(case: tuple[int, Summary, Summary]) -> None:
    source, a, b = case
    # Times up to 4 exceed every constant drawn, so they show every way of not being less or equal.
    expected = all(less_equal(a.apply(time), b.apply(time)) for time in all_times(source, below=5))
    assert summary_less_equal(a, b) == expected


@given(st.integers(0, 2).flatmap(lambda depth: st.tuples(summaries(depth, depth), times(depth), times(depth))))
def test_summaries_keep_the_order_of_times(case: tuple[Summary, Time, Time]) -> None:
    summary, a, b = case
    if less_equal(a, b):
        assert less_equal(summary.apply(a), summary.apply(b))


def test_summaries_to_different_depths_are_not_compared() -> None:
    with pytest.raises(TypeError, match="different depth"):
        summary_less_equal(identity(0), enter(0))
