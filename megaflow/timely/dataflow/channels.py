"""Channels: how a batch gets from an output to the inputs that listen to it.

An `Edge` is the sending end, one per listener of an output; an `Inlet` is the queue at
the receiving end, fed by edges of its own worker and by the network alike. A batch is
immutable once pushed, so listeners share it.

Invariant: an inlet that is not empty belongs to an operator on the agenda.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from megaflow.errors import CannotTravel, ProgramError
from megaflow.timely.communication.allocator import Allocator, Lane
from megaflow.timely.dataflow.blame import annotate
from megaflow.timely.dataflow.pact import Addressed, Broadcast, Exchange, Pact, Pipeline
from megaflow.timely.log import Log
from megaflow.timely.order import Time

Members = Callable[[], tuple[int, ...]]  # the worker ids that a pact may choose from now, sorted


class Inlet:
    """The queue of one input: (time, batch) in arrival order."""

    __slots__ = ("_wake", "name", "queue", "where")

    def __init__(self, name: str, where: str, wake: Callable[[], None]) -> None:
        self.name = name  # of the operator, and the line that declared it: for blame
        self.where = where
        self.queue: deque[tuple[Time, list[Any]]] = deque()  # appended here, drained by the operator
        self._wake = wake

    def put(self, time: Time, batch: list[Any]) -> None:
        """Queue a batch; the operator runs in this pass or the next."""
        if not self.queue:
            self._wake()
        self.queue.append((time, batch))


class Edge(Protocol):
    """The sending end of a channel."""

    target: int  # the location of the input that it feeds

    def push(self, time: Time, batch: list[Any]) -> int:
        """Send a batch that is not empty; return how many records were produced. Does not block."""
        ...


class PipelineEdge:
    """To the same worker."""

    __slots__ = ("_end", "_log", "_put", "target")

    def __init__(self, target: int, inlet: Inlet, end: RemoteEnd, log: Log) -> None:
        self.target = target
        self._put = inlet.put
        self._end = end
        self._log = log

    def push(self, time: Time, batch: list[Any]) -> int:
        self._put(time, batch)
        if self._log.emit is not None:
            self._end.tell_kept(len(batch))
        return len(batch)


class RemoteEnd:
    """What edges between workers share: the channel, and both ways to a worker."""

    __slots__ = ("_allocator", "_channel", "_inlet", "_lane", "_log", "index")

    def __init__(self, allocator: Allocator, channel: tuple[int, int], lane: Lane, inlet: Inlet, log: Log) -> None:
        self._allocator = allocator
        self._log = log
        self._channel = channel
        self._lane = lane
        self._inlet = inlet
        self.index = allocator.index

    def tell_kept(self, records: int) -> None:
        """Tell the log of a batch that stays on this worker."""
        self._log.sent(self._channel, self.index, self.index, records)
        self._log.received(self._channel, self.index, self.index, records)

    def send(self, worker: int, time: Time, batch: list[Any]) -> None:
        """To one worker, this one included."""
        if worker == self.index:
            self._inlet.put(time, batch)
            if self._log.emit is not None:
                self.tell_kept(len(batch))
            return
        if self._log.emit is not None:
            self._log.sent(self._channel, self.index, worker, len(batch))
        try:
            self._allocator.send(worker, self._lane, self._channel, (time, batch))
        except CannotTravel as error:
            self.blame(error)
            raise

    def send_all(self, workers: list[int], time: Time, batch: list[Any]) -> None:
        """To several workers, not including this one."""
        if self._log.emit is not None:
            for worker in workers:
                self._log.sent(self._channel, self.index, worker, len(batch))
        try:
            self._allocator.send_all(workers, self._lane, self._channel, (time, batch))
        except CannotTravel as error:
            self.blame(error)
            raise

    def blame(self, error: Exception) -> None:
        """Say on the error that the receiving operator asked for what failed, not the one that sent."""
        annotate(error, self._inlet.name, self._inlet.where, self.index)


class ExchangeEdge:
    """To the worker that the key names. Cost: one call of `key` per record, none with a single worker."""

    __slots__ = ("_end", "_key", "_members", "target")

    def __init__(self, target: int, end: RemoteEnd, key: Callable[[Any], int], members: Members) -> None:
        self.target = target
        self._end = end
        self._key = key
        self._members = members

    def push(self, time: Time, batch: list[Any]) -> int:
        ids = self._members()
        try:
            parts = self._split(batch, len(ids))
        except Exception as error:
            self._end.blame(error)
            raise
        for worker, part in zip(ids, parts, strict=True):
            if part:
                self._end.send(worker, time, part)
        return len(batch)

    def _split(self, batch: list[Any], peers: int) -> list[list[Any]]:
        key = self._key
        if peers == 1:
            record = batch[0]
            self._check(record, key(record))
            return [batch]
        parts: list[list[Any]] = [[] for _ in range(peers)]
        for record in batch:
            number = key(record)
            if type(number) is not int:
                self._check(record, number)
            parts[number % peers].append(record)
        return parts

    def _check(self, record: Any, number: Any) -> None:
        if not isinstance(number, int):
            raise ProgramError(
                f"exchange: the key of {record!r} is {number!r}, a {type(number).__name__}; it must be an int. "
                "For any other type use megaflow.stable_hash: exchange(lambda record: stable_hash(record))"
            )


class BroadcastEdge:
    """To every worker."""

    __slots__ = ("_end", "_members", "target")

    def __init__(self, target: int, end: RemoteEnd, members: Members) -> None:
        self.target = target
        self._end = end
        self._members = members

    def push(self, time: Time, batch: list[Any]) -> int:
        ids = self._members()
        self._end.send_all([worker for worker in ids if worker != self._end.index], time, batch)
        if self._end.index in ids:  # else it is leaving
            self._end.send(self._end.index, time, batch)
        return len(batch) * len(ids)


class AddressedEdge:
    """To the worker that the producer names."""

    __slots__ = ("_end", "target")

    def __init__(self, target: int, end: RemoteEnd) -> None:
        self.target = target
        self._end = end

    def push(self, time: Time, batch: list[Any]) -> int:
        raise AssertionError("an addressed channel is fed by ship_to only")

    def push_to(self, worker: int, time: Time, batch: list[Any]) -> int:
        """Send a batch to one worker; return how many records were produced."""
        self._end.send(worker, time, batch)
        return len(batch)


def make_edge(
    pact: Pact,
    target: int,
    inlet: Inlet,
    allocator: Allocator,
    channel: tuple[int, int],
    founders: Members,
    members: Members,
    log: Log,
) -> Edge:
    """The edge that carries out `pact`; `Silent` has none."""
    lane = pact.lane if isinstance(pact, Broadcast | Addressed) else Lane.DATA
    end = RemoteEnd(allocator, channel, lane, inlet, log)
    if isinstance(pact, Pipeline):
        return PipelineEdge(target, inlet, end, log)
    if isinstance(pact, Exchange):
        return ExchangeEdge(target, end, pact.key, members if pact.follow else founders)
    if isinstance(pact, Broadcast):
        return BroadcastEdge(target, end, members)
    if isinstance(pact, Addressed):
        return AddressedEdge(target, end)
    raise AssertionError(f"no edge for {pact}")
