"""Callbacks at a time of the clock, for a worker and for the poller of its process."""

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from megaflow.errors import UsageError


class ScheduledCalls:
    """Callbacks by due time, at equal times in the order of scheduling. Only the thread that runs them writes it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now  # seconds, monotonic
        self._heap: list[tuple[float, int]] = []  # due, number
        self._callbacks: dict[int, Callable[[], None]] = {}  # number -> callback, until it is called or forgotten
        self._numbers = count()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], object]:
        """Schedule a call by `run_due` after so many seconds. The returned function cancels the call, at any time."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        heappush(self._heap, (self._now() + seconds, number))
        return partial(self._callbacks.pop, number, None)

    def run_due(self) -> None:
        """Make all due calls."""
        while self._heap and self._heap[0][0] <= self._now():
            callback = self._callbacks.pop(heappop(self._heap)[1], None)
            if callback is not None:
                callback()

    def wait(self, seconds: float | None) -> float | None:
        """Return how long the caller may wait: `seconds` (None: without limit), or until a call is due.

        >>> calls = ScheduledCalls(lambda: 3.0)
        >>> forget = calls.call_later(2.0, print)
        >>> calls.wait(None), calls.wait(1.0), calls.wait(4.0)
        (2.0, 1.0, 2.0)
        """
        if seconds is not None and not isinstance(seconds, int | float):
            raise UsageError(f"step_or_park({seconds!r:.200}): give a number of seconds, or None")
        if not self._heap:
            return seconds
        due = max(0.0, self._heap[0][0] - self._now())
        return due if seconds is None else min(seconds, due)

    def clear(self) -> None:
        """Drop all scheduled calls."""
        self._heap.clear()
        self._callbacks.clear()
