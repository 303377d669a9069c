"""The agenda of a dataflow: which operators are to run, each at most once a pass."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush


class Agenda:
    """Operators by index, run in increasing order.

    An operator that is added during a pass runs in that pass if it comes after the one
    running (so a batch crosses a chain of operators in one pass), else in the next.
    Cost: O(log n) for each operator added, nothing for those that are not.
    """

    __slots__ = ("_current", "_next", "_now", "_queued")

    def __init__(self) -> None:
        self._queued: set[int] = set()  # in _now or _next
        self._now: list[int] = []  # heap, of this pass
        self._next: list[int] = []
        self._current = -1  # the one running; -1 outside a pass

    def __bool__(self) -> bool:
        return bool(self._queued)

    def add(self, index: int) -> None:
        """Put an operator on the agenda, once."""
        if index in self._queued:
            return
        self._queued.add(index)
        if -1 < self._current < index:
            heappush(self._now, index)
        else:
            self._next.append(index)

    def clear(self) -> None:
        """Take everything off, also in the middle of a pass."""
        self._queued.clear()
        self._now.clear()
        self._next.clear()

    def run(self, invoke: Callable[[int], None]) -> None:
        """One pass: invoke what is on the agenda. An exception ends the pass and the job."""
        now, self._now = self._now, self._next
        self._next = now
        now = self._now
        heapify(now)
        try:
            while now:
                self._current = heappop(now)
                self._queued.discard(self._current)
                invoke(self._current)
        finally:
            self._current = -1
