"""One dataflow on one worker: built once, then stepped until it is complete.

While it is built, the `Graph` collects nodes, locations and channels in the order in which the user's program makes
them. Every worker runs the same program, so equal numbers mean equal things on all workers. `start()` fixes the shape,
gives each output the initial capability of every founding member, and leaves counting to a tracker.

A step shows the frontiers that progress has moved, runs the operators in the run queue, and broadcasts their changes as
one batch. `graph_progress` holds what this worker knows about the progress of all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.communication.channel import Channel, Handler
from megaflow.timely.dataflow.batch_coalescer import BatchCoalescer
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Context, View
from megaflow.timely.dataflow.error_notes import annotate, user_line
from megaflow.timely.dataflow.flow_control.handoffs import Handoffs
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.graph_progress import GraphProgress
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.log import OperatorShut, ScheduleStarted, ScheduleStopped
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.reachability import GraphBuilder

T = TypeVar("T", covariant=True)
E = TypeVar("E")


@dataclass(slots=True)
class Node:
    """An operator in the graph."""

    index: int
    name: str
    where: str  # file:line of the user's declaration
    scope: ScopeRef
    queues: list[InputQueue] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # input -> location
    sources: list[int] = field(default_factory=list)  # output -> location
    shape: list[str] = field(default_factory=list)  # its part of the dataflow's signature
    logic: Callable[[], None] | None = None
    stop: Callable[[], None] | None = None  # for inputs: releases the capability when the program ends
    joinable: Sequence[Capability] = ()  # its initial capabilities, if joining workers get clones of them
    stage: Any = None  # how a generated function can do its work: see `stage`; None: it cannot
    fused: tuple[int, ...] = ()  # nodes whose work this one does in a generated function, itself first
    within: int | None = None  # the node that does the work of this one, which itself never runs
    loses: str | None = None  # the policy that may drop records; None: all records come out
    carries: str | None = None  # what it keeps from a time to a later one, so that effects come late; None: nothing
    divides: bool = False  # divides the records of its input with the other dividing operators beside it
    by_hand: bool | None = None  # None: not written by the program; False: written, and nothing outlives a time
    filled: Callable[[Time | None], None] | None = None  # called when absent capabilities are filled, or never will be

    @property
    def title(self) -> str:
        """The name with the scopes around it: `loop/Map`."""
        return "/".join([*self.scope.path, self.name])


@dataclass(slots=True, eq=False)
class ScopeRef:
    """A scope under construction: where new operators go. Equal only to itself."""

    graph: Graph
    rounds: int = 0  # coordinates that scopes have added to its times; a region has the times of its parent
    parent: ScopeRef | None = None  # None: the root
    name: str = ""
    where: str = ""  # file:line that opened it
    open: bool = True  # cleared at the end of the block that builds it
    depth: int = field(init=False)  # coordinates of its times, less one
    least: Time = field(init=False)  # the least of its times

    def __post_init__(self) -> None:
        self.depth = self.graph.builder.root_depth + self.rounds
        self.least = self.graph.builder.least(self.depth)

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the scopes from below the root down to this one."""
        return () if self.parent is None else (*self.parent.path, self.name)


class Scoped(Protocol):
    """A scope, as this package sees it."""

    ref: ScopeRef


