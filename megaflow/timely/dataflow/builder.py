"""Building operators: inputs, outputs, sessions, and the closure that runs.

An operator is its `logic`, a closure without arguments. It runs when data has arrived, when a frontier that it watches
has moved, or when it was activated. It reads `Input`s, sends through `Output`s and returns. It must not block.

Outgoing records of an operator pass `Output.ship` or `ship_to`, incoming ones `Input.drain` or `take`. Records
are counted only there (rule 6 of progress tracking: consumers receive exactly the records that were produced).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar
from weakref import ref

from megaflow.errors import CapabilityError
from megaflow.timely.dataflow import argument_checks
from megaflow.timely.dataflow.capability import Capability, CapabilityRef, Invocation, mint
from megaflow.timely.dataflow.channels import AddressedEdge, make_edge
from megaflow.timely.dataflow.context import Activator, OperatorInfo
from megaflow.timely.dataflow.flow_control.gates import Downstream
from megaflow.timely.dataflow.flow_control.handoffs import Handoff
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.graph import Graph, Node, Port, ScopeRef
from megaflow.timely.dataflow.leaked_capability import watch
from megaflow.timely.dataflow.pact import Exchange, Pact, PactOrClass, Pipeline, Silent
from megaflow.timely.dataflow.scopes import check_open, check_same
from megaflow.timely.dataflow.session import BATCH_RECORDS as BATCH_RECORDS
from megaflow.timely.dataflow.session import Session
from megaflow.timely.order import Time
from megaflow.timely.path_summary import Summary, identity
from megaflow.timely.progress.antichain import Antichain

T = TypeVar("T")


class Output(Generic[T]):
    """Sending side of one output port."""

    def __init__(self, graph: Graph, location: int, number: int, node: Node) -> None:
        self.location = location
        self.number = number
        self.title = f"output {number} of {node.title!r} ({node.where})"
        self.where = node.where
        self.is_running = watch(graph)
        self.changes = graph.changes
        self.retained: dict[Time, ref[Capability]] = {}  # written by capabilities
        self._edges = graph.listeners[location]  # grows as operators connect
        self._open: list[Session[T]] = []  # of this invocation, in the order of opening
        self._handoffs = graph.handoffs
        self._node = node.index
        self._downstream: Downstream | None = None  # the gates after it, once it was asked

    def is_full(self) -> bool:
        """Return whether the operators after this output have enough to do. If so, stop sending and return.

        The operator runs again as soon as there is room. Records that it leaves in its inputs do not run it earlier.
        The answer is advice: sending still works. Sources of records, and operators that may make many records from
        few, should ask once per batch. Never true around a cycle for records that the cycle holds, nor for an operator
        that reads state or control. Cost: O(1).
        """
        downstream = self._downstream
        if downstream is None:
            if not self._handoffs.started:
                return False
            downstream = self._downstream = self._handoffs.downstream_of(self.location, self._node)
        if not downstream.is_full() or not self.is_running():
            return False
        self._handoffs.refused = True
        return True

    def room(self) -> int:
        """Return how many records fit after this output: 0 if it `is_full`. Cost: O(queues after it)."""
        if self.is_full():
            return 0
        room = sys.maxsize if self._downstream is None else self._downstream.room()
        return room if room > 0 else BATCH_RECORDS  # an operator that has waited may send one more batch

    def session(self, capability: Capability | CapabilityRef) -> Session[T]:
        """Send at the capability's time. Raises CapabilityError unless it is an unreleased capability of this output.
        """
        if not isinstance(capability, (Capability, CapabilityRef)):
            raise CapabilityError(
                f"session: {capability!r} does not allow sending at {self.title}; open the session with a capability "
                "or with the time of a batch"
            )
        capability.check(self)
        if self._open:
            self._open[-1].flush()
        session: Session[T] = Session(self, capability.time)
        self._open.append(session)
        return session

    def mint(self, time: Time) -> Capability:
        """Return a new, counted capability: see `capability.mint`."""
        return mint(self, time)

    def ship(self, time: Time, batch: list[T]) -> None:
        """Send a batch to all listeners and count it. The caller has the right to send, and never changes the batch."""
        if batch:
            if self._downstream is not None:
                self._downstream.granted = False
            for edge in self._edges:
                self.changes.update((edge.target, time), edge.push(time, batch))

    def ship_to(self, worker: int, time: Time, batch: list[T]) -> None:
        """Send a batch to one worker, over channels with the `Addressed` pact."""
        if batch:
            if self._downstream is not None:
                self._downstream.granted = False
            for edge in self._edges:
                assert isinstance(edge, AddressedEdge)
                self.changes.update((edge.target, time), edge.push_to(worker, time, batch))

    def end_sessions(self) -> None:
        """Send all buffered records of the open sessions, and end the sessions."""
        if self._open:
            for session in self._open:
                session.end()
            self._open.clear()


class Input(Generic[T]):
    """Receiving side of one input port."""

    def __init__(self, graph: Graph, location: int, queue: InputQueue, pact: Pact, outputs: list[Output[Any]]) -> None:
        self.location = location
        self.queue = queue
        self.pact = pact  # of the channel that feeds it
        self.paths: dict[int, Summary] = {}  # output number -> summary of the path to it; filled by the builder
        self.invocation = Invocation()  # the current one; replaced by the operator's builder
        self._graph = graph
        self._outputs = outputs  # the operator's; grows while it is built

    @property
    def frontier(self) -> Antichain:
        """The times that may still appear here, including those of queued records."""
        return self._graph.frontier(self.location)

    def drain(self) -> list[tuple[Time, list[T]]]:
        """Take all queued batches. They are shared and must not be changed."""
        queue = self.queue
        taken = list(queue.batches)
        if taken:
            queue.batches.clear()
            update = self._graph.changes.update
            for time, batch in taken:
                update((self.location, time), -len(batch))
            queue.took(len(taken), queue.records)
        return taken

    def is_waiting(self) -> bool:
        """Return whether a batch is queued."""
        return bool(self.queue.batches)

    def take(self) -> tuple[Time, list[T]]:
        """Take the first queued batch; there must be one. It is shared and must not be changed."""
        time, batch = self.queue.batches.popleft()
        self._graph.changes.update((self.location, time), -len(batch))
        self.queue.took(1, len(batch))
        return time, batch

    def take_while_room(self, *outputs: Output[Any]) -> Iterator[tuple[Time, list[T]]]:
        """Take batches one by one as long as no output is full. The others wait for room.

        The batches are shared and must not be changed.
        """
        while self.is_waiting():
            for output in outputs:
                if output.is_full():
                    return
            yield self.take()

    def drop(self, records: int, newest: bool) -> None:
        """Drop this many queued records, the newest or the oldest. They count as consumed."""
        for time, count in self.queue.cut(records, newest):
            self._graph.changes.update((self.location, time), -count)

    def replace(self, batches: list[tuple[Time, list[T]]]) -> None:
        """Replace all queued records by these, at times of queued records. The difference counts as consumed."""
        self.drain()
        self.queue.refill(batches)
        for time, batch in batches:
            self._graph.changes.update((self.location, time), len(batch))

    def __iter__(self) -> Iterator[tuple[CapabilityRef, list[T]]]:
        """Yield a pair for each batch, in arrival order. The operator owns the list. `break` leaves the rest queued."""
        queue = self.queue.batches
        while queue:
            time, batch = self.take()
            self.invocation.time = time
            yield CapabilityRef(time, self._outputs, self.paths, self.invocation), list(batch)

    def for_each(self, f: Callable[[CapabilityRef, list[T]], object]) -> None:
        """Call `f(time, records)` for each batch, as iterating over the input does."""
        for time, batch in self:
            f(time, batch)


class NodeBuilder:
    """Assembles one operator: inputs, outputs, then one of the `build` methods."""

    def __init__(self, scope: ScopeRef, name: str, shape: str | None = None) -> None:
        """`shape`: what must be equal on all workers besides the ports."""
        self.scope = scope
        self.graph = scope.graph  # the dataflow that the operator belongs to
        check_open(scope, argument_checks.name(name, "an operator"))
        self.node = self.graph.add_node(name, scope)
        self.where = self.node.where  # file:line of the user's declaration
        self.node.shape += [shape] if shape is not None else []
        self._inputs: list[tuple[Input[Any], dict[int, Summary] | None, int]] = []
        self._outputs: list[Output[Any]] = []

    def new_input(
        self,
        port: Port[T] | None,
        pact: PactOrClass,
        connection: dict[int, Summary] | None = None,
        notify: bool = True,
        crossing: bool = False,
    ) -> Input[T]:
        """Add an input fed by `port`. None: a later `connect` feeds it.

        `connection` tells which outputs its records can lead to, and how their times change: output number -> summary.
        None is the identity to every output; {} is no output. `notify`: run when the input's frontier moves. Raises
        BuildError if `port` belongs to another scope, unless this operator is the `crossing`.
        """
        if port is not None and not crossing:
            check_same(port.scope, self.scope, self.node.name)
        meant = argument_checks.pact(self.node.name, pact)
        depth = self.scope.depth if port is None else port.scope.depth
        origin = f"{port.node}.{port.output}" if port is not None else "later"
        location, queue = self.graph.add_target(self.node, depth, f"{type(meant).__name__} {origin}", notify)
        made: Input[T] = Input(self.graph, location, queue, meant, self._outputs)
        self._inputs.append((made, connection, depth))
        if port is not None:
            self._open_channel(made, port)
        return made

    def new_output(self) -> tuple[Output[Any], Port[Any]]:
        """Add an output. Return it, and the port that its consumers connect to."""
        number = len(self._outputs)
        location = self.graph.add_source(self.node, self.scope.depth)
        output: Output[Any] = Output(self.graph, location, number, self.node)
        self._outputs.append(output)
        return output, Port(self.scope, self.node.index, number)

    def add_output(self) -> tuple[Output[Any], Port[Any], Capability]:
        """Add an output after `build` that depends on no input. Return it, its port and its initial capability."""
        output, port = self.new_output()
        capability = Capability(output, self.scope.least, absent=not self.graph.founds)
        if self.node.joinable:
            self.node.joinable = (*self.node.joinable, capability)
        return output, port, capability

    def connect(self, made: Input[T], port: Port[T]) -> None:
        """Feed an input that was made without a port. May be called after `build`."""
        self.node.shape.append(f"from {port.node}.{port.output}")
        self._open_channel(made, port)

    def build(
        self,
        make: Callable[[list[Capability], OperatorInfo], Callable[[], None] | None],
        joinable: bool = False,
        stage: object = None,
        stop: Callable[[], None] | None = None,
        filled: Callable[[Time | None], None] | None = None,
    ) -> None:
        """Finish the operator. `make(initial capabilities, info)` returns its logic.

        `joinable`: on a worker that joins later, the absent capabilities are filled if a member still holds them. Then
        `filled` is called with the time, or with None if they never will be. `stop` releases the program's capabilities
        when the program ends. `stage` describes how a generated function does the operator's work: see `stage`.
        """
        node = self.node
        for made, connection, depth in self._inputs:
            if connection is None:
                connection = dict.fromkeys(range(len(self._outputs)), identity(depth))
            made.paths.update(connection)
            for number, summary in connection.items():
                self.graph.builder.add_edge(made.location, self._outputs[number].location, summary)
            node.shape.append(str(sorted((n, s.adds, s.tail) for n, s in connection.items())))
        least = self.scope.least
        absent = not self.graph.founds
        capabilities = [Capability(output, least, absent=absent) for output in self._outputs]
        context = self.graph.context
        activator = Activator(context, self.graph.run_queue, node.index)
        node.joinable = capabilities if joinable else ()
        node.stage, node.stop, node.filled = stage, stop, filled
        node.logic = make(capabilities, OperatorInfo(node.index, node.name, context.allocator.index, activator))

    def build_releasing(self, logic: Callable[[], None] | None, stage: object = None) -> None:
        """Finish an operator that holds no initial capability: it sends only in response to its input.

        The logic of a stage may be None: `fusion` writes it when the dataflow starts.
        """

        def make(capabilities: list[Capability], info: object) -> Callable[[], None] | None:
            for capability in capabilities:
                capability.release()
            return logic

        self.build(make, stage=stage)

    def _open_channel(self, made: Input[Any], port: Port[Any]) -> None:
        """Open a channel from a port to an input, for progress and, unless the pact is Silent, for data."""
        graph, pact, queue = self.graph, made.pact, made.queue
        source = graph.nodes[port.node].sources[port.output]
        number = graph.connect(source, made.location, type(pact).__name__, None if isinstance(pact, Silent) else queue)
        if isinstance(pact, Exchange) and not pact.follow:
            graph.pinned.append(queue.name)
        if number is None:
            return
        edge = make_edge(graph, number, pact, made.location, queue)
        graph.listeners[source].append(edge)
        graph.handlers[edge.end.channel] = edge.end.receive
        nodes, local = (port.node, queue.node), isinstance(pact, Pipeline)
        graph.handoffs.add(Handoff(nodes, source, made.location, edge.end, local))
