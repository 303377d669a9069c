"""What clients ask of the membership: processes that are added or removed, workers that are given their table.

A state machine of values, a part of the controller. It keeps accounts of requests, not a queue of changes: that is the
engine's (`megaflow.timely.rescale.sequencer`), which says which process is due and is told here whether it may.

    add, by hand    see `joins`
    remove     AskLeave: the request enters the engine's queue ─ LeaveDue ─▶ DRAINING_INGEST: no bins, no commands and
               no new lines for the process ─ Spark's lines staged there are taken in ─▶ CLOSING: Withdraw on the
               control stream ─ SplitsReturned of its sources ─▶ LEAVING: the engine is told that it may ─▶ done
               If it coordinates, after LeaveDue: HANDING_OVER: nothing is begun any more ─ all that was begun is
               done ─▶ Resign; the rest is asked of the successor.
    bootstrap  a Bootstrap ─ RoutingReady ─▶ done

1. Whether a process may leave is checked when it is asked for, to refuse at once what is wrong in itself, and again
   when it is due: only then bins count, since they may move in between. Both times it is `_check_leave`.
2. The engine is told that a process may leave only when its sources have closed: from then on it may cut the process
   off from the control stream. A source obeys `Withdraw` in its turn, so it has read every command that gave it lines.
3. If the engine refuses then, the process stays, without sources: what they had is with the others.
4. No table is on its way while the engine has a leave under way: a Bootstrap waits until the process is gone, and the
   leave until the tables have come. Neither waits for the other: none is sent once a process is due to leave.
5. Before the coordinator's process leaves its part is handed over, a step of its own: the process stays a full member,
   and clients are asked to repeat the requests that are under way to the successor. The engine forgets them.
6. A process that joins by hand is no client's request. Its workers say before they take part whether they wish for
   their tables, and then are given them without being asked for; others wait for a `bootstrap` of their own. A wish
   goes with its join: if that is given up, nothing is left of it, and no part is handed over before both are done.
7. One leave is due at a time: the engine tells that a process has left, or stays, before it tells which one is due
   next (see `megaflow.timely.rescale.change_queue`). So no rule here has to do with members that are gone.
8. A hand-over that finds no rest within HAND_OVER_SECONDS is given up, and the process stays: all others wait for it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from megaflow.control.coordinator import events
from megaflow.control.coordinator.checkpoints import Checkpoints
from megaflow.control.coordinator.events import Asked, Instruction, Rule
from megaflow.control.coordinator.joins import Joins
from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.reconfigurations import Reconfigurations
from megaflow.control.coordinator.request_progress import Add, Removal, Remove, TableRequest, done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.messages import AddProcesses, BootstrapWorker, RemoveWorker, Withdraw
from megaflow.control.reports import BootstrapReport, ChangeStatus, RemovalReport
from megaflow.control.wording import workers_text
from megaflow.errors import CommandRefused
from megaflow.timely.rescale.messages import Joined, Left

REQUESTS_MAX = 100  # under way
HAND_OVER_SECONDS = 30.0  # that a hand-over may take to find the job at rest
BY_COMMAND = "a worker of a job cannot leave by itself: use `megaflow control remove-workers`"


class MembershipRequests:
    """The requests about the membership of one job. One writer: the controller."""

    def __init__(
        self,
        roster: Roster,
        joins: Joins,
        moves: Reconfigurations,
        commits: Commits,
        lines: LinesToRead,
        issue: Callable[[Iterable[Any], list[Instruction], float], int],
        pins: Callable[[tuple[int, ...]], Sequence[str]],
        checkpoints: Checkpoints,
    ) -> None:
        """`issue` puts commands on the stream and returns their epoch; `pins` tells why workers may never leave."""
        self.joins = joins
        self._roster = roster
        self._moves = moves
        self._commits = commits
        self._issue = issue
        self._pins = pins
        self._checkpoints = checkpoints
        self._lines = lines
        self._removes: list[Remove] = []  # as they are in the engine's queue; only the first can be due
        self._tables: list[TableRequest] = []

    @property
    def under_way(self) -> bool:
        """Whether the job has to go on for a change."""
        return bool(self._removes or self._tables or self.joins.under_way)

    @property
    def handing_over(self) -> bool:
        """Whether nothing is to be begun, as the coordinator's part is about to change hands."""
        return any(remove.stage is Removal.HANDING_OVER for remove in self._removes)

    @property
    def keeps_checkpoints_out(self) -> bool:
        """Whether no checkpoint is to be begun: a report of it could be lost, or a split be in nobody's hands."""
        is_leaving = any(remove.stage is Removal.LEAVING for remove in self._removes)
        return is_leaving or self.handing_over or self._roster.closing

    @property
    def may_hand_over(self) -> bool:
        """Whether that waits for nothing here any more."""
        return self.handing_over and not (self._tables or self.joins.under_way or self.joins.keeps_out)

    @property
    def asked(self) -> list[Asked]:
        """The requests that are under way."""
        return [asked for request in self._all for asked in request.asked]

    @property
    def _all(self) -> list[Add | Remove | TableRequest]:
        return [*self.joins.requests, *self._removes, *self._tables]

    def statuses(self) -> tuple[ChangeStatus, ...]:
        """Return what a status shows of them."""
        return tuple(request.status() for request in self._all)

    # What clients ask

    def ask(self, asked: Asked, out: list[Instruction], now: float) -> None:
        """Begin what is asked for. Raises CommandRefused if it is wrong in itself."""
        if len(self._all) >= REQUESTS_MAX:
            raise CommandRefused(f"{len(self._all)} changes are already under way: try again later")
        match asked.request.body:
            case AddProcesses() as body:
                self.joins.ask(asked, body, out, now)
            case RemoveWorker(worker, ask_only):
                ids = self._check_leave(worker)
                if ask_only:
                    out.append(done(asked, None))
                else:
                    self._moves.plans.removed(ids, self._moves.table)
                    self._ask_remove(Remove([asked], now, worker), ids, out)
            case BootstrapWorker(server, worker):
                if not self._moves.table:
                    raise CommandRefused("the job has no stateful operator, so there is no routing table to give")
                self._ask_table(TableRequest([asked], now, server, worker), out)
            case body:
                raise AssertionError(f"{body!r:.100} is not a change")

    def _ask_remove(self, remove: Remove, ids: tuple[int, ...], out: list[Instruction]) -> None:
        for other in self._removes:
            if other.worker in ids:  # one leave, for all who want it
                other.asked += remove.asked
                return
        if self._removes:
            out += remove.progress("waits for another change", 0)
        self._removes.append(remove)
        out.append(events.AskLeave(remove.worker))

    def _ask_table(self, request: TableRequest, out: list[Instruction]) -> None:
        self._roster.process_of(request.server)
        for other in self._tables:
            if other.worker == request.worker:  # it is given one table, whoever asks
                other.asked += request.asked
                out += other.accepted(request.asked)
                return
        self._roster.check_bootstrap(request.server, request.worker)
        if self._roster.is_routed(request.worker):
            out += request.answers(BootstrapReport(request.worker))
            return
        self._tables.append(request)
        if self._roster.leaving:
            out += request.progress("waits for another change", 0)

    def cancel(self, reason: str, out: list[Instruction]) -> None:
        """Refuse what has not begun, give up what can be given up, and wait for nothing that has not joined."""
        if self.joins.begun or self._removes:
            out.append(events.GiveUp(reason))
        for remove in [remove for remove in self._removes if remove.stage is not Removal.LEAVING]:
            self._stay(remove, reason, out)  # of one that is leaving the engine tells whether it does
        self.joins.give_up(reason, out)
        for table in [table for table in self._tables if table.waits]:
            self._tables.remove(table)
            out += table.refused(reason)

    # What the engine says

    def leave_due(self, ids: tuple[int, ...], out: list[Instruction], now: float) -> None:
        """Rule on a process that is to leave, or begin what has to be done before."""
        remove = next((each for each in self._removes if each.worker in ids), None)
        try:
            if remove is None:
                raise CommandRefused(BY_COMMAND)
            self._check_leave(remove.worker)
            if reason := self._moves.binds(ids):
                raise CommandRefused(reason)
        except CommandRefused as error:
            out.append(Rule(ids, str(error)))
            if remove is not None:
                self._stay(remove, str(error), out)
            return
        remove.ids, remove.start = ids, now
        if self._roster.members.coordinator in ids:
            remove.enter(Removal.HANDING_OVER)
            out += remove.progress(f"worker {self._roster.successor} is to coordinate the job", 0)
        else:
            remove.enter(Removal.DRAINING_INGEST)
            self._roster.leaving = ids

    def joined(self, event: Joined, out: list[Instruction], now: float) -> None:
        """Note that a process has joined; if it was to be added, it needs its routing tables."""
        self._wish(self.joins.joined(event, out, now))
        self._checkpoints.joined(event.ids, out)

    def _wish(self, tables: list[TableRequest]) -> None:
        if self._moves.table:
            self._tables += tables

    def left(self, event: Left, out: list[Instruction], now: float) -> None:
        """Note that a process has left."""
        self._roster.left(event.ids, event.membership)
        self.joins.left(now)
        for remove in [remove for remove in self._removes if remove.worker in event.ids]:
            self._removes.remove(remove)
            out += remove.answers(RemovalReport(event.ids, now - remove.start))

    def declined(self, event: events.ChangeRefused, out: list[Instruction], now: float) -> None:
        """Note that a process stays, or does not come."""
        self.joins.declined(event, out, now)
        for remove in [remove for remove in self._removes if {remove.worker, *remove.ids}.intersection(event.ids)]:
            self._stay(remove, event.reason, out)

    def _stay(self, remove: Remove, reason: str, out: list[Instruction]) -> None:
        if remove.drains:
            self._roster.leaving = ()
        self._removes.remove(remove)
        out += remove.refused(reason)

    # What the launcher and the workers say

    def launched(self, answer: events.Launched, out: list[Instruction], now: float) -> None:
        """Learn from the launcher what it has started, or what it could not."""
        self._wish(self.joins.launched(answer, out, now))

    def routed(self, worker: int, seconds: float, out: list[Instruction], now: float) -> None:
        """Note that a worker that has joined knows its routing tables; records waited for `seconds`."""
        self._roster.routed(worker)
        self.joins.routed(worker, seconds, out, now)
        for table in [table for table in self._tables if table.worker == worker]:
            assert table.epoch is not None, "a worker that waits knows no table"
            self._tables.remove(table)
            out += table.answers(BootstrapReport(worker, table.server, table.epoch, now - table.start, seconds))

    # What can be done by now

    def tick(self, out: list[Instruction], now: float) -> None:
        """Give up what takes too long."""
        self.joins.tick(any(remove.stage is Removal.LEAVING for remove in self._removes), out, now)
        for remove in [remove for remove in self._removes if remove.stage is Removal.HANDING_OVER]:
            if now - remove.start >= HAND_OVER_SECONDS:
                who = f"worker {self._roster.members.coordinator}, which coordinates the job,"
                reason = f"{who} did not hand over within {HAND_OVER_SECONDS:g} s: {self._unrest()}; it stays"
                out.append(Rule(remove.ids, reason))
                self._stay(remove, reason, out)

    def go_on(self, out: list[Instruction], now: float) -> None:
        """Do what can be done by now; to be called after each event."""
        if not self._roster.leaving:
            self._give_tables(out, now)
        for remove in self._removes:
            ids = remove.ids
            waits = self._commits.concern(ids) or self._checkpoints.under_way
            if remove.stage is Removal.DRAINING_INGEST and not waits:
                remove.enter(Removal.CLOSING)
                if new := self._roster.close(ids):
                    self._issue([Withdraw(new)], out, now)
                out += remove.progress(f"{workers_text(ids)}: reading stopped")
            if remove.stage is Removal.CLOSING and self._roster.are_closed(ids) and not self._roster.bootstrapping:
                remove.enter(Removal.LEAVING)
                out += [*remove.progress(f"{workers_text(ids)}: sources closed"), Rule(ids, None)]

    def _unrest(self) -> str:
        """Why the job is not at rest, or what is not known to be."""
        if not self._commits.at_rest:
            return "Spark is staging a batch, or has staged one that is not committed yet"
        if self._checkpoints.under_way:
            return "a checkpoint is being written"
        if self._moves or self.joins.under_way:
            return "bins are moving" if self._moves else "a process is joining"
        if self.joins.keeps_out:
            return "a process that failed to join has not ended yet"
        return "the last command has not taken effect (see megaflow control explain)"

    def _give_tables(self, out: list[Instruction], now: float) -> None:
        """Have those bootstrapped that wait for it."""
        for learners in self.joins.learners():
            if self._moves.table and learners:
                self._issue(self._roster.bootstrap(self._roster.members.coordinator, learners), out, now)
        for table in [table for table in self._tables if table.waits]:
            if table.wished and table.server not in self._roster.owners:
                table.server = self._roster.members.coordinator
            try:
                self._roster.check_bootstrap(table.server, table.worker)
            except CommandRefused as error:
                self._tables.remove(table)
                out += table.refused(str(error))
                continue
            table.epoch = self._issue(self._roster.bootstrap(table.server, [table.worker]), out, now)
            out += table.accepted(table.asked)

    def _check_leave(self, worker: int) -> tuple[int, ...]:
        """Return who leaves when the process of this worker does. Raises CommandRefused unless it may, bins aside."""
        ids = self._roster.check_leave(worker)
        if reasons := self._pins(ids):
            raise CommandRefused("; ".join(reasons))
        self._lines.check_leave(ids, self._commits.over)
        return ids

    def _check(self) -> None:
        assert sum(not remove.waits for remove in self._removes) <= 1, "one leave is due at a time"
        leaving = {worker for remove in self._removes if remove.drains for worker in remove.ids}
        assert leaving == set(self._roster.leaving), (leaving, self._roster.leaving)
        self.joins._check()
