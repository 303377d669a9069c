"""RunQueue: which operators of a dataflow will run, each at most once a pass; also which dataflows of a worker will."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Protocol


class Crowded(Protocol):
    """A queue that is over its mark."""

    records: int


class RunQueue:
    """Operators by index. Operators with queues over their marks run first, fullest first. The others run in order.

    An operator that is added during a pass runs in that pass if it comes after the current operator in the order and
    has not already run out of turn. So a batch crosses a chain of operators in one pass. Otherwise it runs in the next
    pass. Cost: O(log n) for each operator added, O(1) for each queue over its mark, nothing for all others.
    """

    def __init__(self, stir: Callable[[], object] = lambda: None) -> None:
        """`stir` is called when an operator is added to an empty queue between passes."""
        self.stir = stir
        self.crowded: dict[Crowded, int] = {}  # queue over its mark -> operator that drains it; written by queues
        self._now: set[int] = set()  # to run in this pass
        self._heap: list[int] = []  # the same operators, and some that have already run out of turn
        self._later: set[int] = set()  # to run in the next pass
        self._early: set[int] = set()  # have run out of turn in this pass
        self._turn: int | None = None  # the last operator run in order, -1 at first; None outside a pass

    def __bool__(self) -> bool:
        return bool(self._later) or bool(self._now)

    def __contains__(self, index: int) -> bool:
        return index in self._now or index in self._later

    def add(self, index: int) -> None:
        """Put an operator in the run queue, once."""
        if index in self._now or index in self._later:  # repeats __contains__: a call would cost too much here
            return
        if self._turn is not None and self._turn < index and index not in self._early:
            self._now.add(index)
            heappush(self._heap, index)
        else:
            if not self._later and self._turn is None:
                self.stir()
            self._later.add(index)

    def discard(self, index: int) -> None:
        """Remove an operator from the next pass, if it is there."""
        self._later.discard(index)

    def clear(self) -> None:
        """Remove all operators, even in the middle of a pass."""
        self._now.clear()
        self._heap.clear()
        self._later.clear()
        self.crowded.clear()

    def run(self, invoke: Callable[[int], None]) -> None:
        """Do one pass: invoke the operators in the run queue. After an exception, the others run in the next pass."""
        self._now, self._later = self._later, self._now
        self._heap = list(self._now)
        heapify(self._heap)
        self._turn = -1
        try:
            while self._now:
                invoke(self._next())
        finally:
            self._turn = None
            self._early.clear()
            if self._now:
                self._later |= self._now
                self._now.clear()

    def _next(self) -> int:
        """Remove and return the operator that runs next."""
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
