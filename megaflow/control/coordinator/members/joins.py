"""Processes that are joining: which request added them, how far they are, and when the job stops waiting for them.

A state machine of values, and a part of `membership_requests`.

    add        StartWorkers ─ the processes ask the engine to join, in any order ─▶ a Bootstrap for each of their
               workers ─ RoutingReady of all ─▶ done. Processes that fail to start are counted; the rest continue.
               A process is known by its address. If it joins before the launcher has reported the addresses of the
               processes that it started, it belongs to no `add` until then.
    by hand    JoinDue ─ TryToReach ─▶ the launcher ─ Reached ─▶ the join begins, or is refused
               TableWish of the workers that join ─ Joined ─▶ a bootstrap of each that wished for one

Each process has `timeout_seconds` to join. While it waits for its turn, the time counts from the latest of these: the
request, the start of the process if the launcher had to delay that, and the end of the last membership change. Once
its turn has come, the time counts from then. While another process joins or leaves, no process that waits for its turn
is given up. After the timeout the coordinator gives the process up:

1. If its turn has not come (no `JoinDue` of its address was granted here), the process holds nothing. It cannot come to
   hold anything, because the engine begins no join before this module grants it (`Rule`). The process counts as failed
   at once, and the launcher must kill it (`EndProcess`). If it asks to join nevertheless, it is refused until the
   launcher reports that it has ended. Until then the coordinator's part is not handed over: another controller would
   let the process in, and the launcher would kill a member.
2. If its turn has come, its join may be past the point of no return, which only the engine knows (see rule 5 of
   `megaflow.timely.rescale.sequencer`). So the coordinator asks the engine again and again to call the join off. The
   process counts as failed, and is killed, only when the engine confirms that (`ChangeRefused`). If the engine reports
   `Joined`, the join was committed before. The process is then a member, and its silence is that of a member.
3. The launcher may not kill a process that was started by hand. Its join is called off in the same way, and it learns
   the reason.
4. The end of the job does not wait for processes that have not joined. `give_up` ends all requests at once and calls
   off the joins that have begun. It waits only for the engine's answer, which does not depend on the process.
5. The launcher connects to each process that has joined, and the job fails if it cannot. A process that was started by
   hand chooses its address. So this module lets it join only after the launcher has connected to that address. The
   launcher answers at once for a process that it has started itself. No other process of the job has to connect: a
   process that joins connects to all members.
"""

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TypeAlias

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, CallOff, ChangeRefused, Launched, Rule, StartWorkers
from megaflow.control.coordinator.base.request_progress import Add, Arrival, TableRequest
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.launcher_messages import CancelStarts, EndProcess, Reached, Started, StartWaits, TryToReach
from megaflow.control.messages import AddProcesses
from megaflow.control.reports import JoiningStatus
from megaflow.control.wording import quantity, workers_text
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.rescale.change_stages import ChangeStage
from megaflow.timely.rescale.messages import Joined

PROCESSES_MAX = 256  # that one request may add
JOIN_SECONDS = 30.0  # default time for a process to join
CANCELED = "it was canceled while it waited for a slot"
REACHING = "the launcher has yet to connect to it"  # of a process whose turn has come
LOADING = "it is loading its program, is suspended, or waits for another change"  # of a process that was started

Address: TypeAlias = tuple[str, int]
StageOf: TypeAlias = Callable[[tuple[int, ...]], tuple[ChangeStage, tuple[int, ...]] | None]
"""Returns the engine's stage of the join of these workers and the silent workers; None if it has not begun."""


@dataclass(slots=True)
class Joining:
    """A process whose join has begun."""

    address: Address
    began: float  # monotonic clock, seconds
    given_up: str | None = None  # why it is called off; None: it is not
    wishes: dict[int, int | None] = field(default_factory=dict)  # worker that wants a table -> its server; None: any

    def tables(self, coordinator: int, now: float) -> list[TableRequest]:
        """Return a request for each worker that wishes for its table."""
        servers = {worker: coordinator if server is None else server for worker, server in self.wishes.items()}
        return [TableRequest([], now, server, worker, wished=True) for worker, server in servers.items()]


