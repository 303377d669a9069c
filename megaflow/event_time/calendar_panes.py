"""Open windows of the calendar of one key, from its first record until its last window is closed.

    state = [alarm, due, windows]       windows: (start, end) -> accumulations

`due` is the end of the first window. `alarm` is kept here for the code that sets timers. The windows do not overlap. So
a record is late exactly if its bound (`record_bounds`), or the watermark, has reached the end of its window plus the
allowed lateness, and windows close in the order of their ends.

Windows keep their ends, although these follow from the zone: a later version of the zone's rules may move bounds that
lie in the future. A window that is open then closes with its old bounds, and later records use the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from megaflow.event_time.accumulators import Accumulators
from megaflow.event_time.calendar_windows import DAY, CalendarWindows
from megaflow.event_time.panes import NONE_LATE, Closed, FixedWindows, State
from megaflow.event_time.record_bounds import apart, limit_of
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.folds.ranking import Stamped

Span = tuple[int, int]  # start and end of a window
DAYS_KNOWN: Final = 4096
"""Of so many days a worker knows the windows, which take microseconds to find."""

DAYS_OF: Final = {"D": 1, "W": 7}  # of a unit; a month has at most 31


class CalendarPanes(FixedWindows[CalendarWindows]):
    """The windows of the calendar."""

    def __init__(self, windows: CalendarWindows, accumulators: Accumulators, lateness: int) -> None:
        super().__init__(windows, accumulators, lateness)
        self._on_day = lru_cache(DAYS_KNOWN)(self._spans)

    @property
    def reach(self) -> int:
        days = DAYS_OF.get(self._windows.unit, 31) * self._windows.count
        return (days + 1) * DAY  # a day more, as clocks change

    def _spans(self, day: int) -> list[Span]:
        """Return the windows that have a part of a day in UTC."""
        spans = [self._windows.window_of(day * DAY)]
        while spans[-1][1] < (day + 1) * DAY:
            spans.append(self._windows.window_of(spans[-1][1]))
        return spans

    def _span_of(self, micros: int) -> Span:
        return next(span for span in self._on_day(micros // DAY) if micros < span[1])

    def take(self, state: State, records: list[Stamped], watermark: int) -> tuple[State, list[Stamped], int]:
        stamps = [each[0] for each in records]
        first, last = min(stamps), max(stamps)
        if last <= INFINITE and last < (span := self._span_of(first))[1]:
            return self._put(state, {span: records}, NONE_LATE, watermark)
        return self._put(state, *self._by_span(records), watermark)

    def _by_span(self, records: list[Stamped]) -> tuple[dict[Span, list[Stamped]], list[Stamped]]:
        """Return records by their windows, with their timestamps; and those that are late by their bounds."""
        groups: dict[Span, list[Stamped]] = {}
        late: list[Stamped] = []
        for each in records:
            micros, bound = apart(each[0])
            span = self._span_of(micros)
            if self._first_open(span, bound) is None:
                late.append(each)
            else:
                groups.setdefault(span, []).append((micros, each[1]))
        return groups, late

    def _first_open(self, pane: Span, limit: int) -> int | None:
        return pane[1] if limit < self._closes_at(pane[1]) else None

    def close(self, state: list[Any], watermark: int) -> tuple[State, list[Closed]]:
        spans = state[2]
        due = sorted((span for span in spans if self._closes_at(span[1]) <= watermark), key=lambda span: span[1])
        closed = [(start, end, spans.pop((start, end))) for start, end in due]
        if spans:
            state[1] = min(end for _, end in spans)
        return (state if spans else None), closed

    def count(self, state: list[Any]) -> int:
        return len(state[2])

    def so_far(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
        spans = set()
        for micros, bound in {apart(stamp) for stamp, _ in records}:
            span = self._span_of(micros)
            if self._first_open(span, limit_of(bound, watermark)) is not None:
                spans.add(span)
        return [(start, end, state[2][start, end]) for start, end in sorted(spans, key=lambda span: span[1])]
