"""Windows of event time, as a program asks for them: windows of one size, days, weeks and months, and sessions.

All internal times are ints of microseconds. A window is half open: [start, end) contains its start and not its end. A
watermark w promises that nothing below w comes later. So a window is complete as soon as w >= end.

Windows of one size share *panes*: intervals as long as the greatest common divisor of size and step. Each bound of a
window is a bound of a pane. A record is put into one pane, however many windows contain it.

           every = 4, size = 6, so panes of 2:   |  |  |  |  |  |  |
                                     [0, 6)       -------
                                     [4, 10)            --------
"""

from __future__ import annotations

from datetime import timedelta, tzinfo
from math import gcd
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

from megaflow.errors import BuildError
from megaflow.event_time.calendar_windows import CalendarWindows, calendar_windows
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import shown
from megaflow.timely.dataflow.error_notes import user_line

LONGEST: Final = 10_000 * 366 * 86_400
"""Seconds: more than all the years 1 to 9999."""
_MICROSECOND: Final = timedelta(microseconds=1)

K = TypeVar("K")
R = TypeVar("R")
Length: TypeAlias = int | float | timedelta  # a number of seconds, or a timedelta
Kind: TypeAlias = Literal["early", "final", "removed"]  # of a result


class Window(NamedTuple):
    """Bounds of a window, in the form of the stream's timestamps. `start` is in the window, `end` is not.

    >>> Window(60, 120).end, Window(60, 120).is_final
    (120, True)
    """

    start: Any
    end: Any

    @property
    def is_final(self) -> bool:
        """Whether the result is the last one of the window, of all records that are not late for it."""
        return True


class EarlyWindow(Window):
    """Bounds of a window whose result is not final: `emit=` asked for it, or a stop closed the window early.

    It equals the `Window` with the same bounds, so results of one window have one key.

    >>> EarlyWindow(60, 120).is_final, EarlyWindow(60, 120) == Window(60, 120), EarlyWindow(60, 120)
    (False, True, EarlyWindow(start=60, end=120))
    """

    __slots__ = ()

    @property
    def is_final(self) -> bool:
        """Whether the result is the last one of the window: always False."""
        return False


