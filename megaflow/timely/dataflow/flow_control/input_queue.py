"""InputQueue: the batches that wait at one input, put there both by edges of this worker and by the network.

Invariants
 1. If the queue is not empty, its operator is in the run queue or waits for room downstream (see `handoffs`).
 2. `records` is the sum of the queued batches' lengths.
 3. The gate closes at `mark` records and opens at half as many. While it is closed, the run queue lists it as crowded.
 4. A queue that `trims` has no gate. From `mark` records on, each new batch makes its operator run, and the operator
    takes records out.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from megaflow.timely.dataflow.flow_control.credit import Debts
from megaflow.timely.dataflow.flow_control.gates import Downstream, Gate
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.order import Time


class InputQueue(Gate):
    """Queued pairs (time, batch) in the order of arrival."""

    def __init__(self, name: str, where: str, node: int, run_queue: RunQueue) -> None:
        super().__init__()
        self.name = name  # the operator's name and, in `where`, its declaring line: for the note on an error
        self.where = where
        self.node = node  # index of the operator
        self.batches: deque[tuple[Time, list[Any]]] = deque()  # appended here, drained by the operator
        self.records = 0  # queued
        self.mark = sys.maxsize  # number of records at which it is full; set when the dataflow starts
        self.trims = False  # its operator takes out the excess; set when the operator is built
        self.debts: Debts | None = None  # what this worker owes to others, if the channel has credit
        self._foreign: deque[tuple[int, int, int]] = deque()  # batches from other workers: (position, worker, records)
        self._taken = 0  # batches ever taken: the position of the first in the queue
        self._run_queue = run_queue

    def put(self, time: Time, batch: list[Any]) -> None:
        """Queue a batch. The operator runs in this pass or the next."""
        if not self.batches:
            self._run_queue.add(self.node)
        self.batches.append((time, batch))
        self.records += len(batch)
        if self.records >= self.mark and not self.closed:
            if self.trims:
                self._run_queue.add(self.node)
                return
            self.close()
            self._run_queue.crowded[self] = self.node

    def put_from(self, worker: int, time: Time, batch: list[Any]) -> None:
        """Queue a batch from another worker."""
        if self.debts is not None:
            self._foreign.append((self._taken + len(self.batches), worker, len(batch)))
        self.put(time, batch)

    def took(self, batches: int, records: int) -> None:
        """Note that the operator has taken the first `batches` batches, with `records` records in all."""
        self.records -= records
        self._taken += batches
        if self.closed and self.records <= self.mark // 2:
            self._run_queue.crowded.pop(self, None)
            self.open()
        foreign = self._foreign
        while foreign and foreign[0][0] < self._taken:
            _, worker, count = foreign.popleft()
            assert self.debts is not None
            self.debts.add(worker, count)

    def cut(self, records: int, newest: bool) -> list[tuple[Time, int]]:
        """Remove this many records, newest or oldest. Return pairs (time, number of records). Returns no credit."""
        batches, taken, left = self.batches, [], records
        while left:
            time, batch = batches.pop() if newest else batches.popleft()
            part = min(left, len(batch))
            taken.append((time, part))
            left -= part
            if newest and part < len(batch):
                batches.append((time, batch[:-part]))
            elif part < len(batch):
                batches.appendleft((time, batch[part:]))
        self.records -= records
        return taken

    def refill(self, batches: list[tuple[Time, list[Any]]]) -> None:
        """Queue batches in place of those that the operator has just taken. This does not make it run."""
        self.batches.extend(batches)
        self.records += sum(len(batch) for _, batch in batches)

    def clear(self) -> None:
        """Discard all batches, without returning credit: the dataflow was dropped."""
        self.batches.clear()
        self._foreign.clear()
        self.records = 0

    def enter(self, downstream: Downstream) -> None:
        """Become part of `downstream`, if the queue has a mark and a gate. Without them it is never full."""
        if self.mark < sys.maxsize and not self.trims:
            downstream.rooms.append(self.room)
            self.downstreams.append(downstream)
            if self.closed:
                downstream.closed.add(self)

    def room(self) -> int:
        """Return how many records fit until it is full. Less than 1 if it is full."""
        return self.mark - self.records

    def queued_from(self, worker: int) -> int:
        """Return how many queued records came from another worker, if the channel has credit. Cost: O(batches)."""
        return sum(records for _, source, records in self._foreign if source == worker)

    def _check(self) -> None:
        sizes = [len(batch) for _, batch in self.batches]
        assert self.records == sum(sizes), "invariant 2"
        if not self.trims:
            assert self.records > self.mark // 2 if self.closed else self.records < self.mark, "invariant 3"
        assert self.closed == (self in self._run_queue.crowded), "invariant 3"
        positions = [position - self._taken for position, _, _ in self._foreign]
        assert positions == sorted(set(positions)), "in the order of arrival"
        for position, (_, _, records) in zip(positions, self._foreign, strict=True):
            assert 0 <= position < len(sizes) and records == sizes[position], "credit is for a batch that is queued"
        super()._check()
