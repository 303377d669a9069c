"""Calendar windows follow the clocks of the zone, also where these are set forward or back."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import groupby, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow import tumbling
from megaflow.errors import BuildError
from megaflow.event_time.calendar_windows import DAY, CalendarWindows
from megaflow.megaphone.base.event_unit import GREATEST, LEAST

MINUTE, HOUR = 60_000_000, 3_600_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CHANGES = [  # moments in UTC at which clocks change, or nothing happens
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),  # by half an hour
    ("America/Sao_Paulo", datetime(2017, 10, 15, 3, tzinfo=UTC)),  # midnight is skipped
    ("America/Sao_Paulo", datetime(2018, 2, 18, 2, tzinfo=UTC)),  # back across midnight
    ("America/Havana", datetime(2025, 11, 2, 5, tzinfo=UTC)),  # midnight comes twice
    ("America/St_Johns", datetime(2006, 10, 29, 2, 31, tzinfo=UTC)),  # from 0:01 back to 23:01
    ("America/St_Johns", datetime(2007, 3, 11, 3, 31, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a day is skipped
    ("Pacific/Kwajalein", datetime(1969, 9, 30, 13, tzinfo=UTC)),  # and one comes twice
    ("Asia/Pyongyang", datetime(2015, 8, 14, 15, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 1, 1, tzinfo=UTC)),
    ("UTC", datetime(2026, 3, 1, tzinfo=UTC)),
]


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def by_minutes(zone: str, offset: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the days between two times by checking the clock each minute. A day that has ended never comes back."""
    info, shift = ZoneInfo(zone), timedelta(microseconds=offset)

    def shown(time: int) -> date:
        furthest[0] = max(furthest[0], (EPOCH + timedelta(microseconds=time)).astimezone(info).replace(tzinfo=None))
        return (furthest[0] - shift).date()

    furthest = [datetime.min]
    starts = [next(times) for _, times in groupby(range(first, last, MINUTE), shown)]
    yield from pairwise(starts[1:])  # the first one began before


@settings(max_examples=40, deadline=None)
@example(CHANGES[3], 2 * HOUR)
@given(st.sampled_from(CHANGES), st.sampled_from([0, 0, 2 * HOUR, 150 * MINUTE, -HOUR, 25 * HOUR]))
def test_days_are_those_of_a_clock(change: tuple[str, datetime], offset: int) -> None:
    zone, moment = change
    windows = tumbling("1D", tz=zone, offset=timedelta(microseconds=offset))
    middle = micros(moment)
    days = [*by_minutes(zone, offset, middle - 3 * DAY, middle + 3 * DAY)]
    assert len(days) >= 3
    for start, end in days:
        for time in (start, start + 1, (start + end) // 2, end - 1):
            assert windows.window_of(time) == (start, end)


@settings(deadline=None)
@given(
    st.sampled_from([zone for zone, _ in CHANGES]),
    st.sampled_from(["1D", "3D", "1W", "2W", "1M", "3M", "12M"]),
    st.integers(LEAST, GREATEST),
    st.integers(-2 * DAY, 40 * DAY),
)
@example("Asia/Kathmandu", "12M", LEAST, 0)
@example("Pacific/Apia", "1M", GREATEST, 0)
@example("America/New_York", "1D", LEAST, 0)
def test_windows_follow_each_other(zone: str, size: str, time: int, offset: int) -> None:
    windows = tumbling(size, tz=zone, offset=timedelta(microseconds=offset))
    start, end = windows.window_of(time)
    assert start <= time < end
    assert windows.window_of(start) == windows.window_of(end - 1) == (start, end)
    assert windows.window_of(start - 1)[1] == start and windows.window_of(end)[0] == end


@given(st.dates(date(2, 1, 1), date(9998, 1, 1)))
def test_weeks_and_months_are_of_the_calendar(day: date) -> None:
    noon = micros(datetime(day.year, day.month, day.day, 12, tzinfo=UTC))

    def bounds(size: str) -> list[date]:
        return [(EPOCH + timedelta(microseconds=bound)).date() for bound in tumbling(size).window_of(noon)]

    monday = day - timedelta(days=day.weekday())
    assert bounds("1W") == [monday, monday + timedelta(days=7)]
    first = day.replace(day=1)
    assert bounds("1M") == [first, (first + timedelta(days=31)).replace(day=1)]
    assert bounds("12M") == [date(day.year, 1, 1), date(day.year + 1, 1, 1)]
    assert bounds("3M")[0] == date(day.year, (day.month - 1) // 3 * 3 + 1, 1)


@given(st.integers(LEAST + 400 * DAY, GREATEST - 400 * DAY))
def test_days_in_utc_are_windows_of_one_size(time: int) -> None:
    assert tumbling("1D").window_of(time) == (time // DAY * DAY, time // DAY * DAY + DAY)


def test_days_of_a_change_have_23_and_25_hours() -> None:
    windows = tumbling("1D", tz="Europe/Berlin")
    for month, day, hours in ((3, 29, 23), (10, 25, 25), (7, 1, 24)):
        start, end = windows.window_of(micros(datetime(2026, month, day, 12, tzinfo=UTC)))
        assert (end - start) / HOUR == hours


def test_bounds_that_are_datetimes_show_the_zone() -> None:
    windows = tumbling("1D", tz="Europe/Berlin")
    shown = windows.local(datetime(2026, 3, 28, 23, tzinfo=UTC))
    assert shown.isoformat() == "2026-03-29T00:00:00+01:00"
    assert windows.local(datetime.max.replace(tzinfo=UTC)) == datetime.max.replace(tzinfo=UTC)
    assert windows.local(7) == 7


def test_a_zone_is_a_name_or_a_tzinfo() -> None:
    assert tumbling("1D", tz=ZoneInfo("Europe/Berlin")) == tumbling("1D", tz="Europe/Berlin")
    five = timezone(timedelta(hours=5))
    assert tumbling("2D", tz=five) == CalendarWindows(2, "D", five)
    assert tumbling("2D", tz=five).window_of(0) == (-5 * HOUR, 2 * DAY - 5 * HOUR)


def test_invalid_sizes_and_zones_are_refused() -> None:
    for size in ("1m", "1h", "day", "0D", "1.5D", "D", "", "1Y", "1D "):
        with pytest.raises(BuildError, match=r'such as "1D", "1W" or "1M"'):
            tumbling(size)
    with pytest.raises(BuildError, match=r"no such time zone; did you mean 'Europe/Berlin'"):
        tumbling("1D", tz="Europe/Berln")
    for zone in ("", "Europe", "../etc/passwd", "\0"):
        with pytest.raises(BuildError, match="no such time zone"):
            tumbling("1D", tz=zone)
    with pytest.raises(BuildError, match="name of a zone"):
        tumbling("1D", tz=1)  # type: ignore[call-overload]
    with pytest.raises(BuildError, match="tz applies to windows of the calendar"):
        tumbling(86_400, tz="Europe/Berlin")  # type: ignore[call-overload]
    with pytest.raises(BuildError, match="offset must be a number of seconds"):
        tumbling("1D", offset="6h")  # type: ignore[call-overload]
