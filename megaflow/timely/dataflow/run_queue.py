"""RunQueue: which operators of a dataflow are to run, each at most once a pass."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol


class Crowded(Protocol):
    """A queue that is over its mark."""

    records: int


class RunQueue:
    """Operators by index, run in increasing order; before them those whose queues are over their marks, fullest first.

    An operator that is added during a pass runs in that pass if it comes after the one whose turn it is in the order
    and has not run out of turn (so a batch crosses a chain of operators in one pass), else in the next.
    Cost: O(log n) for each operator added, O(1) for each queue over its mark, nothing for all others.
    """

    def __init__(self) -> None:
        self.crowded: dict[Crowded, int] = {}  # queue over its mark -> operator that drains it; written by queues
        self._now: set[int] = set()  # to run in this pass
        self._heap: list[int] = []  # those, and some that have run out of turn
        self._later: set[int] = set()  # to run in the next
        self._early: set[int] = set()  # that have run out of turn in this pass
        self._turn: int | None = None  # who ran last in the order, -1 at first; None outside a pass

    def __bool__(self) -> bool:
        return bool(self._later) or bool(self._now)

    def __contains__(self, index: int) -> bool:
        return index in self._now or index in self._later

    def add(self, index: int) -> None:
        """Put an operator in the run queue, once."""
        if index in self._now or index in self._later:  # said twice: a call costs here
            return
        if self._turn is not None and self._turn < index and index not in self._early:
            self._now.add(index)
            heappush(self._heap, index)
        else:
            self._later.add(index)

    def clear(self) -> None:
        """Take everything off, also in the middle of a pass."""
        self._now.clear()
        self._heap.clear()
        self._later.clear()
        self.crowded.clear()

    def run(self, invoke: Callable[[int], None]) -> None:
        """Do one pass: invoke what is in the run queue. An exception ends the pass and the job."""
        self._now, self._later = self._later, self._now
        self._later.clear()  # what an exception has left of an earlier pass
        self._heap = list(self._now)
        heapify(self._heap)
        self._turn = -1
        try:
            while self._now:
                invoke(self._next())
        finally:
            self._turn = None
            self._early.clear()

    def _next(self) -> int:
        """Take off the operator that runs next."""
        if self.crowded:
            waiting = [(queue.records, -index) for queue, index in self.crowded.items() if index in self._now]
            if waiting:
                index = -max(waiting)[1]
                self._now.discard(index)
                self._early.add(index)
                return index
        while True:
            index = heappop(self._heap)
            if index in self._now:
                self._now.discard(index)
                self._turn = index
                return index
