"""Accumulators give the result of a plain loop over all records of a window, in whatever parts these come."""

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.accumulators import (
    Accumulator,
    Accumulators,
    Collect,
    Count,
    Mean,
    Sum,
    best,
    by_fold,
    by_reduction,
    extreme,
)


def add_to(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def makers() -> list[tuple[Accumulator, Any]]:
    """Each kind of aggregation, with its result for records in the order of their timestamps."""
    return [
        (Count(), len),
        (Sum("window"), sum),
        (Mean("window"), lambda values: sum(values) / len(values)),
        (extreme("window", "min", None, greatest=False), min),
        (extreme("window", "max", None, greatest=True), max),
        (extreme("window", "min", abs, greatest=False), lambda values: min(values, key=abs)),
        (extreme("window", "max", abs, greatest=True), lambda values: max(values, key=abs)),
        (best("window", 3, None), lambda values: sorted(values, reverse=True)[:3]),
        (best("window", 3, abs), lambda values: sorted(values, key=lambda value: -abs(value))[:3]),
        (Collect(), list),
        (by_reduction("window", lambda a, b: a + b), sum),
        (by_fold("window", [], add_to, lambda a, b: a + b, is_merged=True), list),
        (by_fold("window", 0, lambda count, value: count + 1, lambda a, b: a + b, is_merged=True), len),
    ]


@given(
    st.lists(st.lists(st.lists(st.integers(-99, 99), min_size=1, max_size=4), min_size=1, max_size=3), min_size=1),
    st.integers(0, 12),
)
def test_it_makes_what_a_plain_loop_makes(parts: list[list[list[int]]], kind: int) -> None:
    accumulator, plain = makers()[kind]
    numbers = iter(range(10_000))
    made = []
    for part in parts:
        accumulated = None
        for values in part:
            accumulated = accumulator.add(accumulated, [(next(numbers), value) for value in values])
        made.append(accumulated)
    before = repr(made)
    expected = plain([value for part in parts for values in part for value in values])
    assert accumulator.result(accumulator.together(made)) == expected
    assert repr(made) == before, "the parts are as they were"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers())), st.integers(1, 5))
def test_values_are_collected_by_timestamp_and_then_by_arrival(records: list[tuple[int, int]], size: int) -> None:
    accumulated: Any = []
    for start in range(0, len(records), size):
        accumulated = Collect().add(accumulated, records[start : start + size])
    assert Collect().result(accumulated) == [value for _, value in sorted(records, key=lambda record: record[0])]


@pytest.mark.parametrize("kind", range(13))
def test_what_is_together_shares_nothing_that_changes_with_its_parts(kind: int) -> None:
    accumulator, _ = makers()[kind]
    part = accumulator.add(None, [(1, 5)])
    together = accumulator.together([part])
    before = repr(part)
    accumulator.add(together, [(2, 7)])
    assert repr(part) == before


def test_a_merge_that_gives_one_of_its_arguments_gives_a_copy_of_it() -> None:
    longer = by_fold("window", [], add_to, lambda a, b: max(a, b, key=len), is_merged=True)
    long, short = [1, 2], [3]
    assert longer.together([short, long]) == long and longer.together([short, long]) is not long


def test_several_are_made_beside_one_another() -> None:
    several = Accumulators([Count(), Sum("window")])
    first, second = several.begin([(1, 10), (2, 20)]), several.begin([(3, 5)])
    several.add_to(second, [(4, 6)])
    assert several.results(several.together([first, second])) == [4, 41]
    with pytest.raises(ProgramError, match=r"2 aggregations.*now has 1"):
        Accumulators([Count()]).add_to(first, [(1, 1)])


def test_the_best_values_keep_no_more_than_the_program_wants() -> None:
    top = best("window", 2, len)
    kept = top.add(None, [(1, "a"), (2, "bbb"), (3, "cc"), (4, "dd")])
    assert kept == [(2, "bbb"), (3, "cc")] and top.result(kept) == ["bbb", "cc"]


@pytest.mark.parametrize("kind", [numpy.int8, numpy.int32, numpy.uint16, numpy.int64, numpy.float16, numpy.float32])
def test_sums_of_narrow_numbers_of_numpy_are_exact(kind: Any) -> None:
    value = kind(100)
    records = [(time, value) for time in range(1000)]
    summed = Sum("w").add(None, records)
    assert summed == 100_000 and type(summed) is type(value.item())
    assert Sum("w").together([kind(100)] * 1000) == 100_000, "of a store of an older version"
    assert Sum("w").add(kind(100), records) == 100_100
    assert Mean("w").result(Mean("w").add(None, records)) == 100


def test_a_sum_of_lengths_of_numpy_is_one_of_them() -> None:
    second = numpy.timedelta64(1, "s")
    assert Sum("w").add(None, [(0, second), (1, second)]) == numpy.timedelta64(2, "s")


def test_sums_are_of_numbers_of_any_kind() -> None:
    assert Sum("w").add(None, [(0, Fraction(1, 3)), (1, 1)]) == Fraction(4, 3)
    assert Mean("w").result(Mean("w").add(None, [(0, 1), (0, 2)])) == 1.5


@pytest.mark.parametrize(
    ("accumulator", "values", "said"),
    [
        (Sum("clicks"), ["a"], "clicks: the value 'a' is a str, but only numbers have a sum"),
        (Mean("clicks"), [None], "clicks: the value None is a NoneType, but only numbers have a mean"),
        (extreme("clicks", "min", None, False), [1, "a"], "min cannot compare 'a' of type str with 1 of type int"),
        (extreme("clicks", "max", None, True), [None], "clicks: the value None cannot be ordered"),
        (extreme("clicks", "max", {"a": 1, "b": "x"}.get, True), ["a", "b"], "returned for 'b', with 1 of type int"),
        (extreme("clicks", "min", lambda value: None, False), ["a"], "by= returned None for the value 'a', which"),
        (best("clicks", 2, None), [{1}], "clicks: the value .1. cannot be ordered, because sets"),
        (by_reduction("clicks", lambda a, b: None), [1, 2], "clicks: the function, given 2, returned None to reduce"),
        (by_reduction("clicks", lambda a, b: None), [None], "clicks: the first value, None, returned None"),
        (by_fold("clicks", 0, lambda a, b: None, None, is_merged=False), [1], "given 1, returned None to fold"),
    ],
)
def test_values_of_which_nothing_can_be_made_are_refused(accumulator: Any, values: list[Any], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        accumulator.add(None, list(enumerate(values)))


def test_functions_are_asked_for_when_the_dataflow_is_built() -> None:
    with pytest.raises(BuildError, match=r"clicks .*: fold needs merge"):
        by_fold("clicks", 0, lambda a, b: a, None, is_merged=True)
    with pytest.raises(BuildError, match="not a function, because each"):
        by_fold("clicks", Counter, lambda a, b: a, None, is_merged=False)
    with pytest.raises(BuildError, match="the function of reduce must be a function, not 3"):
        by_reduction("clicks", 3)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match=r"clicks .*: by must be a function, not 3"):
        extreme("clicks", "max", 3, greatest=True)
    for n in (0, True, "3", None):
        with pytest.raises(BuildError, match=r"top of clicks .*: n must be an int of at least 1"):
            best("clicks", n, None)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="merge must be a function"):
        by_fold("clicks", 0, lambda a, b: a, 7, is_merged=True)  # type: ignore[arg-type]
