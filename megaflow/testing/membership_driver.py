"""Carries out the membership changes that a test has planned: what `megaflow control` does to a real job.

A joined worker is bootstrapped and gets a fair share of the bins; a leaving one gives its bins away first. All
commands go over the same control stream as the test's own. Its writer, the coordinator, hands over when every worker
has read all that it wrote; the right to write goes along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from megaflow.megaphone.routing import Bootstrap, Command, Map, Move, RoutingTable, apply, initial_table
from megaflow.scope import Scope
from megaflow.testing.actions import Change, HandOver, Join, KillJoiner, Leave
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.rescale.messages import Aborted, Admission, Denied, Event, JoinAsk, Joined, LinkLost, Succeeded
from megaflow.timely.worker import Worker as EngineWorker


class SteppedMember(Protocol):
    """One simulated worker, as the cluster keeps it."""

    worker: EngineWorker[Scope]
    records: InputHandle[Any]
    commands: InputHandle[Any]
    script: Any
    probe: ProbeHandle


class Rescaling:
    """The planned changes, one at a time; also the door through which joiners get their answer."""

    def __init__(
        self,
        planned: list[tuple[int, Change]],
        members: list[Any],
        admit: Callable[[Admission], Any],
        bury: Callable[[Any], None],
        is_passed: Callable[[], bool],
    ) -> None:
        """`planned` is (records sent, change), `members` the living workers; both are shared with the cluster.

        `is_passed` tells whether the outputs' frontier has passed the last command.
        """
        self.refusals: list[str] = []
        self._planned = planned
        self._members: list[SteppedMember] = members
        self._admit = admit
        self._bury = bury
        self._is_passed = is_passed
        self._age = 0  # actions since the newcomer was started
        self._stage = ""  # of the change that is under way; "": none
        self._handing = False  # the coordinator has handed over, and there is no new one yet
        self._lead: SteppedMember | None = None  # None: the first
        self._newcomer: SteppedMember | None = None
        self._leaver: SteppedMember | None = None
        self._owners: set[int] = set()  # who may own bins
        self._table: RoutingTable = ()

    @property
    def is_busy(self) -> bool:
        """Whether a change is under way."""
        return bool(self._stage) or self._handing

    @property
    def has_handed_over(self) -> bool:
        """Whether there has been more than one coordinator."""
        return self._lead is not None

    @property
    def lead(self) -> Any:
        """The member that coordinates, the last one if there is none just now."""
        return self._lead if self._lead is not None else self._members[0]

    def watch(self, member: Any) -> None:
        """Follow what a worker is told of changes."""
        member.worker.rescaling.subscribe(partial(self._changed, member))

    def begin(self) -> None:
        """The founding workers are built."""
        founders = [member.worker.index for member in self._members]
        self._owners = set(founders)
        if self._members[0].worker.stateful:
            self._table = initial_table(self._members[0].worker.stateful[0].bins, founders)

    def allows(self, command: Command) -> bool:
        """Tell whether a scripted command may be issued now; if so it is noted."""
        match command:
            case Move(_, worker):
                named = {worker}
            case Map(workers):
                named = set(workers)
            case _:
                named = set()
        if not named <= self._owners:
            return False
        if self._table and isinstance(command, Move | Map):
            self._table = apply(self._table, [command])
        return True

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """The door: admit, or note why not."""
        if isinstance(answer, Denied):
            self.refusals.append(answer.reason)
            self._stage = ""
        else:
            self._newcomer, self._age = self._admit(answer), 0

    def turn(self, sent: int) -> None:
        """Begin what is due and go on with what is under way, as far as it can."""
        if newcomer := self._newcomer:
            self._age += 1
            kill = self._planned[0][1] if self._planned else None
            if isinstance(kill, KillJoiner) and kill.after <= self._age:
                self._planned.pop(0)
                self._kill(newcomer)
        before = None
        while before != (before := (self._stage, len(self._planned))):
            self._go_on(sent)

    def _go_on(self, sent: int) -> None:
        newcomer, leaver = self._newcomer, self._leaver
        if not self._stage:
            self._begin_next(sent)
        elif self._stage == "joined" and newcomer is not None and not newcomer.worker.rescaling.joining:
            self._bootstrap(newcomer)
        elif self._stage == "bootstrapping" and newcomer is not None and all(v.ready for v in newcomer.worker.stateful):
            self._share(newcomer)
        elif self._stage == "handing over" and self._is_passed():
            self._hand_over()
        elif self._stage == "draining" and leaver is not None:
            self._leave(leaver)

    def _begin_next(self, sent: int) -> None:
        due = not any(member.script.records for member in self._members)  # all is sent: what is left is due now
        if not self._planned or (self._planned[0][0] > sent and not due):
            return
        if self._handing and not isinstance(self._planned[0][1], Join):
            return
        change = self._planned.pop(0)[1]
        match change:
            case Join(server):
                self._stage = "joining"
                entry = self._members[0 if server is None else -1].worker  # any of them tells the coordinator
                entry.rescaling.hear(entry.index, JoinAsk(0, "simulated", -len(self._members), 1, server))
            case HandOver():
                self._stage = "handing over"
            case Leave(worker):
                self._begin_leave(worker)
            case KillJoiner():
                pass  # no worker is joining

    def _issue(self, command: Command) -> None:
        """Put a command in front of the control script: it is sent at the control stream's present time."""
        time = self.lead.commands.time
        assert isinstance(time, int)
        script: deque[tuple[int, Any]] = self.lead.script.commands
        script.append((time, command))
        ordered = sorted(script, key=lambda entry: entry[0])
        script.clear()
        script.extend(ordered)

    # A join

    def _changed(self, member: SteppedMember, event: Event) -> None:
        if isinstance(event, Succeeded):
            self._succeed(member, event)
        if member is not self.lead:
            return
        if isinstance(event, Joined):
            self._stage = "joined"
        elif isinstance(event, Aborted) and self._newcomer and self._newcomer.worker.index in event.ids:
            self.refusals.append(event.reason)  # of a leave the answer tells
            self._stage, self._newcomer = "", None

    def _bootstrap(self, newcomer: SteppedMember) -> None:
        self._hand_over_records(newcomer)
        if newcomer.worker.stateful:
            self._stage = "bootstrapping"
            self._issue(Bootstrap(self.lead.worker.index, newcomer.worker.index))
        else:
            self._stage = ""

    def _hand_over_records(self, newcomer: SteppedMember) -> None:
        """Give it every second record of the coordinator's that it may still send."""
        if newcomer.records.closed:
            return
        time, script = newcomer.records.time, self.lead.script.records
        kept: list[tuple[int, Any]] = []
        given: list[tuple[int, Any]] = []
        for number, entry in enumerate(script):
            (given if number % 2 and entry[0] >= time else kept).append(entry)
        script.clear()
        script.extend(kept)
        newcomer.script.records.extend(given)

    def _share(self, newcomer: SteppedMember) -> None:
        """Move every n-th bin to it."""
        self._owners.add(newcomer.worker.index)
        for bin in range(0, len(self._table), len(self._owners)):
            self._issue(Move(bin, newcomer.worker.index))
        self._stage, self._newcomer = "", None

    def _kill(self, newcomer: SteppedMember) -> None:
        lead, index = self.lead.worker, newcomer.worker.index
        sequencer = lead.rescaling.sequencer
        assert sequencer is not None
        change = sequencer.change
        if change is not None and index in change.ids and not change.committed:
            self._bury(newcomer)
            lead.rescaling.hear(lead.index, LinkLost((index,)))

    # A leave

    def _begin_leave(self, worker: int | None) -> None:
        there = [member for member in self._members if not member.worker.rescaling.left]
        candidates = [
            member
            for member in there
            if (member is not self.lead if worker is None else member.worker.index == worker) and len(there) > 1
        ]
        if not candidates:
            self.refusals.append(f"there is no worker {worker} that could leave")
            return
        self._leaver = max(candidates, key=lambda member: member.worker.index)
        if self._leaver is self.lead:
            self._stage = "handing over"
        else:
            self._drain(self._leaver)

    def _drain(self, leaver: SteppedMember) -> None:
        """Move its bins to the others."""
        leaving = leaver.worker.index
        self._owners.discard(leaving)
        rest = sorted(self._owners)
        for number, owner in enumerate(self._table):
            if owner == leaving:
                self._issue(Move(number, rest[number % len(rest)]))
        self._stage = "draining"

    def _leave(self, leaver: SteppedMember) -> None:
        """Ask when it has sent its records, and every command has taken effect everywhere."""
        commands = self.lead.script.commands
        if leaver.script.records or commands or not self._is_passed():
            return
        self._stage = "leaving"
        leaver.worker.rescaling.ask_leave(leaver.worker.index, self._left)

    def _left(self, reason: str | None) -> None:
        if reason is not None:
            self.refusals.append(reason)
            if self._leaver is not None:
                self._owners.add(self._leaver.worker.index)
        self._stage, self._leaver = "", None

    # A hand-over

    def _hand_over(self) -> None:
        """Have another worker coordinate. Meanwhile the next change may be asked for."""
        self._stage = "" if self._leaver is None else "succeeding"
        lead = self.lead
        if not any(member is not lead and not member.worker.rescaling.left for member in self._members):
            self.refusals.append("there is no other worker")
            return
        self._handing = True
        lead.worker.rescaling.hand_over(lead.commands.give_away())

    def _succeed(self, member: SteppedMember, event: Succeeded) -> None:
        commands = self.lead.script.commands
        member.commands.receive(event.luggage)
        member.script.commands.extend(commands)
        commands.clear()
        self._lead, self._handing = member, False
        if self._leaver is not None and self._stage == "succeeding":
            self._drain(self._leaver)
