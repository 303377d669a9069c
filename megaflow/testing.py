"""A cluster in one thread: real workers, real bytes, delivery in an order drawn from a seed.

`SimulatedCluster(seed)` runs the very workers that threads and processes run, over a
transport that encodes every message between workers as TCP would and then delivers it
when the dice say so: FIFO on each lane between two workers, in any order otherwise. So a
test can search hundreds of interleavings a minute, and a seed that fails fails again.

While it runs a monitor watches, and raises `Violation` if
 - a worker's frontier excludes a time at which a record may still come, by a brute-force
   account of all counts on all workers, or still admits other times when nothing is under way;
 - a bin is owned by two workers at once;
 - nothing can happen any more and the dataflow is not complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from megaflow.front import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.communication.allocator import Envelope, FailureReport, Lane
from megaflow.timely.communication.codec import decode, encode
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.input import InputHandle
from megaflow.timely.membership import founding
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reference import PathSummaries, frontier_by_brute_force, path_summaries
from megaflow.timely.worker import Worker as EngineWorker

Build = Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]
"""`build(worker, records, commands) -> outputs`, called on every worker."""

_MONITORED_SHARE = 0.35
"""How often the brute-force account is taken: it costs more than the step that it watches."""
_ACTIONS_PER_RUN = 200_000
"""A run that takes more is stuck in a loop."""


class Violation(AssertionError):
    """The cluster did what must never happen. The message names the seed."""


@dataclass(slots=True)
class Script:
    """What one worker's inputs are still to send: (time, record or command), in the order of time."""

    records: deque[tuple[int, Any]]
    commands: deque[tuple[int, Any]]


@dataclass(slots=True)
class Member:
    """One worker of the simulated cluster."""

    worker: EngineWorker[Scope]
    allocator: SimulatedAllocator
    records: InputHandle[Any]
    commands: InputHandle[Any]
    script: Script
    last: int  # the time after which inputs close
    running: bool = True

    def feed(self, handle: InputHandle[Any], script: deque[tuple[int, Any]]) -> None:
        """Send the next record if it is due now, else move on to the next time; close after the last."""
        time = handle.time
        assert isinstance(time, int)
        if script and script[0][0] == time:
            handle.send(script.popleft()[1])
            handle.flush()
        elif time < self.last:
            handle.advance_to(time + 1)
        else:
            handle.close()


