"""Sessions of one key: runs of records, each less than a gap after the one before, in any order of arrival.

    state = [alarm, intervals]       intervals: [start, end, accumulations], by time; no two have a time in common

If a program with `marks=True` continues with a longer gap, each interval also has the end that it had before. The first
call of the key takes these ends away.

A record at t is the interval [t, t + gap). Intervals that share a time are one session. Intervals that only touch are
two: at a watermark of the first one's end it is complete, and a record at that end may still come.

A record is late exactly if its timestamp plus the allowed lateness is less than its bound (`record_bounds`), or less
than the watermark. So lateness depends on each record alone, and the sessions depend on the set of all other records:
 1. No accepted record overlaps a session that has closed. That session closed when the watermark reached its end plus
    the lateness. The record's timestamp plus the lateness is not less than the watermark, so the record is not before
    that end.
 2. A late record may lie within an open session. It is late nevertheless: at another speed the session might have
    closed.
An infinite watermark makes no record late.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from megaflow.event_time.accumulators import Accumulators
from megaflow.event_time.panes import NONE_LATE, Closed, KeyWindows, State
from megaflow.event_time.record_bounds import apart, limit_of
from megaflow.event_time.windows import SessionWindows
from megaflow.megaphone.base.event_unit import INFINITE, NEVER
from megaflow.megaphone.folds.ranking import Stamped

_TIMESTAMP = _START = itemgetter(0)
_END = itemgetter(1)


class Sessions(KeyWindows[SessionWindows]):
    """The sessions of an operator."""

    def __init__(self, windows: SessionWindows, accumulators: Accumulators, lateness: int) -> None:
        super().__init__(windows, accumulators, lateness)
        self.joins = windows.gap

    @property
    def reach(self) -> int:
        return self.joins

    def deadline(self, state: list[Any]) -> int:
        return self._closes_at(state[1][0][1])

    def take(self, state: State, records: list[Stamped], watermark: int) -> tuple[State, list[Stamped], int]:
        """Put stamped records of one key and epoch into their sessions, see `KeyWindows.take`.

        Cost: sorting the
        records, then for each run of them a search in the key's sessions, and the additions.
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
        """Return the accepted records by timestamp, the late ones, and how many are late by a limit alone.
        """
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
        begin, gap = 0, self._windows.gap
        for number in range(1, len(records)):
            if records[number][0] - records[number - 1][0] >= gap:
                yield records[begin:number]
                begin = number
        yield records[begin:]

    def _met(self, intervals: list[list[Any]], start: int, end: int) -> tuple[int, int]:
        """Return the range of indices of the intervals that share a time with [start, end)."""
        return bisect_right(intervals, start, key=_END), bisect_left(intervals, end, key=_START)

    def _insert(self, intervals: list[list[Any]], run: list[Stamped]) -> None:
        """Insert a run of records in the order of their times: a new session, or part of those that it overlaps."""
        start, end = run[0][0], run[-1][0] + self._windows.gap
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
        return len(state[1])

    def close(self, state: list[Any], watermark: int) -> tuple[State, list[Closed]]:
        intervals = state[1]
        count = bisect_right(intervals, watermark, key=lambda interval: self._closes_at(interval[1]))
        closed = [(start, end, accumulated) for start, end, accumulated, *_ in intervals[:count]]
        del intervals[:count]
        return (state if intervals else None), closed

    def so_far(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
        intervals = state[1]
        found = {self._met(intervals, micros, micros + 1) for micros in self._times(records, watermark)}
        return [self._copied(each) for first, last in sorted(found) for each in intervals[first:last]]

    def replaced(self, state: list[Any], records: Iterable[Stamped], watermark: int) -> list[Closed]:
        intervals, gap = state[1], self._windows.gap
        found = {
            number
            for micros in self._times(records, watermark)
            for number in range(*self._met(intervals, micros, micros + gap))
            if micros < intervals[number][0] or micros + gap > intervals[number][1]
        }
        return [self._copied(intervals[number]) for number in sorted(found)]

    def lengthened(self, state: list[Any]) -> tuple[list[Closed], list[Closed]]:
        if len(state[1][0]) == 3:
            return [], []
        longer = [each for each in state[1] if len(each) > 3]
        now = [self._copied(each) for each in longer]
        return [self._copied([each[0], each.pop(), each[2]]) for each in longer], now

    def _times(self, records: Iterable[Stamped], watermark: int) -> set[int]:
        """Return the timestamps of the records that are not late."""
        stamps = {apart(stamp) for stamp, _ in records}
        return {micros for micros, bound in stamps if micros + self._lateness >= limit_of(bound, watermark)}

    def _copied(self, interval: list[Any]) -> Closed:
        return interval[0], interval[1], self._accumulators.together([interval[2]])
