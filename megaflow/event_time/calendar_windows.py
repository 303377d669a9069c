"""Windows of the calendar in a time zone: days, weeks and months, or several of these, as clocks there show them.

A day has 23 or 25 hours if the clocks change on it. So windows are not of one size, and each bound is looked up.

1. A window begins at the first moment at which clocks in the zone show its date or a later one, at midnight or `offset`
   after it. So windows follow each other without gaps and overlaps, also where the clocks skip midnight or a whole day,
   or show midnight twice.
2. Weeks begin on Mondays. Several days count from 1 January 1970, several weeks from the Monday before it, and several
   months from January of the year 0: "3M" are quarters.
3. Times are ints of microseconds since 1970 in UTC, as everywhere. A zone only gives its distance from UTC at such a
   time. Between two clock changes that distance is fixed; two changes are more than two days apart.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from importlib import import_module
from typing import Any, Final

from megaflow.errors import BuildError, similar
from megaflow.megaphone.base.event_unit import GREATEST, LEAST
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import shown
from megaflow.timely.dataflow.error_notes import user_line

DAY: Final = 86_400_000_000
_CALENDAR: Final = re.compile(r"([1-9]\d{0,3})([DWM])")
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MONDAY: Final = 3  # days from a Monday to 1 January 1970
_AFTER: Final = 10_000 * 12  # the number of the first month that no date has
_AFTER_DAY: Final = date.max.toordinal() + 1 - _EPOCH_DAY


@dataclass(frozen=True, slots=True)
class CalendarWindows:
    """Windows of `count` days ("D"), weeks ("W") or months ("M") in a zone, `offset` microseconds after midnight."""

    count: int
    unit: str
    zone: tzinfo
    offset: int = 0

    def window_of(self, time: int) -> tuple[int, int]:
        """Return the start and the end of the window that contains a time. Cost: some microseconds.

        >>> berlin = calendar_windows("1D", "Europe/Berlin", 0)
        >>> start, end = berlin.window_of(1_774_700_000 * 1_000_000)    # 28 March 2026, before clocks are set forward
        >>> (end - start) / DAY * 24, [(b - a) / DAY * 24 for a, b in [berlin.window_of(end)]]
        (24.0, [23.0])
        """
        index = self._index(time + self._distance(time) - self.offset)
        start = self._start(index)
        while (end := self._start(index + 1)) <= time:  # clocks were set back over the bound, or skipped a window
            index, start = index + 1, end
        return start, end

    def local(self, bound: Any) -> Any:
        """Return the bound of a window as clocks in the zone show it, if it is a datetime."""
        if not isinstance(bound, datetime):
            return bound
        micros = (bound - _EPOCH) // _MICROSECOND
        if not LEAST + 2 * DAY < micros < GREATEST - 2 * DAY:
            return bound
        return bound.astimezone(timezone(timedelta(microseconds=self._distance(micros))))

    def _index(self, local: int) -> int:
        """Return the number of the window that contains a local time."""
        day = local // DAY
        if self.unit == "D":
            return day // self.count
        if self.unit == "W":
            return (day + _MONDAY) // 7 // self.count
        return _month_of(day) // self.count

    def _start(self, index: int) -> int:
        """Return the time at which a window begins."""
        if self.unit == "D":
            day = index * self.count
        elif self.unit == "W":
            day = index * self.count * 7 - _MONDAY
        else:
            day = _first_day(index * self.count)
        return self._first(day * DAY + self.offset)

    def _first(self, local: int) -> int:
        """Return the first time at which clocks show a local time, or a later one."""
        low, high = local - DAY, local + DAY
        before, after = self._distance(low), self._distance(high)
        if before != after:
            change = low + bisect_left(range(low, high), True, key=lambda time: self._distance(time) != before)
            if local - before >= change:
                return max(change, local - after)
        return local - before

    def _distance(self, time: int) -> int:
        """Return how far clocks in the zone are ahead of UTC at a time, in microseconds."""
        time = min(max(time, LEAST + 2 * DAY), GREATEST - 2 * DAY)
        distance = (_EPOCH + timedelta(microseconds=time)).astimezone(self.zone).utcoffset()
        assert distance is not None, "it has a zone"
        return distance // _MICROSECOND


def calendar_windows(size: str, tz: str | tzinfo, offset: int) -> CalendarWindows:
    """Return the windows that `tumbling` makes of a size such as "1D". Raises BuildError."""
    found = _CALENDAR.fullmatch(size)
    if found is None:
        raise BuildError(
            f"tumbling(size={size!r:.80}) ({user_line()}): a size of the calendar is a number with D, W or M, such as "
            '"1D", "1W" or "1M"; give other lengths as seconds or a timedelta'
        )
    return CalendarWindows(int(found[1]), found[2], zone_of(tz), offset)


def zone_of(tz: str | tzinfo) -> tzinfo:
    """Return a time zone by its name. Raises BuildError."""
    if isinstance(tz, tzinfo):
        return tz
    if not isinstance(tz, str):
        raise BuildError(
            f'tumbling(tz={tz!r:.80}) ({user_line()}): tz must be the name of a zone, such as "Europe/Berlin", or a '
            f"tzinfo, not {shown(tz)}"
        )
    if tz == "UTC":
        return UTC
    zoneinfo = import_module("zoneinfo")  # takes 3 ms, and few programs need it
    try:
        zone: tzinfo = zoneinfo.ZoneInfo(tz)
    except (KeyError, ValueError, OSError):  # OSError: the name is one of a folder
        names = zoneinfo.available_timezones()
        near = similar(tz, names)
        hint = f"did you mean {near!r}?" if near else "use a name such as 'Europe/Berlin'"
        if not names:
            hint = "this machine has no time zones; install the package tzdata"
        raise BuildError(f"tumbling(tz={tz!r:.80}) ({user_line()}): there is no such time zone; {hint}") from None
    return zone


def _month_of(day: int) -> int:
    """Return the number of the month of a day since 1970, from January of the year 0.

    >>> _month_of(0) == 1970 * 12, _month_of(_first_day(_AFTER)) == _AFTER, _month_of(_first_day(-5)) == -5
    (True, True, True)
    """
    if day >= _AFTER_DAY:
        return _AFTER + (day - _AFTER_DAY) // 31
    if day < 1 - _EPOCH_DAY:
        return 12 + (day - 1 + _EPOCH_DAY) // 31
    found = date.fromordinal(day + _EPOCH_DAY)
    return found.year * 12 + found.month - 1


def _first_day(month: int) -> int:
    """Return the first day of a month, in days since 1970. Outside of the years 1 to 9999 months have 31 days."""
    if month >= _AFTER:
        return _AFTER_DAY + 31 * (month - _AFTER)
    if month < 12:
        return 1 - _EPOCH_DAY - 31 * (12 - month)
    return date(month // 12, month % 12 + 1, 1).toordinal() - _EPOCH_DAY
