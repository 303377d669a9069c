"""Rates and latencies of a worker's lines, as values that merge.

Each latency counts in a bucket of a fixed logarithmic scale, so the histograms of several workers
or of several stretches of time add up to one histogram. Windows of a tenth of a second keep earlier
latencies apart, so a report at the end can separate those before, during and after a move.

A status has all durations since the worker began in a few wide buckets, `BOUNDS_SECONDS`. They are the same in all
versions and workers, so that a system that stores them can compare them over time.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from megaflow.control.launcher_messages import LatencyWindow
from megaflow.control.reports import Durations

BUCKET_RATIO = 1.04  # a quantile is at most 4 % too high
WINDOW_SECONDS = 0.1  # about the shortest migration that a report should show
WINDOWS_MAX = 1200  # two busy minutes: about half a megabyte
RECENT_WINDOWS = 100  # in a status: ten busy seconds
RATE_PERIOD_SECONDS = 0.25
RATE_PERIODS = 4  # a rate is the average over about one second
BOUNDS_SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the buckets of `Durations`. One more bucket has the durations above all of them."""

_LOG_RATIO = math.log(BUCKET_RATIO)


def bucket_of(latency_ms: float) -> int:
    """Return the number of a latency's bucket; all latencies below a microsecond share one.

    >>> bucket_of(0.0), bucket_of(1.0), bucket_of(1.03), bucket_of(10.0)
    (-176, 0, 1, 59)
    """
    return math.ceil(math.log(max(latency_ms, 0.001)) / _LOG_RATIO)


class Histogram:
    """Histogram of the latencies of lines; it can merge others.

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
        """Count `lines` lines with this latency."""
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

    def durations(self) -> Durations:
        """Return the latencies in wide buckets. Each counts as at most 4 % higher than it is, also in the sum.

        The maximum does not limit them: when it rose, latencies would change their buckets.
        """
        log = DurationLog()
        for bucket, lines in self.buckets.items():
            log.add(math.exp(bucket * _LOG_RATIO) / 1000, lines)
        return log.durations()


class DurationLog:
    """Durations in the buckets of `BOUNDS_SECONDS`.

    >>> log = DurationLog()
    >>> log.add(0.004)
    >>> log.add(0.005, 2)
    >>> log.durations().counts[:4], round(log.durations().seconds, 3)
    ((0, 0, 3, 0), 0.014)
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)
        self._seconds = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration."""
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += times
        self._seconds += seconds * times

    def durations(self) -> Durations:
        """Return all durations so far."""
        return Durations(tuple(self._counts), self._seconds) if any(self._counts) else Durations()


def merged(windows: Iterable[LatencyWindow]) -> Histogram:
    """Return the histogram of all windows together."""
    histogram = Histogram()
    for window in windows:
        histogram.merge(window.buckets, window.max_ms)
    return histogram


class LatencyLog:
    """Latencies of one worker, in windows of wall-clock time; it keeps the newest two busy minutes."""

    def __init__(self) -> None:
        self._windows: deque[LatencyWindow] = deque(maxlen=WINDOWS_MAX)
        self._start = 0.0  # seconds, of the current window
        self._current = Histogram()
        self._before = Histogram()  # of all windows but the current one

    def add(self, now: float, latency_ms: float, lines: int) -> None:
        """Count `lines` lines that finished at `now` (seconds) with this latency; `now` never decreases."""
        if now >= self._start + WINDOW_SECONDS:
            self._close()
            self._start = math.floor(now / WINDOW_SECONDS) * WINDOW_SECONDS
        self._current.add(latency_ms, lines)

    def windows(self) -> tuple[LatencyWindow, ...]:
        """Return all windows in which lines finished, oldest first, with the current one."""
        self._close()
        return tuple(self._windows)

    def recent(self) -> Histogram:
        """Return the latencies of the newest windows, about ten busy seconds."""
        return merged(self.windows()[-RECENT_WINDOWS:])

    def durations(self) -> Durations:
        """Return all latencies so far, in wide buckets."""
        self._close()
        return self._before.durations()

    def _close(self) -> None:
        if self._current.lines:
            self._before.merge(self._current.buckets, self._current.max_ms)
            self._windows.append(LatencyWindow(self._start, self._current.buckets, self._current.max_ms))
            self._current = Histogram()


class LatencyMeter:
    """Open batches of one worker. A batch begins when its lines are read (or due), and is done when its epoch closes.

    Invariant: epochs never decrease from the oldest open batch to the newest.
    """

    def __init__(self) -> None:
        self.log = LatencyLog()
        self.began: float | None = None  # seconds, when the first batch was read or due
        self.ended: float | None = None  # seconds, when the latest batch was done
        self.done = 0  # lines of all batches that are done
        self._open: deque[tuple[int, float, int]] = deque()  # (epoch, begun in seconds, lines), begun by the source

    def begin(self, epoch: int, since: float, lines: int) -> None:
        """Note a batch that was read, or due, at `since` (wall-clock seconds) and is stamped with `epoch`."""
        if self.began is None:
            self.began = since
        self._open.append((epoch, since, lines))

    def settle(self, open_epoch: int | None, now: float) -> None:
        """Count the batches of epochs before `open_epoch`, the first that may still have output; None: all batches."""
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
        """Note the count at `now` (seconds). Calls may be arbitrarily frequent."""
        if not self._points or now >= self._points[-1][0] + RATE_PERIOD_SECONDS:
            self._points.append((now, count))

    def per_second(self) -> float:
        """Return the rate; 0.0 until two points in time were recorded."""
        if len(self._points) < 2:
            return 0.0
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start)
