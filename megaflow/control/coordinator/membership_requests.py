"""What clients ask of the membership: processes that are added or removed, workers that are given their table.

A state machine of values, a part of the controller. One request at a time; the others wait, in the order they came.

    add        StartWorkers ─ the processes join, in any order ─▶ a Bootstrap for each of their workers ─ RoutingReady
               of all ─▶ done. What could not be started is counted; the rest goes on.
    remove     no bins, no commands and no new lines for the process ─ Spark's lines staged there are taken in ─▶
               Withdraw on the control stream ─ SplitsReturned from each of its sources ─▶ Retire ─ it has left ─▶ done
               If it coordinates: nothing is begun any more ─ all that was begun is done ─▶ HandOver; the rest is asked
               of the successor.
    bootstrap  a Bootstrap ─ RoutingReady ─▶ done

1. The engine is told to `Retire` a process only when its sources have closed: from then on it may cut the process off
   from the control stream. A source obeys `Withdraw` in its turn, so it has read every command that gave it lines.
2. If the engine refuses then, the process stays, without sources: what they had is with the others.
3. Before the coordinator's process leaves its part is handed over. That is a step of its own: the process stays a full
   member, and whoever asked for its leave asks the successor again.
4. A process that joins by hand is nobody's request; its workers wait for a `bootstrap` of their own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from megaflow.control.coordinator.events import (
    Asked,
    ChangeRefused,
    GiveUp,
    Instruction,
    Reply,
    Retire,
    StartWorkers,
    WorkersJoined,
    WorkersLeft,
)
from megaflow.control.coordinator.request_progress import (
    Add,
    Arrival,
    Change,
    Remove,
    Teach,
    done,
    progress,
    refused,
)
from megaflow.control.coordinator.roster import Roster
from megaflow.control.launcher_messages import Started, StartFailed
from megaflow.control.messages import Accepted, AddProcesses, BootstrapWorker, RemoveWorker, Withdraw
from megaflow.control.reports import BootstrapReport, ChangeStatus, JoinReport, RemovalReport, workers_text
from megaflow.errors import CommandRefused

PROCESSES_MAX = 256  # that one request may add
WAITING_MAX = 100  # requests


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rest of the controller does for a change."""

    issue: Callable[[Iterable[Any], list[Instruction], float], int]  # put commands on the stream; returns their epoch
    binds: Callable[[tuple[int, ...]], str | None]  # why these workers still have to do with bins, None if they do not
    stages: Callable[[tuple[int, ...]], bool]  # whether Spark's lines may be, or may yet come, to one of them
    pins: Callable[[tuple[int, ...]], Sequence[str]]  # why these workers may never leave, bins or no bins
    pushes: Callable[[], bool]  # whether the launcher's lines are still to come to the coordinator's process
    at_rest: Callable[[], bool]  # whether nothing is under way, changes aside, and all commands are read
    hand_over: Callable[[list[Instruction]], None]
    teaches: bool  # whether there are routing tables


