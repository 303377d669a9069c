"""The dataflows of one worker: those being built, those that run, and what comes for either.

Numbers are given in the order of building, which is the same on all workers, so equal numbers mean equal dataflows.
What comes for one that is not built yet is kept.

A dataflow is dropped in two phases, so that no worker frees what another still feeds.

1. *Stop.* A worker that is asked to drop a dataflow, or hears that another has stopped it, runs it no more and tells
   all workers, joining and leaving ones included. Its inputs, inside and outside, lead nowhere from then on.
2. *Free.* A worker that has heard from all others frees what it kept. What still comes for the dataflow, now or later,
   is discarded: lanes overtake one another, so a record may come long after its sender said that it has stopped.

One worker that asks is enough. A worker that hears of it before it has built the dataflow stops it when it is built.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from megaflow.errors import BuildError, CannotTravel, ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel, Envelope
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.signature import check_equal, signature, tell_built
from megaflow.timely.dispatch import Dispatch
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time, least_of
from megaflow.timely.rescale.messages import Event, Joined, Left

DROP = "megaflow.drop"  # topic of the mail between workers; the body is the dataflow's number


@dataclass(frozen=True, slots=True)
class DataflowStatistics:
    """One running dataflow on one worker."""

    number: int
    name: str
    operators: int
    channels: int
    runs: int  # of operators, since the start
    queued_batches: int  # at inputs
    queued_records: int
    batches_sent: int  # of progress
    batches_received: int  # of progress
    pointstamps: int  # places and times with a count, as this worker knows them
    fused: tuple[tuple[str, ...], ...] = ()  # names of operators that are run as one, the first of which does it
    dropped: int = 0  # records, by buffers whose policy that is


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """Statistics of one worker and its running dataflows, by number."""

    worker: int
    steps: int
    dataflows: tuple[DataflowStatistics, ...]


def _count(graph: Graph) -> DataflowStatistics:
    batches = [batch for queue in graph.queues for _, batch in queue.batches]
    return DataflowStatistics(
        graph.number,
        graph.name,
        len(graph.nodes),
        len(graph.queues),
        graph.runs,
        len(batches),
        sum(map(len, batches)),
        graph.progress.caster.batches_sent,
        graph.progress.caster.batches_received,
        sum(1 for _ in graph.progress.tracker.pointstamps()),
        tuple(tuple(graph.nodes[member].title for member in node.fused) for node in graph.nodes if node.fused),
        graph.handoffs.dropped,
    )


class Dropping:
    """What one worker knows of the dataflows that are being dropped; see above. One writer: the worker's thread."""

    def __init__(self, context: Context, post: Callable[[int, str, Any], None]) -> None:
        self._own = context.allocator.index
        self._context = context
        self._post = post
        self._stopped: dict[int, set[int]] = {}  # dataflow not yet freed -> workers that have stopped it
        self._kept: dict[int, Graph] = {}  # stopped here, not yet freed
        self._done: set[int] = set()  # stopped by all and freed

    def __contains__(self, dataflow: int) -> bool:
        """Tell whether this worker has stopped the dataflow: what comes for it is discarded."""
        return dataflow in self._done or self._own in self._stopped.get(dataflow, ())

    def is_wanted(self, dataflow: int) -> bool:
        """Tell whether another worker has stopped a dataflow that this one has not."""
        return dataflow in self._stopped and dataflow not in self

    def stop(self, dataflow: int, graph: Graph | None) -> None:
        """Stop it here; None: there is nothing (any more) to stop."""
        if graph is not None:
            graph.stop()
            self._kept[dataflow] = graph
        self.hear(self._own, dataflow)
        for worker in self._context.audience():  # all that may have it
            if worker != self._own:
                self._post(worker, DROP, dataflow)

    def hear(self, source: int, dataflow: int) -> None:
        """Note that a worker has stopped it."""
        if dataflow not in self._done:
            self._stopped.setdefault(dataflow, set()).add(source)

    def free(self) -> None:
        """Free what all have stopped; between steps only, because an operator may have dropped its own dataflow."""
        if not self._stopped:
            return
        members = self._context.membership().workers  # those that may feed it
        for dataflow in [each for each, workers in self._stopped.items() if workers.issuperset(members)]:
            del self._stopped[dataflow]
            self._done.add(dataflow)
            graph = self._kept.pop(dataflow, None)
            if graph is not None:
                graph.free()


