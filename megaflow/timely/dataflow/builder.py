"""Building operators: inputs, outputs, sessions, and the closure that runs.

An operator is its `logic`, a closure without arguments that runs when data arrived, a
frontier it watches moved, or it was activated. It reads `Input`s, sends through
`Output`s and returns; it must not block.

All records that leave an operator pass `Output.ship` or `ship_to`, all that enter pass
`Input.drain` or its iteration: the two choke points where records are counted (rule 6
of progress tracking: what was produced is what is consumed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from megaflow.errors import BuildError, CapabilityError
from megaflow.timely.dataflow.capability import Capability, CapabilityRef
from megaflow.timely.dataflow.channels import AddressedEdge, Inlet, make_edge
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.pact import Pact, Silent
from megaflow.timely.order import Summary, Time, identity, minimum
from megaflow.timely.progress.antichain import Antichain

T = TypeVar("T")

BATCH_RECORDS = 700
"""Records in a batch: tuples that stay in the cache and die young cost almost nothing; big batches pay
cache misses and garbage collection (measured: 256 KB of text a batch runs at 0.44 of the plain loop, 4 KB at 1.0)."""


class Activator:
    """Puts its operator on the agenda."""

    __slots__ = ("_graph", "_index")

    def __init__(self, graph: Graph, index: int) -> None:
        self._graph = graph
        self._index = index

    def activate(self) -> None:
        """Run the operator at the worker's next step; from any thread, wakes a parked worker."""
        self._graph.context.activate(self._add)

    def activate_after(self, seconds: float) -> None:
        """Run the operator once this time has passed; from the worker's own thread."""
        self._graph.context.activate_after(seconds, self._add)

    def _add(self) -> None:
        self._graph.agenda.add(self._index)


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """What an operator may know of itself."""

    index: int  # within the dataflow, equal on all workers
    name: str
    worker: int
    activator: Activator


