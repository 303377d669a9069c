"""Timers of one worker: what to call when the clock says so."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timers:
    """Callbacks by due time, those of one time in the order of setting. One writer: the worker's thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []  # due, tie-breaker, what
        self._numbers = count()

    def set(self, due: float, what: Callable[[], None]) -> None:
        """Have `run` call `what` once it is `due`, in seconds of the worker's clock."""
        heappush(self._heap, (due, next(self._numbers), what))

    def run(self, now: Callable[[], float]) -> None:
        """Call what is due."""
        while self._heap and self._heap[0][0] <= now():
            heappop(self._heap)[2]()

    def wait(self, now: float, seconds: float | None) -> float | None:
        """Return how long the worker may wait: `seconds` (None: without end), or until something is due.

        >>> timers = Timers()
        >>> timers.set(5.0, print)
        >>> timers.wait(3.0, None), timers.wait(3.0, 1.0), timers.wait(9.0, None)
        (2.0, 1.0, 0.0)
        """
        if not self._heap:
            return seconds
        due = max(0.0, self._heap[0][0] - now)
        return due if seconds is None else min(seconds, due)
