"""Channels: how a batch gets from an output to the inputs that listen to it.

An `Edge` is the sending end, one for each listener of an output; an `InputQueue` is the queue at the receiving end. A
batch is immutable once pushed, so listeners share it.

What leaves for another worker uses up credit, if the channel has any: see `handoffs`. Small parts leave together: see
`gathering`. It arrives at the receiving
worker's `ChannelEnd` of the same channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megaflow.errors import CannotTravel, ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.error_notes import annotate
from megaflow.timely.dataflow.flow_control.credit import Credits
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.gathering import Gathering
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.origin import untraced
from megaflow.timely.dataflow.pact import Addressed, Broadcast, Exchange, Pact, Pipeline
from megaflow.timely.dataflow.record_copies import copies_of
from megaflow.timely.log import Log
from megaflow.timely.order import Time

Members = Callable[[], tuple[int, ...]]  # the worker ids that a pact may choose from now, sorted


@dataclass(slots=True)
class Edge:
    """The sending end of a channel."""

    target: int  # the location of the input that it feeds
    end: ChannelEnd

    def push(self, time: Time, batch: list[Any]) -> int:
        """Send a batch that is not empty; return how many records were produced. Does not block.

        Not of an `AddressedEdge`.
        """
        raise AssertionError("an addressed channel is fed by ship_to only")


@dataclass(slots=True)
class PipelineEdge(Edge):
    """To the same worker."""

    put: Callable[[Time, list[Any]], None]  # of the end's queue
    log: Log

    def push(self, time: Time, batch: list[Any]) -> int:
        self.put(time, batch)
        if self.log.emit is not None:
            self.end.tell_kept(len(batch))
        return len(batch)


class ChannelEnd:
    """One worker's end of a channel of records: what it sends to other workers, and what it gets from them."""

    def __init__(self, context: Context, channel: Channel, queue: InputQueue, gathering: Gathering) -> None:
        self._allocator = context.allocator
        self._log = context.log
        self._name = channel.dataflow, channel.number  # in the log
        self.channel = channel
        self.lane = channel.lane
        self.queue = queue
        self.credits: Credits | None = None  # if the channel is bounded; set when the dataflow starts
        self._gathering = gathering if channel.lane is Lane.DATA else None
        self.index = context.allocator.index
        self.neighbours = frozenset(context.allocator.neighbours)

    def tell_kept(self, records: int) -> None:
        """Tell the log of a batch that stays on this worker."""
        self._log.sent(self._name, self.index, self.index, records)
        self._log.received(self._name, self.index, self.index, records)

    def send(self, worker: int, time: Time, batch: list[Any]) -> None:
        """To one worker, this one included."""
        if worker == self.index:
            self.queue.put(time, batch)
            if self._log.emit is not None:
                self.tell_kept(len(batch))
            return
        if self.credits is not None:
            self.credits.spend(worker, len(batch))
        if self._gathering is not None:
            self._gathering.add(self, worker, time, batch)
        else:
            self.post(worker, time, batch)

    def post(self, worker: int, time: Time, batch: list[Any]) -> None:
        """To another worker, now; the credit is spent."""
        if self._log.emit is not None:
            self._log.sent(self._name, self.index, worker, len(batch))
        try:
            self._allocator.send(worker, self.channel, (time, untraced(batch)))
        except CannotTravel as error:
            self.annotate(error)
            raise

    def send_all(self, workers: list[int], time: Time, batch: list[Any]) -> None:
        """To several workers, not including this one."""
        if self._log.emit is not None:
            for worker in workers:
                self._log.sent(self._name, self.index, worker, len(batch))
        if self.credits is not None:
            for worker in workers:
                self.credits.spend(worker, len(batch))
        try:
            self._allocator.send_all(workers, self.channel, (time, untraced(batch)))
        except CannotTravel as error:
            self.annotate(error)
            raise

    def receive(self, source: int, body: tuple[Time, list[Any]]) -> None:
        """Queue a batch of another worker's."""
        time, batch = body
        self.queue.put_from(source, time, batch)
        if self._log.emit is not None:
            self._log.received(self._name, source, self.index, len(batch))

    def annotate(self, error: BaseException) -> None:
        """Say on the error that the receiving operator asked for what failed, not the one that sent."""
        annotate(error, self.queue.name, self.queue.where, self.index)


@dataclass(slots=True)
class ExchangeEdge(Edge):
    """To the worker that the key names. Cost: one call of `key` per record, none with a single worker."""

    key: Callable[[Any], int]
    members: Members

    def push(self, time: Time, batch: list[Any]) -> int:
        ids = self.members()
        try:
            parts = self._split(batch, len(ids))
        except BaseException as error:
            self.end.annotate(error)
            raise
        for worker, part in zip(ids, parts, strict=True):
            if part:
                self.end.send(worker, time, part)
        return len(batch)

    def _split(self, batch: list[Any], peers: int) -> list[list[Any]]:
        key = self.key
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
                f"exchange: the key of {record!r} is {number!r}, a {type(number).__name__}; it must be an int. For "
                "any other type, use megaflow.stable_hash: exchange(lambda record: stable_hash(record))"
            )


@dataclass(slots=True)
class BroadcastEdge(Edge):
    """To every worker. Each that is a thread of this process gets records of its own."""

    members: Members

    def push(self, time: Time, batch: list[Any]) -> int:
        ids = self.members()
        others = [worker for worker in ids if worker != self.end.index]
        if self.end.lane is Lane.DATA:
            for worker in [each for each in others if each in self.end.neighbours]:
                self.end.send(worker, time, copies_of(batch))
                others.remove(worker)
        self.end.send_all(others, time, batch)
        if self.end.index in ids:  # else it is leaving
            self.end.send(self.end.index, time, batch)
        return len(batch) * len(ids)


class AddressedEdge(Edge):
    """To the worker that the producer names."""

    __slots__ = ()

    def push_to(self, worker: int, time: Time, batch: list[Any]) -> int:
        """Send a batch to one worker; return how many records were produced."""
        self.end.send(worker, time, batch)
        return len(batch)


def make_edge(graph: Graph, number: int, pact: Pact, target: int, queue: InputQueue) -> Edge:
    """Return the edge that carries out `pact`, over the channel of this number; `Silent` has none."""
    lane = pact.lane if isinstance(pact, Broadcast | Addressed) else Lane.DATA
    context = graph.context
    end = ChannelEnd(context, Channel(lane, graph.number, number), queue, graph.gathering)
    members: Members = lambda: context.membership().ids  # noqa: E731
    if isinstance(pact, Pipeline):
        return PipelineEdge(target, end, queue.put, context.log)
    if isinstance(pact, Exchange):
        return ExchangeEdge(target, end, pact.key, members if pact.follow else lambda: graph.founders.ids)
    if isinstance(pact, Broadcast):
        return BroadcastEdge(target, end, members)
    if isinstance(pact, Addressed):
        return AddressedEdge(target, end)
    raise AssertionError(f"no edge for {pact}")
