"""The worker: one thread of control that can be stepped by hand.

A step is: receive all arrived messages, fold progress, let each active dataflow show its frontiers, run its operators
once and broadcast their progress, then flush. No part of it blocks. Only `step_or_park` waits, and only in the
transport. A worker with work polls the sockets at most once in a fraction of a millisecond; an idle worker polls them
when it parks.

A worker owns its dataflows, and nothing else writes them. Other threads hand over requests with `Context.activate`,
which wakes the worker.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Generic, TypeVar, overload

from megaflow.errors import BuildError, CommandRefused, ProgramError, UsageError
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.dataflow.context import Activator, Context, OperatorInfo
from megaflow.timely.dataflow.fusion.apply import start
from megaflow.timely.dataflow.graph import Graph, ScopeRef
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.dataflow.scopes import block_or_value
from megaflow.timely.dataflows import DROP, Dataflows
from megaflow.timely.dispatch import Dispatch
from megaflow.timely.explain import ANSWER, ASK, Explainer, Holding
from megaflow.timely.log import Log, Parked, Unparked
from megaflow.timely.membership import Membership
from megaflow.timely.order import Time
from megaflow.timely.rescale.host import Door, Host
from megaflow.timely.rescale.member import Member
from megaflow.timely.rescale.messages import TOPIC as RESCALE
from megaflow.timely.rescale.messages import Admission, Process
from megaflow.timely.scheduled_calls import ScheduledCalls

S = TypeVar("S")
R = TypeVar("R")

_LONGEST_WAIT_SECONDS = 0.1  # between checks of `step_while`'s predicate, which may depend on more than dataflows


class Worker(Generic[S]):
    """Worker that builds dataflows and steps them. `S` is the type of scope that `dataflow()` returns."""

    def __init__(
        self,
        allocator: Allocator,
        membership: Membership,
        make_scope: Callable[[ScopeRef], S],
        clocks: tuple[Callable[[], float], Callable[[], float]],
        args: Sequence[str] = (),
        processes: dict[int, Process] | None = None,
        admission: Admission | None = None,
        door: Door | None = None,
        eager: bool = False,
    ) -> None:
        """`processes` are the founding ones; None if this process always stays alone. A joiner has an `admission`."""
        self.args = list(args)
        self.log = Log()
        self.stateful: list[Any] = []  # views of the stateful operators, added as they are built
        self.allocator = allocator  # this worker's end of the transport
        self._make_scope = make_scope
        self.now = clocks[0]  # seconds of a monotonic clock that all processes of a machine share
        self.wall = clocks[1]  # seconds since 1970; nothing is decided by it
        self._thread = threading.get_ident()
        self._scheduled = ScheduledCalls(self.now)
        self._handed: deque[Callable[[], object]] = deque()  # appended by any thread, drained by the worker
        self._dispatch = Dispatch(allocator)
        context = Context(
            allocator,
            lambda: self.rescaling.membership,
            lambda: self.rescaling.audience,
            *clocks,
            self.stateful,
            self._activate,
            self._activate_after,
            self.log,
            eager,
        )
        self._dataflows = Dataflows(context, self._dispatch)
        host = Host(
            allocator,
            self._dataflows.running,
            self._dataflows.building,
            lambda: self._dataflows.begun,
            clocks[0],
            self._activate_after,
            self.post,
            self._take_in,
            door,
        )
        self.rescaling = Member(host, membership, processes, admission)
        self.rescaling.subscribe(self._dataflows.hear_of_change)
        self._dispatch.handlers |= {Channel.membership(lane): partial(self.rescaling.hear_lane, lane) for lane in Lane}
        self.on_mail(RESCALE, self.rescaling.hear)
        self.on_mail(DROP, self._dataflows.hear_of_drop)
        self.explainer = Explainer(context.membership, self.post, self._dataflows.find)
        self.on_mail(ASK, self.explainer.answer)
        self.on_mail(ANSWER, self.explainer.hear)
        self._running = False  # True while operators run; they may not step the worker
        self.steps = 0  # begun so far; any thread may read it
        self.parked_seconds = 0.0  # so far; during the rest of any period, the worker was busy

    # Facts for the program --------------------------------------------------------------

    @property
    def index(self) -> int:
        """This worker's id, never reused."""
        return self.allocator.index

    @property
    def peers(self) -> int:
        """Number of workers now."""
        return len(self.peer_ids)

    @property
    def peer_ids(self) -> tuple[int, ...]:
        """Ids of all current workers, sorted. This worker's id is missing while the worker joins or leaves."""
        return self.rescaling.membership.ids

    @property
    def membership(self) -> Membership:
        """Current membership of the cluster."""
        return self.rescaling.membership

    @property
    def installed_dataflows(self) -> dict[int, str]:
        """Dataflows that are not complete: number -> name."""
        return {number: graph.name for number, graph in self._dataflows.running.items()}

    def graphs(self) -> list[Graph]:
        """Return the running dataflows, for tests and monitors."""
        return [*self._dataflows.running.values()]

    def sync_activator(self, info: OperatorInfo) -> Activator:
        """Return an activator that other threads may call to run an operator and wake the worker: `info.activator`."""
        return info.activator

    @property
    def retiring(self) -> bool:
        """Whether this worker's process is about to leave. If so, read nothing new."""
        return self.rescaling.retiring

    def bootstrap(self) -> bool:
        """Take part in a running cluster. Call it once the dataflows that the cluster runs are built.

        In a founding worker, returns False at once. In a joining worker, blocks until the worker is a member with the
        capabilities that it can have, then returns True. Raises JoinDenied if the cluster does not admit the worker.
        """
        joiner = self.rescaling.joiner
        if joiner is None:
            return False
        if not joiner.begun:
            joiner.begin()
        while self.rescaling.joining:
            self.step_or_park(None)
        return True

    def retire(self) -> None:
        """Leave the cluster with this process: hand over, close inputs, process the queued records, leave.

        Blocks, stepping, until all workers have released the process. Raises CommandRefused with the reason if the
        process must stay: it owns bins, is the only one, or records are pinned to it. The other workers of the process
        leave as they are stepped. During the leave this worker receives no commands. So do not inject a command at a
        time at which this worker has records.
        """
        answers: list[str | None] = []
        self.rescaling.ask_leave(self.index, answers.append)
        while not self.rescaling.left:
            if answers and answers[0] is not None:
                raise CommandRefused(f"worker {self.index} cannot retire: {answers[0]}")
            self.step_or_park(None)

    def part(self) -> None:
        """Step until no part of the cluster needs this worker, whose program has ended. Blocks."""
        self.rescaling.ask_end()
        while not self.rescaling.may_end:
            self.step_or_park(None)

    # Building ---------------------------------------------------------------------------

    @overload
    def dataflow(
        self, name: str | None = None, build: None = None, *, fusion: bool = True, timestamp: Any = int
    ) -> AbstractContextManager[S]: ...
    @overload
    def dataflow(self, name: Callable[[S], R], *, fusion: bool = True, timestamp: Any = int) -> R: ...
    @overload
    def dataflow(
        self, name: str | None, build: Callable[[S], R], *, fusion: bool = True, timestamp: Any = int
    ) -> R: ...
    def dataflow(self, name: Any = None, build: Any = None, *, fusion: bool = True, timestamp: Any = int) -> Any:
        """Build a dataflow in the `with` block; it runs from the block's end. `fusion`: join stateless neighbors.

        `dataflow(build)` and `dataflow(name, build)` call `build(scope)` in place of a block and return its value.

        `timestamp` is the kind of its times: `int`, a class that follows `Timestamp`, or the least time of a tuple or
        `Product` of those: `(0, 0)`, `Product(0, Version.minimum())`. Ints are fastest, and state requires them. Every
        worker must build the same dataflows in the same order. Raises BuildError for a graph that cannot run,
        GraphMismatch (here or while stepping) if another worker built a different one.
        """
        return block_or_value("dataflow", partial(self._dataflow, fusion, timestamp), name, build)

    @contextmanager
    def _dataflow(self, fusion: bool, timestamp: Any, name: str | None) -> Iterator[S]:
        graph = self._dataflows.begin(name, self._founders(), timestamp)
        try:
            yield self._make_scope(ScopeRef(graph))
            start(graph, fusion)
        except BaseException:
            graph.over = True
            raise
        self._dataflows.run(graph, self.rescaling.started)

    def _founders(self) -> Membership:
        """Return the founders of the next dataflow. If the membership is changing, the coordinator decides."""
        while not self.retiring:
            founders = self.rescaling.founders(self._dataflows.begun)
            if founders is not None:
                return founders
            self.allocator.flush()
            self._park(_LONGEST_WAIT_SECONDS)
            self._receive()
        raise BuildError("dataflow: this worker is leaving the cluster and can no longer build a dataflow")

    def end_building(self) -> None:
        """Announce that the program has ended. A worker with more dataflows raises GraphMismatch."""
        self._dataflows.end_building()

    def drop_dataflow(self, number: int) -> None:
        """Stop a dataflow on all workers and free it. Any worker may call it; one call is enough.

        Its probes report that they are done, and records sent into it are dropped; other dataflows are not affected.
        Harmless if it is already complete or dropped. Does not wait. Raises BuildError if it was never built here.
        """
        self._dataflows.drop(number)

    def explain(self, probe: ProbeHandle, time: Time, timeout_seconds: float = 10.0) -> list[Holding]:
        """Return what holds `time` back at the probe: capabilities and records of all workers, least times first.

        Asks all workers, and steps this one meanwhile. Raises NoAnswer, with their ids, if some do not answer.
        """
        if self._running:
            raise ProgramError("explain: this steps the worker, so an operator cannot call it; call it between steps")
        if not isinstance(probe, ProbeHandle):
            raise UsageError(f"explain({probe!r:.200}, …): give a ProbeHandle first, as explain(probe, 3)")
        probe.less_equal(time)  # raises for a time of another kind
        question = self.explainer.ask(probe, time)
        end = self.now() + timeout_seconds
        while question.silent and (left := end - self.now()) > 0:
            self.step_or_park(left)
        return self.explainer.conclude(question, timeout_seconds)

    # Stepping ---------------------------------------------------------------------------

    def step(self) -> bool:
        """Do all work that is possible without waiting. Return False when no dataflow is left.

        If there is nothing to do, the other workers of the process run first: a worker that waits in a loop of steps
        would otherwise keep Python's lock from the workers for which it waits.
        """
        busy = self.has_work()
        if not self._receive(busy) and not busy and len(self.allocator.neighbours) > 1:
            time.sleep(0)
        return self._run()

    def step_or_park(self, seconds: float | None = None) -> bool:
        """Step like `step`, but first wait for work, at most so many seconds. None waits without limit."""
        if not self._receive(seconds != 0 or self.has_work()) and not self.has_work():  # `park` also receives
            wait = self._scheduled.wait(seconds)
            if wait is None or wait > 0:
                self._park(wait)
                self._receive(True)
        return self._run()

    def step_while(self, predicate: Callable[[], bool]) -> None:
        """Step, parking when idle, as long as `predicate()` is true."""
        if not callable(predicate):
            raise UsageError(f"step_while({predicate!r:.200}): give a function, as in lambda: not probe.done()")
        while predicate():
            self.step_or_park(_LONGEST_WAIT_SECONDS)

    def close_inputs(self) -> None:
        """Close the inputs that the program left open."""
        for graph in self._dataflows.running.values():
            graph.close_inputs()

    def has_work(self) -> bool:
        """Return whether a step would do more than receive."""
        return bool(self._handed) or (not self.rescaling.joining and self._dataflows.are_active())

    def _park(self, seconds: float | None) -> None:
        emit, began = self.log.emit, self.now()
        if emit is not None:
            emit(Parked(seconds))
        self.allocator.park(seconds)
        if emit is not None:
            emit(Unparked())
        self.parked_seconds += self.now() - began

    def _run(self) -> bool:
        """Do the due work. Return whether a dataflow is left."""
        self.steps += 1
        self._running = True
        try:
            self._dataflows.dropping.free()
            while self._handed:
                self._handed.popleft()()
            self._scheduled.run_due()
            if self.rescaling.left:
                self._dataflows.leave()
            if not self.rescaling.joining:
                self._dataflows.step()
            self.rescaling.turn()
            self.allocator.flush()
        finally:
            self._running = False
        return bool(self._dataflows.running) or self.rescaling.joining

    def _activate(self, what: Callable[[], object]) -> None:
        if threading.get_ident() == self._thread:
            what()
        else:
            self._handed.append(what)
            self.allocator.wake()

    def _activate_after(self, seconds: float, what: Callable[[], None]) -> None:
        self._activate(partial(self._scheduled.call_later, seconds, what))

    # Receiving --------------------------------------------------------------------------

    def _receive(self, busy: bool = False) -> bool:
        """Handle arrived messages. Return whether there were any: the program may also have to act on them."""
        if self._running:
            raise ProgramError("step: an operator is running, and cannot step its own worker; let it return first")
        arrived = self.allocator.receive(busy)
        self._take_in(arrived)
        self.rescaling.turn()
        return bool(arrived)

    def _take_in(self, envelopes: list[Envelope]) -> None:
        rescaling, handlers = self.rescaling, self._dispatch.handlers
        for envelope in envelopes:
            if rescaling.attentive and rescaling.takes(envelope):
                continue
            handler = handlers.get(envelope.channel)
            if handler is None:
                self._dataflows.take_unclaimed(envelope)
            else:
                handler(envelope.source, envelope.body)

    def post(self, target: int, topic: str, body: object) -> None:
        """Send mail to a worker, which may be this one. FIFO for each pair of workers. Does not block."""
        self._dispatch.post(target, topic, body)

    def on_mail(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Call `handler(source, body)` for each message on `topic`, including earlier ones."""
        self._dispatch.on_mail(topic, handler)
