"""An event's time is the same microsecond after conversion in both directions, or is refused with the reason."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from math import inf, nan
from typing import Any

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.megaphone.base.event_unit import GREATEST, INFINITE, LEAST, NEVER, UNITS, EventUnit

SECONDS, MILLISECONDS, MICROSECONDS, DATETIME = UNITS.values()
YEAR_2242 = 2**33 * 1_000_000


@given(st.sampled_from([*UNITS.values()]), st.integers(LEAST, GREATEST))
def test_what_comes_out_goes_in_as_the_same_microsecond(unit: EventUnit, micros: int) -> None:
    if unit in (SECONDS, MILLISECONDS) and abs(micros) > YEAR_2242:
        micros -= micros % 1_000_000
    assert unit.micros(unit.value(micros)) == micros


def test_a_float_of_seconds_is_rounded_once() -> None:
    assert SECONDS.micros(SECONDS.value(4_456_496_229_979_893)) == 4_456_496_229_979_893


@given(st.sampled_from([*UNITS.values()]), st.tuples(*[st.integers(-YEAR_2242, YEAR_2242)] * 2))
def test_times_come_out_in_the_order_of_their_microseconds(unit: EventUnit, pair: tuple[int, int]) -> None:
    low, high = sorted(pair)
    assert unit.value(low) <= unit.value(high) <= unit.value(INFINITE)
    assert (unit.value(low) == unit.value(high)) == (low == high)


def test_the_watermarks_that_are_no_time_enclose_all_times() -> None:
    assert NEVER < LEAST <= GREATEST < INFINITE
    assert [unit.value(INFINITE) for unit in (SECONDS, MILLISECONDS, MICROSECONDS)] == [inf] * 3
    assert DATETIME.value(INFINITE) == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "value", "micros"),
    [
        (SECONDS, 1_700_000_000.000001, 1_700_000_000_000_001),
        (SECONDS, 0.1 + 0.2, 300_000),
        (SECONDS, -0.0000006, -1),
        (MILLISECONDS, 0.5, 500),
        (MICROSECONDS, 7.0, 7),
        (DATETIME, datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (DATETIME, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
    ],
)
def test_a_time_is_rounded_to_the_nearest_microsecond(unit: EventUnit, value: Any, micros: int) -> None:
    assert unit.micros(value) == micros and type(unit.micros(value)) is int


@pytest.mark.parametrize(
    ("unit", "value", "words"),
    [
        *(
            (unit, missing, "is a missing value, not a time; drop such records, or give them a time")
            for unit in (SECONDS, DATETIME)
            for missing in (None, nan, pandas.NaT, pandas.NA, numpy.datetime64("NaT"), Decimal("sNaN"))
        ),
        (SECONDS, inf, "inf is not a time: it must be finite"),
        (SECONDS, numpy.datetime64("2024-01-01"), "is a datetime64, .*; give it a time zone, as in pandas.Timestamp"),
        (DATETIME, pandas.Timestamp("2024-01-01"), "has no time zone; give it one"),
        (SECONDS, numpy.arange(2), "is a ndarray, not an int or float of seconds"),
        (MILLISECONDS, -inf, "-inf is not a time"),
        (SECONDS, True, "True is a bool, not an int or float of seconds"),
        (SECONDS, "2024-01-01", "'2024-01-01' is a str"),
        (SECONDS, Decimal(1), "is a Decimal"),
        (
            SECONDS,
            datetime(2024, 1, 1, tzinfo=UTC),
            'is a datetime, not an int .*; for datetimes the unit is "datetime"',
        ),
        (SECONDS, 1_700_000_000_000, "1700000000000 seconds is not in the years 1 to 9999; check the unit"),
        (SECONDS, -1e306, "not in the years"),
        (MICROSECONDS, GREATEST + 1, "not in the years"),
        (DATETIME, datetime(2024, 1, 1), "has no time zone; give it one"),
        (DATETIME, 5, 'is a int, not a datetime with a time zone; for numbers the unit is "s"'),
        (DATETIME, [], r"\[\] is a list, not a datetime with a time zone$"),
    ],
)
def test_what_is_no_time_is_refused_with_the_reason(unit: EventUnit, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        unit.micros(value)


def test_units_are_found_by_their_words() -> None:
    named = [EventUnit.SECONDS, EventUnit.MILLISECONDS, EventUnit.MICROSECONDS, EventUnit.DATETIME]
    assert [UNITS[word] for word in ("s", "ms", "us", "datetime")] == named
