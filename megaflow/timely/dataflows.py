"""The dataflows of one worker: those under construction, those that run, and the messages for both.

Dataflows are numbered in the order of building. The order is the same on all workers, so equal numbers mean equal
dataflows. Messages for a dataflow that is not built yet are kept.

A dataflow is dropped in two phases, so that no worker frees what another worker still feeds.

1. *Stop.* A worker that is asked to drop a dataflow, or learns that another worker has stopped it, stops running it and
   notifies all workers, including joiners and leavers. From then on the dataflow's inputs, inside and outside, lead
   nowhere.
2. *Free.* When a worker has heard from all other members, it frees what it kept. It discards messages that still arrive
   for the dataflow, now or later: lanes overtake one another, so a record may arrive long after its sender's notice.

It is enough that one worker asks. A worker that learns of the drop before it has built the dataflow stops it when it is
built.

Idle dataflows cost nothing. A dataflow that may have become active is put into a queue, and a step of the worker visits
those in the queue. A dataflow becomes active in one of these ways: an operator enters its run queue, its tracker has
something to propagate, an own change is to be sent, or credit is due. All four put it into the queue (`RunQueue.stir`).
After its step, a dataflow stays in the queue only if it is active. It can become complete only by its own step.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from megaflow.errors import BuildError, CannotTravel, ProtocolError
from megaflow.timely.communication.channel import Channel, Envelope
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.dataflow.signature import check_equal, signature, tell_built
from megaflow.timely.dispatch import Dispatch
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time, least_of
from megaflow.timely.rescale.messages import Event, Joined, Left

DROP = "megaflow.drop"  # topic of the mail between workers; the body is the dataflow's number


class Dropping:
    """What one worker knows of the dataflows being dropped. Only the worker's thread writes it."""

    def __init__(self, context: Context, post: Callable[[int, str, Any], None]) -> None:
        self._own = context.allocator.index
        self._context = context
        self._post = post
        self._stopped: dict[int, set[int]] = {}  # dataflow not yet freed -> workers that have stopped it
        self._kept: dict[int, Graph] = {}  # stopped here, not yet freed
        self._done: set[int] = set()  # stopped by all and freed

    def __contains__(self, dataflow: int) -> bool:
        """Return whether this worker has stopped the dataflow, so that its messages are discarded."""
        return dataflow in self._done or self._own in self._stopped.get(dataflow, ())

    def is_wanted(self, dataflow: int) -> bool:
        """Return whether another worker has stopped a dataflow that this one has not."""
        return dataflow in self._stopped and dataflow not in self

    def stop(self, dataflow: int, graph: Graph | None) -> None:
        """Stop a dataflow here and notify the other workers. `graph` is None if nothing is left to stop."""
        if graph is not None:
            graph.stop()
            self._kept[dataflow] = graph
        self.hear(self._own, dataflow)
        for worker in self._context.audience():  # all workers that may have it
            if worker != self._own:
                self._post(worker, DROP, dataflow)

    def hear(self, source: int, dataflow: int) -> None:
        """Note that a worker has stopped a dataflow."""
        if dataflow not in self._done:
            self._stopped.setdefault(dataflow, set()).add(source)

    def free(self) -> None:
        """Free the dataflows that all workers have stopped.

        Call it only between steps, because an operator may have dropped its own dataflow.
        """
        if not self._stopped:
            return
        members = self._context.membership().workers  # those that may feed the dataflows
        for dataflow in [each for each, workers in self._stopped.items() if workers.issuperset(members)]:
            del self._stopped[dataflow]
            self._done.add(dataflow)
            graph = self._kept.pop(dataflow, None)
            if graph is not None:
                graph.free()


