"""Inlet: the queue of one input, fed by edges of its own worker and by the network alike.

Invariants
 1. An inlet that is not empty belongs to an operator on the agenda, or to one that waits for room (see `handoffs`).
 2. `records` is the sum of the queued batches' lengths; the gate is closed from `mark` records on, until they are
    half as many.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from megaflow.timely.dataflow.flow_control.credit import Debts
from megaflow.timely.dataflow.flow_control.gates import Gate, Room
from megaflow.timely.dataflow.run_queue import Agenda
from megaflow.timely.order import Time


class Inlet(Gate):
    """(time, batch) in arrival order."""

    __slots__ = ("_agenda", "_foreign", "_taken", "debts", "mark", "name", "node", "queue", "records", "where")

    def __init__(self, name: str, where: str, node: int, agenda: Agenda) -> None:
        super().__init__()
        self.name = name  # of the operator, and the line that declared it: for blame
        self.where = where
        self.node = node  # index of the operator
        self.queue: deque[tuple[Time, list[Any]]] = deque()  # appended here, drained by the operator
        self.records = 0  # that wait
        self.mark = sys.maxsize  # records from which on it is full; set when the dataflow starts
        self.debts: Debts | None = None  # what is owed to other workers, if the channel has credit
        self._foreign: deque[tuple[int, int, int]] = deque()  # of other workers: (position, worker, records)
        self._taken = 0  # batches ever taken: the position of the first in the queue
        self._agenda = agenda

    def put(self, time: Time, batch: list[Any]) -> None:
        """Queue a batch; the operator runs in this pass or the next."""
        if not self.queue:
            self._agenda.add(self.node)
        self.queue.append((time, batch))
        self.records += len(batch)
        if self.records >= self.mark and not self.closed:
            self.close()
            self._agenda.crowded[self] = self.node

    def put_from(self, worker: int, time: Time, batch: list[Any]) -> None:
        """Queue a batch of another worker's."""
        if self.debts is not None:
            self._foreign.append((self._taken + len(self.queue), worker, len(batch)))
        self.put(time, batch)

    def took(self, batches: int, records: int) -> None:
        """Note that the operator has taken the first batches: how many, and how many records in all."""
        self.records -= records
        self._taken += batches
        if self.closed and self.records <= self.mark // 2:
            self._agenda.crowded.pop(self, None)
            self.open()
        foreign = self._foreign
        while foreign and foreign[0][0] < self._taken:
            _, worker, count = foreign.popleft()
            assert self.debts is not None
            self.debts.add(worker, count)

    def clear(self) -> None:
        """Drop what is queued: the dataflow was dropped, and nobody is told."""
        self.queue.clear()
        self._foreign.clear()
        self.records = 0

    def enter(self, room: Room) -> None:
        """Have a room hear of this gate, which is none if there is no mark."""
        if self.mark < sys.maxsize:
            self.rooms.append(room)
            if self.closed:
                room.closed.add(self)
