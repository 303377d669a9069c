"""Processes on their way into the job: who asked for them, how far they have come, and who is waited for no longer.

A state machine of values, a part of `membership_requests`.

    add        StartWorkers ─ the processes ask the engine to join, in any order ─▶ a Bootstrap for each of their
               workers ─ RoutingReady of all ─▶ done. What could not be started is counted; the rest goes on.
               A process is known by its address: one that joins before the launcher has told the addresses of those
               that it has started belongs to no `add` until then.
    by hand    TableWish of the workers that join ─ Joined ─▶ a bootstrap of each that wished for one

Each process has `timeout_seconds` to join, counted from when it was asked for, or was started if it had to wait for
that; from when its turn came, once it has; and for those that wait anew from the end of each change that they may have
waited for. Then it is given up:

1. One whose turn has not come (no `JoinDue` of its address was granted here) holds nothing and cannot come to hold
   anything: the engine lets nobody begin without this ruling. It counts as failed at once, the launcher is to kill it
   (`EndProcess`), and should it ask nevertheless it is refused until the launcher says that it has ended. Until then
   no part is handed over: another controller would let it in, and the launcher would kill a member.
2. One whose turn has come may be past the point of no return, which only the engine knows (see rule 5 of
   `megaflow.timely.rescale.sequencer`). So the engine is asked to call its join off, again and again, and it counts as
   failed only when the engine says that it did (`ChangeRefused`): then it is killed. If the engine says `Joined`, it
   was committed before: it is a member like any other, and its silence that of a member.
3. A process that was started by hand is not the launcher's to kill: it is called off alike, and told so.
4. The end of the job waits for nobody who has not joined: `give_up` ends all requests at once and calls off what has
   begun. It waits for the engine's word only, which comes without the process.
"""

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TypeAlias

from megaflow.control.coordinator.events import (
    Asked,
    CallOff,
    ChangeRefused,
    Instruction,
    Launched,
    Rule,
    StartWorkers,
)
from megaflow.control.coordinator.request_progress import Add, Arrival, TableRequest
from megaflow.control.coordinator.roster import Roster
from megaflow.control.launcher_messages import EndProcess, Started, StartWaits
from megaflow.control.messages import AddProcesses
from megaflow.control.reports import JoiningStatus
from megaflow.control.wording import quantity, workers_text
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass
from megaflow.timely.rescale.change_stages import ChangeStage
from megaflow.timely.rescale.messages import Joined

PROCESSES_MAX = 256  # that one request may add
JOIN_SECONDS = 30.0  # that a process has to join, unless the job says otherwise

Address: TypeAlias = tuple[str, int]
StageOf: TypeAlias = Callable[[tuple[int, ...]], tuple[ChangeStage, tuple[int, ...]] | None]
"""How far the join of these workers has come in the engine, and whose answers it waits for; None if it has not begun"""


@dataclass(slots=True)
class Joining:
    """A process whose join has begun."""

    address: Address
    began: float  # monotonic clock, seconds
    given_up: str | None = None  # why it is called off, if it is
    wishes: dict[int, int | None] = field(default_factory=dict)  # worker that wants its table -> from whom; None: any

    def tables(self, coordinator: int, now: float) -> list[TableRequest]:
        """Return a request for each worker that has wished for its table."""
        servers = {worker: coordinator if server is None else server for worker, server in self.wishes.items()}
        return [TableRequest([], now, server, worker, wished=True) for worker, server in servers.items()]


