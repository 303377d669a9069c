"""Channels: the path of a batch from an output to the inputs that listen to it.

An `Edge` is the sending end, one for each listener of an output. An `InputQueue` is the queue at the receiving end. A
batch is immutable once pushed, so listeners share it.

A batch for another worker uses up credit if the channel has any (see `handoffs`). Small parts leave together (see
`batch_coalescer`). A batch arrives at the receiving worker's `ChannelEnd` of the same channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megaflow.errors import CannotTravel, ProgramError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.dataflow.batch_coalescer import BatchCoalescer
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.error_notes import annotate
from megaflow.timely.dataflow.flow_control.credit import Credits
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.pact import Addressed, Broadcast, Exchange, Pact, Pipeline
from megaflow.timely.dataflow.partition_tag import untagged
from megaflow.timely.dataflow.record_copies import copies_of
from megaflow.timely.log import Log, MessageReceived, MessageSent
from megaflow.timely.order import Time

Members = Callable[[], tuple[int, ...]]  # the sorted worker ids that a pact may now choose from


@dataclass(slots=True)
class Edge:
    """Sending end of a channel."""

    target: int  # the location of the input that it feeds
    end: ChannelEnd

    def push(self, time: Time, batch: list[Any]) -> int:
        """Send a non-empty batch; return how many records were produced. Does not block.

        An `AddressedEdge` does not support it.
        """
        raise AssertionError("an addressed channel is fed by ship_to only")


@dataclass(slots=True)
class PipelineEdge(Edge):
    """Edge to the same worker."""

    put: Callable[[Time, list[Any]], None]  # method of the end's queue
    log: Log

    def push(self, time: Time, batch: list[Any]) -> int:
        self.put(time, batch)
        if self.log.emit is not None:
            self.end.tell_kept(len(batch))
        return len(batch)


class ChannelEnd:
    """One worker's end of a channel of records: sends to other workers and receives from them."""

    def __init__(self, context: Context, channel: Channel, queue: InputQueue, batch_coalescer: BatchCoalescer) -> None:
        self._allocator = context.allocator
        self._log = context.log
        self._name = channel.dataflow, channel.number  # its name in the log
        self.channel = channel
        self.lane = channel.lane
        self.queue = queue
        self.credits: Credits | None = None  # None unless the channel is bounded; set when the dataflow starts
        self._batch_coalescer = batch_coalescer if channel.lane is Lane.DATA else None
        self.index = context.allocator.index
        self.neighbours = frozenset(context.allocator.neighbours)

    def tell_kept(self, records: int) -> None:
        """Report to the log a batch that stays on this worker."""
        self._log.moved(MessageSent, self._name, self.index, self.index, records)
        self._log.moved(MessageReceived, self._name, self.index, self.index, records)

    def send(self, worker: int, time: Time, batch: list[Any]) -> None:
        """Send a batch to one worker, which may be this one."""
        if worker == self.index:
            self.queue.put(time, batch)
            if self._log.emit is not None:
                self.tell_kept(len(batch))
            return
        if self.credits is not None:
            self.credits.spend(worker, len(batch))
        if self._batch_coalescer is not None:
            self._batch_coalescer.add(self, worker, time, batch)
        else:
            self.post(worker, time, batch)

    def post(self, worker: int, time: Time, batch: list[Any]) -> None:
        """Send a batch to another worker now. Its credit is already spent."""
        if self._log.emit is not None:
            self._log.moved(MessageSent, self._name, self.index, worker, len(batch))
        try:
            self._allocator.send(worker, self.channel, (time, untagged(batch)))
        except CannotTravel as error:
            self.annotate(error)
            raise

    def send_all(self, workers: list[int], time: Time, batch: list[Any]) -> None:
        """Send a batch to several workers, not including this one."""
        for worker in workers:
            self._log.moved(MessageSent, self._name, self.index, worker, len(batch))
            if self.credits is not None:
                self.credits.spend(worker, len(batch))
        try:
            self._allocator.send_all(workers, self.channel, (time, untagged(batch)))
        except CannotTravel as error:
            self.annotate(error)
            raise

    def receive(self, source: int, body: tuple[Time, list[Any]]) -> None:
        """Queue a batch from another worker."""
        time, batch = body
        self.queue.put_from(source, time, batch)
        if self._log.emit is not None:
            self._log.moved(MessageReceived, self._name, source, self.index, len(batch))

    def annotate(self, error: BaseException) -> None:
        """Add a note that names the receiving operator, not the sender: the receiver's pact makes records travel."""
        annotate(error, self.queue.name, self.queue.where, self.index)


@dataclass(slots=True)
class ExchangeEdge(Edge):
    """Edge to the worker that the key selects. Cost: a call of `key` per record; per batch with a single worker."""

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
    """Edge to every worker. On the DATA lane, each other thread of this process gets its own copies of the records."""

    members: Members

    def push(self, time: Time, batch: list[Any]) -> int:
        ids = self.members()
        others = [worker for worker in ids if worker != self.end.index]
        if self.end.lane is Lane.DATA:
            for worker in [each for each in others if each in self.end.neighbours]:
                self.end.send(worker, time, copies_of(batch))
                others.remove(worker)
        self.end.send_all(others, time, batch)
        if self.end.index in ids:  # otherwise this worker is leaving
            self.end.send(self.end.index, time, batch)
        return len(batch) * len(ids)


class AddressedEdge(Edge):
    """Edge to the worker that the producer names."""

    __slots__ = ()

    def push_to(self, worker: int, time: Time, batch: list[Any]) -> int:
        """Send a batch to one worker; return how many records were produced."""
        self.end.send(worker, time, batch)
        return len(batch)


def make_edge(graph: Graph, number: int, pact: Pact, target: int, queue: InputQueue) -> Edge:
    """Return the edge that implements `pact` over the channel with this number. `Silent` has no edge."""
    lane = pact.lane if isinstance(pact, Broadcast | Addressed) else Lane.DATA
    context = graph.context
    end = ChannelEnd(context, Channel(lane, graph.number, number), queue, graph.batch_coalescer)
    members: Members = lambda: context.membership().ids  # noqa: E731
    if isinstance(pact, Pipeline):
        return PipelineEdge(target, end, queue.put, context.log)
    if isinstance(pact, Exchange):
        return ExchangeEdge(target, end, pact.key, members if pact.follow else lambda: graph.founders.ids)
    if isinstance(pact, Broadcast):
        return BroadcastEdge(target, end, members)
    assert isinstance(pact, Addressed), f"no edge for {pact}"
    return AddressedEdge(target, end)