class Changes:
    """The requests about the membership of one job. One writer: the controller."""

    def __init__(self, roster: Roster, around: Surroundings) -> None:
        self._roster = roster
        self._around = around
        self._waiting: deque[Change] = deque()
        self._current: Change | None = None
        self._joining: deque[float] = deque()  # when the joins began that are under way, whoever asked for them

    @property
    def under_way(self) -> bool:
        """Whether the job has to go on for a change."""
        return self._current is not None or bool(self._waiting) or bool(self._joining)

    @property
    def handing_over(self) -> bool:
        """Whether nothing is to be begun, as the coordinator's part is about to change hands."""
        return isinstance(self._current, Remove) and self._current.stage == "handing over"

    @property
    def asked(self) -> list[Asked]:
        """The requests that are under way."""
        return [change.asked for change in (self._current, *self._waiting) if change is not None]

    def statuses(self) -> tuple[ChangeStatus, ...]:
        """Return what a status shows of them."""
        changes = [change for change in (self._current, *self._waiting) if change is not None]
        return tuple(change.status(waiting=change is not self._current) for change in changes)

    # What clients ask

    def ask(self, asked: Asked, out: list[Instruction], now: float) -> None:
        """Begin what is asked for, or have it wait. Raises CommandRefused if it is wrong in itself."""
        match asked.request.body:
            case AddProcesses(count):
                if type(count) is not int or not 1 <= count <= PROCESSES_MAX:
                    raise CommandRefused(f"{count!r:.50} processes to add: 1 to {PROCESSES_MAX} at a time")
                change: Change = Add(asked, count, now)
            case RemoveWorker(worker, ask_only):
                self._check_leave(worker)
                if ask_only:
                    out.append(done(asked, None))
                    return
                change = Remove(asked, worker, now)
            case BootstrapWorker(server, worker):
                if not self._around.teaches:
                    raise CommandRefused("the job has no stateful operator, so there is no routing table to give")
                change = Teach(asked, server, worker, now)
            case body:
                raise AssertionError(f"{body!r:.100} is no change")
        if len(self._waiting) >= WAITING_MAX:
            raise CommandRefused(f"{len(self._waiting)} changes are waiting already")
        self._waiting.append(change)
        if self._current is not None:
            out.append(progress(change, "waits for another change", 0))
        self._begin(out, now)

    def admit(self, kind: str, ids: tuple[int, ...], now: float) -> str | None:
        """Return why the engine is not to begin a join or leave now; None notes that it begins."""
        if kind == "join":
            self._joining.append(now)
            return None
        if isinstance(self._current, Remove) and self._current.ids == ids and self._current.stage == "retiring":
            return None
        return "in a job, workers leave by `megaflow control remove-workers`"

    def cancel(self, reason: str, out: list[Instruction]) -> None:
        """Refuse what has not begun, give up what can be given up, and wait for nothing that has not joined."""
        if self._joining or (isinstance(self._current, Remove) and self._current.stage == "retiring"):
            out.append(GiveUp(reason))
        for change in self._waiting:
            out.append(refused(change.asked, reason))
        self._waiting.clear()
        match self._current:
            case Add() as add:
                add.failures += [reason] * add.missing
                self._finish_add(add, out)
            case Remove(stage="handing over" | "quieting") as remove:
                self._stay(remove, reason, out)

    # What happens

    def go_on(self, out: list[Instruction], now: float) -> None:
        """Do what can be done by now; to be called after each event."""
        self._begin(out, now)
        remove = self._current
        if not isinstance(remove, Remove):
            return
        if remove.stage == "handing over" and not self._joining and self._around.at_rest():
            self._around.hand_over(out)
        if remove.stage == "quieting" and not self._around.stages(remove.ids):
            remove.stage = "closing"
            if new := self._roster.close(remove.ids):
                self._around.issue([Withdraw(new)], out, now)
            out.append(progress(remove, f"{workers_text(remove.ids)}: no new lines"))
        if remove.stage == "closing" and self._roster.are_closed(remove.ids):
            remove.stage = "retiring"
            out.append(progress(remove, f"{workers_text(remove.ids)}: sources closed"))
            out.append(Retire(remove.worker))

    def joined(self, event: WorkersJoined, out: list[Instruction], now: float) -> None:
        """Note that a process has joined; if it was to be added, give it its routing tables."""
        self._roster.joined(event.ids, event.members, event.host, event.port)
        began = self._joining.popleft() if self._joining else None
        add = self._current
        if not isinstance(add, Add) or not add.missing:
            return
        if add.addresses is not None and (event.host, event.port) not in add.addresses:
            return  # by hand
        seconds = {**({} if began is None else {"start": began - add.start}), **event.seconds}
        untaught = {worker for worker in event.ids if not self._roster.is_routed(worker)}
        add.arrivals.append(Arrival(event.ids, now, seconds, event.bytes, untaught))
        out.append(progress(add, f"{workers_text(event.ids)} joined"))
        if untaught and self._around.teaches:
            server = self._roster.members.coordinator
            self._around.issue(self._roster.teach(server, sorted(untaught)), out, now)
        elif not untaught:
            self._taught(add, add.arrivals[-1], out, now)

    def routed(self, worker: int, seconds: float, out: list[Instruction], now: float) -> None:
        """Note that a worker that has joined knows its routing tables; records waited for `seconds`."""
        self._roster.routed(worker)
        match self._current:
            case Add(arrivals=arrivals) as add:
                for arrival in arrivals:
                    if worker in arrival.untaught:
                        arrival.untaught.discard(worker)
                        arrival.paused = max(arrival.paused, seconds)
                        if not arrival.untaught:
                            self._taught(add, arrival, out, now)
            case Teach() as teach if teach.worker == worker:
                report = BootstrapReport(worker, teach.server, teach.epoch, now - teach.start, seconds)
                out.append(done(teach.asked, report))
                self._current = None

    def launched(self, answer: Started | StartFailed, out: list[Instruction]) -> None:
        """Learn from the launcher what it has started, or what it could not."""
        add = self._current
        if not isinstance(add, Add):
            return
        if isinstance(answer, Started):
            add.addresses = (add.addresses or set()) | set(answer.addresses)
        elif add.missing:
            failed = 1 if add.addresses is not None else add.missing
            add.failures += [answer.reason] * failed
            out.append(progress(add, answer.reason, 2 * failed))
            self._finish_add(add, out)

    def left(self, event: WorkersLeft, out: list[Instruction], now: float) -> None:
        """Note that a process has left."""
        self._roster.left(event.ids, event.members)
        remove = self._current
        if isinstance(remove, Remove) and set(remove.ids) <= set(event.ids):
            out.append(done(remove.asked, RemovalReport(remove.ids, now - remove.start)))
            self._current = None

    def declined(self, event: ChangeRefused, out: list[Instruction]) -> None:
        """Note that a process stays, or does not come."""
        if not self._roster.members.workers.intersection(event.ids):
            if self._joining:
                self._joining.popleft()  # if it was started for an Add, the launcher will say that it has ended
        elif isinstance(self._current, Remove) and set(event.ids).intersection(self._current.ids):
            self._stay(self._current, event.reason, out)

    # The steps of a change

    def _begin(self, out: list[Instruction], now: float) -> None:
        while self._current is None and self._waiting:
            change = self._waiting.popleft()
            change.start = now
            try:
                self._start(change, out, now)
            except CommandRefused as error:
                out.append(refused(change.asked, str(error)))
            else:
                self._current = change

    def _start(self, change: Change, out: list[Instruction], now: float) -> None:
        match change:
            case Add(count=count):
                out.append(StartWorkers(count))
                out.append(progress(change, f"{change.what} to start", 0))
            case Remove(worker=worker):
                ids = self._check_leave(worker)
                reason = self._around.binds(ids)
                if reason is not None:
                    raise CommandRefused(reason)
                change.ids = ids
                if self._roster.members.coordinator in ids:
                    change.stage = "handing over"
                    out.append(progress(change, f"worker {self._roster.successor} is to coordinate the job", 0))
                else:
                    self._roster.leaving = ids
            case Teach(server=server, worker=worker):
                self._roster.check_bootstrap(server, worker)
                change.epoch = self._around.issue(self._roster.teach(server, [worker]), out, now)
                out.append(Reply(change.asked.client, Accepted(change.asked.request.id, change.epoch)))

    def _check_leave(self, worker: int) -> tuple[int, ...]:
        """Return who leaves when the process of this worker does. Raises CommandRefused unless it may, bins aside."""
        ids = self._roster.check_leave(worker)
        if reasons := self._around.pins(ids):
            raise CommandRefused("; ".join(reasons))
        if self._roster.members.coordinator in ids and self._around.pushes():
            raise CommandRefused(
                f"worker {worker} is in the process where the lines come in that the launcher reads (standard input, "
                "or an iterable): it can leave when they have ended; or stop the job"
            )
        return ids

    def _taught(self, add: Add, arrival: Arrival, out: list[Instruction], now: float) -> None:
        arrival.seconds["routing"] = now - arrival.joined
        out.append(progress(add, f"{workers_text(arrival.ids)} ready for bins"))
        self._finish_add(add, out)

    def _finish_add(self, add: Add, out: list[Instruction]) -> None:
        """Answer if nothing is left to wait for."""
        if add.missing or any(arrival.untaught for arrival in add.arrivals):
            return
        self._current = None
        if not add.arrivals:
            out.append(refused(add.asked, f"no process was added: {'; '.join(dict.fromkeys(add.failures))}"))
            return
        joins = tuple(arrival.report() for arrival in add.arrivals)
        out.append(done(add.asked, JoinReport(joins, tuple(add.failures))))

    def _stay(self, remove: Remove, reason: str, out: list[Instruction]) -> None:
        self._roster.leaving = ()
        self._current = None
        out.append(refused(remove.asked, reason))