class Joins:
    """The joins of one job that are asked for or under way. One writer: the controller."""

    def __init__(self, roster: Roster, timeout_seconds: float, stage_of: StageOf) -> None:
        self.starts = 0  # the number of the next `StartWorkers`
        self._roster = roster
        self._timeout_seconds = timeout_seconds
        self._stage_of = stage_of
        self._adds: dict[int, Add] = {}  # number of its StartWorkers -> request
        self._joining: dict[tuple[int, ...], Joining] = {}  # ids of a process whose join has begun
        self._unclaimed: list[tuple[Joined, Joining | None, float]] = []  # the last: when; to be told by address
        self._given_up: set[Address] = set()  # that are to be killed, and have not ended
        self._changed = 0.0  # monotonic clock, seconds: the end of the last change of the membership

    @property
    def under_way(self) -> bool:
        """Whether the job has to go on for a join."""
        return bool(self._adds or self._joining)

    @property
    def begun(self) -> bool:
        """Whether the engine is about a join."""
        return bool(self._joining)

    @property
    def keeps_out(self) -> bool:
        """Whether some were given up and have not ended: only here it is known that they may not join."""
        return bool(self._given_up)

    @property
    def requests(self) -> list[Add]:
        """The requests under way."""
        return list(self._adds.values())

    # What clients ask, and what the engine says

    def ask(self, asked: Asked, body: AddProcesses, out: list[Instruction], now: float) -> None:
        """Have processes started. Raises CommandRefused for a wrong number."""
        if type(body.count) is not int or not 1 <= body.count <= PROCESSES_MAX:
            raise CommandRefused(f"cannot add {body.count!r:.50} processes: add 1 to {PROCESSES_MAX} at a time")
        add = self._adds[self.starts] = Add([asked], now, body.count, steps=2 * body.count)
        start = StartWorkers(body.count, self.starts, body.other_code is True)
        out += [start, *add.progress(f"{quantity(body.count, 'process')} to start", 0)]
        self.starts += 1

    def due(
        self, ids: tuple[int, ...], address: Address, too_late: str | None, out: list[Instruction], now: float
    ) -> None:
        """Rule on a process that is to join."""
        if too_late is None and address in self._given_up:
            too_late = self._late
        if too_late is None:
            self._joining[ids] = Joining(address, now)
        out.append(Rule(ids, too_late))

    def wished(self, worker: int, server: int | None) -> None:
        """Note that a worker whose join has begun is to be given its table by this server, None: by any."""
        for ids, joining in self._joining.items():
            if worker in ids:
                joining.wishes[worker] = server

    def joined(self, event: Joined, out: list[Instruction], now: float) -> list[TableRequest]:
        """Note that a process has joined; return what of tables it has wished for, if it did so by hand."""
        host, port, _ = event.process
        self._roster.joined(event.ids, event.membership, host, port)
        self._changed = now
        return self._claim(event, self._joining.pop(event.ids, None), now, out, now)

    def _claim(
        self, event: Joined, joining: Joining | None, joined: float, out: list[Instruction], now: float
    ) -> list[TableRequest]:
        """Find out for whom a process has joined, as soon as that can be known."""
        add = self._add_of(event.process[:2])
        if add is None:
            if joining is not None and joining.wishes:  # by hand, as who was added has no wishes
                return joining.tables(self._roster.members.coordinator, now)
            if any(each.addresses is None for each in self._adds.values() if each.missing):
                self._unclaimed.append((event, joining, joined))
            return []
        seconds = {**({} if joining is None else {"start": joining.began - add.start}), **event.seconds}
        waiting = {id for id in self._roster.members.workers.intersection(event.ids) if not self._roster.is_routed(id)}
        add.arrivals.append(Arrival(event.process[:2], event.ids, joined, seconds, event.bytes, waiting))
        out += add.progress(f"{workers_text(event.ids)} joined")
        if not waiting:
            self._ready(add, add.arrivals[-1], out, now)
        return []

    def declined(self, event: ChangeRefused, out: list[Instruction], now: float) -> None:
        """Note that a process does not join; who was not given up ends by itself, as the launcher will say."""
        joining = self._joining.pop(event.ids, None)
        self._changed = now
        add = None if joining is None else self._add_of(joining.address)
        if joining is not None and joining.given_up is not None and add is not None:
            self._fail(add, joining.address, event.reason, out)

    def left(self, now: float) -> None:
        """Note that a process has left, for which others may have waited."""
        self._changed = now

    # What the launcher and the workers say

    def launched(self, answer: Launched, out: list[Instruction], now: float) -> list[TableRequest]:
        """Learn from the launcher what it has started, or what it could not; return as `joined` does."""
        if isinstance(answer, StartWaits):
            if (add := self._adds.get(answer.number)) is not None:
                add.waits_for = answer.reason
                out += add.progress(answer.reason, 0)
            return []
        address = None if isinstance(answer, Started) else answer.address
        known = address in self._given_up
        self._given_up.discard(address or ("", 0))
        add = self._adds.get(answer.number)
        if add is None or known:
            return []
        if isinstance(answer, Started):
            add.started = now if add.waits_for else add.started
            add.addresses = (add.addresses or {}) | dict(zip(answer.addresses, (*answer.pids, *[None] * add.count)))
        elif add.missing:
            failed = 1 if add.addresses is not None else add.missing
            if add.addresses is not None and address is not None:
                add.addresses.pop(address, None)
            self._count_failures(add, answer.reason, failed, out)
        unclaimed, self._unclaimed = self._unclaimed, []
        return [table for arrived in unclaimed for table in self._claim(*arrived, out, now)]

    def routed(self, worker: int, seconds: float, out: list[Instruction], now: float) -> None:
        """Note that a worker that has joined knows its routing tables; records waited for `seconds`."""
        for add in self.requests:
            for arrival in add.arrivals:
                if worker in arrival.waiting:
                    arrival.waiting.discard(worker)
                    arrival.paused = max(arrival.paused, seconds)
                    if not arrival.waiting:
                        self._ready(add, arrival, out, now)

    def learners(self) -> Iterable[list[int]]:
        """Yield of each process that was added and has joined, once, the workers to be given tables."""
        for add in self._adds.values():
            for arrival in add.arrivals:
                if not arrival.asked:
                    arrival.asked = True
                    yield sorted(arrival.waiting.intersection(self._roster.unbootstrapped))

    # Who is waited for no longer

    def give_up(self, reason: str, out: list[Instruction]) -> None:
        """Wait for nobody who has not joined, as the job ends."""
        for add in self.requests:
            add.failures += [reason] * add.missing
            self._finish(add, out)
        for ids, joining in self._joining.items():
            if joining.given_up is None:
                joining.given_up = reason
                out.append(CallOff(ids, reason))

    def tick(self, is_leaving: bool, out: list[Instruction], now: float) -> None:
        """Give up who takes too long; `is_leaving`: the engine is perhaps about a leave, for which joins wait."""
        for joining in self._joining.values():
            if now - joining.began >= self._timeout_seconds:
                joining.given_up = joining.given_up or self._late
        out += [CallOff(ids, each.given_up) for ids, each in self._joining.items() if each.given_up is not None]
        if self._joining or is_leaving:
            return
        for add in self.requests:
            if now - max(add.start, add.started, self._changed) >= self._timeout_seconds:
                for address in add.expected[: add.missing]:
                    self._fail(add, address, self._late, out)

    @property
    def _late(self) -> str:
        return f"it did not join within {self._timeout_seconds:g} s (--join-timeout)"

    def _fail(self, add: Add, address: Address, reason: str, out: list[Instruction]) -> None:
        """Count a process that was started as failed, and have it killed."""
        pid = (add.addresses or {}).pop(address, None)
        self._given_up.add(address)
        who = f"process {place(address)}" + f" (pid {pid})" * (pid is not None)
        out.append(EndProcess(*address, reason))
        self._count_failures(add, f"{who} was ended: {reason}", 1, out)

    def _count_failures(self, add: Add, reason: str, count: int, out: list[Instruction]) -> None:
        add.failures += [reason] * count
        out += add.progress(reason, 2 * count)
        self._finish(add, out)

    def _add_of(self, address: Address) -> Add | None:
        """Return the request for which a process was started; None if that is not known, or there is none."""
        return next((add for add in self._adds.values() if add.missing and address in (add.addresses or {})), None)

    def _ready(self, add: Add, arrival: Arrival, out: list[Instruction], now: float) -> None:
        arrival.seconds["routing"] = now - arrival.joined
        out += add.progress(f"{workers_text(arrival.ids)} ready for bins")
        self._finish(add, out)

    def _finish(self, add: Add, out: list[Instruction]) -> None:
        """Answer if nothing is left to wait for."""
        if not add.missing and not any(arrival.waiting for arrival in add.arrivals):
            self._adds = {number: each for number, each in self._adds.items() if each is not add}
            out += add.conclusion()

    # What is shown

    def statuses(self, now: float) -> tuple[JoiningStatus, ...]:
        """Return who is on its way in, since when, and what it waits for."""
        rows = []
        begun = {joining.address for joining in self._joining.values()}
        for ids, joining in self._joining.items():
            add = self._add_of(joining.address)
            pid, since = (None, joining.began) if add is None else ((add.addresses or {})[joining.address], add.start)
            rows.append(self._row(joining.address, pid, now - since, *self._progress(ids)))
        for add in self._adds.values():
            for address in add.expected:
                if address not in begun:
                    waits = "it is loading its program, is suspended, or waits for another change"
                    rows.append(self._row(address, (add.addresses or {})[address], now - add.start, (), waits))
            if to_start := add.count - len(add.failures) - len(add.arrivals) - len(add.expected):
                waits = add.waits_for or f"the launcher has yet to start {quantity(to_start, 'process')}"
                rows.append(JoiningStatus("", None, now - add.start, (), waits))
            for arrival in add.arrivals:
                if arrival.waiting:
                    pid = (add.addresses or {}).get(arrival.address)
                    waits = f"no routing table at {workers_text(sorted(arrival.waiting))} yet"
                    rows.append(self._row(arrival.address, pid, now - add.start, arrival.ids, waits))
        return tuple(rows)

    def _progress(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Return the workers of a join that has begun if they are members, and what it waits for."""
        known = self._stage_of(ids)
        if known is None:
            return (), "it waits for another change"
        stage, silent = known
        committed = stage in (ChangeStage.MINTING, ChangeStage.SETTLING)
        # new workers wait for all members before they are ready, members for the new ones before they have settled
        first = [worker for worker in silent if (worker in ids) is committed]
        return ids if committed else (), f"no answer from {workers_text(first or silent)} ({stage})"

    @staticmethod
    def _row(address: Address, pid: int | None, seconds: float, workers: tuple[int, ...], waits: str) -> JoiningStatus:
        return JoiningStatus(place(address), pid, seconds, workers, waits)

    def _check(self) -> None:
        assert all(add.missing >= 0 for add in self._adds.values())
        assert not any(address in self._given_up for add in self._adds.values() for address in add.addresses or ())


def place(address: Address) -> str:
    """Return an address as text.

    >>> place(("::1", 2101))
    '[::1]:2101'
    """
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
