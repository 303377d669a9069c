"""Limit on how far a source reads ahead: about a second of this worker's work, measured by the work it has done.

`Schedule` computes when lines are due if the job has a rate. `HeldBack` sums the time for which any limit held.

1. A line is in flight from when it is shipped until its epoch is closed at the output of the dataflow. The *pace* is
   the number of lines that leave flight per second in which this worker is busy. Waiting for others is not work. So a
   worker that waits for a slower one has its own pace, and reads as much as it could process itself.
2. Lines for AHEAD_SECONDS at this pace may be in flight. The pace is unknown until the first lines have left flight.
   Until then the source reads small batches, and stops after START_SECONDS of work.
3. A batch is at most STEP_SECONDS of work. Between batches the worker answers requests and obeys commands.
4. A worker that has been idle since lines were refused has done all possible work: another worker, or an operator that
   keeps a capability, holds the epochs open. So it may read one more batch. The same is true of a worker that has read
   nothing for AHEAD_SECONDS, whatever it does. So no source waits without end here.
No clock: times are arguments. No work is done per record.
"""

import sys
from collections import deque
from math import floor
from typing import Final

AHEAD_SECONDS: Final = 1.0
START_SECONDS: Final = 0.02  # about the time until the first epoch is closed
STEP_SECONDS: Final = 0.05
FIRST_LINES: Final = 128  # in a batch while the pace is unknown
LEAST_LINES: Final = 16  # in a batch: with fewer, the cost of the batch itself would matter
WINDOW_SECONDS: Final = 0.1  # of work over which the pace is measured


class Schedule:
    """An open loop: line i is due at `start + i / rate`, whether or not the source is ready to read it.

    After a change of the rate, later lines are due at the new rate.

    >>> schedule = Schedule(rate=10.0, start=5.0)
    >>> schedule.due(5.0), schedule.due(5.25), schedule.due_at(5)
    (1, 3, 5.5)
    >>> schedule.change(rate=100.0, now=6.0)
    >>> schedule.due(5.95), schedule.due(6.125), schedule.due_at(5), schedule.due_at(20)
    (10, 23, 5.5, 6.1)
    """

    def __init__(self, rate: float, start: float) -> None:
        self._parts = [(0.0, start, rate)]  # (lines before, start in wall-clock seconds, lines per second)

    def change(self, rate: float, now: float) -> None:
        """Continue at another rate from `now` on, which must not be before the last change."""
        lines, start, before = self._parts[-1]
        self._parts.append((lines + max(0.0, now - start) * before, max(now, start), rate))

    def begin(self, lines: int, rate: float, now: float) -> None:
        """Make the line after `lines` lines due now, as there was none to read for a while; continue at this rate."""
        self._parts = [(float(lines), now, rate)]

    def due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        lines, start, rate = next((part for part in reversed(self._parts) if part[1] <= now), self._parts[0])
        return max(0, floor(lines + (now - start) * rate) + 1)

    def due_at(self, line: int) -> float:
        """Return when the line with this number, counted from 0, is due."""
        lines, start, rate = next(part for part in reversed(self._parts) if part[0] <= line)
        return start + (line - lines) / rate


class HeldBack:
    """Seconds for which a source had lines to read and was not allowed to, by the limit that held it back.

    queues      an operator behind the source, here or on a peer, has enough to do: its queue or its credit is used up
    network     many bytes wait for the socket to a peer
    launcher    output waits for the launcher
    epochs      the output lags by many epochs, or this epoch has enough lines
    pace        lines for about a second of work are in flight

    >>> held = HeldBack()
    >>> held.by("queues", 1.0)
    >>> held.by("pace", 1.5)
    >>> held.by(None, 1.75)
    >>> held.seconds(9.0)
    {'queues': 0.5, 'pace': 0.25}
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._limit: str | None = None  # that holds the source back now
        self._since = 0.0  # seconds

    def by(self, limit: str | None, now: float) -> None:
        """Note which limit holds the source back from now on; None: none does, or there is nothing to read."""
        if limit == self._limit:
            return
        if self._limit is not None:
            self._seconds[self._limit] = self._seconds.get(self._limit, 0.0) + now - self._since
        self._limit, self._since = limit, now

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds by limit so far."""
        limit = self._limit
        self.by(None, now)
        self.by(limit, now)
        return dict(self._seconds)


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
        self._pace: float | None = None  # lines per second of work
        self._since = 0.0  # busy seconds at the start of the measurement
        self._worked_off = 0  # lines since then

    @property
    def batch_lines(self) -> int:
        """The number of lines that the next batch may have."""
        if self._pace is None:
            return FIRST_LINES
        return max(LEAST_LINES, min(sys.maxsize, int(self._pace * STEP_SECONDS)))

    def shipped(self, epoch: int, lines: int, busy: float) -> None:
        """Note that lines have been shipped; `busy`: the seconds for which the worker has been busy so far."""
        if not self.in_flight:
            self._since, self._worked_off = busy, 0
        self.in_flight += lines
        if self._open and self._open[-1][0] == epoch:
            lines += self._open.pop()[1]
        self._open.append((epoch, lines))

    def closed(self, frontier: int | None, busy: float) -> None:
        """Note that all epochs before `frontier` are closed, with None all epochs."""
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
        """Return how many lines may be read now; zero or less if too many are in flight."""
        if self._pace is None:
            return FIRST_LINES if not self.in_flight or busy - self._since <= START_SECONDS else 0
        return max(LEAST_LINES, int(self._pace * AHEAD_SECONDS)) - self.in_flight

    def _check(self) -> None:
        assert self.in_flight == sum(lines for _, lines in self._open)
