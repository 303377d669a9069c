"""How far a source may read ahead: about a second of what this worker works off, by what it has worked off.

And when lines are due, if the job has a rate (`Schedule`).

1. A line is in flight from when it is shipped until its epoch is closed at the output of the dataflow. The *pace* is
   how many lines leave that state in a second in which this worker is busy: waiting for others is no work of its own,
   so who waits for a slower worker is not slow, and reads as much as it could work off itself.
2. AHEAD_SECONDS of lines at this pace may be in flight. Until the first of them are closed nobody knows: a start lasts
   START_SECONDS of work, in small batches.
3. A batch is STEP_SECONDS of work at most: in between a worker answers, and does what is asked of it.
4. A worker that has had nothing to do since lines were refused has worked off what it can, whatever holds the epochs
   open (another worker, an operator that keeps a capability): it may read one more batch. So may one that has read
   nothing for AHEAD_SECONDS, whatever it does: nothing waits for ever here.
No clock: times are arguments. Nothing is counted by the record.
"""

import sys
from collections import deque
from math import floor
from typing import Final

AHEAD_SECONDS: Final = 1.0
START_SECONDS: Final = 0.02  # about as long as the first epoch takes to be closed
STEP_SECONDS: Final = 0.05
FIRST_LINES: Final = 128  # of a batch, as long as the pace is not known
LEAST_LINES: Final = 16  # of a batch: with fewer what a batch costs would count
WINDOW_SECONDS: Final = 0.1  # of work, over which the pace is measured


class Schedule:
    """An open loop: line i is due at `start + i / rate`, whether or not the source is ready to read it.

    From a change of the rate on, the lines that are due later come at the new one.

    >>> schedule = Schedule(rate=10.0, start=5.0)
    >>> schedule.due(5.0), schedule.due(5.25), schedule.due_at(5)
    (1, 3, 5.5)
    >>> schedule.change(rate=100.0, now=6.0)
    >>> schedule.due(5.95), schedule.due(6.125), schedule.due_at(5), schedule.due_at(20)
    (10, 23, 5.5, 6.1)
    """

    def __init__(self, rate: float, start: float) -> None:
        self._parts = [(0.0, start, rate)]  # (lines before, from when in wall-clock seconds, lines per second)

    def change(self, rate: float, now: float) -> None:
        """Go on at another rate from `now` on, which is not before the last change."""
        lines, start, before = self._parts[-1]
        self._parts.append((lines + max(0.0, now - start) * before, max(now, start), rate))

    def begin(self, lines: int, rate: float, now: float) -> None:
        """Have the line after so many due now, for there was none to read for a while, and go on at this rate."""
        self._parts = [(float(lines), now, rate)]

    def due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        lines, start, rate = next((part for part in reversed(self._parts) if part[1] <= now), self._parts[0])
        return max(0, floor(lines + (now - start) * rate) + 1)

    def due_at(self, line: int) -> float:
        """Return when the line of this number, from 0, is due."""
        lines, start, rate = next(part for part in reversed(self._parts) if part[0] <= line)
        return start + (line - lines) / rate


class ReadingPace:
    """The lines in flight of one source, and their pace. One writer: the source.

    >>> pace = ReadingPace()
    >>> pace.shipped(epoch=1, lines=100, busy=0.0)
    >>> pace.closed(2, busy=0.1)
    >>> pace.room(0.1), pace.batch_lines
    (1000, 50)
    """

    def __init__(self) -> None:
        self.in_flight = 0  # lines
        self._open: deque[tuple[int, int]] = deque()  # epoch, lines; oldest first
        self._pace: float | None = None  # lines in a second of work
        self._since = 0.0  # busy seconds: the begin of what is measured
        self._worked_off = 0  # lines since then

    @property
    def batch_lines(self) -> int:
        """How many lines the next batch may have."""
        if self._pace is None:
            return FIRST_LINES
        return max(LEAST_LINES, min(sys.maxsize, int(self._pace * STEP_SECONDS)))

    def shipped(self, epoch: int, lines: int, busy: float) -> None:
        """Note that lines have been shipped; `busy`: how many seconds the worker has been busy so far."""
        if not self.in_flight:
            self._since, self._worked_off = busy, 0
        self.in_flight += lines
        if self._open and self._open[-1][0] == epoch:
            lines += self._open.pop()[1]
        self._open.append((epoch, lines))

    def closed(self, frontier: int | None, busy: float) -> None:
        """Note that all epochs before `frontier` are closed; None: all are."""
        while self._open and (frontier is None or self._open[0][0] < frontier):
            lines = self._open.popleft()[1]
            self.in_flight -= lines
            self._worked_off += lines
        seconds = busy - self._since
        if self._worked_off and seconds > 0 and (self._pace is None or seconds >= WINDOW_SECONDS):
            found = self._worked_off / seconds
            self._pace = found if self._pace is None else (self._pace + found) / 2
            self._since, self._worked_off = busy, 0

    def room(self, busy: float) -> int:
        """Return how many lines may be read now; none, or less, if too many are in flight."""
        if self._pace is None:
            return FIRST_LINES if not self.in_flight or busy - self._since <= START_SECONDS else 0
        return max(LEAST_LINES, int(self._pace * AHEAD_SECONDS)) - self.in_flight

    def _check(self) -> None:
        assert self.in_flight == sum(lines for _, lines in self._open)
