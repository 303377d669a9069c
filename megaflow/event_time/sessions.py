"""Sessions: what one key has in runs of records, each less than a gap after the one before, in any order of arrival.

    state = [alarm, intervals]       intervals: [start, end, accumulations], by time; no two have a time in common

A record at t is the interval [t, t + gap). Intervals that have a time in common are one session; those that only touch
are two, since at a watermark of the first one's end it is complete, and a record at that end may still come.

A record is a *candidate* for being late iff the watermark has come to t + gap and the allowed lateness, and late iff
moreover it meets no open session. What is late depends on the timestamps of one epoch, and not on the order in which
they came, although a record that is taken makes its session longer:
 1. First come those that are no candidates. Which sessions there are then follows from the set of their intervals.
 2. Every open session ends after each candidate: for it is open because the watermark w has not come to its end plus
    the lateness, and has come to the candidate's. So a candidate that meets a session begins it earlier or lies within,
    never ends it later, and never joins two: the first would end before it does.
 3. Then come the candidates from the youngest down. One is taken if it meets the session that the older ones cannot
    have made reach it: by 2 what is taken moves only the start of a session, down to its own time; so only younger
    candidates could have brought a session within a gap of it, and they have been asked. So the candidates that are
    taken are exactly those that any order, tried again and again, would come to.
Under an infinite watermark nothing is late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from megaflow.event_time.accumulators import Accumulators, Stamped
from megaflow.event_time.panes import NONE_LATE, Closed
from megaflow.event_time.windows import SessionWindows
from megaflow.megaphone.event_unit import GREATEST, INFINITE

_TIMESTAMP = _START = itemgetter(0)
_END = itemgetter(1)


class Sessions:
    """The sessions of an operator; the state of a key is handed in."""

    def __init__(self, windows: SessionWindows, accumulators: Accumulators, lateness: int) -> None:
        """`lateness`: microseconds for which a session takes records after its end."""
        self._gap = windows.gap
        self._lateness = lateness
        self._accumulators = accumulators

    def deadline(self, state: list[Any]) -> int:
        """Return at which watermark the key's next session closes, if it does not grow."""
        return self._closes_at(state[1][0][1])

    def _closes_at(self, end: int) -> int:
        end += self._lateness
        return end if end < GREATEST else GREATEST  # what would end after the year 9999 ends with it

    def take(self, state: list[Any] | None, records: list[Stamped], watermark: int) -> tuple[Any, list[Stamped]]:
        """Put records of one key and epoch into their sessions; return the state, and which are late.

        Cost: sorting them, then for each run of them a search in the key's sessions, and the additions.
        """
        intervals: list[list[Any]] = [] if state is None else state[1]
        if len(records) > 1:
            records = sorted(records, key=_TIMESTAMP)
        if watermark == INFINITE or watermark < self._closes_at(records[0][0] + self._gap):
            on_time, late = records, NONE_LATE
        else:
            last = bisect_right(records, watermark, key=lambda each: self._closes_at(each[0] + self._gap))
            on_time, late = records[last:], records[:last]
        for run in self._runs(on_time) if len(on_time) > 1 else [on_time] if on_time else ():
            self._insert(intervals, run)
        if late:
            late = self._take_youngest_first(intervals, late)
        if state is None and intervals:
            state = [None, intervals]
        return state, late

    def _runs(self, records: list[Stamped]) -> Iterable[list[Stamped]]:
        """Cut records in the order of their times where there is a gap."""
        begin = 0
        for number in range(1, len(records)):
            if records[number][0] - records[number - 1][0] >= self._gap:
                yield records[begin:number]
                begin = number
        yield records[begin:]

    def _take_youngest_first(self, intervals: list[list[Any]], candidates: list[Stamped]) -> list[Stamped]:
        """Put in the candidates that meet a session; return the others, which are late."""
        late = []
        for each in sorted(candidates, key=_TIMESTAMP, reverse=True):
            first, last = self._met(intervals, each[0], each[0] + self._gap)
            if first < last:
                self._insert(intervals, [each])
            else:
                late.append(each)
        return sorted(late, key=_TIMESTAMP)

    def _met(self, intervals: list[list[Any]], start: int, end: int) -> tuple[int, int]:
        """Return the indices from and to which the intervals have a time in common with [start, end)."""
        return bisect_right(intervals, start, key=_END), bisect_left(intervals, end, key=_START)

    def _insert(self, intervals: list[list[Any]], run: list[Stamped]) -> None:
        """Put in a run of records in the order of their times: a session of its own, or part of those it meets."""
        start, end = run[0][0], run[-1][0] + self._gap
        if intervals and start >= (youngest := intervals[-1])[0]:  # mostly
            if start < youngest[1]:
                youngest[1] = max(end, youngest[1])
                self._accumulators.add_to(youngest[2], run)
            else:
                intervals.append([start, end, self._accumulators.begin(run)])
            return
        first, last = self._met(intervals, start, end)
        met = intervals[first:last]
        if not met:
            intervals.insert(first, [start, end, self._accumulators.begin(run)])
            return
        parts = met[0][2] if len(met) == 1 else self._accumulators.together([interval[2] for interval in met])
        self._accumulators.add_to(parts, run)
        intervals[first:last] = [[min(start, met[0][0]), max(end, met[-1][1]), parts]]

    def close(self, state: list[Any], watermark: int) -> tuple[list[Any] | None, list[Closed]]:
        """Close the sessions that the watermark has come to; return the state, None for none, and what is closed."""
        intervals = state[1]
        count = bisect_right(intervals, watermark, key=lambda interval: self._closes_at(interval[1]))
        closed = [(start, end, accumulated) for start, end, accumulated in intervals[:count]]
        del intervals[:count]
        return (state if intervals else None), closed

    def so_far(self, state: list[Any] | None, records: Iterable[Stamped], watermark: int) -> list[Closed]:
        """Return what there is of the sessions that have some of these records, by their ends."""
        intervals = [] if state is None else state[1]
        found = {self._met(intervals, micros, micros + 1) for micros, _ in records}
        return [
            (start, end, self._accumulators.together([accumulated]))
            for first, last in sorted(found)
            for start, end, accumulated in intervals[first:last]
        ]