class Joins:
    """The joins of one job that were requested or are under way. One writer: the controller."""

    def __init__(self, roster: Roster, stream: CommandStream, timeout_seconds: float, stage_of: StageOf) -> None:
        self.starts = 0  # the number of the next `StartWorkers`
        self.adds: dict[int, Add] = {}  # requests under way, by the number of their StartWorkers
        self.reaching: dict[tuple[int, ...], Joining] = {}  # ids of a process to which the launcher connects first
        self.joining: dict[tuple[int, ...], Joining] = {}  # ids of a process whose join has begun
        self.given_up: dict[Address, str] = {}  # of processes to be killed that have not ended -> why
        self._roster = roster
        self._out = stream.out
        self._timeout_seconds = timeout_seconds
        self._stage_of = stage_of
        self._unclaimed: list[tuple[Joined, Joining | None, float]] = []  # with the time in seconds
        self._changed = 0.0  # monotonic clock, seconds: the end of the last change of the membership

    @property
    def under_way(self) -> bool:
        """Whether the job must continue because of a join."""
        return bool(self.adds or self.reaching or self.joining)

    # Requests of clients and events of the engine

    def ask(self, asked: Asked, body: AddProcesses, now: float) -> None:
        """Ask the launcher to start processes. Raises CommandRefused for an invalid number."""
        if type(body.count) is not int or not 1 <= body.count <= PROCESSES_MAX:
            raise CommandRefused(f"cannot add {body.count!r:.50} processes: add 1 to {PROCESSES_MAX} at a time")
        add = self.adds[self.starts] = Add([asked], now, body.count, steps=2 * body.count)
        start = StartWorkers(body.count, self.starts, body.other_code is True)
        self._out += [start, *add.progress(f"{quantity(body.count, 'process')} to start", 0)]
        self.starts += 1

    def cancel_queued(self, asked: Asked) -> None:
        """Have the launcher give up the processes that wait for a slot. Raises CommandRefused if there are none."""
        queued = sum(add.to_start for add in self.adds.values() if add.waits_for)
        if not queued:
            raise CommandRefused("no process waits for a slot, so there is nothing to cancel")
        self._out += [CancelStarts(CANCELED), asked.done(queued)]

    def due(self, ids: tuple[int, ...], address: Address, too_late: str | None, now: float) -> None:
        """Decide whether a process that is due to join may do so, or let the launcher connect to it first."""
        too_late = too_late or self.given_up.get(address)
        if too_late is None and self._add_of(address) is None:
            self.reaching[ids] = Joining(address, now)
            self._out.append(TryToReach(*address))
        else:
            self._rule(ids, address, too_late, now)

    def reached(self, answer: Reached, now: float) -> None:
        """Decide whether a process may join, now that the launcher has tried to connect to it."""
        address = answer.host, answer.port
        for ids in [ids for ids, each in self.reaching.items() if each.address == address]:
            self._rule(ids, address, answer.trouble or self.given_up.get(address), now)

    def _rule(self, ids: tuple[int, ...], address: Address, reason: str | None, now: float) -> None:
        """Let a process join, or refuse it for a reason."""
        if self.reaching.pop(ids, None) is not None:
            self._changed = now  # other joins have waited for that
        if reason is None:
            self.joining[ids] = Joining(address, now)
        self._out.append(Rule(ids, reason))

    def wished(self, worker: int, server: int | None) -> None:
        """Record that a worker whose join has begun wants its table from this server; None: from any."""
        for ids, joining in self.joining.items():
            if worker in ids:
                joining.wishes[worker] = server

    def joined(self, event: Joined, now: float) -> list[TableRequest]:
        """Record that a process has joined; return the requests for tables if it was started by hand."""
        host, port, _ = event.process
        self._roster.joined(event.ids, event.membership, host, port)
        self._changed = now
        return self._claim(event, self.joining.pop(event.ids, None), now, now)

    def _claim(self, event: Joined, joining: Joining | None, joined: float, now: float) -> list[TableRequest]:
        """Assign a process that has joined to its request, as soon as that can be known."""
        add = self._add_of(event.process[:2])
        if add is None:
            if joining is not None and joining.wishes:  # started by hand: added processes have no wishes
                return joining.tables(self._roster.members.coordinator, now)
            if any(not each.is_launched for each in self.adds.values() if each.missing):
                self._unclaimed.append((event, joining, joined))
            return []
        seconds = {**({} if joining is None else {"start": joining.began - add.start}), **event.seconds}
        waiting = set(self._roster.members.workers.intersection(event.ids) - self._roster.state.routed)
        add.arrivals.append(Arrival(event.process[:2], event.ids, joined, seconds, event.bytes, waiting))
        self._out += add.progress(f"{workers_text(event.ids)} joined")
        if not waiting:
            self._ready(add, add.arrivals[-1], now)
        return []

    def declined(self, event: ChangeRefused, now: float) -> None:
        """Record that a process does not join. Unless it was given up, it ends by itself; the launcher reports it."""
        joining = self.joining.pop(event.ids, None)
        self._changed = now
        add = None if joining is None else self._add_of(joining.address)
        if joining is not None and joining.given_up is not None and add is not None:
            self._fail(add, joining.address, event.reason)

    def left(self, now: float) -> None:
        """Record that a process has left; joins may have waited for that."""
        self._changed = now

    # Reports of the launcher and the workers

    def launched(self, answer: Launched, now: float) -> list[TableRequest]:
        """Record which processes the launcher has started or could not start; return the same as `joined`."""
        if isinstance(answer, StartWaits):
            if (add := self.adds.get(answer.number)) is not None:
                add.waits_for = answer.reason
                self._out += add.progress(answer.reason, 0)
            return []
        address = None if isinstance(answer, Started) else answer.address
        known = address in self.given_up
        self.given_up.pop(address or ("", 0), None)
        add = self.adds.get(answer.number)
        if add is None or known:
            return []
        if isinstance(answer, Started):
            add.started = now if add.waits_for else add.started
            add.is_launched = True
            add.addresses |= dict(zip(answer.addresses, (*answer.pids, *[None] * add.count)))
        elif add.missing:
            failed = 1 if add.is_launched else add.missing
            add.addresses.pop(address or ("", 0), None)
            self._count_failures(add, answer.reason, failed)
        unclaimed, self._unclaimed = self._unclaimed, []
        return [table for arrived in unclaimed for table in self._claim(*arrived, now)]

    def routed(self, worker: int, seconds: float, now: float) -> None:
        """Record that a worker that has joined knows its routing tables, for which records waited `seconds`."""
        for add in self.adds.values():
            for arrival in add.arrivals:
                if worker in arrival.waiting:
                    arrival.waiting.discard(worker)
                    arrival.paused = max(arrival.paused, seconds)
                    if not arrival.waiting:
                        self._ready(add, arrival, now)

    def learners(self) -> Iterable[list[int]]:
        """Yield, once for each added process that has joined, the workers that need tables."""
        for add in self.adds.values():
            for arrival in add.arrivals:
                if not arrival.asked:
                    arrival.asked = True
                    yield sorted(arrival.waiting.intersection(self._roster.unbootstrapped))

    # Giving up

    def give_up(self, reason: str) -> None:
        """Stop waiting for processes that have not joined, because the job ends."""
        for add in self.adds.values():
            add.failures += [reason] * add.missing
            self._finish(add)
        for ids, reaching in [*self.reaching.items()]:
            self._rule(ids, reaching.address, reason, self._changed)
        for ids, joining in self.joining.items():
            if joining.given_up is None:
                joining.given_up = reason
                self._out.append(CallOff(ids, reason))

    def tick(self, is_leaving: bool, now: float) -> None:
        """Give up processes that take too long. `is_leaving`: the engine may be working on a leave, so joins wait."""
        for ids, joining in self.joining.items():
            if now - joining.began >= self._timeout_seconds:
                joining.given_up = joining.given_up or self._late(self._progress(ids)[1])
        self._out += [CallOff(ids, each.given_up) for ids, each in self.joining.items() if each.given_up is not None]
        for ids, reaching in [*self.reaching.items()]:
            if now - reaching.began >= self._timeout_seconds:
                self._rule(ids, reaching.address, self._late(REACHING), now)
        if self.reaching or self.joining or is_leaving:
            return
        for add in self.adds.values():
            if now - max(add.start, add.started, self._changed) >= self._timeout_seconds:
                for address in add.expected[: add.missing]:
                    self._fail(add, address, self._late(LOADING))

    def _late(self, waits: str) -> str:
        """Return why the job stops waiting for a process. `waits`: what it waits for, as a status shows it."""
        return f"it did not join within {self._timeout_seconds:g} s (--join-timeout): {waits}"

    def _fail(self, add: Add, address: Address, reason: str) -> None:
        """Count a started process as failed, and have the launcher kill it."""
        pid = add.addresses.pop(address, None)
        self.given_up[address] = reason
        who = f"process {address_text(address)}" + f" (pid {pid})" * (pid is not None)
        self._out.append(EndProcess(*address, reason))
        self._count_failures(add, f"{who} was ended: {reason}", 1)

    def _count_failures(self, add: Add, reason: str, count: int) -> None:
        add.failures += [reason] * count
        self._out += add.progress(reason, 2 * count)
        self._finish(add)

    def _add_of(self, address: Address) -> Add | None:
        """Return the request for which a process was started; None if there is none, or it is not known yet."""
        return next((add for add in self.adds.values() if add.missing and address in add.addresses), None)

    def _ready(self, add: Add, arrival: Arrival, now: float) -> None:
        arrival.seconds["routing"] = now - arrival.joined
        self._out += add.progress(f"{workers_text(arrival.ids)} ready for bins")
        self._finish(add)

    def _finish(self, add: Add) -> None:
        """Answer the request if nothing is left to wait for."""
        if not add.missing and not any(arrival.waiting for arrival in add.arrivals):
            self.adds = {number: each for number, each in self.adds.items() if each is not add}
            self._out += add.conclusion()

    # Status

    def statuses(self, now: float) -> tuple[JoiningStatus, ...]:
        """Return the processes that are joining, for how long, and what each waits for."""
        rows = []
        begun = {joining.address for joining in (*self.reaching.values(), *self.joining.values())}
        for reaching in self.reaching.values():
            rows.append(JoiningStatus(address_text(reaching.address), None, now - reaching.began, (), REACHING))
        for ids, joining in self.joining.items():
            add = self._add_of(joining.address)
            pid, since = (None, joining.began) if add is None else (add.addresses[joining.address], add.start)
            rows.append(JoiningStatus(address_text(joining.address), pid, now - since, *self._progress(ids)))
        for add in self.adds.values():
            for address in add.expected:
                if address not in begun:
                    pid, place = add.addresses[address], address_text(address)
                    rows.append(JoiningStatus(place, pid, now - add.start, (), LOADING))
            if to_start := add.to_start:
                waits = add.waits_for or f"the launcher has yet to start {quantity(to_start, 'process')}"
                rows.append(JoiningStatus("", None, now - add.start, (), waits))
            for arrival in add.arrivals:
                if arrival.waiting:
                    pid = add.addresses.get(arrival.address)
                    waits = f"no routing table at {workers_text(sorted(arrival.waiting))} yet"
                    rows.append(JoiningStatus(address_text(arrival.address), pid, now - add.start, arrival.ids, waits))
        return tuple(rows)

    def _progress(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Return the workers of a join that has begun, if it is committed, and what it waits for."""
        known = self._stage_of(ids)
        if known is None:
            return (), "it waits for another change"
        stage, silent = known
        committed = stage in (ChangeStage.MINTING, ChangeStage.SETTLING)
        # before the commit new workers wait for the members' answers; after it members wait for the new workers
        first = [worker for worker in silent if (worker in ids) is committed]
        return ids if committed else (), f"no answer from {workers_text(first or silent)} ({stage})"

    def _check(self) -> None:
        assert all(add.missing >= 0 for add in self.adds.values())
        assert not any(address in self.given_up for add in self.adds.values() for address in add.addresses)
