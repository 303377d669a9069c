"""Sessions: what one key has in runs of records, each less than a gap after the one before, in any order of arrival.

    state = [alarm, intervals]       intervals: [start, end, accumulations], by time; no two have a time in common

A record at t is the interval [t, t + gap). Intervals that have a time in common are one session; those that only touch
are two, since at a watermark of the first one's end it is complete, and a record at that end may still come.

A record is late iff its timestamp and the allowed lateness are less than its bound (`record_bounds`), or less than the
watermark. So which are late depends on each record alone, and which sessions there are on the set of the others:
 1. No record that is taken meets a session that has closed. That closed as the watermark came to its end and the
    lateness; the record's timestamp and the lateness are not less than the watermark, so it is not before that end.
 2. A late record may lie within a session that is open. It is late all the same: with another speed the session might
    have closed.
Under an infinite watermark nothing is late by it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from megaflow.event_time.accumulators import Accumulators, Stamped
from megaflow.event_time.panes import NONE_LATE, Closed
from megaflow.event_time.windows import SessionWindows
from megaflow.megaphone.event_unit import GREATEST, INFINITE, NEVER
from megaflow.megaphone.record_bounds import apart, limit_of, timestamp_of

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

    def take(
        self, state: list[Any] | None, records: list[Stamped], watermark: int
    ) -> tuple[list[Any] | None, list[Stamped], int]:
        """Put stamped records of one key and epoch into their sessions.

        Return the state, which records are late, and how many of these are so by the watermark alone. Cost: sorting
        them, then for each run of them a search in the key's sessions, and the additions.
        """
        intervals: list[list[Any]] = [] if state is None else state[1]
        if len(records) > 1:
            records = sorted(records, key=_TIMESTAMP)
        late, overtaken = NONE_LATE, 0
        limit = limit_of(NEVER, watermark)
        if records[0][0] + self._lateness < limit or records[-1][0] > INFINITE:
            records, late, overtaken = self._judged(records, limit)
        for run in self._runs(records) if len(records) > 1 else [records] if records else ():
            self._insert(intervals, run)
        if state is None and intervals:
            state = [None, intervals]
        return state, late, overtaken

    def _judged(self, records: list[Stamped], limit: int) -> tuple[list[Stamped], list[Stamped], int]:
        """Return which are taken, in the order of their timestamps, which are late, and how many by a limit alone."""
        taken: list[Stamped] = []
        late: list[Stamped] = []
        overtaken = 0
        for each in records:
            micros, bound = apart(each[0])
            if micros + self._lateness < bound:
                late.append(each)
            elif micros + self._lateness < limit:
                late.append(each)
                overtaken += 1
            else:
                taken.append((micros, each[1]))
        return sorted(taken, key=_TIMESTAMP), late, overtaken

    def _runs(self, records: list[Stamped]) -> Iterable[list[Stamped]]:
        """Cut records in the order of their times where there is a gap."""
        begin = 0
        for number in range(1, len(records)):
            if records[number][0] - records[number - 1][0] >= self._gap:
                yield records[begin:number]
                begin = number
        yield records[begin:]

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

    def count(self, state: list[Any]) -> int:
        """Return how many sessions are open."""
        return len(state[1])

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
        times = {timestamp_of(stamp) for stamp, _ in records}
        found = {self._met(intervals, micros, micros + 1) for micros in times}
        return [
            (start, end, self._accumulators.together([accumulated]))
            for first, last in sorted(found)
            for start, end, accumulated in intervals[first:last]
        ]