class Dataflows:
    """One writer: the worker's thread."""

    def __init__(self, context: Context, dispatch: Dispatch) -> None:
        self.running: dict[int, Graph] = {}  # by number
        self.building: set[int] = set()  # numbers of dataflows whose blocks have not ended well (yet)
        self.begun = 0  # the number of the next
        self._early: dict[int, list[Envelope]] = {}  # dataflow not built yet -> what came for it
        self._ended = False  # the program has
        self._context = context
        self._allocator = context.allocator
        self._views = context.views  # those of stateful operators, which come and go with their dataflows
        self.dropping = Dropping(context, dispatch.post)
        self._handlers = dispatch.handlers  # with those of the running dataflows

    def begin(self, name: str | None, founders: Membership, timestamp: Any = int) -> Graph:
        """Begin to build the next one, with times of this kind: see `least_of`."""
        least = least_of(timestamp)
        _check_travels(least)
        number = self.begun
        self.begun += 1
        self.building.add(number)
        return Graph(number, name or f"dataflow {number}", self._context, founders, least)

    def run(self, graph: Graph, started: Callable[[Graph], None]) -> None:
        """Have one run that is built; `started(graph)` is called before anything is delivered to it."""
        number = graph.number
        self.building.discard(number)
        self.running[number] = graph
        graph.handlers[Channel.signature(number)] = partial(_check_signature, graph)
        self._handlers.update(graph.handlers)
        started(graph)
        if graph.context.log.emit is not None:
            tell_built(graph, graph.context.log.emit)
        self._announce(number, (graph.name, signature(graph)), self._context.audience())
        for envelope in self._early.pop(number, []):
            if envelope.channel in graph.handlers:
                graph.handlers[envelope.channel](envelope.source, envelope.body)
            else:
                self.take_unclaimed(envelope)
        if self.dropping.is_wanted(number):
            self._stop(number)
        for view in graph.views:
            view.follow()

    def end_building(self) -> None:
        """Tell the others that the program has ended: one that has built more, or will, raises GraphMismatch."""
        self._ended = True
        self._announce(self.begun, None, self._context.audience())

    def hear_of_change(self, event: Event) -> None:
        """Tell newcomers, too, if the program has ended, and operators that ask; expect no credit of who has left."""
        if isinstance(event, Joined) and self._ended:
            self._announce(self.begun, None, event.ids)
        for graph in self.running.values():
            if isinstance(event, Left):
                graph.handoffs.forget(event.ids)
            for view in graph.views:
                view.follow()

    def find(self, number: int) -> Graph | Literal["later"] | None:
        """Return a dataflow: None if it is complete, "later" if it is not built yet."""
        if number >= self.begun or number in self.building:
            return "later"
        return self.running.get(number)

    def take_unclaimed(self, envelope: Envelope) -> None:
        """Take in what no running dataflow has a channel for. Raises ProtocolError for what must not come."""
        channel, source, _ = envelope
        number = channel.dataflow
        if number in self.dropping:
            return
        if number >= self.begun or number in self.building:
            self._early.setdefault(number, []).append(envelope)
        elif number in self.running:
            raise ProtocolError(
                f"worker {source} sent records: dataflow {self.running[number].name!r} has no channel {channel.number}"
            )
        elif channel.is_records:
            raise ProtocolError(f"worker {source} sent records to dataflow {number}, which is complete")

    def step(self) -> None:
        """Step those that have something to do; let go of those that are complete."""
        for number, graph in list(self.running.items()):
            if graph.active and not graph.over:
                try:
                    graph.step()
                except BaseException:
                    graph.over = True
                    raise
            if not graph.over and graph.progress.is_complete():
                self._let_go(number)
                graph.shut()

    def are_active(self) -> bool:
        """Tell whether a step would do anything."""
        for graph in self.running.values():  # a loop, not any(): asked before each step
            if graph.active:
                return True
        return False

    def statistics(self) -> tuple[DataflowStatistics, ...]:
        """Count for all that run, by number. Costs a pass over what is queued and what is outstanding."""
        return tuple(map(_count, self.running.values()))

    def leave(self) -> None:
        """Let go of all: the cluster has let go of this worker."""
        for number, graph in list(self.running.items()):
            self._let_go(number)
            graph.shut()
        self._views.clear()

    def drop(self, number: int) -> None:
        """Stop one on all workers and free it; harmless if it is complete. Raises BuildError if it was never built."""
        if number >= self.begun or number in self.building or number < 0:
            known = ", ".join(f"{each} ({graph.name})" for each, graph in self.running.items())
            raise BuildError(f"drop_dataflow({number}): there is no such dataflow; installed: {known or 'none'}")
        if number in self.running:
            self._stop(number)

    def hear_of_drop(self, source: int, number: int) -> None:
        """Stop what another worker has stopped."""
        self.dropping.hear(source, number)
        if number < self.begun and number not in self.building and self.dropping.is_wanted(number):
            self._stop(number)

    def _stop(self, number: int) -> None:
        graph = self._let_go(number)
        if graph is not None:
            self._views[:] = [view for view in self._views if view not in graph.views]
        self.dropping.stop(number, graph)

    def _let_go(self, number: int) -> Graph | None:
        """Take a dataflow out of those that run; return it, if it is one."""
        graph = self.running.pop(number, None)
        for channel in graph.handlers if graph is not None else ():
            del self._handlers[channel]
        return graph

    def _announce(self, number: int, graph: tuple[str, tuple[str, ...]] | None, audience: tuple[int, ...]) -> None:
        own = self._allocator.index
        others = [worker for worker in audience if worker != own]
        if others and own in self._context.membership().ids:
            self._allocator.send_all(others, Channel.signature(number), graph)


def _check_signature(graph: Graph, source: int, body: tuple[str, tuple[str, ...]] | None) -> None:
    """Compare with what another worker has built; None: it has ended without this dataflow. Raises GraphMismatch."""
    check_equal(graph, source, None if body is None else tuple(body[1]))


def _check_travels(least: Time) -> None:
    """Raise BuildError for times that would not come to other workers as they are."""
    if type(least) is int:
        return
    try:
        arrived = decode(encode(least))
    except (CannotTravel, ProtocolError) as error:
        raise BuildError(f"timestamp: {least!r} cannot travel between workers: {error}") from error
    if arrived != least or hash(arrived) != hash(least) or repr(arrived) != repr(least):
        raise BuildError(
            f"timestamp: {least!r} would arrive at other workers as {arrived!r}, which is not equal to it; a time "
            "must compare, hash and show by its contents, as a frozen dataclass does"
        )
