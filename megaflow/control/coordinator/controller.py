"""Decisions of the coordinator: which commands are valid, when they happen, when they are done, and when the job ends.

A state machine of values. `handle` takes one event and the time of a monotonic clock. It returns what to do, in order.
Its caller, the agent, holds the sockets, the clock and the handle of the control stream.

1. One place numbers commands, consecutively from 0. So no two operators can see them in different orders.
2. A request is checked as a whole before any part of it is issued, and a refusal changes nothing. The owners of bins
   also check requests that move the bins, see `trials`.
3. Each request has its own epoch. It is issued at the present time of the control stream, which leaves that time at
   once. Sources stamp what they read with an earlier time, so nothing was read for that epoch: no command is late.
4. A reconfiguration is done when the probe behind the outputs has passed its epoch. Members report each bin that they
   install; the account (bytes, keys) sums the reports. If some are late, all members are asked: answers follow reports.
5. Ticks never wait for data, so time always advances. Only the end of the job closes the control stream.
6. The coordinator's part changes hands at rest, see `job_state`. Until then new requests are held back. `Resign` is the
   last instruction of the old controller; the next one receives the requests that were held back.
7. The job ends when all lines are read and processed (`last_lines`) and no command is pending, or on request. It waits
   for a membership change that has begun, and first sends routing tables to workers that joined: they hold records
   until they have one. Joins of processes that have not joined yet are canceled, see `joins`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from megaflow.control import messages
from megaflow.control.checkpoint_messages import CommitFailed, Committed
from megaflow.control.coordinator import events
from megaflow.control.coordinator.checkpoints import REPORTS, Checkpoints
from megaflow.control.coordinator.epoch_clock import LAG_EPOCHS, TICK_IDLE_SECONDS, CommandStream
from megaflow.control.coordinator.events import Asked, Event, Instruction, Reply
from megaflow.control.coordinator.job_state import BEFORE_HAND_OVER, HELD_MAX, Durable, EventTime, JobState
from megaflow.control.coordinator.job_status import JobStanding
from megaflow.control.coordinator.joins import JOIN_SECONDS, Joins, StageOf
from megaflow.control.coordinator.last_lines import LastLines
from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.lookups import Lookups, Places, places_of
from megaflow.control.coordinator.membership_requests import MembershipRequests
from megaflow.control.coordinator.questions import Question, Questions
from megaflow.control.coordinator.reconfigurations import Pending, Reconfigurations
from megaflow.control.coordinator.request_progress import done
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.coordinator.trials import Trials
from megaflow.control.coordinator.watermarks import Watermarks
from megaflow.control.launcher_messages import Started, StartFailed, StartWaits
from megaflow.control.messages import CommitBatch
from megaflow.control.reading_messages import PortionsRevoked, SplitRead, SplitsReturned, SplitsRevoked
from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import initial_table
from megaflow.timely.membership import Membership
from megaflow.timely.rescale.messages import JoinDue, Joined, LeaveDue, Left

About: TypeAlias = Pending | Asked  # what members are asked about: the account of the one, a status for the other


class Controller:
    """State machine of the coordinator. One writer: the thread of the coordinating worker.

    `operators`: the stateful ones (name -> number of bins, all the same). `splits`: files to assign. `pushed`: the
    launcher sends lines. `rated`: there is a rate. `sources`: what the program reads by `flow.read`. `queries`: how
    many Spark queries feed the job. `ports`: where executors may stage. `processes`: the workers of each process (by
    default each is a process). `pins`: why workers may never leave. `stage_of`: how far the engine is with a join.
    `places_of`: where keys are that clients ask for. `durable`: there are checkpoints. `event_time`: the operators that
    take timestamps, and of what. `state`: what another controller left.
    """

    def __init__(
        self,
        job: str,
        members: Membership,
        operators: Mapping[str, int],
        splits: Sequence[messages.Split] = (),
        *,
        pushed: bool = False,
        rated: bool = False,
        queries: int = 0,
        ports: Sequence[tuple[int, str, int]] = (),  # (worker, host, port)
        processes: Iterable[Iterable[int]] = (),
        pins: Callable[[tuple[int, ...]], Sequence[str]] = lambda ids: (),
        join_timeout_seconds: float = JOIN_SECONDS,
        stage_of: StageOf = lambda ids: None,
        places_of: Callable[[messages.GetState], Places] = lambda asked: places_of((), asked),
        state: JobState | None = None,
        durable: Durable | None = None,
        sources: Sequence[str] = (),
        event_time: EventTime = EventTime(),  # noqa: B008
    ) -> None:
        self.handed_over = False  # to another controller: this one is told nothing any more
        self.ended = False  # whether that is closed
        self._state = "starting"  # then running; then ending or stopping
        self._frontier: int | None = 0
        self._job = job
        stream = self._stream = CommandStream()
        roster = self._roster = Roster(members, processes, ports)
        self._operators = dict(operators)
        bins = next(iter(self._operators.values()), 0)
        first = () if durable is None else durable.table
        self._moves = Reconfigurations(first or (initial_table(bins, members.ids) if bins else ()), len(operators))
        self._trials = Trials(job, roster, self._moves, stream.issue)
        commits = self._commits = Commits(queries, None if durable is None else durable.spark)
        self._restored = None if durable is None else durable.untaken
        lines = self.lines = LinesToRead(roster, stream, splits, pushed, rated, sources, durable, event_time.ordered)
        self.watermarks = Watermarks(event_time, stream, lines, commits, roster, durable)
        self._checkpoints = Checkpoints(job, roster, stream, durable, commits, lines, self.watermarks)
        self._lookups = Lookups(stream, places_of)
        self.last_lines = LastLines(stream)
        self.joins = Joins(roster, join_timeout_seconds, stage_of)
        self._changes = MembershipRequests(
            roster, self.joins, self._moves, commits, lines, stream.issue, pins, self._checkpoints
        )
        self._standing = JobStanding(
            job, self._operators, roster, self._moves, self._changes, self.joins, self._checkpoints, self.watermarks
        )
        self._held: deque[Asked] = deque()  # until the coordinator's part has changed hands
        self._questions: Questions[About] = Questions()
        self._stops: list[Asked] = []
        if state is not None:
            self._resume(state)
        elif durable is not None and durable.committed is not None:
            self._stream.begin(durable.epoch + 1)
            self._frontier = self._stream.epoch

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take in one event at `now`, seconds of a monotonic clock; return what to do, in order."""
        assert not self.handed_over, event
        out: list[Instruction] = []
        if self._state == "starting":
            self._start(out, now)
        match event:
            case Asked():
                self._answer(event, out, now)
            case events.Mailed(source, body):
                self._learn(source, body, out, now)
            case events.Ticked():
                self._tick(event, out, now)
            case events.Gone():
                waiting = self._commits.gone, self._moves.plans.gone, self._trials.gone, self._checkpoints.gone
                for forget in (*waiting, self._lookups.gone):
                    forget(event.client)
            case JoinDue(ids, address):
                self.joins.due(ids, address, self._too_late(), out, now)
            case LeaveDue(ids):
                self._changes.leave_due(ids, out, now)
            case Joined():
                self._changes.joined(event, out, now)
            case Left():
                self._changes.left(event, out, now)
                self._checkpoints.left(event.ids, out, now)
                for question in self._questions.left(event.ids):
                    self._conclude(question, out, now)
                for asked in self._trials.left(event.ids, out):
                    self._answer(asked, out, now, tried=True)
            case events.ChangeRefused():
                self._changes.declined(event, out, now)
            case events.Discovered() if self._too_late() is None:
                self.lines.partitions.found(event, out, now)
            case Started() | StartFailed() | StartWaits():
                self._changes.launched(event, out, now)
            case Committed() | CommitFailed():
                self._checkpoints.answered(event, out, now)
                self._release_commits(out)
        while self._held and not self._changes.handing_over:
            self._answer(self._held.popleft(), out, now)
        self._changes.go_on(out, now)
        if self._state == "running" and not self._changes.may_hand_over:
            self.lines.go_on(out, now)
        stopping = self._state == "stopping"
        may_begin = self._state == "running" or (stopping and not (self.ended or self._changes.under_way))
        may_begin = may_begin and not self._changes.keeps_checkpoints_out
        self._checkpoints.go_on(may_begin, stopping, self._frontier, self._moves.table, out, now)
        self._lookups.go_on(self._state == "running" and not self._changes.handing_over, out, now)
        if self._changes.may_hand_over and self._is_at_rest():
            self._hand_over(out, now)
        elif not self.ended and self._is_over(out, now):
            self._end_or_wait(out, now)
        return out

    @property
    def epoch(self) -> int:
        """The control stream's present time."""
        return self._stream.epoch

    def seconds_to_tick(self, now: float) -> float:
        """Return how long the caller may wait before its next `Ticked`."""
        if self.ended:
            return TICK_IDLE_SECONDS
        return max(0.0, min(self._tick_due(now), self._questions.end) - now)

    def _start(self, out: list[Instruction], now: float) -> None:
        self._state = "running"
        self._stream.pace.busy(messages.Busy(), now)
        self.watermarks.begin(out, now)
        self.lines.go_on(out, now)
        if self._restored is not None:
            self._commits.add(self._restored, self._stream.issue([self._restored], out, now))
        if self._is_over(out, now):  # before a request can begin a change, for which sources may not be there
            self._end_or_wait(out, now)

    # What clients ask

    def _answer(self, asked: Asked, out: list[Instruction], now: float, tried: bool = False) -> None:
        request, client = asked.request, asked.client
        if self._changes.handing_over and not isinstance(request.body, BEFORE_HAND_OVER) and len(self._held) < HELD_MAX:
            self._held.append(asked)
            return
        try:
            match request.body:
                case messages.StatusQuery():
                    out += self._questions.ask(asked, self._roster.members.ids, request.body, now)
                case messages.BeginPlan() | messages.ResumePlan() | messages.Reconfigure() | messages.TryBins():
                    self._refuse_if_ended()
                    self._trials.ask(asked, tried, out, now)
                case messages.RenewPlan():
                    out.append(self._moves.plans.renew(asked))
                case messages.StopJob():
                    self._stops.append(asked)
                    self.watermarks.end.drains &= request.body.drain
                    out.append(Reply(client, messages.Accepted(request.id, self.epoch)))
                    self._stop(out)
                case messages.CheckpointJob():
                    self._refuse_if_ended()
                    self._checkpoints.ask(asked)
                case messages.GetState():
                    self._refuse_if_ended()
                    self._lookups.ask(asked)
                case messages.CommitRequest() | messages.IngestPorts() if self._state == "stopping":
                    pass  # the end of the job is the answer: a refusal would be an error of the query
                case messages.IngestPorts() | messages.SourceEnded(str()) | messages.CommitRequest(CommitBatch()):
                    if not self._commits.is_known(request.body):
                        self._refuse_if_ended()
                    self._commits.ask(asked, self._roster, self._stream.issue, out, now)
                    self._release_commits(out)
                case messages.AddProcesses() | messages.RemoveWorker() | messages.BootstrapWorker():
                    self._refuse_if_ended()
                    self._changes.ask(asked, out, now)
                case body:
                    raise CommandRefused(f"unknown request: {body!r:.100}")
        except CommandRefused as error:
            out.append(Reply(client, messages.Refused(request.id, str(error))))

    def _too_late(self) -> str | None:
        """Why nothing new is begun; None if it is."""
        why = {"ending": "all its lines have been read", "stopping": "a stop was requested"}.get(self._state)
        return None if why is None else f"too late: job {self._job!r} is ending, {why}"

    def _refuse_if_ended(self) -> None:
        if reason := self._too_late():
            raise CommandRefused(reason)

    def _release_commits(self, out: list[Instruction]) -> None:
        out += [done(asked, epoch) for asked, epoch in self._commits.release(self.ended)]

    # What workers report

    def _learn(self, source: int, body: Any, out: list[Instruction], now: float) -> None:
        if self.watermarks.learn(source, body, now):
            return
        match body:
            case messages.Busy():
                self._stream.pace.busy(body, now)
            case SplitRead() | SplitsRevoked() | SplitsReturned() | PortionsRevoked() | messages.PushedEnded():
                self.lines.learn(source, body, self.ended, out, now)
            case messages.CommitTaken(query, batch):
                self._commits.taken(query, batch, source)
                for asked in () if self._too_late() else self._commits.take_queue():
                    self._answer(asked, out, now)
                self._release_commits(out)
            case messages.BinsInstalled(entries):
                self._moves.note(entries)
            case messages.StatusAnswer():
                if question := self._questions.answered(body):
                    self._conclude(question, out, now)
            case messages.TrialAnswer():
                for asked in self._trials.answered(source, body, out):
                    self._answer(asked, out, now, tried=True)
            case messages.StatesShown():
                self._lookups.answered(source, body, out)
            case messages.RoutingReady(worker, seconds):
                self._changes.routed(worker, seconds, out, now)
            case messages.TableWish(server):
                self.joins.wished(source, server)
            case _ if isinstance(body, REPORTS):
                self._checkpoints.learn(source, body, out, now)
            case _:
                raise AssertionError(f"worker {source} sent {body!r:.100}, which is not for the coordinator")

    def _conclude(self, question: Question[About], out: list[Instruction], now: float) -> None:
        about = question.about
        if isinstance(about, Pending):
            out += self._moves.finish(about)
            return
        status = self._standing.status(question, about.request.body, self._state, self.epoch, self._frontier, now)
        out.append(done(about, status))

    # What time brings

    def _tick(self, event: events.Ticked, out: list[Instruction], now: float) -> None:
        frontier = self._frontier = event.frontier
        self.last_lines.works = event.works
        for pending in self._moves.passed(frontier, now):
            if frontier is not None and pending.missing and self._questions.has_room:
                out += self._questions.ask(pending, self._roster.members.ids, messages.StatusQuery(), now)
            else:  # without a frontier members are leaving and answer no more
                out += self._moves.finish(pending)
        for question in self._questions.overdue(now):
            self._conclude(question, out, now)
        if self.ended and (frontier is None or self._checkpoints.stopped):
            out += [done(self._stops.pop(0), None) for _ in list(self._stops)]
        self._moves.expire(self._trials.asked, now)
        if not self.ended:
            self._changes.tick(out, now)
        if not self.ended and now >= self._tick_due(now):
            self.watermarks.end_epoch(self._state == "running" and not self._changes.handing_over, out, now)

    def _tick_due(self, now: float) -> float:
        urgent = bool(self._moves) or self._changes.under_way or not self._commits.all_taken
        urgent = urgent or self._lookups.under_way or self.last_lines.under_way
        lags = self._frontier is not None and self.epoch - self._frontier > LAG_EPOCHS
        return min(self._stream.pace.due(urgent, lags, now), self.watermarks.clock_due)

    def _is_at_rest(self) -> bool:
        passed = self._frontier is not None and self._frontier > self._stream.issued
        is_idle = not (self._moves or self._checkpoints.under_way or self._lookups.under_way)
        return passed and is_idle and self._commits.at_rest and self.lines.at_rest

    def _hand_over(self, out: list[Instruction], now: float) -> None:
        asked: Iterable[Asked] = (about for about in self._questions if isinstance(about, Asked))
        state = JobState(
            self.epoch, self._stream.next, self._questions.next, self._moves.table, self.lines.state(),
            self._roster.state(), self._commits.state(), tuple(self._moves.ledger), self.joins.starts,
            self._moves.plans.kept, self._checkpoints.state(now), self.watermarks.state(now),
        )  # fmt: skip
        asked = (*asked, *self._trials.asked, *self._checkpoints.asked, *self._commits.asked, *self._lookups.asked)
        out.append(events.Resign(self._roster.successor, state, (*self._changes.asked, *asked, *self._held)))
        self._held.clear()
        self.handed_over = True

    def _resume(self, state: JobState) -> None:
        self._state = "running"
        self._stream.epoch, self._stream.next, self._questions.next = state.epoch, state.command, state.question
        self._moves.table, self._moves.plans.kept, self.joins.starts = state.table, state.plan, state.starts
        self.lines.resume(state.lines)
        self._roster.resume(state.roster)
        self._commits.resume(state.commits)
        self._moves.ledger.extend(state.ledger)
        self._checkpoints.resume(state.checkpoints)
        self.watermarks.resume(state.watermarks)

    def _is_over(self, out: list[Instruction], now: float) -> bool:
        """Whether nothing more comes, or is to come, and what came is worked off."""
        are_read = self.lines.over and self._commits.over
        over = self.last_lines.are_worked_off(are_read, self._frontier, out, now) and not self._moves
        return over or self._state in ("ending", "stopping")

    def _end_or_wait(self, out: list[Instruction], now: float) -> None:
        """Begin nothing more; give up who has not joined; the end comes when no change is under way."""
        self._state = "stopping" if self._state == "stopping" else "ending"
        if self.joins.under_way:
            self.joins.give_up(self._too_late() or "", out)
        stays = self._checkpoints.keeps_open(self._state == "stopping") or self._lookups.under_way
        waits = self._changes.under_way or stays
        if not waits and (self._state == "stopping" or self.watermarks.has_all(out, now)):
            self._end(out, now)

    def _stop(self, out: list[Instruction]) -> None:
        """Take in nothing new; the end comes when no change is under way."""
        if not self.ended:
            self._state = "stopping"
            self._trials.cancel(self._too_late() or "", out)
            self._changes.cancel(f"too late: job {self._job!r} is stopping", out)

    def _end(self, out: list[Instruction], now: float) -> None:
        roster = self._roster
        if not self._checkpoints.stopped:  # else the launcher ends the workers
            tables = roster.bootstrap(roster.members.coordinator, roster.unbootstrapped) if self._moves.table else ()
            infinite = self.watermarks.at_end(self._state == "stopping", out, now)
            last = self._checkpoints.at_end(self._moves.table, out)
            self._stream.issue([*tables, *infinite, messages.EndOfLines(), *last], out, now)
            out.append(events.CloseControl())
        self.ended = True
        for cancel in (self._trials.cancel, self._checkpoints.cancel, self._lookups.cancel):
            cancel(self._too_late() or "", out)
        self._release_commits(out)

    def _check(self) -> None:
        for part in (self._roster, self._changes, self.lines, self._lookups, self.last_lines):
            part._check()
        assert not self.ended or self._state in ("ending", "stopping"), self._state
        assert not self._held or self._changes.handing_over, "requests are held back only for a hand-over"
        assert self._stream.issued <= self.epoch
