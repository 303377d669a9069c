"""Decisions of the coordinator: which commands are valid, when they happen, when they are done, and when the job ends.

A state machine of values. `handle` takes one event and the time of a monotonic clock. It returns what to do, in order.
Its caller, the driver, holds the sockets, the clock and the handle of the control stream.

1. One place numbers commands, consecutively from 0. So no two operators can see them in different orders.
2. A request is checked as a whole before any part of it is issued, and a refusal changes nothing. The owners of bins
   also check requests that move the bins, see `trials`.
3. Each request has its own epoch. It is issued at the present time of the control stream, which leaves that time at
   once. Sources stamp what they read with an earlier time, so nothing was read for that epoch: no command is late.
4. A reconfiguration is done when the probe behind the outputs has passed its epoch. Members report each bin that they
   install; the account (bytes, keys) sums the reports. If reports are missing then, the controller asks all members for
   their status: a member's answer arrives after its reports.
5. Ticks never wait for data, so time always advances. Only the end of the job closes the control stream.
6. The coordinator's part changes hands at rest, see `job_state`. Until then new requests are held back. `Resign` is the
   last instruction of the old controller. Clients repeat the requests that were held back at the next one.
7. The job ends when all lines are read and processed (`drain_detector`) and no command is pending, or on request. It
   waits for a membership change that has begun, and first sends routing tables to workers that joined: they hold
   records until they have one. Joins of processes that have not joined yet are canceled, see `joins`.
8. Each part of the controller adds its instructions to one list, `CommandStream.out`, so they are in the order of the
   decisions. The controller calls no part that is off or has nothing under way. It looks at the part's public
   collections first.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from megaflow.control import messages
from megaflow.control.checkpoint_messages import CommitFailed, Committed
from megaflow.control.coordinator.base import events
from megaflow.control.coordinator.base.epoch_clock import LAG_EPOCHS, TICK_IDLE_SECONDS, CommandStream
from megaflow.control.coordinator.base.events import Asked, Event, Instruction
from megaflow.control.coordinator.base.job_state import BEFORE_HAND_OVER, HELD_MAX, Durable, EventTime, JobState
from megaflow.control.coordinator.base.questions import QUESTIONS_MAX, Question, Questions
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.checkpoints.checkpoints import AnyReport, Checkpoints
from megaflow.control.coordinator.controller.drain_detector import DrainDetector
from megaflow.control.coordinator.controller.job_status import JobStanding
from megaflow.control.coordinator.controller.lookups import Lookups, Places, places_of
from megaflow.control.coordinator.members.joins import JOIN_SECONDS, Joins, StageOf
from megaflow.control.coordinator.members.membership_requests import MembershipRequests
from megaflow.control.coordinator.moves.reconfigurations import Pending, Reconfigurations
from megaflow.control.coordinator.moves.trials import Trials
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead, Reading
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.coordinator.reading.unread_partitions import Describe, decoded
from megaflow.control.coordinator.reading.watermarks import Watermarks
from megaflow.control.launcher_messages import Reached
from megaflow.control.messages import CancelQueued, CommitBatch, CommitRequest, IngestPorts, RaiseWatermark
from megaflow.control.watermark_messages import EventTimeReport
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import initial_table
from megaflow.timely.membership import Membership
from megaflow.timely.rescale.messages import JoinDue, Joined, LeaveDue, Left

About: TypeAlias = Pending | Asked  # why members are asked: for the account of a move, or for a client's status


class Controller:
    """State machine of the coordinator. One writer: the thread of the coordinating worker.

    `operators`: the stateful ones (name -> number of bins, all the same). `splits`: files to assign. `pushed`: the
    launcher sends lines. `rated`: there is a rate. `sources`: what the program reads by `flow.read`. `queries`: how
    many Spark queries feed the job. `ports`: where executors may stage. `processes`: the workers of each process
    (by default each is a process). `pins`: why workers may never leave. `stage_of`: the engine's stage of a join.
    `places_of`: the bins of a key that a client asks for. `durable`: there are checkpoints. `event_time`: the
    operators that take timestamps, and from which inputs. `state`: what another controller left. `describe`:
    the text that names a source's partition.
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
        describe: Describe = decoded,
    ) -> None:
        self.handed_over = False  # to another controller: this one accepts no further events
        self.ended = False  # no command follows: the control stream is closed, or the launcher ends the workers
        self._state = "starting"  # then running, then ending or stopping
        self._frontier: int | None = 0
        self._job = job
        stream = self._stream = CommandStream()
        self._out = stream.out
        roster = self._roster = Roster(members, processes, ports)
        bins = next(iter(operators.values()), 0)
        first = () if durable is None else durable.table
        self.moves = Reconfigurations(first or (initial_table(bins, members.ids) if bins else ()), len(operators))
        self._trials = Trials(job, roster, self.moves, stream)
        commits = self._commits = Commits(roster, stream, queries, None if durable is None else durable.spark)
        self._restored = () if durable is None else durable.untaken
        lines = self.lines = LinesToRead(roster, stream, splits, pushed, rated, sources, durable, event_time.ordered)
        self.watermarks = Watermarks(event_time, stream, lines, commits, roster, durable, describe)
        checkpoints = self._checkpoints = Checkpoints(job, roster, stream, durable, commits, lines, self.watermarks)
        self._lookups = Lookups(stream, places_of)
        self.drain_detector = DrainDetector(stream)
        self.joins = Joins(roster, stream, join_timeout_seconds, stage_of)
        self._changes = MembershipRequests(roster, self.joins, self.moves, commits, lines, stream, pins, checkpoints)
        self._held: deque[Asked] = deque()  # until the coordinator's part has changed hands
        self._questions: Questions[About] = Questions()
        self._standing = JobStanding(job, dict(operators), self._changes, self.watermarks, self._questions)
        self._stops: list[Asked] = []
        if state is not None:
            self._state = "running"
            self._standing.resume(state)
        elif durable is not None and durable.committed is not None:
            self._stream.begin(durable.epoch + 1)
            self._frontier = self._stream.epoch

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event at `now`, in seconds of a monotonic clock; return what to do, in order."""
        assert not self.handed_over, event
        self._stream.now = now
        if self._state == "starting":
            self._start(now)
        self._take(event, now)
        self._go_on(now)
        instructions = [*self._out]
        self._out.clear()
        return instructions

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Asked():
                self._answer(event, now)
            case events.Mailed(source, body):
                self._learn(source, body, now)
            case events.Ticked():
                self._tick(event, now)
            case events.Gone(client):
                for part in (self._commits, self.moves.plans, self._trials, self._checkpoints, self._lookups):
                    part.gone(client)
            case JoinDue(ids, address):
                self.joins.due(ids, address, self._too_late(), now)
            case LeaveDue(ids):
                self._changes.leave_due(ids, now)
            case Joined():
                self._changes.joined(event, now)
            case Left():
                self._changes.left(event, now)
                self._checkpoints.left(event.ids, now)
                for question in self._questions.left(event.ids):
                    self._conclude(question, now)
                for asked in self._trials.left(event.ids):
                    self._answer(asked, now, tried=True)
            case events.ChangeRefused():
                self._changes.declined(event, now)
            case events.Discovered() if self._too_late() is None:
                self.lines.partitions.found(event)
            case Reached():
                self.joins.reached(event, now)
            case _ if isinstance(event, events.Launched):
                self._changes.launched(event, now)
            case Committed() | CommitFailed():
                self._checkpoints.answered(event, now)
                self._commits.release(self.ended)

    def _go_on(self, now: float) -> None:
        """Do what an event has made possible."""
        changes = self._changes
        while self._held and not changes.handing_over:
            self._answer(self._held.popleft(), now)
        if self._is_changing:
            changes.go_on()
        may_hand_over = bool(changes.removes) and changes.may_hand_over
        is_running = self._state == "running"
        if is_running and not may_hand_over:
            self.lines.go_on()
        if self._checkpoints.takes_any:
            stopping = self._state == "stopping"
            may_begin = is_running or (stopping and not (self.ended or self._is_changing))
            may_begin = may_begin and not changes.keeps_checkpoints_out
            self._checkpoints.go_on(may_begin, stopping, self._frontier, self.moves.table, now)
        if self._lookups.waiting and is_running and not changes.handing_over:
            self._lookups.go_on()
        if may_hand_over and self._is_at_rest():
            self._hand_over(now)
        elif not self.ended and self._is_over(now):
            self._end_or_wait()

    @property
    def epoch(self) -> int:
        """The control stream's present time."""
        return self._stream.epoch

    def seconds_to_tick(self, now: float) -> float:
        """Return how long the caller may wait before its next `Ticked`."""
        if self.ended:
            return TICK_IDLE_SECONDS
        due = self._tick_due(now)
        return max(0.0, (min(due, self._questions.end) if self._questions.open else due) - now)

    def _start(self, now: float) -> None:
        self._state = "running"
        self._stream.pace.busy(messages.Busy(), now)
        self.watermarks.begin(now)
        self.lines.go_on()
        for rest in self._restored:
            self._commits.issue(rest)
        if self._is_over(now):  # before a request begins a change: the sources may already be gone
            self._end_or_wait()

    # Requests of clients

    def _answer(self, asked: Asked, now: float, tried: bool = False) -> None:
        body, late = asked.request.body, self._too_late()
        if self._changes.handing_over and not isinstance(body, BEFORE_HAND_OVER) and len(self._held) < HELD_MAX:
            self._held.append(asked)
            return
        try:
            match body:
                case messages.StatusQuery():
                    self._out += self._questions.ask(asked, self._roster.members.ids, body, now)
                case messages.RenewPlan():
                    self._out.append(self.moves.plans.renew(asked))
                case messages.StopJob():
                    self._stops.append(asked)
                    self.watermarks.end.drains &= body.drain
                    self._out.append(asked.accepted(self.epoch))
                    if not self.ended:  # what has not begun is canceled; the job ends once no change is under way
                        self._state = "stopping"
                        self._trials.cancel(self._too_late() or "")
                        self._changes.cancel(f"too late: job {self._job!r} is stopping")
                case CommitRequest() | IngestPorts() | RaiseWatermark() if self._state == "stopping":
                    pass  # the end of the job is the answer: a refusal would fail the query
                case (
                    IngestPorts() | RaiseWatermark() | messages.SourceEnded(str()) | CommitRequest(CommitBatch())
                ) if late is None or self._commits.is_known(body):
                    self._commits.ask(asked)
                    self._commits.release(self.ended)
                case _ if late is not None:
                    raise CommandRefused(late)
                case messages.BeginPlan() | messages.ResumePlan() | messages.Reconfigure() | messages.TryBins():
                    self._trials.ask(asked, tried, now)
                case messages.CheckpointJob():
                    self._checkpoints.ask(asked)
                case messages.GetState():
                    self._lookups.ask(asked)
                case messages.AddProcesses() | messages.RemoveWorker() | messages.BootstrapWorker() | CancelQueued():
                    self._changes.ask(asked, now)
                case _:
                    raise CommandRefused(f"unknown request: {body!r:.100}")
        except CommandRefused as error:
            self._out.append(asked.refused(str(error)))

    def _too_late(self) -> str | None:
        """Return why nothing new may begin; None if it may."""
        why = {"ending": "all its lines have been read", "stopping": "a stop was requested"}.get(self._state)
        return None if why is None else f"too late: job {self._job!r} is ending, {why}"

    # Reports of workers

    def _learn(self, source: int, body: Any, now: float) -> None:
        if self.watermarks.is_on:
            self.watermarks.passed_on(body, now)
        match body:
            case messages.Busy():
                self._stream.pace.busy(body, now)
            case _ if isinstance(body, Reading):
                self.lines.learn(source, body, self.ended)
            case messages.CommitTaken(query, batch):
                self._commits.taken(query, batch, source)
                for asked in () if self._too_late() else self._commits.take_queue():
                    self._answer(asked, now)
                self._commits.release(self.ended)
            case messages.BinsInstalled(entries):
                self.moves.note(entries)
            case messages.StatusAnswer():
                if question := self._questions.answered(body.id, body.status.id, body):
                    self._conclude(question, now)
            case messages.TrialAnswer():
                for asked in self._trials.answered(source, body):
                    self._answer(asked, now, tried=True)
            case messages.StatesShown():
                self._lookups.answered(source, body)
            case messages.RoutingReady(worker, seconds):
                self._changes.routed(worker, seconds, now)
            case messages.TableWish(server):
                self.joins.wished(source, server)
            case _ if isinstance(body, EventTimeReport):
                self.watermarks.learn(source, body, now)
            case _ if isinstance(body, AnyReport):
                self._checkpoints.learn(source, body, now)
            case _:
                raise AssertionError(f"worker {source} sent {body!r:.100}, which is not for the coordinator")

    def _conclude(self, question: Question[About], now: float) -> None:
        about = question.about
        if isinstance(about, Pending):
            self._out += self.moves.finish(about)
            return
        status = self._standing.status(question, about.request.body, self._state, self._frontier, now)
        self._out.append(about.done(status))

    # Time and the end

    def _tick(self, event: events.Ticked, now: float) -> None:
        frontier = self._frontier = event.frontier
        self.drain_detector.works = event.works
        for pending in self.moves.passed(frontier, now) if self.moves.pending else ():
            if frontier is not None and pending.missing and len(self._questions.open) < QUESTIONS_MAX:
                self._out += self._questions.ask(pending, self._roster.members.ids, messages.StatusQuery(), now)
            else:  # without a frontier the members are ending and no longer answer
                self._out += self.moves.finish(pending)
        for question in self._questions.overdue(now) if self._questions.open else ():
            self._conclude(question, now)
        if self.ended and (frontier is None or self._checkpoints.stopped):
            self._out += [asked.done(None) for asked in self._stops]
            self._stops.clear()
        if self.moves.plans.runner is not None:
            self.moves.expire(self._trials.asked, now)
        if self.ended:
            return
        if self._is_changing:
            self._changes.tick(now)
        if now >= self._tick_due(now):
            self._end_epoch(now)

    def _end_epoch(self, now: float) -> None:
        """Issue the commands of event time that are due in the present epoch, and begin the next one."""
        may_issue = self._state == "running" and not (self._changes.removes and self._changes.handing_over)
        is_asked = self.watermarks.is_on or self.watermarks.wanting or not may_issue
        if commands := self.watermarks.due(may_issue, now) if is_asked else []:
            self._stream.issue(*commands)
        else:
            self._stream.advance()

    def _tick_due(self, now: float) -> float:
        is_urgent = bool(self.moves.pending or self._is_changing or self._commits.untaken or self._lookups.open)
        is_urgent = is_urgent or self.drain_detector.read_at is not None
        lags = self._frontier is not None and self.epoch - self._frontier > LAG_EPOCHS
        due = self._stream.pace.due(is_urgent, lags, now)
        return min(due, self.watermarks.clock_due) if self.watermarks.wanting else due

    @property
    def _is_changing(self) -> bool:
        """Whether the job must continue because of a change of the membership."""
        changes, joins = self._changes, self.joins
        return bool(changes.removes or changes.tables or joins.adds or joins.reaching or joins.joining)

    def _is_at_rest(self) -> bool:
        passed = self._frontier is not None and self._frontier > self._stream.issued
        is_idle = not (self.moves.pending or self._checkpoints.under_way or self._lookups.open)
        return passed and is_idle and self._commits.at_rest and self.lines.at_rest

    def _hand_over(self, now: float) -> None:
        questions = [each.about for each in self._questions.open.values() if isinstance(each.about, Asked)]
        asked = (*questions, *self._trials.asked, *self._checkpoints.asked, *self._commits.asked, *self._lookups.asked)
        asked = (*self._changes.asked, *asked, *self._held)
        self._out.append(events.Resign(self._roster.successor, self._standing.state(now), asked))
        self.handed_over = True

    def _is_over(self, now: float) -> bool:
        """Tell whether all input is read and processed and no bins are moving, or the job is already ending."""
        are_read = self.lines.over and self._commits.over
        over = are_read or self.drain_detector.read_at is not None
        over = over and self.drain_detector.are_worked_off(are_read, self._frontier, now) and not self.moves.pending
        return over or self._state in ("ending", "stopping")

    def _end_or_wait(self) -> None:
        """Begin nothing new and cancel joins that are not complete; end the job once no change is under way."""
        self._state = "stopping" if self._state == "stopping" else "ending"
        if self.joins.under_way:
            self.joins.give_up(self._too_late() or "")
        stays = self._checkpoints.keeps_open(self._state == "stopping") or self._lookups.open
        waits = self._is_changing or stays
        if not waits and (self._state == "stopping" or self.watermarks.has_all()):
            self._end()

    def _end(self) -> None:
        roster = self._roster
        if not self._checkpoints.stopped:  # else the launcher ends the workers
            tables = roster.bootstrap(roster.members.coordinator, roster.unbootstrapped) if self.moves.table else ()
            infinite = self.watermarks.at_end(self._state == "stopping")
            last = self._checkpoints.at_end(self.moves.table)
            self._stream.issue(*tables, *infinite, messages.EndOfLines(), *last)
            self._out.append(events.CloseControl())
        self.ended = True
        for cancel in (self._trials.cancel, self._checkpoints.cancel, self._lookups.cancel):
            cancel(self._too_late() or "")
        self._commits.release(self.ended)

    def _check(self) -> None:
        for part in (self._roster, self._changes, self.lines, self._lookups, self.drain_detector):
            part._check()
        assert not self.ended or self._state in ("ending", "stopping"), self._state
        assert not self._held or self._changes.handing_over, "requests are held back only for a hand-over"
        assert self._stream.issued <= self.epoch