class Dataflows:
    """The dataflows of one worker. Only the worker's thread writes it."""

    def __init__(self, context: Context, dispatch: Dispatch) -> None:
        self.running: dict[int, Graph] = {}  # by number
        self.building: set[int] = set()  # numbers of dataflows whose blocks have not ended, or ended with an error
        self.begun = 0  # the number of the next dataflow
        self._early: dict[int, list[Envelope]] = {}  # dataflow not built yet -> its messages
        self._ended = False  # the program has ended
        self._context = context
        self._allocator = context.allocator
        self._views = context.views  # views of stateful operators, added and removed with their dataflows
        self.dropping = Dropping(context, dispatch.post)
        self._handlers = dispatch.handlers  # includes those of the running dataflows
        self._queue = RunQueue()  # numbers of the dataflows that may be active

    def begin(self, name: str | None, founders: Membership, timestamp: Any = int) -> Graph:
        """Begin to build the next dataflow, with times of this kind: see `least_of`."""
        least = least_of(timestamp)
        _check_travels(least)
        number = self.begun
        self.begun += 1
        self.building.add(number)
        stir = partial(self._queue.add, number)
        return Graph(number, name or f"dataflow {number}", self._context, founders, least, stir)

    def run(self, graph: Graph, started: Callable[[Graph], None]) -> None:
        """Run a built dataflow. Calls `started(graph)` before it delivers any message to it."""
        number = graph.number
        self.building.discard(number)
        self.running[number] = graph
        graph.handlers[Channel.signature(number)] = partial(check_equal, graph)
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
        self._queue.add(number)

    def end_building(self) -> None:
        """Announce that the program has ended.

        A worker that has built more dataflows, or builds more later, raises GraphMismatch.
        """
        self._ended = True
        self._announce(self.begun, None, self._context.audience())

    def hear_of_change(self, event: Event) -> None:
        """Handle a membership change.

        Pass it to the views, tell joiners if the program has ended, and expect no more credit of leavers.
        """
        if isinstance(event, Joined) and self._ended:
            self._announce(self.begun, None, event.ids)
        for graph in self.running.values():
            if isinstance(event, Left):
                graph.handoffs.forget(event.ids)
            for view in graph.views:
                view.follow()

    def find(self, number: int) -> Graph | Literal["later"] | None:
        """Return a dataflow. None if it is complete, "later" if it is not built yet."""
        if number >= self.begun or number in self.building:
            return "later"
        return self.running.get(number)

    def take_unclaimed(self, envelope: Envelope) -> None:
        """Handle a message without a handler. Raises ProtocolError if it must not arrive."""
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
        """Step the active dataflows, and let go of complete ones."""
        if self._queue:
            self._queue.run(self._step)

    def _step(self, number: int) -> None:
        graph = self.running.get(number)
        if graph is None or graph.over:
            return
        if graph.active:
            try:
                graph.step()
            except BaseException:
                graph.over = True
                raise
        if number in self.running and graph.progress.is_complete():  # an operator may have dropped it
            self._let_go(number)
            graph.shut()
        if number in self.running and graph.active:
            self._queue.add(number)
        else:
            self._queue.discard(number)

    def are_active(self) -> bool:
        """Return whether a step may do anything."""
        return bool(self._queue)

    def leave(self) -> None:
        """Let go of all dataflows: the cluster has released this worker."""
        for number, graph in list(self.running.items()):
            self._let_go(number)
            graph.shut()
        self._views.clear()

    def drop(self, number: int) -> None:
        """Stop a dataflow on all workers and free it. Harmless if it is complete. Raises BuildError if never built."""
        if number >= self.begun or number in self.building or number < 0:
            known = ", ".join(f"{each} ({graph.name})" for each, graph in self.running.items())
            raise BuildError(f"drop_dataflow({number}): there is no such dataflow; installed: {known or 'none'}")
        if number in self.running:
            self._stop(number)

    def hear_of_drop(self, source: int, number: int) -> None:
        """Stop a dataflow that another worker has stopped."""
        self.dropping.hear(source, number)
        if number < self.begun and number not in self.building and self.dropping.is_wanted(number):
            self._stop(number)

    def _stop(self, number: int) -> None:
        graph = self._let_go(number)
        if graph is not None:
            self._views[:] = [view for view in self._views if view not in graph.views]
        self.dropping.stop(number, graph)

    def _let_go(self, number: int) -> Graph | None:
        """Remove a dataflow from the running ones. Return it if it was one of them."""
        graph = self.running.pop(number, None)
        for channel in graph.handlers if graph is not None else ():
            del self._handlers[channel]
        return graph

    def _announce(self, number: int, graph: tuple[str, tuple[str, ...]] | None, audience: tuple[int, ...]) -> None:
        own = self._allocator.index
        others = [worker for worker in audience if worker != own]
        if others and own in self._context.membership().ids:
            self._allocator.send_all(others, Channel.signature(number), graph)


def _check_travels(least: Time) -> None:
    """Raise BuildError for times that would not arrive unchanged at other workers."""
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
