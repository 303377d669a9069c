"""Callbacks at a time of the clock, for a worker and for the poller of its process."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class ScheduledCalls:
    """Callbacks by due time, those of one time in the order of scheduling. One writer: the thread that runs them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now  # seconds, monotonic
        self._heap: list[tuple[float, int, Callable[[], None]]] = []  # due, tie-breaker, callback
        self._numbers = count()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Have `run_due` call back once so much time has passed."""
        heappush(self._heap, (self._now() + seconds, next(self._numbers), callback))

    def run_due(self) -> None:
        """Call back what is due."""
        while self._heap and self._heap[0][0] <= self._now():
            heappop(self._heap)[2]()

    def wait(self, seconds: float | None) -> float | None:
        """Return how long the caller may wait: `seconds` (None: without end), or until something is due.

        >>> calls = ScheduledCalls(lambda: 3.0)
        >>> calls.call_later(2.0, print)
        >>> calls.wait(None), calls.wait(1.0), calls.wait(4.0)
        (2.0, 1.0, 2.0)
        """
        if not self._heap:
            return seconds
        due = max(0.0, self._heap[0][0] - self._now())
        return due if seconds is None else min(seconds, due)

    def clear(self) -> None:
        """Drop what is scheduled."""
        self._heap.clear()
