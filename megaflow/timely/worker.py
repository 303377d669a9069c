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
from typing import Any, Generic, Literal, TypeVar

from megaflow.errors import BuildError, ProgramError, ProtocolError
from megaflow.timely.communication.allocator import Allocator, Envelope, Lane
from megaflow.timely.dataflow.builder import Activator, OperatorInfo
from megaflow.timely.dataflow.graph import Context, Graph, ScopeRef
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.shape import check_equal, signature, tell_built
from megaflow.timely.drop import TOPIC as DROP
from megaflow.timely.drop import Dropping
from megaflow.timely.explain import ANSWER, ASK, Explainer, Holding
from megaflow.timely.log import Log, Parked, Unparked
from megaflow.timely.mail import Mailbox
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time
from megaflow.timely.statistics import WorkerStatistics, worker_statistics

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
        eager: bool = False,
    ) -> None:
        self.args = list(args)
        self.log = Log()
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
        self._mail = Mailbox()
        self._dropping = Dropping(allocator.index, lambda: self._membership.ids, self.post)
        self.on_mail(DROP, self._hear_of_drop)
        self.explainer = Explainer(allocator.index, lambda: self._membership.ids, self.post, self._look)
        self.on_mail(ASK, self.explainer.answer)
        self.on_mail(ANSWER, self.explainer.hear)
        self._running = False  # operators, which may not do everything
        self._steps = 0
        self._context = Context(
            allocator,
            membership,
            lambda: self._membership,
            *clocks,
            self.stateful,
            self._activate,
            self._activate_after,
            self.log,
            eager,
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

    def sync_activator(self, info: OperatorInfo) -> Activator:
        """What runs an operator from other threads, and wakes the worker for it: its `info.activator` does."""
        return info.activator

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
        views = len(self.stateful)
        try:
            yield self._make_scope(ScopeRef(graph))
            graph.start()
        except BaseException:
            graph.over = True
            raise
        graph.views = self.stateful[views:]
        self._building.discard(number)
        self._graphs[number] = graph
        if self.log.emit is not None:
            tell_built(graph, self.log.emit)
        self._announce(number, (graph.name, signature(graph)))
        for envelope in self._early.pop(number, []):
            self._deliver(graph, envelope)
        if self._dropping.is_wanted(number):
            self._stop(number)

    def end_building(self) -> None:
        """Tell the others that the program has ended: one that has built more, or will, raises GraphMismatch."""
        self._announce(self._next_dataflow, None)

    def drop_dataflow(self, number: int) -> None:
        """Stop a dataflow on all workers, wherever it is, and free it; every worker may call it, one is enough.

        Its probes read as done, and what is sent into it goes nowhere; other dataflows do not notice. Harmless if
        it is complete or dropped already. Does not wait. Raises BuildError if it was never built here.
        """
        if number >= self._next_dataflow or number in self._building or number < 0:
            known = ", ".join(f"{each} ({name})" for each, name in self.installed_dataflows.items())
            raise BuildError(f"drop_dataflow({number}): there is no such dataflow; installed are: {known or 'none'}")
        if number in self._graphs:
            self._stop(number)

    def explain(self, probe: ProbeHandle, time: Time, timeout_seconds: float = 10.0) -> list[Holding]:
        """What holds `time` back at the probe: capabilities and records of all workers, least times first.

        Asks all workers and steps this one until they have answered, so not to be called from an operator. Raises
        NoAnswer, naming the workers, if some have not after `timeout_seconds`.
        """
        if self._running:
            raise ProgramError("explain: it steps the worker, so an operator cannot call it; call it between steps")
        question = self.explainer.ask(probe, time)
        end = self._now() + timeout_seconds
        while question.silent and (left := end - self._now()) > 0:
            self.step_or_park(left)
        return self.explainer.conclude(question, timeout_seconds)

    def statistics(self) -> WorkerStatistics:
        """Steps taken; of each running dataflow what was run, sent and received and what waits."""
        return worker_statistics(self.index, self._steps, self._graphs.values())

    def _look(self, number: int) -> Graph | Literal["later"] | None:
        if number >= self._next_dataflow or number in self._building:
            return "later"
        return self._graphs.get(number)

    def _hear_of_drop(self, source: int, number: int) -> None:
        self._dropping.hear(source, number)
        if number < self._next_dataflow and number not in self._building and self._dropping.is_wanted(number):
            self._stop(number)

    def _stop(self, number: int) -> None:
        graph = self._graphs.pop(number, None)
        if graph is not None:
            self.stateful[:] = [view for view in self.stateful if view not in graph.views]
        self._dropping.stop(number, graph)

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
                self._park(wait)
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

    def _park(self, seconds: float | None) -> None:
        emit = self.log.emit
        if emit is None:
            self._allocator.park(seconds)
        else:
            emit(Parked(seconds))
            self._allocator.park(seconds)
            emit(Unparked())

    def _until_timer(self, seconds: float | None) -> float | None:
        if not self._timers:
            return seconds
        due = max(0.0, self._timers[0][0] - self._now())
        return due if seconds is None else min(seconds, due)

    def _run(self) -> None:
        self._steps += 1
        self._running = True
        try:
            self._run_all()
        finally:
            self._running = False

    def _run_all(self) -> None:
        self._dropping.free()
        while self._handed:
            self._handed.popleft()()
        while self._timers and self._timers[0][0] <= self._now():
            heappop(self._timers)[2]()
        for number, graph in list(self._graphs.items()):
            if graph.active and not graph.over:
                graph.step()
            if not graph.over and graph.complete:
                del self._graphs[number]
                graph.shut()
        self._allocator.flush()

    def _activate(self, what: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            what()
        else:
            self._handed.append(what)
            self._allocator.wake()

    def _activate_after(self, seconds: float, what: Callable[[], None]) -> None:
        if threading.get_ident() != self._thread:
            self._activate(lambda: self._activate_after(seconds, what))
            return
        heappush(self._timers, (self._now() + seconds, next(self._timer_numbers), what))

    # Receiving --------------------------------------------------------------------------

    def _receive(self) -> None:
        if self._running:
            raise ProgramError("step: an operator is running, and cannot step its own worker; let it return first")
        for envelope in self._allocator.receive():
            number = envelope.channel[0]
            if envelope.channel == _MAIL:
                self._mail.deliver(envelope.source, envelope.body)
            elif number in self._graphs:
                self._deliver(self._graphs[number], envelope)
            elif number in self._dropping:
                pass
            elif number >= self._next_dataflow or number in self._building:
                self._early.setdefault(number, []).append(envelope)
            elif envelope.lane is not Lane.PROGRESS:
                raise ProtocolError(f"worker {envelope.source} sent records to dataflow {number}, which is complete")

    def _deliver(self, graph: Graph, envelope: Envelope) -> None:
        index = envelope.channel[1]
        if envelope.lane is not Lane.PROGRESS:
            graph.receive_data(envelope.source, index, envelope.body)
        elif index == _PROGRESS:
            graph.receive_progress(envelope.source, envelope.body)
        else:
            check_equal(graph, envelope.source, None if envelope.body is None else tuple(envelope.body[1]))

    # Mail -------------------------------------------------------------------------------

    def post(self, target: int, topic: str, body: object) -> None:
        """Send a message outside dataflows to a worker, itself included; FIFO per pair of workers. Does not block."""
        self._allocator.send(target, Lane.MAIL, _MAIL, (topic, body))

    def on_mail(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, those that came before included."""
        self._mail.serve(topic, handler)