class WindowResult(NamedTuple, Generic[K, R]):
    """Result of a window, with its kind, as `marks=True` asks for it.

    "early" results may be followed by others of the same key and window, a "final" one is the last. "removed" ones are
    the last early results of a session whose bounds have changed, with the old bounds: delete what was stored of them.

    >>> result = WindowResult("ada", EarlyWindow(60, 120), 3, "early")
    >>> result.key, result.window.start, result.value, result.kind
    ('ada', 60, 3, 'early')
    """

    key: K
    window: Window
    value: R
    kind: Kind


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """Windows of one size. One begins at `offset` and at each multiple of `every` after it. All in microseconds.

    Invariant: 0 < every <= size, 0 <= offset < every.
    """

    size: int
    every: int
    offset: int = 0

    @property
    def pane(self) -> int:
        """Length of a pane."""
        return gcd(self.size, self.every)

    def first_end_after(self, time: int) -> int:
        """Return the least end of a window that is greater than a time.

        >>> windows = AlignedWindows(6, 4)
        >>> [windows.first_end_after(time) for time in (0, 1, 2, 5, 6)]
        [2, 2, 6, 6, 10]
        """
        return time - (time - self.offset - self.size) % self.every + self.every

    def last_end_of(self, time: int) -> int:
        """Return the end of the last window that contains a time.

        >>> windows = AlignedWindows(6, 4)
        >>> [windows.last_end_of(time) for time in (0, 3, 4, 5)]
        [6, 6, 10, 10]
        """
        return time - (time - self.offset) % self.every + self.size


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Sessions: runs of a key's records, each less than `gap` microseconds after the one before.

    A session lasts from the time of its first record to that of its last one plus the gap.
    """

    gap: int


Windows: TypeAlias = AlignedWindows | CalendarWindows | SessionWindows


@overload
def tumbling(size: Length, offset: Length = ...) -> AlignedWindows: ...
@overload
def tumbling(size: str, offset: Length = ..., tz: str | tzinfo = ...) -> CalendarWindows: ...
def tumbling(
    size: Length | str, offset: Length = 0, tz: str | tzinfo | None = None
) -> AlignedWindows | CalendarWindows:
    """Make windows that follow one another: each timestamp is in exactly one. `size` is in seconds, or a timedelta.

    Windows begin at multiples of `size` since 1970 in UTC, or later by `offset`.

    `tumbling("1D", tz="Europe/Berlin")` makes days as clocks in the zone show them, of 23 or 25 hours if the clocks
    change. "1W" makes weeks that begin on Mondays, "1M" months, "3M" quarters. They begin at midnight, or later by
    `offset`. The zone is UTC unless `tz` names another one. If timestamps are datetimes, so are the bounds, with the
    zone's distance from UTC. Raises BuildError for an invalid length or zone.

    >>> tumbling(60)
    AlignedWindows(size=60000000, every=60000000, offset=0)
    >>> tumbling(timedelta(days=7), offset=timedelta(days=4)) == tumbling(604_800, 345_600)
    True
    """
    shift = length_of("tumbling", "offset", offset, is_length=False)
    if isinstance(size, str):
        return calendar_windows(size, "UTC" if tz is None else tz, shift)
    length = length_of("tumbling", "size", size)
    if tz is not None:
        raise BuildError(
            f'tumbling(size={size!r}, tz={tz!r:.80}) ({user_line()}): tz applies to windows of the calendar: "1D", '
            '"1W", "1M" or several of these'
        )
    return AlignedWindows(length, length, shift % length)


def sliding(size: Length, every: Length, offset: Length = 0) -> AlignedWindows:
    """Make overlapping windows: one of `size` begins every `every`, so a timestamp is in size / every windows.

    Lengths are numbers of seconds, or timedeltas. Each record is kept once, in a pane as long as the greatest common
    divisor of the two. So a window costs size / divisor. `offset` is as in `tumbling`. Raises BuildError for an invalid
    length, and if there would be gaps between windows.

    >>> sliding(600, every=60).pane
    60000000
    """
    length, step = length_of("sliding", "size", size), length_of("sliding", "every", every)
    if step > length:
        raise BuildError(
            f"sliding(size={size!r}, every={every!r}) ({user_line()}): every must be at most size; otherwise records "
            "between two windows would be in none"
        )
    return AlignedWindows(length, step, length_of("sliding", "offset", offset, is_length=False) % step)


def session(gap: Length) -> SessionWindows:
    """Make sessions: a key's records, each less than `gap` (seconds or a timedelta) after the one before, in any order.

    A session ends `gap` after its last record: its window is (first timestamp, last timestamp plus gap). Raises
    BuildError for an invalid gap.

    >>> session(timedelta(minutes=30))
    SessionWindows(gap=1800000000)
    """
    return SessionWindows(length_of("session", "gap", gap))


def length_of(verb: str, parameter: str, given: Any, is_length: bool = True) -> int:
    """Return a length of time in microseconds. Raises BuildError; with `is_length` also unless it is positive.

    >>> length_of("session", "gap", 0.25), length_of("tumbling", "offset", timedelta(minutes=-1), is_length=False)
    (250000, -60000000)
    """
    micros = None
    if isinstance(given, timedelta):
        micros = given // _MICROSECOND
    elif isinstance(given, (int, float)) and not isinstance(given, bool) and abs(given) <= LONGEST:  # NaN is not
        micros = round(given * 1_000_000)
    if micros is None or abs(micros) > 1_000_000 * LONGEST or (is_length and micros <= 0):
        what = "a number of seconds above 0, or such a timedelta" if is_length else "a number of seconds or a timedelta"
        least = ", and at least a microsecond" if is_length and micros == 0 and given else ""
        raise BuildError(
            f"{verb}({parameter}={given!r:.200}) ({user_line()}): {parameter} must be {what}{least}, not {shown(given)}"
        )
    return micros