@dataclass(frozen=True, slots=True)
class Port(Generic[T]):
    """Output of an operator. Higher packages see it as a stream of T."""

    scope: ScopeRef
    node: int
    output: int


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Connection from an output to an input."""

    source: int  # location
    target: int  # location
    pact: str
    channel: int | None  # None: no records go there


class Graph:
    """A dataflow under construction, then running. `least` is the least time of its root scope."""

    def __init__(
        self, number: int, name: str, context: Context, founders: Membership, least: Time, stir: Callable[[], object]
    ) -> None:
        """`stir` is called whenever the dataflow may have become active."""
        self.number = number
        self.name = name
        self.founders = founders  # determines initial counts and tables
        self.context = context
        self.run_queue = RunQueue(stir)
        self.progress = GraphProgress(number, context, self.run_queue)
        self.changes = self.progress.changes  # written by outputs, inputs and capabilities
        self.handoffs = Handoffs(number, context.allocator, self.run_queue)
        self.batch_coalescer = BatchCoalescer(context.now)
        self.handlers: dict[Channel, Handler] = {Channel.credit(number): self.handoffs.hear}  # for its messages
        self.nodes: list[Node] = []
        self.where: str | None = None  # declaring line for new operators; None: the user's current line
        self.queues: list[InputQueue] = []  # channel -> queue
        self.edges: list[GraphEdge] = []
        self.views: list[View] = []  # those of `Context.views` that belong to it
        self.pinned: list[str] = []  # operators that get records on founding members only
        self.over = False  # complete, dropped or failed: nothing in it will run again
        self.listeners: dict[int, list[Any]] = {}  # source location -> edges, shared with its Output
        self.unmet: list[Callable[[], str | None]] = []  # called at the start; each returns what an operator lacks
        self._extensions: dict[type, object] = {}  # class -> its one object for this dataflow
        self.builder = GraphBuilder(least)
        self.initial: list[tuple[int, Time, int]] = []

    # Building ---------------------------------------------------------------------------

    def add_node(self, name: str, scope: ScopeRef) -> Node:
        """Add an operator. It runs once after the start."""
        if self.progress.running is not None:
            raise BuildError(f"{name}: the dataflow {self.name!r} is already running; operators cannot be added")
        node = Node(len(self.nodes), name, self.where or user_line(), scope)
        self.nodes.append(node)
        return node

    def add_source(self, node: Node, depth: int) -> int:
        """Add an output to `node`; return its location. Each founding member holds a capability at the least time."""
        location = self.builder.add_location(depth, f"{node.title}.out{len(node.sources)} ({node.where})")
        node.sources.append(location)
        self.initial.append((location, self.builder.least(depth), len(self.founders.ids)))
        self.listeners[location] = []
        return location

    def add_target(self, node: Node, depth: int, shape: str, notify: bool) -> tuple[int, InputQueue]:
        """Add an input to `node`; return its location and queue. With `notify`, frontier moves there run the node."""
        location = self.builder.add_location(depth, f"{node.title}.in{len(node.targets)} ({node.where})")
        queue = InputQueue(node.name, node.where, node.index, self.run_queue)
        node.targets.append(location)
        node.queues.append(queue)
        node.shape.append(shape)
        if notify:
            self.progress.watchers[location] = node.index
        return location, queue

    def connect(self, source: int, target: int, pact: str, queue: InputQueue | None) -> int | None:
        """Connect an output to an input for progress, and with a `queue` for records. Return the channel's number.

        The number is equal on all workers because all build in the same order.
        """
        channel = None if queue is None else len(self.queues)
        if queue is not None:
            self.queues.append(queue)
        self.builder.add_edge(source, target)
        self.edges.append(GraphEdge(source, target, pact, channel))
        return channel

    def extension(self, kind: type[E]) -> E:
        """Return what a higher package keeps for this dataflow: one object of a class, made on first use."""
        found = self._extensions.setdefault(kind, kind())
        assert isinstance(found, kind)
        return found

    def show(self, view: View) -> None:
        """Show an operator to the rest of the worker, by this view of it."""
        self.views.append(view)
        self.context.views.append(view)

    def start(self) -> None:
        """Fix the shape. Raises BuildError for a cycle that does not advance time, naming its operators."""
        idle = [node for node in self.nodes if node.logic is None and node.within is None]
        unfinished = [f"{node.title} ({node.where})" for node in idle]
        if unfinished:
            raise BuildError(
                f"dataflow {self.name!r}: {', '.join(unfinished)} was never connected; "
                "a feedback needs stream.connect_loop(handle), an OperatorBuilder needs build(...)"
            )
        if lacking := [why for each in self.unmet if (why := each()) is not None]:
            raise BuildError("; ".join(lacking))
        own = [((location, time), 1) for location, time, _ in self.initial] if self.founds else []
        self.progress.start(self.builder.build(self.initial), own, self.listeners)
        runs_in = [node.index if node.within is None else node.within for node in self.nodes]
        self.handoffs.start(self.builder.edges, runs_in)
        self.handlers[Channel.progress(self.number)] = self.progress.receive
        for node in self.nodes:
            if node.within is None:
                self.run_queue.add(node.index)

    # Running ----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether `start` has been called."""
        return self.over or self.progress.running is not None

    def check_started(self, verb: str) -> None:
        """Raise BuildError if records that `verb` sends would be lost."""
        if not self.started:
            raise BuildError(
                f"{verb}: dataflow {self.name!r} is still being built, so its operators would miss the records; send "
                "after the end of its `with` block"
            )

    def frontier(self, location: int) -> Antichain:
        """Return the frontier at a location: the minimum until the dataflow runs, empty once it was dropped."""
        tracker = self.progress.running
        if tracker is None:
            return Antichain() if self.over else Antichain([self.builder.least(self.builder.depths[location])])
        return tracker.frontier(location)

    @property
    def founds(self) -> bool:
        """Whether this worker holds the initial capabilities: it is a founding member."""
        return self.context.allocator.index in self.founders.workers

    @property
    def active(self) -> bool:
        """Whether a step would do anything."""
        return self.progress.is_active() or bool(self.run_queue) or bool(self.handoffs.due)

    def step(self) -> None:
        """Show frontiers, run the operators in the run queue, broadcast their changes."""
        self.progress.show()
        self.run_queue.run(self._invoke)
        self.progress.send()
        self.handoffs.settle(self.context.audience)
        self.batch_coalescer.settle(busy=bool(self.run_queue))

    def close_inputs(self) -> None:
        """Release the capabilities of the program's inputs: the program has returned."""
        for node in self.nodes:
            if node.stop is not None:
                node.stop()

    def shut(self) -> None:
        """Note that nothing will run again, and report it to the log."""
        self.over = True
        emit = self.context.log.emit
        if emit is not None:
            for node in self.nodes:
                emit(OperatorShut(self.number, node.index))

    def stop(self) -> None:
        """Drop the dataflow, first half: nothing runs, is sent or can arrive from now on."""
        self.shut()
        for edges in self.listeners.values():
            edges.clear()
        self.run_queue.clear()
        for queue in self.queues:
            queue.clear()
        self.progress.stop()

    def free(self) -> None:
        """Drop the dataflow, second half: let go of operators and what they hold. Their handles may live on."""
        for items in (self.nodes, self.queues, self.edges, self.initial, self.views):
            items.clear()
        for part in (self._extensions, self.listeners, self.handoffs, self.batch_coalescer, self.handlers):
            part.clear()
        self.changes.drain()

    def _invoke(self, index: int) -> None:
        node = self.nodes[index]
        assert node.logic is not None
        self.handoffs.refused = False
        emit = self.context.log.emit
        if emit is not None:
            emit(ScheduleStarted(self.number, index))
        try:
            node.logic()
        except BaseException as error:
            annotate(error, node.name, node.where, self.context.allocator.index)
            raise
        if not self.handoffs.refused and any(queue.batches for queue in node.queues):
            self.run_queue.add(index)  # it left batches queued: this does not mean "no more input" (timely's issue 523)
        if emit is not None:
            emit(ScheduleStopped(self.number, index))