class SimulatedCluster:
    """Workers, transport and scheduling in one thread, decided by `seed`.

    `workers` is how many there are, with ids 0, 1, …; the coordinator, on which commands are injected, is 0.
    `eager`: progress is never held back, see `progcaster`.
    """

    def __init__(self, seed: int, workers: int = 3, monitor: bool = True, eager: bool = False) -> None:
        self.seed = seed
        self._eager = eager
        self.workers: list[EngineWorker[Scope]] = []
        self._random = Random(seed)
        self._ids = tuple(range(workers))
        self._network = Network(self._random)
        self._monitor = Monitor(seed, self._network) if monitor else None
        self._clock = 0.0

    def run(
        self,
        build: Build,
        feeds: Mapping[int, Sequence[tuple[int, Any]]],
        commands: Sequence[tuple[int, Any]] = (),
    ) -> list[tuple[Time, Any]]:
        """Run one dataflow to completion; return its outputs as (time, record), all workers', sorted by time.

        `feeds` is worker -> (time, record) in the order of time; `commands` are (time, command), likewise. Raises
        Violation, or what user code raises.
        """
        times = [time for feed in feeds.values() for time, _ in feed] + [time for time, _ in commands]
        outputs: list[tuple[Time, Any]] = []
        members = [
            self._member(worker, build, Script(deque(feeds.get(worker, ())), deque()), max(times, default=0), outputs)
            for worker in self._ids
        ]
        members[0].script.commands.extend(commands)
        for member in members[1:]:
            member.commands.close()
        self._drive(members)
        return sorted(outputs, key=lambda output: repr(output[0]).rjust(20))

    @property
    def batches(self) -> int:
        """How many progress batches were broadcast to others."""
        return len(self._network.broadcasts)

    def _member(
        self, index: int, build: Build, script: Script, last: int, outputs: list[tuple[Time, Any]]
    ) -> Member:
        allocator = self._network.allocator(index)
        worker: EngineWorker[Scope] = EngineWorker(
            allocator, founding(self._ids), Scope, (lambda: self._clock, lambda: self._clock), eager=self._eager
        )
        records: InputHandle[Any] = InputHandle()
        commands: InputHandle[Any] = InputHandle()
        with worker.dataflow("simulated") as scope:
            result = build(worker, scope.input_from(records), scope.input_from(commands))
            result.inspect_time(lambda time, record: outputs.append((time, record)))
        self.workers.append(worker)
        return Member(worker, allocator, records, commands, script, last)

    def _drive(self, members: list[Member]) -> None:
        """Take actions at random until all workers are done. A worker that is slow in one run is fast in another."""
        weights = {member.worker.index: self._random.random() ** 2 + 0.02 for member in members}
        for _ in range(_ACTIONS_PER_RUN):
            self._clock += self._random.random() * 0.01
            actions = self._actions(members, weights)
            if not actions:
                if any(member.running for member in members):
                    self._stuck(members)
                return
            if self._monitor is not None and not self._moving(members):
                self._monitor.look(self.workers, thorough=self._random.random() < _MONITORED_SHARE, at_rest=True)
            kinds = list(actions)
            self._random.choices(kinds, [actions[kind] for kind in kinds])[0]()
        raise Violation(f"seed {self.seed}: no end after {_ACTIONS_PER_RUN} actions")

    def _actions(self, members: list[Member], weights: dict[int, float]) -> dict[Callable[[], None], float]:
        actions: dict[Callable[[], None], float] = {}
        for member in members:
            weight = weights[member.worker.index]
            if not member.records.closed:
                actions[partial(member.feed, member.records, member.script.records)] = weight
            if not member.commands.closed:
                actions[partial(member.feed, member.commands, member.script.commands)] = weight
            if member.running and (member.worker.has_work() or member.allocator.arrived):
                actions[partial(self._step, member)] = 2 * weight
        for route, weight in self._network.waiting():
            actions[partial(self._network.deliver, route)] = 2 * weight
        return actions

    def _moving(self, members: list[Member]) -> bool:
        return any(True for _ in self._network.waiting()) or any(
            member.running and (member.worker.has_work() or member.allocator.arrived) for member in members
        )

    def _step(self, member: Member) -> None:
        member.running = member.worker.step()
        if self._monitor is not None:
            self._monitor.look(self.workers, thorough=self._random.random() < _MONITORED_SHARE)

    def _stuck(self, members: list[Member]) -> None:
        held = [
            f"worker {member.worker.index}: {graph.describe_pointstamps()}"
            for member in members
            for graph in member.worker.graphs()
        ]
        raise Violation(f"seed {self.seed}: nothing can happen any more, but pointstamps are left: {'; '.join(held)}")


Route = tuple[int, int, Lane]  # source, target, lane


