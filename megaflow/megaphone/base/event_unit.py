"""Units of event time: inside, times are ints of microseconds since 1970; outside, the program chooses the unit.

An `EventUnit` is numbers of seconds, milliseconds or microseconds since 1970 (or since another start of the program's
choice), or datetimes with a time zone. A number may be an int or a float; a float of seconds keeps its microseconds up
to the year 2242. Times are in the years 1 to 9999, whatever the unit.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, isfinite
from typing import Any, ClassVar, Final, Protocol

from megaflow.quick_dataclass import dataclass

NEVER: Final = -(1 << 63)
"""Less than every time: the watermark before there is one."""
INFINITE: Final = (1 << 63) - 1
"""Greater than every time: the watermark when all lines are read."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
LEAST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first microsecond of the year 1."""
GREATEST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The last microsecond of the year 9999."""
_PRODUCTS_MAX: Final = 2**32 * 1_000_000
"""Microseconds, in the year 2106, below which a product that is rounded twice is right."""


class TimeUnit(Protocol):
    """An EventUnit, or an object that becomes one with the first time."""

    def micros(self, value: Any) -> int:
        """Return a time in microseconds. Raises ValueError with the reason."""

    def value(self, micros: int) -> Any:
        """Return a time in the program's form."""


@dataclass(frozen=True, slots=True)
class EventUnit:
    """The unit in which a program counts event time."""

    SECONDS: ClassVar[EventUnit]
    MILLISECONDS: ClassVar[EventUnit]
    MICROSECONDS: ClassVar[EventUnit]
    DATETIME: ClassVar[EventUnit]

    word: str  # by which programs name it
    plural: str
    scale: int  # microseconds in one; 0: its times are not numbers

    def micros(self, value: Any) -> int:
        """Return a time in microseconds, a float rounded to the nearest. Raises ValueError with the reason.

        >>> EventUnit.SECONDS.micros(1.5), EventUnit.MILLISECONDS.micros(-2)
        (1500000, -2000)
        >>> EventUnit.DATETIME.micros(datetime(1970, 1, 1, 0, 1, tzinfo=UTC))
        60000000
        """
        micros: int
        kind, scale = type(value), self.scale
        if scale and kind is int:
            micros = value * scale
        elif scale and kind is not bool and isinstance(value, (int, float)):
            if not isfinite(value):
                raise ValueError(_missing(value) or f"{value!r} is not a time: it must be finite")
            within = min(max(value, LEAST), GREATEST + 1.0)
            micros = round(within * scale)
            if not -_PRODUCTS_MAX < micros < _PRODUCTS_MAX:
                whole = int(within)
                micros = whole * scale + round((within - whole) * scale)
        elif not scale and isinstance(value, datetime):
            if value.tzinfo is None or value.utcoffset() is None:
                raise ValueError(
                    _missing(value) or f"{value!r} has no time zone; give it one, as in .replace(tzinfo=UTC)"
                )
            micros = (value - _EPOCH) // _MICROSECOND
        else:
            raise ValueError(self._reason(value))
        if not LEAST <= micros <= GREATEST:
            raise ValueError(f"{value!r} {self.plural} is not in the years 1 to 9999; check the unit")
        return micros

    def value(self, micros: int) -> Any:
        """Return a time in the program's form: an int if it is whole, a float if not, or a datetime in UTC.

        INFINITE is the float `inf`. A time outside the years 1 to 9999 becomes the first or the last datetime.

        >>> EventUnit.SECONDS.value(1_500_000), EventUnit.SECONDS.value(2_000_000), EventUnit.SECONDS.value(INFINITE)
        (1.5, 2, inf)
        >>> EventUnit.DATETIME.value(60_000_000)
        datetime.datetime(1970, 1, 1, 0, 1, tzinfo=datetime.timezone.utc)
        """
        scale = self.scale
        if not scale:
            return _EPOCH + timedelta(microseconds=min(max(micros, LEAST), GREATEST))
        if micros >= INFINITE:
            return inf
        return micros / scale if micros % scale else micros // scale

    def _reason(self, value: object) -> str:
        if reason := _missing(value):
            return reason
        wanted = "a datetime with a time zone" if not self.scale else f"an int or float of {self.plural}"
        other = ""
        if isinstance(value, datetime):
            other = '; for datetimes the unit is "datetime"'
        elif not self.scale and isinstance(value, (int, float)):
            other = '; for numbers the unit is "s", "ms" or "us"'
        elif type(value).__name__ == "datetime64":  # of numpy
            other = "; give it a time zone, as in pandas.Timestamp(value, tz='UTC')"
        return f"{value!r:.200} is a {type(value).__name__}, not {wanted}{other}"


def _missing(value: object) -> str:
    """Return why a value is missing: None, NaN, or NaT and NA of pandas; return "" for other values."""
    try:
        is_missing = value is None or type(value).__name__ == "NAType" or bool(value != value)
    except (TypeError, ValueError):  # an array, which compares its elements
        is_missing = False
    except ArithmeticError:  # decimal's signalling NaN refuses any comparison
        is_missing = True
    return f"{value!r} is a missing value, not a time; drop such records, or give them a time" if is_missing else ""


def seconds_meant(unit: EventUnit | None, micros: int) -> str:
    """Return a hint if a time is probably in seconds of 2001 to 2036, and not in this unit; otherwise "".

    >>> seconds_meant(EventUnit.MILLISECONDS, 1_700_000_000 * 1000)
    'its times, such as 1700000000 ms, are in January 1970; if they are seconds, leave out unit="ms"'
    >>> seconds_meant(EventUnit.MILLISECONDS, 5000), seconds_meant(EventUnit.SECONDS, 1_700_000_000 * 1_000_000)
    ('', '')
    """
    if unit is None or unit not in (EventUnit.MILLISECONDS, EventUnit.MICROSECONDS):
        return ""
    given = micros // unit.scale
    if not 1_000_000_000 <= given < 2_100_000_000:
        return ""
    return (
        f"its times, such as {given} {unit.word}, are in January 1970; if they are seconds, leave out "
        f'unit="{unit.word}"'
    )


EventUnit.SECONDS = EventUnit("s", "seconds", 1_000_000)
EventUnit.MILLISECONDS = EventUnit("ms", "milliseconds", 1_000)
EventUnit.MICROSECONDS = EventUnit("us", "microseconds", 1)
EventUnit.DATETIME = EventUnit("datetime", "datetimes", 0)

UNITS: Final = {
    unit.word: unit for unit in (EventUnit.SECONDS, EventUnit.MILLISECONDS, EventUnit.MICROSECONDS, EventUnit.DATETIME)
}
"""Word -> unit."""
