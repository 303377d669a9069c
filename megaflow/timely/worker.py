"""The worker: one thread of control that can be stepped by hand.

A step is: receive what has arrived, fold progress, let each active dataflow show its
frontiers, run its operators once and broadcast what they did, then flush. Nothing in it
blocks; only `step_or_park` waits, and only in the transport.

A worker owns its dataflows; nothing else writes them. What other threads want of it they
hand over with `Context.activate`, which wakes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

from megaflow.errors import BuildError, ProtocolError
from megaflow.timely.communication.allocator import Allocator, Envelope, Lane
from megaflow.timely.dataflow.graph import Context, Graph, ScopeRef
from megaflow.timely.membership import Membership

S = TypeVar("S")

_MAIL = (-1, 0)  # the channel of messages outside dataflows
_PROGRESS, _SIGNATURE = 0, 1  # second part of a dataflow's channels on the PROGRESS lane
_LONGEST_WAIT_SECONDS = 0.1
"""`step_while` looks at its predicate at least this often, because it may depend on more than the dataflow."""


class Worker(Generic[S]):
    """Builds dataflows and steps them. `S` is the scope that `dataflow()` gives the program."""

    def __init__(
        self,
        allocator: Allocator,
        membership: Membership,
        make_scope: Callable[[ScopeRef], S],
        clocks: tuple[Callable[[], float], Callable[[], float]],
        args: Sequence[str] = (),
    ) -> None:
        self.args = list(args)
        self.stateful: list[Any] = []  # views of the stateful operators, added as they are built
        self._allocator = allocator
        self._membership = membership
        self._make_scope = make_scope
        self._now = clocks[0]  # monotonic
        self._thread = threading.get_ident()
        self._graphs: dict[int, Graph] = {}  # running, by number
        self._next_dataflow = 0
        self._building: set[int] = set()  # numbers of dataflows whose blocks have not ended well (yet)
        self._early: dict[int, list[Envelope]] = {}  # dataflow not built yet -> what came for it
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # heap: due, tie-breaker, what
        self._timer_numbers = count()
        self._handed: deque[Callable[[], None]] = deque()  # appended by any thread, drained by the worker
        self._mail: dict[str, Callable[[int, Any], None]] = {}  # topic -> handler
        self._unread: dict[str, list[tuple[int, Any]]] = {}  # topic without a handler yet -> mail
        self._context = Context(
            allocator,
            membership,
            lambda: self._membership,
            *clocks,
            self.stateful,
            self._activate,
            self._activate_after,
        )

    # What a program may know ------------------------------------------------------------

    @property
    def index(self) -> int:
        """This worker's id, never reused."""
        return self._allocator.index

    @property
    def peers(self) -> int:
        """How many workers there are now."""
        return len(self._membership.ids)

    @property
    def peer_ids(self) -> tuple[int, ...]:
        """The ids of all workers now, sorted, this one included."""
        return self._membership.ids

    @property
    def membership(self) -> Membership:
        """Who takes part now."""
        return self._membership

    @property
    def allocator(self) -> Allocator:
        """The worker's end of the transport."""
        return self._allocator

    @property
    def installed_dataflows(self) -> dict[int, str]:
        """Dataflows that are not complete: number -> name."""
        return {number: graph.name for number, graph in self._graphs.items()}

    def graphs(self) -> list[Graph]:
        """The running dataflows, for tests and monitors."""
        return list(self._graphs.values())

    def now(self) -> float:
        """Seconds on a clock that only goes forward, the same for all processes of a machine."""
        return self._now()

    def bootstrap(self) -> bool:
        """True in a worker that joined a running cluster; waits until it may take part."""
        return False

    # Building ---------------------------------------------------------------------------

    @contextmanager
    def dataflow(self, name: str | None = None) -> Iterator[S]:
        """Build a dataflow in the `with` block; it runs from the block's end.

        Every worker must build the same dataflows in the same order. Raises BuildError for a graph that
        cannot run, GraphMismatch (here or while stepping) if another worker built a different one.
        """
        number = self._next_dataflow
        self._next_dataflow += 1
        graph = Graph(number, name or f"dataflow {number}", self._context)
        self._building.add(number)
        yield self._make_scope(ScopeRef(graph))
        graph.start()
        self._building.discard(number)
        self._graphs[number] = graph
        self._announce(number, (graph.name, graph.signature()))
        for envelope in self._early.pop(number, []):
            self._deliver(graph, envelope)

    def end_building(self) -> None:
        """Tell the others that the program has ended: one that has built more, or will, raises GraphMismatch."""
        self._announce(self._next_dataflow, None)

    def _announce(self, number: int, graph: tuple[str, tuple[str, ...]] | None) -> None:
        others = [member for member in self._membership.ids if member != self.index]
        if others:
            self._allocator.send_all(others, Lane.PROGRESS, (number, _SIGNATURE), graph)

    # Stepping ---------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what can be done now, without waiting; False when no dataflow is left."""
        self._receive()
        self._run()
        return bool(self._graphs)

    def step_or_park(self, seconds: float | None = None) -> bool:
        """Like `step`, but wait for something to do first, `seconds` at most; None waits without end."""
        self._receive()
        if not self.has_work():
            wait = self._until_timer(seconds)
            if wait is None or wait > 0:
                self._allocator.park(wait)
                self._receive()
        self._run()
        return bool(self._graphs)

    def step_while(self, predicate: Callable[[], bool]) -> None:
        """Step, parking when idle, as long as `predicate()` is true."""
        while predicate():
            self.step_or_park(_LONGEST_WAIT_SECONDS)

    def close_inputs(self) -> None:
        """Close what the program left open."""
        for graph in self._graphs.values():
            graph.close_inputs()

    def has_work(self) -> bool:
        """Whether a step would do anything but receive."""
        return bool(self._handed) or any(graph.active for graph in self._graphs.values())

    def _until_timer(self, seconds: float | None) -> float | None:
        if not self._timers:
            return seconds
        due = max(0.0, self._timers[0][0] - self._now())
        return due if seconds is None else min(seconds, due)

    def _run(self) -> None:
        while self._handed:
            self._handed.popleft()()
        while self._timers and self._timers[0][0] <= self._now():
            heappop(self._timers)[2]()
        for number, graph in list(self._graphs.items()):
            if graph.active:
                graph.step()
            if graph.complete:
                del self._graphs[number]
        self._allocator.flush()

    def _activate(self, what: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            what()
        else:
            self._handed.append(what)
            self._allocator.wake()

    def _activate_after(self, seconds: float, what: Callable[[], None]) -> None:
        heappush(self._timers, (self._now() + seconds, next(self._timer_numbers), what))

    # Receiving --------------------------------------------------------------------------

    def _receive(self) -> None:
        for envelope in self._allocator.receive():
            number = envelope.channel[0]
            if envelope.channel == _MAIL:
                self._read_mail(envelope)
            elif number in self._graphs:
                self._deliver(self._graphs[number], envelope)
            elif number >= self._next_dataflow or number in self._building:
                self._early.setdefault(number, []).append(envelope)
            elif envelope.lane is not Lane.PROGRESS:
                raise ProtocolError(f"worker {envelope.source} sent records to dataflow {number}, which is complete")

    def _deliver(self, graph: Graph, envelope: Envelope) -> None:
        index = envelope.channel[1]
        if envelope.lane is not Lane.PROGRESS:
            graph.receive_data(index, envelope.body)
        elif index == _PROGRESS:
            graph.receive_progress(envelope.source, envelope.body)
        elif envelope.body is None:
            graph.miss(envelope.source)
        else:
            graph.compare(envelope.source, tuple(envelope.body[1]))

    # Mail -------------------------------------------------------------------------------

    def post(self, target: int, topic: str, body: object) -> None:
        """Send a message outside dataflows to a worker, itself included; FIFO per pair of workers. Does not block."""
        self._allocator.send(target, Lane.MAIL, _MAIL, (topic, body))

    def on_mail(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, those that came before included."""
        if topic in self._mail:
            raise BuildError(f"on_mail: {topic!r} has a handler already")
        self._mail[topic] = handler
        for source, body in self._unread.pop(topic, []):
            handler(source, body)

    def _read_mail(self, envelope: Envelope) -> None:
        topic, body = envelope.body
        handler = self._mail.get(topic)
        if handler is None:
            self._unread.setdefault(topic, []).append((envelope.source, body))
        else:
            handler(envelope.source, body)