class Session(Generic[T]):
    """Sends records at one time; leaving its block flushes, and so does the operator's return."""

    __slots__ = ("_buffer", "_output", "_time")

    def __init__(self, output: Output[T], time: Time) -> None:
        self._output = output
        self._time = time
        self._buffer: list[T] = []

    def give(self, record: T) -> None:
        """Send one record."""
        self._buffer.append(record)
        if len(self._buffer) >= BATCH_RECORDS:
            self.flush()

    def give_iterator(self, records: Iterable[T]) -> None:
        """Send the records of an iterable, which is run to its end."""
        for record in records:
            self.give(record)

    def give_batch(self, records: list[T]) -> None:
        """Send a list of records; the list is copied."""
        self.flush()
        for start in range(0, len(records), BATCH_RECORDS):
            self._output.ship(self._time, records[start : start + BATCH_RECORDS])

    def flush(self) -> None:
        """Ship what is buffered."""
        if self._buffer:
            buffer, self._buffer = self._buffer, []
            self._output.ship(self._time, buffer)

    def __enter__(self) -> Session[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()


class Output(Generic[T]):
    """The sending side of one output port."""

    __slots__ = ("_edges", "_open", "changes", "location", "retained", "title")

    def __init__(self, graph: Graph, location: int, title: str) -> None:
        self.location = location
        self.title = title
        self.changes = graph.changes
        self.retained: dict[Time, Capability] = {}  # written by capabilities
        self._edges = graph.listeners[location]  # grows as operators connect
        self._open: Session[T] | None = None  # of this invocation

    def session(self, capability: Capability | CapabilityRef) -> Session[T]:
        """Send at the capability's time. Raises CapabilityError if it is released or another output's."""
        if isinstance(capability, Capability):
            if not capability.belongs_to(self):
                raise CapabilityError(f"session: {capability!r} is no capability of {self.title}; retain one for it")
            if not capability.held:
                raise CapabilityError(f"session: {capability!r} may not send any more; open the session before release")
        else:
            capability.check(self)
        self.flush()
        self._open = Session(self, capability.time)
        return self._open

    def ship(self, time: Time, batch: list[T]) -> None:
        """Send a batch to all listeners and count it. The caller holds the right to and never changes it again."""
        if batch:
            for edge in self._edges:
                self.changes.update((edge.target, time), edge.push(time, batch))

    def ship_to(self, worker: int, time: Time, batch: list[T]) -> None:
        """Send a batch to one worker, over channels with the `Addressed` pact."""
        if batch:
            for edge in self._edges:
                assert isinstance(edge, AddressedEdge)
                self.changes.update((edge.target, time), edge.push_to(worker, time, batch))

    def flush(self) -> None:
        """Ship what the open session has buffered."""
        if self._open is not None:
            self._open.flush()
            self._open = None


class Input(Generic[T]):
    """The receiving side of one input port."""

    __slots__ = ("_graph", "_inlet", "_paths", "_valid", "location")

    def __init__(self, graph: Graph, location: int, inlet: Inlet, valid: list[bool]) -> None:
        self.location = location
        self._graph = graph
        self._inlet = inlet
        self._valid = valid
        self._paths: list[tuple[Any, tuple[Summary, ...]]] = []  # output number -> (output, summaries)

    @property
    def frontier(self) -> Antichain:
        """The times that may still appear here; those of queued records included."""
        return self._graph.frontier(self.location)

    def drain(self) -> list[tuple[Time, list[T]]]:
        """Take all that is queued. The batches are shared: not to be changed."""
        queue = self._inlet.queue
        taken = list(queue)
        queue.clear()
        update = self._graph.changes.update
        for time, batch in taken:
            update((self.location, time), -len(batch))
        return taken

    def __iter__(self) -> Iterator[tuple[CapabilityRef, list[T]]]:
        """One pair per batch, in arrival order; the list is the operator's own. `break` leaves the rest queued."""
        queue = self._inlet.queue
        while queue:
            time, batch = queue.popleft()
            self._graph.changes.update((self.location, time), -len(batch))
            yield CapabilityRef(time, self._paths, self._valid), list(batch)


class OperatorBuilder:
    """Assembles one operator: inputs, outputs, then `build`."""

    def __init__(self, scope: ScopeRef, name: str) -> None:
        self.scope = scope
        self._graph = scope.graph
        self._node = scope.graph.add_node(name)
        self._inputs: list[tuple[Input[Any], dict[int, Summary] | None, int]] = []
        self._outputs: list[Output[Any]] = []
        self._valid = [False]  # whether the operator is running: capability references hold only then

    @property
    def graph(self) -> Graph:
        """The dataflow that the operator belongs to."""
        return self._graph

    def new_input(
        self, port: Port[T] | None, pact: Pact, connection: dict[int, Summary] | None = None, notify: bool = True
    ) -> Input[T]:
        """An input fed by `port` (None: by a later `connect`).

        `connection` says which outputs its records can lead to, and what becomes of their times: output number ->
        summary; None is the identity to every output, {} none at all. `notify`: run when its frontier moves.
        """
        if port is not None and port.scope.graph is not self._graph:
            raise BuildError(
                f"{self._node.name}: its input comes from dataflow {port.scope.graph.name!r}, "
                f"not from {self._graph.name!r}; streams cannot cross dataflows, use capture and replay"
            )
        depth = self.scope.depth if port is None else port.scope.depth
        origin = f"{port.node}.{port.output}" if port is not None else "later"
        location, inlet = self._graph.add_target(self._node, depth, f"{pact.name} {origin}", notify)
        made: Input[T] = Input(self._graph, location, inlet, self._valid)
        self._inputs.append((made, connection, depth))
        if port is not None:
            connect(port, location, inlet, pact)
        return made

    def new_output(self) -> tuple[Output[Any], Port[Any]]:
        """An output, and the port that its consumers connect to."""
        number = len(self._outputs)
        location = self._graph.add_source(self._node, self.scope.depth)
        title = f"output {number} of {self._node.name!r} ({self._node.where})"
        output: Output[Any] = Output(self._graph, location, title)
        self._outputs.append(output)
        return output, Port(self.scope, self._node.index, number)

    def build(self, make: Callable[[list[Capability], OperatorInfo], Callable[[], None]]) -> None:
        """Finish: `make(initial capabilities, info)` returns the operator's logic."""
        for made, connection, depth in self._inputs:
            paths = {n: identity(depth) for n in range(len(self._outputs))} if connection is None else connection
            for number, output in enumerate(self._outputs):
                summaries = (paths[number],) if number in paths else ()
                made._paths.append((output, summaries))
                for summary in summaries:
                    self._graph.add_path(made.location, output.location, summary)
            self._node.shape.append(str(sorted((n, s.adds, s.tail) for n, s in paths.items())))
        least = minimum(self.scope.depth)
        capabilities = [Capability(output, least) for output in self._outputs]
        info = OperatorInfo(
            self._node.index,
            self._node.name,
            self._graph.context.allocator.index,
            Activator(self._graph, self._node.index),
        )
        self._node.logic = self._guarded(make(capabilities, info))

    def build_reader(self, make: Callable[[list[Capability], OperatorInfo], Callable[[], None]]) -> None:
        """Like `build` for logic of the user's: capability references end, and open sessions flush, when it returns."""
        self.build(make)
        logic, valid, outputs = self._node.logic, self._valid, self._outputs
        assert logic is not None

        def run() -> None:
            valid[0] = True
            logic()
            valid[0] = False
            for output in outputs:
                output.flush()

        self._node.logic = run

    @staticmethod
    def _guarded(logic: Callable[[], None]) -> Callable[[], None]:
        if not callable(logic):
            raise BuildError(f"build must return the operator's logic, a function; it returned {logic!r}")
        return logic


def connect(port: Port[Any], target: int, inlet: Inlet, pact: Pact) -> None:
    """Open a channel from a port to an input, for progress and, unless the pact is Silent, for data."""
    graph = port.scope.graph
    source = graph.nodes[port.node].sources[port.output]
    graph.connect(source, target)
    if isinstance(pact, Silent):
        return
    context = graph.context
    channel = (graph.number, graph.add_channel(inlet))
    graph.listeners[source].append(
        make_edge(
            pact,
            target,
            inlet,
            context.allocator,
            channel,
            lambda: context.founders.ids,
            lambda: context.membership().ids,
        )
    )
