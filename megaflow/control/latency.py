"""How fast and how late: a worker's rate and the latency of its lines, as values that merge.

A latency is counted in a bucket of a fixed logarithmic scale, so that histograms of several
workers, or of several stretches of time, add up to the histogram of all. Windows of a tenth of a
second keep the past apart: before, during and after a move can be told from each other at the end.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping

from megaflow.control.launcher_messages import LatencyWindow

BUCKET_RATIO = 1.04  # a quantile is at most 4 % too high
WINDOW_SECONDS = 0.1  # about the shortest migration worth telling from its surroundings
WINDOWS_MAX = 1200  # two busy minutes: about half a megabyte
RECENT_WINDOWS = 100  # what a status shows: ten busy seconds
RATE_PERIOD_SECONDS = 0.25
RATE_PERIODS = 4  # a rate is the average over about one second

_LOG_RATIO = math.log(BUCKET_RATIO)


def bucket_of(latency_ms: float) -> int:
    """Return the number of the bucket of a latency; below a microsecond all are one.

    >>> bucket_of(0.0), bucket_of(1.0), bucket_of(1.03), bucket_of(10.0)
    (-176, 0, 1, 59)
    """
    return math.ceil(math.log(max(latency_ms, 0.001)) / _LOG_RATIO)


class Histogram:
    """Latencies of lines, merged from anywhere.

    >>> histogram = Histogram()
    >>> histogram.add(2.0, 99)
    >>> histogram.add(50.0, 1)
    >>> [round(histogram.quantile(q)) for q in (0.5, 0.99, 1.0)], histogram.max_ms, histogram.lines
    ([2, 2, 50], 50.0, 100)
    """

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}  # bucket -> lines, never zero
        self.lines = 0  # sum of the buckets
        self.max_ms = 0.0  # exact

    def add(self, latency_ms: float, lines: int) -> None:
        """Count `lines` lines, all this late."""
        self.merge({bucket_of(latency_ms): lines}, latency_ms)

    def merge(self, buckets: Mapping[int, int], max_ms: float) -> None:
        """Add another histogram's buckets and maximum."""
        for bucket, lines in buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + lines
            self.lines += lines
        self.max_ms = max(self.max_ms, max_ms)

    def quantile(self, q: float) -> float:
        """Return the latency in ms that a fraction `q` of the lines does not exceed; 0.0 for no lines."""
        wanted = q * self.lines
        for bucket in sorted(self.buckets):
            wanted -= self.buckets[bucket]
            if wanted <= 0:
                return min(math.exp(bucket * _LOG_RATIO), self.max_ms)
        return self.max_ms


def merged(windows: Iterable[LatencyWindow]) -> Histogram:
    """Return the histogram of all windows together."""
    histogram = Histogram()
    for window in windows:
        histogram.merge(window.buckets, window.max_ms)
    return histogram


class LatencyLog:
    """One worker's latencies, in windows by the wall clock; the newest two busy minutes are kept."""

    def __init__(self) -> None:
        self._windows: deque[LatencyWindow] = deque(maxlen=WINDOWS_MAX)
        self._start = 0.0  # seconds, of the window being filled
        self._current = Histogram()

    def add(self, now: float, latency_ms: float, lines: int) -> None:
        """Count `lines` lines that were done at `now` (seconds), all this late. Windows must not go back."""
        if now >= self._start + WINDOW_SECONDS:
            self._close()
            self._start = math.floor(now / WINDOW_SECONDS) * WINDOW_SECONDS
        self._current.add(latency_ms, lines)

    def windows(self) -> tuple[LatencyWindow, ...]:
        """Return all windows in which lines were done, oldest first, the one being filled included."""
        self._close()
        return tuple(self._windows)

    def recent(self) -> Histogram:
        """Return the latencies of the newest windows, about ten busy seconds."""
        return merged(self.windows()[-RECENT_WINDOWS:])

    def _close(self) -> None:
        if self._current.lines:
            self._windows.append(LatencyWindow(self._start, self._current.buckets, self._current.max_ms))
            self._current = Histogram()


class Lateness:
    """One worker's batches on their way: begun when their lines were read (or due), done when their epoch closes.

    Invariant: epochs never decrease from the oldest open batch to the newest.
    """

    def __init__(self) -> None:
        self.log = LatencyLog()
        self.began: float | None = None  # seconds, when the first batch was read or due
        self.ended: float | None = None  # seconds, when the latest was done
        self.done = 0  # lines in all that were
        self._open: deque[tuple[int, float, int]] = deque()  # (epoch, begun in seconds, lines), begun by the source

    def begin(self, epoch: int, since: float, lines: int) -> None:
        """Note a batch that was read, or due, at `since` (wall-clock seconds) and is stamped with `epoch`."""
        if self.began is None:
            self.began = since
        self._open.append((epoch, since, lines))

    def settle(self, open_epoch: int | None, now: float) -> None:
        """Count the batches whose epoch is before `open_epoch`, the first that may still have output; None: all."""
        waiting = self._open
        while waiting and (open_epoch is None or waiting[0][0] < open_epoch):
            _, since, lines = waiting.popleft()
            self.log.add(now, max(0.0, now - since) * 1000, lines)
            self.ended = now
            self.done += lines


class RateMeter:
    """The rate of a growing count over about the last second.

    >>> meter = RateMeter()
    >>> for tenth in range(31):
    ...     meter.observe(tenth / 10, tenth * 100)
    >>> round(meter.per_second())
    1000
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=RATE_PERIODS + 1)  # (seconds, count)

    def observe(self, now: float, count: int) -> None:
        """Note the count at `now` (seconds); call it as often as you like."""
        if not self._points or now >= self._points[-1][0] + RATE_PERIOD_SECONDS:
            self._points.append((now, count))

    def per_second(self) -> float:
        """Return the rate; 0.0 until two moments have been seen."""
        if len(self._points) < 2:
            return 0.0
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start)
