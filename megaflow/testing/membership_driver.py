"""Membership changes that a test can plan (`EngineCluster.at`), and their execution, like that of `megaflow control`.

A joined worker receives a fair share of the bins; a leaving worker gives its bins away first. All commands go over the
test's control stream. The coordinator hands the stream over when every worker has read everything written to it.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import Bootstrap, Command, Map, Move, RoutingTable, apply, initial_table, validate
from megaflow.scope import Scope
from megaflow.testing.changes import Join, Leave
from megaflow.testing.network import SimulatedAllocator
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.rescale.messages import Aborted, Admission, Denied, Event, JoinAsk, Joined, LinkLost, Succeeded
from megaflow.timely.worker import Worker as EngineWorker


@dataclass(frozen=True, slots=True)
class KillJoiner:
    """The process that joined just before dies after `after` actions, unless it is a member by then.

    The other processes treat it as if it had never existed.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class HandOver:
    """The lowest worker of another process becomes the coordinator. Commands are injected there from then on."""


Change: TypeAlias = Join | Leave | KillJoiner | HandOver | Move | Map
"""`Move(bin, worker)` and `Map` move bins, as `megaflow control move-bins` does; an invalid one is refused."""


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """One worker of the simulated cluster: its inputs, and the records and commands still to send, in order of time."""

    worker: EngineWorker[Scope]
    allocator: SimulatedAllocator
    records: InputHandle[Any]
    commands: InputHandle[Any]
    probe: ProbeHandle  # of the outputs
    unsent_records: deque[tuple[int, Any]]  # (time, record)
    unsent_commands: deque[tuple[int, Command]] = field(default_factory=deque)  # (time, command)
    running: bool = True

    @property
    def can_step(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.allocator.arrived) or (self.running and (self.worker.has_work() or self.due_in == 0))

    @property
    def due_in(self) -> float | None:
        """Seconds until a scheduled call is due; None if none is scheduled."""
        return self.worker._scheduled.wait(None)


