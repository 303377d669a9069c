"""The algebra of path summaries, against brute force over small times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.testing.reference import summary_less_equal, then
from megaflow.timely.order import Product, Time, alike, less_equal, less_than
from megaflow.timely.path_summary import Summary, advancing, enter, feedback, identity, leave
from tests.timely.test_order import all_times, small, times
from tests.timely.times import LEASTS, Divisor, Times, steps_like, times_like


def summaries(source: int, target: int) -> st.SearchStrategy[Summary]:
    """Draw all kinds of summaries that lead from one depth to the other."""
    return st.integers(1, min(source, target) + 1).flatmap(
        lambda kept: st.builds(Summary, st.tuples(*[small] * kept), st.tuples(*[small] * (target + 1 - kept)))
    )


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
        then(identity(0), identity(1))


@st.composite
def paths_and_a_time(draw: st.DrawFn) -> tuple[Summary, Summary, Time]:
    a, b, c = draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return draw(summaries(a, b)), draw(summaries(b, c)), draw(times(a))


@given(paths_and_a_time())
def test_then_is_one_after_the_other(case: tuple[Summary, Summary, Time]) -> None:
    first, second, time = case
    assert then(first, second).apply(time) == second.apply(first.apply(time))


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


@st.composite
def steps_and_times(draw: st.DrawFn) -> tuple[Time, Summary, Summary, Time, Time]:
    """Draw a kind of times, two paths that stay in its scope, and two times."""
    least = draw(st.sampled_from(LEASTS))
    first, second = (advancing(draw(steps_like(least)), least) for _ in range(2))
    return least, first, second, draw(times_like(least)), draw(times_like(least))


@given(steps_and_times())
def test_steps_of_any_kind_move_times_on_keep_their_order_and_follow_each_other(
    case: tuple[Time, Summary, Summary, Time, Time],
) -> None:
    least, first, second, a, b = case
    moved = first.apply(a)
    assert moved is not None and alike(moved, least) and less_equal(a, moved)
    assert less_than(a, moved) == (first != advancing(0, least))
    both = then(first, second)
    assert both is not None and both.apply(a) == second.apply(moved)
    if less_equal(a, b):
        assert less_equal(moved, first.apply(b))
    if summary_less_equal(first, second):
        assert less_equal(moved, second.apply(a))
    assert summary_less_equal(first, both) and summary_less_equal(second, both)


def test_the_book_a_path_may_bring_a_time_nowhere() -> None:
    """One path adds one to the largest number there is. Two other paths each add half of it."""
    assert Summary((1,)).apply(4) == 5
    most = Times(2, largest=4)
    assert Summary((most,)).apply(Divisor(2)) == Divisor(4)
    assert Summary((most,)).apply(Divisor(4)) is None
    assert Summary((0, most), (0,)).apply(Product((1, 2), Divisor(3))) is None
    assert then(Summary((Times(3, largest=4),)), Summary((Times(2, largest=4),))) is None
    assert advancing((1, most), (0, Divisor(1))).apply((7, Divisor(4))) is None


def test_a_step_that_changes_nothing_is_the_identity_however_it_is_written() -> None:
    least = Product((0, 0), Product(0, 0))
    for step in (0, Product(0, 0), Product((0, 0), 0), Product((0, 0), Product(0, 0))):
        assert advancing(step, least) == identity(1)