class Network:
    """The messages under way, as bytes, FIFO on each route."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._routes: dict[Route, deque[bytes]] = {}
        self._weights: dict[Route, float] = {}
        self._allocators: dict[int, SimulatedAllocator] = {}
        self.broadcasts: list[tuple[int, int, list[tuple[int, Time, int]]]] = []  # (dataflow, worker, progress batch)

    def allocator(self, index: int) -> SimulatedAllocator:
        """The end of one worker."""
        return self._allocators.setdefault(index, SimulatedAllocator(index, self))

    def put(self, route: Route, body: bytes) -> None:
        """Send a message on its way."""
        self._routes.setdefault(route, deque()).append(body)
        self._weights.setdefault(route, self._random.random() ** 3 + 0.01)

    def waiting(self) -> Iterable[tuple[Route, float]]:
        """The routes that have a message to deliver, with how eager each is in this run."""
        return [(route, self._weights[route]) for route, queue in self._routes.items() if queue]

    def deliver(self, route: Route) -> None:
        """Let the oldest message of a route arrive."""
        source, target, lane = route
        channel, body = decode(self._routes[route].popleft())
        self._allocators[target].arrived.append(Envelope(lane, channel, source, body))


class SimulatedAllocator:
    """One worker's end of the simulated transport. A worker's messages to itself arrive at once, as over TCP."""

    def __init__(self, index: int, network: Network) -> None:
        self.index = index
        self.pending_bytes = 0
        self.arrived: deque[Envelope] = deque()  # appended by deliveries, drained by the worker
        self._network = network

    def send(self, target: int, lane: Lane, channel: tuple[int, int], body: object) -> None:
        """Encode and queue."""
        if target == self.index:
            self.arrived.append(Envelope(lane, channel, self.index, body))
        else:
            self._network.put((self.index, target, lane), encode((channel, body)))

    def send_all(self, targets: Iterable[int], lane: Lane, channel: tuple[int, int], body: object) -> None:
        """Encode and queue for each."""
        if lane is Lane.PROGRESS and channel[1] == 0:
            self._network.broadcasts.append((channel[0], self.index, body[1]))  # type: ignore[index]
        for target in targets:
            self.send(target, lane, channel, body)

    def flush(self) -> None:
        """Nothing is held back."""

    def receive(self) -> list[Envelope]:
        """What has arrived."""
        arrived = list(self.arrived)
        self.arrived.clear()
        return arrived

    def park(self, seconds: float | None) -> None:
        """A simulated worker never waits."""

    def wake(self) -> None:
        """Nor is it woken."""

    def finish(self) -> None:
        """The cluster ends when all are done."""

    def abort(self, report: FailureReport) -> None:
        """Fail loudly."""
        raise report.error()


@dataclass(slots=True)
class Monitor:
    """The brute-force account that frontiers are held against."""

    seed: int
    network: Network
    _paths: dict[int, PathSummaries] = field(default_factory=dict)  # dataflow -> summaries
    _truth: dict[int, ChangeBatch[tuple[int, Time]]] = field(default_factory=dict)  # dataflow -> counts of all workers
    _read: int = 0  # how many broadcasts are in the truth

    def look(self, workers: Sequence[EngineWorker[Scope]], thorough: bool, at_rest: bool = False) -> None:
        """Check ownership, and frontiers if `thorough`: `at_rest` they are exact. Raises Violation."""
        self._check_owners(workers)
        self._account(workers)
        if thorough and len(workers) > 1:
            for number in self._truth:
                running = [(worker.index, g) for worker in workers for g in worker.graphs() if g.number == number]
                self._check_frontiers(running, at_rest)

    def _account(self, workers: Sequence[EngineWorker[Scope]]) -> None:
        for worker in workers:
            for graph in worker.graphs():
                if graph.number not in self._truth:
                    self._paths[graph.number] = path_summaries(graph.builder)
                    counts: ChangeBatch[tuple[int, Time]] = ChangeBatch()
                    for location, time, count in graph.initial:
                        counts.update((location, time), count)
                    self._truth[graph.number] = counts
        for dataflow, _, batch in self.network.broadcasts[self._read :]:
            for location, time, delta in batch:
                self._truth[dataflow].update((location, time), delta)
        self._read = len(self.network.broadcasts)

    def _check_frontiers(self, running: list[tuple[int, Graph]], at_rest: bool) -> None:
        """Compare what workers show of one dataflow with what all counts imply, sent or not."""
        if not running:
            return
        number, builder = running[0][1].number, running[0][1].builder
        counts = [(location, time, count) for (location, time), count in self._truth[number]]
        counts += [(location, time, delta) for _, graph in running for (location, time), delta in graph.unsent()]
        for location, name in enumerate(builder.names):
            truth = frontier_by_brute_force(builder, counts, location, self._paths[number])
            for index, graph in running:
                shown = graph.frontier(location)
                for time in truth.elements:
                    if not shown.less_equal(time):
                        raise Violation(
                            f"seed {self.seed}: worker {index} shows the frontier {shown} at {name}, "
                            f"but time {time!r} may still come there"
                        )
                if at_rest and shown != truth:
                    raise Violation(
                        f"seed {self.seed}: nothing is under way, but worker {index} shows the frontier {shown} "
                        f"at {name} instead of {truth}"
                    )

    def _check_owners(self, workers: Sequence[EngineWorker[Scope]]) -> None:
        owners: dict[tuple[int, int], int] = {}
        for worker in workers:
            for position, view in enumerate(worker.stateful):  # names may be equal
                for bin in view.owned():
                    other = owners.setdefault((position, bin), worker.index)
                    if other != worker.index:
                        raise Violation(
                            f"seed {self.seed}: bin {bin} of {view.name!r} is owned by {other} and {worker.index}"
                        )


__all__ = ["Build", "SimulatedCluster", "Violation"]