@dataclass(eq=False, repr=False)
class Rescaling:
    """The planned changes, one at a time; also the door through which joiners get their answer."""

    _planned: list[tuple[int, Change]]  # (records sent, change); the cluster appends to it
    _members: list[SimulatedWorker]  # the living workers; the cluster updates it
    _admit: Callable[[Admission], list[SimulatedWorker]]
    _bury: Callable[[SimulatedWorker], None]
    _is_passed: Callable[[], bool]  # returns whether the outputs' frontier has passed the last command
    _per_process: int  # workers
    numbers: bool = False  # commands are numbered, as in a job, so newcomers get the table by a Bootstrap
    refusals: list[str] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)  # workers that may own bins
    _age: int = 0  # actions since the newcomers started
    _stage: str = ""  # of the change in progress; "": none
    _handing: bool = False  # the coordinator has handed over, and there is no new one yet
    _lead: SimulatedWorker | None = None  # None: the first
    _newcomers: Sequence[SimulatedWorker] = ()  # of one process
    _leavers: Sequence[SimulatedWorker] = ()  # likewise
    _command: Command | None = None  # the last `Move` or `Map` issued
    _table: RoutingTable = ()

    @property
    def is_busy(self) -> bool:
        """Whether a change is planned or in progress."""
        return bool(self._planned or self._stage) or self._handing

    @property
    def has_handed_over(self) -> bool:
        """Whether there has been more than one coordinator."""
        return self._lead is not None

    @property
    def lead(self) -> SimulatedWorker:
        """The member that coordinates; during a hand-over, the previous one."""
        return self._lead or self._members[0]

    def begin(self) -> None:
        """Note the founding workers, which are now built."""
        self.owners.update(member.worker.index for member in self._members)
        if views := self._members[0].worker.stateful:
            self._table = initial_table(views[0].bins, sorted(self.owners))

    def allows(self, command: Command) -> bool:
        """Return whether a scripted command may be issued now; if so, note it."""
        if isinstance(command, Move | Map):
            named = {command.worker} if isinstance(command, Move) else set(command.workers)
            if not named <= self.owners:
                return False
            if self._table:
                self._table = apply(self._table, [command])
        return True

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Serve as the door: admit newcomers, or note the reason of a denial."""
        if isinstance(answer, Denied):
            self.refusals.append(answer.reason)
            self._stage = ""
        else:
            self._newcomers, self._age = self._admit(answer), 0

    def turn(self, sent: int) -> None:
        """Begin the change that is due, and advance the one in progress as far as possible."""
        if self._newcomers:
            self._age += 1
            kill = self._planned[0][1] if self._planned else None
            if isinstance(kill, KillJoiner) and kill.after <= self._age:
                self._planned.pop(0)
                self._kill()
        before = None
        while before != (before := (self._stage, len(self._planned))):
            self._go_on(sent)

    def _go_on(self, sent: int) -> None:
        newcomers = [newcomer.worker for newcomer in self._newcomers]
        if not self._stage:
            self._begin_next(sent)
        elif self._stage == "joined" and not any(worker.rescaling.joining for worker in newcomers):
            self._bootstrap()
        elif self._stage == "bootstrapping" and all(view.ready for worker in newcomers for view in worker.stateful):
            self._share()
        elif self._stage == "moving" and all(command is not self._command for _, command in self.lead.unsent_commands):
            self._stage = ""
        elif self._stage == "handing over" and self._is_passed():
            self._hand_over()
        elif self._stage == "draining":
            self._leave()

    def _begin_next(self, sent: int) -> None:
        due = not any(member.unsent_records for member in self._members)
        if not self._planned or (self._planned[0][0] > sent and not due):  # the rest is due when all is sent
            return
        if self._handing and not isinstance(self._planned[0][1], Join):
            return
        match self._planned.pop(0)[1]:
            case Join(server):
                self._stage = "joining"
                entry = self._members[0 if server is None else -1].worker  # either of them tells the coordinator
                ask = JoinAsk(0, "simulated", -len(self._members), self._per_process, server)
                entry.rescaling.hear(entry.index, ask)
            case HandOver():
                self._stage = "handing over"
            case Leave(worker):
                self._begin_leave(worker)
            case KillJoiner():
                pass  # no worker is joining
            case Move() | Map() as command:
                self._move(command)

    def _move(self, command: Command) -> None:
        try:
            if not self._table:
                raise CommandRefused(f"{command}: The dataflow has no stateful operator, so there are no bins to move.")
            validate(command, len(self._table), self.owners)
        except CommandRefused as error:
            self.refusals.append(str(error))
        else:
            self._stage, self._command = "moving", command
            self.issue(command)

    def issue(self, command: Any) -> None:
        """Insert a command before the test's later ones; it is sent at the control stream's present time."""
        time = self.lead.commands.time
        assert isinstance(time, int)
        insort(self.lead.unsent_commands, (time, command), key=lambda entry: entry[0])

    # Joins

    def changed(self, member: SimulatedWorker, event: Event) -> None:
        """Handle an event of a change that a worker has received."""
        if isinstance(event, Succeeded):
            self._succeed(member, event)
        if member is not self.lead:
            return
        if isinstance(event, Joined):
            self._stage = "joined"
        elif isinstance(event, Aborted) and event.ids == tuple(_ids(self._newcomers)):
            self.refusals.append(event.reason)  # for a leave, the answer has the reason
            self._stage, self._newcomers = "", ()

    def _bootstrap(self) -> None:
        for newcomer in self._newcomers:
            self._hand_over_records(newcomer)
            if not newcomer.worker.stateful:
                self.owners.add(newcomer.worker.index)
            elif self.numbers:
                self.issue(Bootstrap(self.lead.worker.index, newcomer.worker.index))
        self._stage = "bootstrapping" if self._table else ""

    def _hand_over_records(self, newcomer: SimulatedWorker) -> None:
        """Give a newcomer every second unsent record of the coordinator that it may still send."""
        if newcomer.records.closed:
            return
        time, script = newcomer.records.time, self.lead.unsent_records
        assert isinstance(time, int)
        kept: list[tuple[int, Any]] = []
        given: list[tuple[int, Any]] = []
        for number, entry in enumerate(script):
            (given if number % 2 and entry[0] >= time else kept).append(entry)
        script.clear()
        script.extend(kept)
        newcomer.unsent_records.extend(given)

    def _share(self) -> None:
        """Move every n-th bin to each newcomer."""
        ids = _ids(self._newcomers)
        self.owners.update(ids)
        for place, index in enumerate(ids):
            for bin in range(place, len(self._table), len(self.owners)):
                self.issue(Move(bin, index))
        self._stage, self._newcomers = "", ()

    def _kill(self) -> None:
        lead, ids = self.lead.worker, tuple(_ids(self._newcomers))
        assert lead.rescaling.coordination.sequencer is not None
        change = lead.rescaling.coordination.sequencer.change
        if change is not None and ids == change.ids and not change.committed:
            for newcomer in self._newcomers:
                self._bury(newcomer)
            lead.rescaling.hear(lead.index, LinkLost(ids))

    # Leaves

    def _begin_leave(self, worker: int | None) -> None:
        there = {member.worker.index: member for member in self._members if not member.worker.rescaling.left}
        processes = [process[2] for process in self.lead.worker.rescaling.processes.values()]
        lead = self.lead.worker.index
        candidates = [ids for ids in processes if (lead not in ids if worker is None else worker in ids)]
        if not candidates or len(processes) == 1:
            self.refusals.append(f"There is no worker {worker} that could leave.")
            return
        self._leavers = [there[index] for index in max(candidates)]
        if self.lead in self._leavers:
            self._stage = "handing over"
        else:
            self._drain()

    def _drain(self) -> None:
        """Move the leavers' bins to the other workers."""
        ids = _ids(self._leavers)
        self.owners.difference_update(ids)
        rest = sorted(self.owners)
        for bin, owner in enumerate(self._table):
            if owner in ids:
                self.issue(Move(bin, rest[bin % len(rest)]))
        self._stage = "draining"

    def _leave(self) -> None:
        """Ask to leave once the leavers have sent their records, and every command has taken effect everywhere."""
        if any(leaver.unsent_records for leaver in self._leavers) or self.lead.unsent_commands:
            return
        views = [view for each in self._leavers for view in each.worker.stateful]
        if self._is_passed() and not any(view.journal and view.journal.is_busy for view in views):
            self._stage = "leaving"
            leaver = self._leavers[0].worker
            leaver.rescaling.ask_leave(leaver.index, self._left)

    def _left(self, reason: str | None) -> None:
        if reason is not None:
            self.refusals.append(reason)
            self.owners.update(_ids(self._leavers))
        self._stage, self._leavers = "", ()

    # Hand-overs

    def _hand_over(self) -> None:
        """Make another worker the coordinator. Meanwhile the next change may begin."""
        self._stage = "succeeding" if self._leavers else ""
        lead = self.lead
        if len(lead.worker.rescaling.processes) == 1:
            self.refusals.append("there is no other worker")
            return
        self._handing = True
        lead.worker.rescaling.hand_over(lead.commands.give_away())

    def _succeed(self, member: SimulatedWorker, event: Succeeded) -> None:
        member.commands.receive(event.luggage)
        member.unsent_commands.extend(self.lead.unsent_commands)
        self.lead.unsent_commands.clear()
        self._lead, self._handing = member, False
        if self._stage == "succeeding":
            self._drain()


def _ids(members: Sequence[SimulatedWorker]) -> list[int]:
    return [member.worker.index for member in members]
