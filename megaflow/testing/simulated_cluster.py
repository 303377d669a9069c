"""Simulated workers, what they are fed, and the dice that say who does what next."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from megaflow.megaphone.routing import Command, Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing.membership_driver import Change, Rescaling, SimulatedWorker
from megaflow.testing.monitor import Monitor, Violation
from megaflow.testing.network import Network
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.explain import describe_pointstamps
from megaflow.timely.membership import founding
from megaflow.timely.order import Time
from megaflow.timely.rescale.messages import Admission
from megaflow.timely.worker import Worker as EngineWorker

Build = Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]
"""`build(worker, records, commands) -> outputs`, called on every worker."""

_MONITORED_SHARE = 0.35
"""How often the brute-force account is taken: it costs more than the step that it watches."""
_ACTIONS_PER_RUN = 200_000
"""A run that takes more is stuck in a loop."""


class SimulatedCluster:
    """Workers, transport and scheduling in one thread, decided by `seed`.

    `workers` is how many there are at first, with ids 0, 1, …; the coordinator, on which commands are injected, is 0
    until it hands over.
    `eager`: progress is never held back, see `progcaster`. `bounds`: how much may wait between operators; what is fed
    then waits for room, as a source does.
    """

    def __init__(
        self, seed: int, workers: int = 3, monitor: bool = True, eager: bool = False, bounds: Bounds | None = None
    ) -> None:
        self.seed = seed
        self.issued: list[tuple[int, Command]] = []  # (time, command), in order: the script's and those of changes
        self.workers: list[EngineWorker[Scope]] = []  # all that ever were, but for those that died
        self._eager = eager
        self._bounds = bounds
        self._random = Random(seed)
        self._ids = tuple(range(workers))
        self._network = Network(self._random)
        self._monitor = Monitor(seed, self._network) if monitor else None
        self._clock = 0.0
        self._planned: list[tuple[int, Change]] = []
        self._sent = 0  # records
        self._members: list[SimulatedWorker] = []
        self._last = 0  # the time after which inputs close
        self._outputs: list[tuple[Time, Any]] = []
        self._rescaling = Rescaling(self._planned, self._members, self._admit, self._bury, self._is_passed)
        self.refusals = self._rescaling.refusals  # why planned changes did not take place

    def at(self, record: int, do: Change) -> None:
        """Change the membership once so many records have been sent: see `megaflow.testing.membership_driver`."""
        self._planned.append((record, do))

    def run(
        self,
        build: Build,
        feeds: Mapping[int, Sequence[tuple[int, Any]]],
        commands: Sequence[tuple[int, Any]] = (),
    ) -> list[tuple[Time, Any]]:
        """Run one dataflow to completion; return its outputs as (time, record), all workers', sorted by time.

        `feeds` is worker -> (time, record) in the order of time; `commands` are (time, command), likewise; those that
        name a worker that may not own bins at that moment are left out. A worker that joins gets a part of the
        coordinator's feed. Raises Violation, or what user code raises.
        """
        self._build = build
        self._last = max((time for fed in (*feeds.values(), commands) for time, _ in fed), default=0)
        for worker in self._ids:
            self._add(worker, feeds.get(worker, ()), None)
        self._rescaling.lead.unsent_commands.extend(commands)
        self._rescaling.begin()
        self._drive()
        return sorted(self._outputs, key=lambda output: repr(output[0]).rjust(20))

    @property
    def batches(self) -> int:
        """How many progress batches were broadcast."""
        return len(self._network.broadcasts)

    def _add(self, index: int, feed: Sequence[tuple[int, Any]], admission: Admission | None) -> SimulatedWorker:
        allocator = self._network.allocator(index)
        worker: EngineWorker[Scope] = EngineWorker(
            allocator,
            founding(self._ids) if admission is None else admission.membership,
            Scope,
            (lambda: self._clock, lambda: self._clock),
            eager=self._eager,
            processes={each: ("simulated", each, (each,)) for each in self._ids},
            admission=admission,
            door=self._rescaling,
        )
        member = SimulatedWorker(worker, allocator, InputHandle(), InputHandle(), ProbeHandle(), deque(feed))
        with worker.dataflow("simulated") as scope:
            if self._bounds is not None:
                scope.ref.graph.handoffs.bounds = self._bounds
            result = self._build(worker, scope.input_from(member.records), scope.input_from(member.commands))
            result.inspect_time(lambda time, record: self._outputs.append((time, record))).probe_with(member.probe)
        self.workers.append(worker)
        self._members.append(member)
        worker.rescaling.subscribe(partial(self._rescaling.changed, member))
        if index != 0:
            member.commands.close()
        return member

    def _admit(self, admission: Admission) -> SimulatedWorker:
        """Start a worker that was admitted."""
        member = self._add(admission.ids[0], (), admission)
        assert member.worker.rescaling.joiner is not None
        member.worker.rescaling.joiner.begin()
        return member

    def _bury(self, member: SimulatedWorker) -> None:
        """Let a worker die that is no member yet."""
        self._network.kill(member.worker.index)
        self._members.remove(member)
        self.workers.remove(member.worker)

    def _drive(self) -> None:
        """Take actions at random until all workers are done. A worker that is slow in one run is fast in another."""
        weights = defaultdict[int, float](lambda: self._random.random() ** 2 + 0.02)  # worker -> how often it acts
        for _ in range(_ACTIONS_PER_RUN):
            self._clock += self._random.random() * 0.01
            self._rescaling.turn(self._sent)
            actions = self._actions(weights)
            if not actions:
                if not self._rescaling.is_busy and not any(member.running for member in self._members):
                    return
                held = "; ".join(
                    f"worker {member.worker.index}: {describe_pointstamps(graph)}"
                    for member in self._members
                    for graph in member.worker.graphs()
                )
                raise Violation(f"seed {self.seed}: nothing can happen any more, but pointstamps are left: {held}")
            if not self._network.waiting() and not any(member.can_step for member in self._members):
                self._look(at_rest=True)
            kinds = list(actions)
            self._random.choices(kinds, [actions[kind] for kind in kinds])[0]()
        raise Violation(f"seed {self.seed}: no end after {_ACTIONS_PER_RUN} actions")

    def _actions(self, weights: dict[int, float]) -> dict[Callable[[], None], float]:
        actions: dict[Callable[[], None], float] = {}
        for member in self._members:
            weight = weights[member.worker.index]
            has_room = not (self._bounds and member.records.is_full())
            if has_room and not member.records.closed and not member.worker.rescaling.joining:
                actions[partial(self._feed_records, member)] = weight
            if not member.commands.closed and self._may_feed_commands(member):
                actions[partial(self._feed_commands, member)] = weight
            if member.can_step:
                actions[partial(self._step, member)] = 2 * weight
        for route, weight in self._network.waiting():
            actions[partial(self._network.deliver, route)] = 2 * weight
        return actions

    def _feed_records(self, member: SimulatedWorker) -> None:
        """Send the next record if it is due now, else move on to the next time; close after the last."""
        handle, script, time = member.records, member.unsent_records, member.records.time
        assert isinstance(time, int)
        if script and script[0][0] <= time:
            handle.send(script.popleft()[1])
            handle.flush()
            self._sent += 1
        elif time < self._last:
            handle.advance_to(time + 1)
        else:
            handle.close()

    def _may_feed_commands(self, member: SimulatedWorker) -> bool:
        """Tell whether there is something to do on the control stream: its end waits for the changes."""
        time = member.commands.time
        assert isinstance(time, int)
        reading = [each.records.time for each in self._members if not each.records.closed]
        if self._rescaling.is_busy and any(time > read + 1 for read in reading if isinstance(read, int)):
            return False  # so that what is commanded now concerns what is read soon
        return bool(member.unsent_commands) or self._is_behind(time) or not self._rescaling.is_busy

    def _is_behind(self, time: int) -> bool:
        """Tell whether the control stream has still to pass the last record or its own last command."""
        return time <= max(self._last, self.issued[-1][0] if self.issued else 0)

    def _is_passed(self) -> bool:
        """Tell whether the outputs' frontier has passed the last command."""
        return not self.issued or not self._rescaling.lead.probe.less_equal(self.issued[-1][0])

    def _feed_commands(self, member: SimulatedWorker) -> None:
        handle, script, time = member.commands, member.unsent_commands, member.commands.time
        assert isinstance(time, int)
        if script and script[0][0] <= time:
            command = script.popleft()[1]
            if self._rescaling.allows(command):
                handed = self._rescaling.has_handed_over  # on the present worker numbers would begin anew
                handle.send(Numbered(len(self.issued), command) if handed else command)
                self.issued.append((time, command))
                handle.flush()
        elif self._is_behind(time):
            handle.advance_to(time + 1)
        else:
            handle.close()

    def _look(self, at_rest: bool = False) -> None:
        """Have the monitor compare the workers that show frontiers: not those that are still joining."""
        if self._monitor is not None:
            settled = [worker for worker in self.workers if not worker.rescaling.joining]
            self._monitor.look(settled, thorough=self._random.random() < _MONITORED_SHARE, at_rest=at_rest)

    def _step(self, member: SimulatedWorker) -> None:
        member.running = member.worker.step()
        member.worker.rescaling._check()
        for graph in member.worker.graphs():
            graph.handoffs._check()
        self._look()
