"""Simulated workers, their feeds, and the dice that decide which part acts next."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from megaflow.errors import UsageError
from megaflow.megaphone.base.routing import Command, Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing.engine_feeds import FlowFunction, build_of, check_feeds
from megaflow.testing.membership_driver import Change, Rescaling, SimulatedWorker
from megaflow.testing.monitor import Monitor, Violation, describe_pointstamps
from megaflow.testing.network import Network
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.membership import founding
from megaflow.timely.order import Time, in_order, sort_key
from megaflow.timely.rescale.messages import Admission
from megaflow.timely.worker import Worker as EngineWorker

Build = Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]
"""`build(worker, records, commands) -> outputs`, called on every worker."""

_MONITORED_SHARE = 0.15
"""Share of the steps after which the monitor checks everything by brute force. A check costs more than a step."""
_FRUITLESS_ACTIONS_MAX = 5_000
"""Number of actions after which a run is stuck in a loop, if nothing has gone in or come out meanwhile.

Other runs take some hundreds from the last record, command or output to the end.
"""


class EngineCluster:
    """Workers, transport and scheduling in one thread, decided by `seed`. A cluster makes one run.

    >>> from megaflow.testing import Join
    >>> def count(word, n, total):
    ...     return (total or 0) + n, [(word, (total or 0) + n)]
    >>> def build(worker, records, commands):
    ...     return records.map(lambda word: (word, 1)).stateful_state_machine(count, control=commands)
    >>> cluster = EngineCluster(seed=7, workers=2)
    >>> cluster.at(record=3, do=Join())
    >>> sorted(cluster.run(build, {0: [(0, "a"), (1, "b")], 1: [(5, "a"), (5, "c")]}))
    [(0, ('a', 1)), (1, ('b', 1)), (5, ('a', 2)), (5, ('c', 1))]

    `workers` is the initial number of workers, with ids 0, 1, …. The coordinator, on which commands are injected, is
    worker 0 until it hands over. Each process has `per_process` workers, which leave together; so does one that joins.
    With `eager`, progress is never held back, see `progcaster`. `bounds` limits the records that wait between
    operators; the feeds then wait for room, as sources do.
    """

    def __init__(
        self,
        seed: int,
        workers: int = 3,
        monitor: bool = True,
        eager: bool = False,
        bounds: Bounds | None = None,
        per_process: int = 1,
    ) -> None:
        if workers < 1:
            raise UsageError(f"A simulated cluster has at least 1 worker, not {workers!r}.")
        if per_process < 1 or workers % per_process:
            raise UsageError(f"{workers} workers cannot be split into processes of {per_process!r}.")
        self.seed = seed
        self.issued: list[tuple[int, Command]] = []  # (time, command), in order: of the script and of changes
        self.workers: list[EngineWorker[Scope]] = []  # all workers ever, without those that died
        self._eager = eager
        self._bounds = bounds
        self._random = Random(seed)
        self._ids = tuple(range(workers))
        self._per_process = per_process
        self._network = Network(self._random)
        self._monitor = Monitor(seed, self._network) if monitor else None
        self._clock = 0.0
        self._planned: list[tuple[int, Change]] = []
        self._sent = 0  # number of records
        self._members: list[SimulatedWorker] = []
        self._numbers = False  # this class numbers commands, not the operators
        self._times: list[int] = []  # times of feeds and commands, sorted
        self._last = 0  # the last of these times, after which inputs close
        self._outputs: list[tuple[Time, Any]] = []
        self._rescaling = Rescaling(
            self._planned, self._members, self._admit, self._bury, self._is_passed, per_process)
        self.refusals = self._rescaling.refusals  # why planned changes did not take place

    def at(self, record: int, do: Change) -> None:
        """Plan a change for when `record` records have entered: `Join()`, `Leave(1)`, `Move(bin=3, worker=1)`, …

        See `megaflow.testing.membership_driver`. Changes happen one after the other, in the order of these calls. When
        all records have entered, the remaining changes happen. `refusals` notes each change that is impossible. Raises
        UsageError for an argument that is not a change.
        """
        _check_change(do)
        self._planned.append((record, do))

    def run(
        self,
        build: Build | FlowFunction,
        feeds: Mapping[int, Sequence[tuple[int, Any]]],
        commands: Sequence[tuple[int, Any]] = (),
        *,
        args: Sequence[Any] = (),
    ) -> list[tuple[Time, Any]]:
        """Run one dataflow to completion; return its outputs, (time, record) by time.

        The dataflow is an engine program's `build(worker, records, commands) -> outputs`. `feeds` maps a worker to its
        (time, record) pairs in the order of time. `commands` are (time, command) pairs, also in order. A command that
        names a worker that may not own bins at that moment is left out. A worker that joins receives a part of the
        coordinator's feed. If the dataflow is a `dataflow(flow)`, its lines are the records of the feeds, and `args` is
        `flow.args`.

        Outputs of one time and worker keep their order. Raises Violation, UsageError for wrong arguments, BuildError
        for a function that is not a dataflow, and the exceptions of user code.
        """
        if self._members:
            raise UsageError("A cluster makes one run. Make another EngineCluster(seed).")
        check_feeds(feeds, commands, self._ids)
        self._build: Build = build_of(build, args)
        self._rescaling.numbers = self._numbers = self._build is not build
        self._times = sorted({time for fed in (*feeds.values(), commands) for time, _ in fed})
        self._last = self._times[-1] if self._times else 0
        for worker in self._ids:
            self._add(worker, feeds.get(worker, ()), None)
        self._rescaling.lead.unsent_commands.extend(commands)
        self._rescaling.begin()
        self._drive()
        return in_order(self._outputs, lambda output: sort_key(output[0]))

    @property
    def batches(self) -> int:
        """Number of progress batches that were broadcast."""
        return len(self._network.broadcasts)

    def _add(self, index: int, feed: Sequence[tuple[int, Any]], admission: Admission | None) -> SimulatedWorker:
        size = self._per_process
        allocator = self._network.add(index, index // size if admission is None else admission.process)
        worker: EngineWorker[Scope] = EngineWorker(
            allocator,
            founding(self._ids) if admission is None else admission.membership,
            Scope,
            (lambda: self._clock, lambda: self._clock),
            eager=self._eager,
            processes={
                number: ("simulated", number, tuple(range(number * size, (number + 1) * size)))
                for number in range(len(self._ids) // size)
            },
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

    def _admit(self, admission: Admission) -> list[SimulatedWorker]:
        """Start the workers of an admitted process."""
        members = [self._add(index, (), admission) for index in admission.ids]
        for member in members:
            assert member.worker.rescaling.joiner is not None
            member.worker.rescaling.joiner.begin()
        return members

    def _bury(self, member: SimulatedWorker) -> None:
        """Let a worker die that is not yet a member."""
        self._network.kill(member.worker.index)
        self._members.remove(member)
        self.workers.remove(member.worker)

    def _drive(self) -> None:
        """Take random actions until all workers are done. A worker that is slow in one run may be fast in another."""
        weights = defaultdict[int, float](lambda: self._random.random() ** 2 + 0.02)  # worker -> how often it acts
        fruitless, before = 0, (0, 0, 0)
        while fruitless < _FRUITLESS_ACTIONS_MAX:
            self._clock += self._random.random() * 0.01
            self._rescaling.turn(self._sent)
            done = self._sent, len(self.issued), len(self._outputs)
            fruitless, before = (fruitless + 1 if done == before else 0), done
            actions = self._actions(weights)
            if not actions and (waits := [each.due_in for each in self._members if each.running and each.due_in]):
                self._clock += min(waits)
                continue
            if not actions:
                if not self._rescaling.is_busy and not any(member.running for member in self._members):
                    return
                raise Violation(f"seed {self.seed}: nothing can happen any more, but {self._left()}")
            if not self._network.waiting() and not any(member.can_step for member in self._members):
                self._look(at_rest=True)
            kinds = list(actions)
            self._random.choices(kinds, [actions[kind] for kind in kinds])[0]()
        raise Violation(
            f"seed {self.seed}: no end after {fruitless} actions since anything went in or came out; {self._left()}"
        )

    def _left(self) -> str:
        """Return a description of what is outstanding."""
        held = "; ".join(
            f"worker {member.worker.index}: {describe_pointstamps(graph)}"
            for member in self._members
            for graph in member.worker.graphs()
        )
        return f"pointstamps are left: {held}"

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
        """Send the next record if it is due now, otherwise advance to the next time; close after the last."""
        handle, script, time = member.records, member.unsent_records, member.records.time
        assert isinstance(time, int)
        if script and script[0][0] <= time:
            handle.send(script.popleft()[1])
            handle.flush()
            self._sent += 1
        elif time < self._last:
            handle.advance_to(self._after(time))
        else:
            handle.close()

    def _after(self, time: int) -> int:
        """Return the next time to advance to: half way to the next record or command, however far away that is."""
        place = bisect_right(self._times, time)
        return time + max(1, (self._times[place] - time) // 2) if place < len(self._times) else time + 1

    def _may_feed_commands(self, member: SimulatedWorker) -> bool:
        """Return whether the control stream has something to do. It ends only after the changes."""
        time = member.commands.time
        assert isinstance(time, int)
        reading = [each.records.time for each in self._members if not each.records.closed]
        if self._rescaling.is_busy and any(time > read + 1 for read in reading if isinstance(read, int)):
            return False  # so commands apply to records that are read soon
        return bool(member.unsent_commands) or self._is_behind(time) or not self._rescaling.is_busy

    def _is_behind(self, time: int) -> bool:
        """Return whether the control stream has not yet passed the last record and its last command."""
        return time <= max(self._last, self.issued[-1][0] if self.issued else 0)

    def _is_passed(self) -> bool:
        """Return whether the outputs' frontier has passed the last command."""
        return not self.issued or not self._rescaling.lead.probe.less_equal(self.issued[-1][0])

    def _feed_commands(self, member: SimulatedWorker) -> None:
        handle, script, time = member.commands, member.unsent_commands, member.commands.time
        assert isinstance(time, int)
        if script and script[0][0] <= time:
            command = script.popleft()[1]
            if self._rescaling.allows(command):
                numbers = self._rescaling.has_handed_over  # operators would restart the numbers here
                handle.send(Numbered(len(self.issued), command) if numbers or self._numbers else command)
                self.issued.append((time, command))
                handle.flush()
        elif self._is_behind(time):
            handle.advance_to(self._after(time))
        else:
            handle.close()

    def _look(self, at_rest: bool = False) -> None:
        """Let the monitor compare the workers that show frontiers. Joining workers show none."""
        if self._monitor is not None:
            settled = [worker for worker in self.workers if not worker.rescaling.joining]
            self._monitor.look(settled, self._random.random() < _MONITORED_SHARE, at_rest)

    def _step(self, member: SimulatedWorker) -> None:
        member.running = member.worker.step()
        member.worker.rescaling._check()
        self._look()


def _check_change(do: Any) -> None:
    """Raise UsageError if this is not a change."""
    if not isinstance(do, Change):
        changes = "Join(), Leave(worker), KillJoiner(), HandOver(), Move(bin, worker) or Map(workers)"
        raise UsageError(f"A change must be one of {changes}, not {do!r:.80}.")
