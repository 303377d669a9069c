"""Clients' requests about the membership: to add or remove processes, and to give workers their routing table.

A state machine of values, and a part of the controller. It keeps accounts of requests. The engine keeps the queue of
changes (`megaflow.timely.rescale.sequencer`): it says which process is due, and this module decides whether it may.

    add, by hand    see `joins`
    remove     AskLeave: the request enters the engine's queue ─ LeaveDue ─▶ DRAINING_INGEST: no bins, no commands and
               no new lines for the process ─ Spark's lines staged there are taken in ─▶ CLOSING: Withdraw on the
               control stream ─ SplitsReturned of its sources ─▶ LEAVING: a `Rule` lets it leave ─▶ done
               If it coordinates, after LeaveDue: HANDING_OVER: nothing new begins ─ all that was begun is done ─▶
               Resign; clients repeat the other requests at the successor.
    bootstrap  a Bootstrap ─ RoutingReady ─▶ done

1. `_check_leave` checks twice whether a process may leave. The first check is on request, and refuses an invalid
   request at once. The second is when the process is due. Bins count only in the second, because they may move in
   between.
2. The coordinator lets the engine remove a process only when its sources have closed, because from then on the engine
   may cut the process off from the control stream. A source obeys `Withdraw` in its turn, so it has read every command
   that gave it lines.
3. If the engine then refuses the leave, the process stays without sources. Other workers have what its sources held.
4. No table is on its way while the engine carries out a leave. A Bootstrap waits until the process has left, and a
   leave waits until the tables have arrived. There is no deadlock, because no table is sent once a process is due to
   leave.
5. Before the coordinator's process leaves, it hands its part over. That is a separate step: the process stays a full
   member, and clients repeat their unfinished requests at the successor. The engine forgets these requests.
6. A process that is started by hand belongs to no request. Before its workers take part they say whether they wish for
   their tables. Workers with a wish receive them without a client's command; others wait for a `bootstrap` command.
   A wish belongs to its join and is dropped if the join is given up. The coordinator's part is not handed over before
   the join is done and the tables have arrived.
7. One leave is due at a time: the engine reports that a process has left or stays before it names the next one (see
   `megaflow.timely.rescale.change_queue`). So no rule here concerns members that have left.
8. A hand-over gives up if the job is not at rest within HAND_OVER_SECONDS, and the process stays. Otherwise all other
   requests would wait for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import field

from megaflow.control.coordinator.base import events
from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Rule
from megaflow.control.coordinator.base.request_progress import Add, Removal, Remove, TableRequest
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.checkpoints.checkpoints import Checkpoints
from megaflow.control.coordinator.members.joins import Joins
from megaflow.control.coordinator.moves.reconfigurations import Reconfigurations
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.messages import AddProcesses, BootstrapWorker, CancelQueued, RemoveWorker, Withdraw
from megaflow.control.reports import BootstrapReport, ChangeStatus, RemovalReport
from megaflow.control.wording import workers_text
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass
from megaflow.timely.rescale.messages import Joined, Left

REQUESTS_MAX = 100  # under way
HAND_OVER_SECONDS = 30.0  # for the job to come to rest
BY_COMMAND = "a worker of a job cannot leave by itself: use `megaflow control remove-workers`"


@dataclass(slots=True, eq=False)
class MembershipRequests:
    """The requests about the membership of one job. One writer: the controller."""

    roster: Roster
    joins: Joins
    moves: Reconfigurations
    commits: Commits
    lines: LinesToRead
    stream: CommandStream
    pins: Callable[[tuple[int, ...]], Sequence[str]]  # returns why workers may never leave
    checkpoints: Checkpoints
    removes: list[Remove] = field(default_factory=list)  # in the order of the engine's queue; the first may be due
    tables: list[TableRequest] = field(default_factory=list)

    @property
    def handing_over(self) -> bool:
        """Whether nothing new may begin, because the coordinator's part is about to change hands."""
        return any(remove.stage is Removal.HANDING_OVER for remove in self.removes)

    @property
    def keeps_checkpoints_out(self) -> bool:
        """Whether no checkpoint may begin, because a report could be lost, or a split be held by no worker."""
        is_leaving = any(remove.stage in (Removal.CLOSING, Removal.LEAVING) for remove in self.removes)
        return is_leaving or self.handing_over or self.roster.closing

    @property
    def may_hand_over(self) -> bool:
        """Whether a hand-over no longer waits for anything here."""
        return self.handing_over and not (self.tables or self.joins.under_way or self.joins.given_up)

    @property
    def asked(self) -> list[Asked]:
        """The requests that are under way."""
        return [asked for request in self._all for asked in request.asked]

    @property
    def _all(self) -> list[Add | Remove | TableRequest]:
        return [*self.joins.adds.values(), *self.removes, *self.tables]

    def statuses(self) -> tuple[ChangeStatus, ...]:
        """Return the status of each request."""
        return tuple(request.status() for request in self._all)

    # Requests of clients

    def ask(self, asked: Asked, now: float) -> None:
        """Begin a client's request. Raises CommandRefused if it is invalid."""
        is_new = not isinstance(asked.request.body, CancelQueued)
        if is_new and len(self._all) >= REQUESTS_MAX:
            raise CommandRefused(f"{len(self._all)} changes are already under way: try again later")
        match asked.request.body:
            case AddProcesses() as body:
                self.joins.ask(asked, body, now)
            case CancelQueued():
                self.joins.cancel_queued(asked)
            case RemoveWorker(worker, ask_only):
                ids = self._check_leave(worker)
                if ask_only:
                    self.stream.out.append(asked.done(None))
                else:
                    self.moves.plans.removed(ids, self.moves.table)
                    self._ask_remove(Remove([asked], now, worker), ids)
            case BootstrapWorker(server, worker):
                if not self.moves.table:
                    raise CommandRefused("the job has no stateful operator, so there is no routing table to give")
                self._ask_table(TableRequest([asked], now, server, worker))
            case body:
                raise AssertionError(f"{body!r:.100} is not a change")

    def _ask_remove(self, remove: Remove, ids: tuple[int, ...]) -> None:
        for other in self.removes:
            if other.worker in ids:  # one leave answers all its requests
                other.asked += remove.asked
                return
        if self.removes:
            self.stream.out += remove.progress("waits for another change", 0)
        self.removes.append(remove)
        self.stream.out.append(events.AskLeave(remove.worker))

    def _ask_table(self, request: TableRequest) -> None:
        self.roster.process_of(request.server)
        for other in self.tables:
            if other.worker == request.worker:  # one table answers all its requests
                other.asked += request.asked
                self.stream.out += other.accepted(request.asked)
                return
        self.roster.check_bootstrap(request.server, request.worker)
        if request.worker in self.roster.state.routed:
            self.stream.out += request.answers(BootstrapReport(request.worker))
            return
        self.tables.append(request)
        if self.roster.leaving:
            self.stream.out += request.progress("waits for another change", 0)

    def cancel(self, reason: str) -> None:
        """Refuse requests that have not begun, and give up leaves and joins that can still be stopped."""
        if self.joins.joining or self.removes:
            self.stream.out.append(events.GiveUp(reason))
        for remove in [remove for remove in self.removes if remove.stage is not Removal.LEAVING]:
            self._stay(remove, reason)  # the engine reports the result of LEAVING ones
        self.joins.give_up(reason)
        for table in [table for table in self.tables if table.waits]:
            self.tables.remove(table)
            self.stream.out += table.refused(reason)

    # Events of the engine

    def leave_due(self, ids: tuple[int, ...], now: float) -> None:
        """Refuse the leave of a process that is due, or begin the steps before it."""
        remove = next((each for each in self.removes if each.worker in ids), None)
        try:
            if remove is None:
                raise CommandRefused(BY_COMMAND)
            self._check_leave(remove.worker)
            if reason := self.moves.binds(ids):
                raise CommandRefused(reason)
        except CommandRefused as error:
            self.stream.out.append(Rule(ids, str(error)))
            if remove is not None:
                self._stay(remove, str(error))
            return
        remove.ids, remove.start = ids, now
        if self.roster.members.coordinator in ids:
            remove.enter(Removal.HANDING_OVER)
            self.stream.out += remove.progress(f"worker {self.roster.successor} is to coordinate the job", 0)
        else:
            remove.enter(Removal.DRAINING_INGEST)
            self.roster.leaving = ids

    def joined(self, event: Joined, now: float) -> None:
        """Record that a process has joined."""
        self._wish(self.joins.joined(event, now))
        self.checkpoints.joined(event.ids)

    def _wish(self, tables: list[TableRequest]) -> None:
        if self.moves.table:
            self.tables += tables

    def left(self, event: Left, now: float) -> None:
        """Record that a process has left, and answer its requests."""
        self.roster.left(event.ids, event.membership)
        self.joins.left(now)
        for remove in [remove for remove in self.removes if remove.worker in event.ids]:
            self.removes.remove(remove)
            self.stream.out += remove.answers(RemovalReport(event.ids, now - remove.start))

    def declined(self, event: events.ChangeRefused, now: float) -> None:
        """Record that a process stays, or does not join."""
        self.joins.declined(event, now)
        for remove in [remove for remove in self.removes if {remove.worker, *remove.ids}.intersection(event.ids)]:
            self._stay(remove, event.reason)

    def _stay(self, remove: Remove, reason: str) -> None:
        if remove.drains:
            self.roster.leaving = ()
        self.removes.remove(remove)
        self.stream.out += remove.refused(reason)

    # Reports of the launcher and the workers

    def launched(self, answer: events.Launched, now: float) -> None:
        """Record which processes the launcher has started or could not start."""
        self._wish(self.joins.launched(answer, now))

    def routed(self, worker: int, seconds: float, now: float) -> None:
        """Record that a worker that has joined knows its routing tables, for which records waited `seconds`."""
        self.roster.routed(worker)
        self.joins.routed(worker, seconds, now)
        for table in [table for table in self.tables if table.worker == worker]:
            assert table.epoch is not None, "a worker that waits knows no table"
            self.tables.remove(table)
            report = BootstrapReport(worker, table.server, table.epoch, now - table.start, seconds)
            self.stream.out += table.answers(report)

    # Progress

    def tick(self, now: float) -> None:
        """Give up joins and hand-overs that take too long."""
        self.joins.tick(any(remove.stage is Removal.LEAVING for remove in self.removes), now)
        for remove in [remove for remove in self.removes if remove.stage is Removal.HANDING_OVER]:
            if now - remove.start >= HAND_OVER_SECONDS:
                who = f"worker {self.roster.members.coordinator}, which coordinates the job,"
                reason = f"{who} did not hand over within {HAND_OVER_SECONDS:g} s: {self._unrest()}; it stays"
                self.stream.out.append(Rule(remove.ids, reason))
                self._stay(remove, reason)

    def go_on(self) -> None:
        """Give tables and advance removals as far as possible; called after each event while there are requests."""
        if not self.roster.leaving:
            self._give_tables()
        for remove in self.removes:
            ids = remove.ids
            waits = self.commits.concern(ids) or self.checkpoints.under_way is not None
            if remove.stage is Removal.DRAINING_INGEST and not waits:
                remove.enter(Removal.CLOSING)
                if new := self.roster.close(ids):
                    self.stream.issue(Withdraw(new))
                self.stream.out += remove.progress(f"{workers_text(ids)}: reading stopped")
            if remove.stage is Removal.CLOSING and self.roster.are_closed(ids) and not self.roster.bootstrapping:
                remove.enter(Removal.LEAVING)
                self.stream.out += [*remove.progress(f"{workers_text(ids)}: sources closed"), Rule(ids, None)]

    def _unrest(self) -> str:
        """Return why the job is not at rest, or is not known to be."""
        if not self.commits.at_rest:
            return "Spark is staging a batch, or has staged one that is not committed yet"
        if self.checkpoints.under_way is not None:
            return "a checkpoint is being written"
        if self.moves or self.joins.under_way:
            return "bins are moving" if self.moves else "a process is joining"
        if self.joins.given_up:
            return "a process that failed to join has not ended yet"
        return "the last command has not taken effect (see megaflow control explain)"

    def _give_tables(self) -> None:
        """Issue the Bootstrap commands for workers that wait for a table."""
        for learners in self.joins.learners():
            if self.moves.table and learners:
                self.stream.issue(*self.roster.bootstrap(self.roster.members.coordinator, learners))
        for table in [table for table in self.tables if table.waits]:
            if table.wished and table.server not in self.roster.owners:
                table.server = self.roster.members.coordinator
            try:
                self.roster.check_bootstrap(table.server, table.worker)
            except CommandRefused as error:
                self.tables.remove(table)
                self.stream.out += table.refused(str(error))
                continue
            table.epoch = self.stream.issue(*self.roster.bootstrap(table.server, [table.worker]))
            self.stream.out += table.accepted(table.asked)

    def _check_leave(self, worker: int) -> tuple[int, ...]:
        """Return the workers that leave if this one does. Raises CommandRefused unless they may, bins aside."""
        ids = self.roster.check_leave(worker)
        if reasons := self.pins(ids):
            raise CommandRefused("; ".join(reasons))
        self.lines.check_leave(ids, self.commits.over)
        return ids

    def _check(self) -> None:
        assert sum(not remove.waits for remove in self.removes) <= 1, "one leave is due at a time"
        leaving = {worker for remove in self.removes if remove.drains for worker in remove.ids}
        assert leaving == set(self.roster.leaving), (leaving, self.roster.leaving)
        self.joins._check()
