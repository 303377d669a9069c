"""Whatever parts a window's records come in, what is made of them is what a plain loop over all of them makes."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.accumulators import (
    Accumulator,
    Accumulators,
    Collect,
    Count,
    Extreme,
    Mean,
    Sum,
    by_fold,
    by_reduction,
)


def add_to(values: list[Any], value: Any) -> list[Any]:
    values.append(value)
    return values


def makers() -> list[tuple[Accumulator, Any]]:
    """Each kind, and what it makes of records that come in the order of their timestamps."""
    return [
        (Count(), len),
        (Sum("window"), sum),
        (Mean("window"), lambda values: sum(values) / len(values)),
        (Extreme("min", min, "window"), min),
        (Extreme("max", max, "window"), max),
        (Collect(), list),
        (by_reduction("window", lambda a, b: a + b), sum),
        (by_fold("window", [], add_to, lambda a, b: a + b, is_merged=True), list),
        (by_fold("window", 0, lambda count, value: count + 1, lambda a, b: a + b, is_merged=True), len),
    ]


@given(
    st.lists(st.lists(st.lists(st.integers(-99, 99), min_size=1, max_size=4), min_size=1, max_size=3), min_size=1),
    st.integers(0, 8),
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


@pytest.mark.parametrize("kind", range(9))
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


def test_of_equal_extremes_the_first_is_it() -> None:
    greatest = Extreme("max", max, "window")
    assert repr(greatest.together([greatest.add(None, [(1, 1.0), (2, 1)]), greatest.add(None, [(3, True)])])) == "1.0"


def test_sums_are_of_numbers_of_any_kind() -> None:
    assert Sum("w").add(None, [(0, Fraction(1, 3)), (1, 1)]) == Fraction(4, 3)
    assert Mean("w").result(Mean("w").add(None, [(0, 1), (0, 2)])) == 1.5


@pytest.mark.parametrize(
    ("accumulator", "values", "said"),
    [
        (Sum("clicks"), ["a"], "clicks: the value 'a' is a str, but only numbers have a sum"),
        (Mean("clicks"), [None], "clicks: the value None is a NoneType, but only numbers have a mean"),
        (Extreme("min", min, "clicks"), [1, "a"], "clicks: min needs values that can be compared.*int, str"),
        (Extreme("max", max, "clicks"), [None], "clicks: the value None cannot be ordered"),
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
    with pytest.raises(BuildError, match="merge must be a function"):
        by_fold("clicks", 0, lambda a, b: a, 7, is_merged=True)  # type: ignore[arg-type]
