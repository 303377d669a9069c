"""The shell around the controller: it feeds in events and carries out the instructions that come back.

Everything runs on the coordinating worker's thread. Other parts of the process queue events, and `turn` handles them
between the worker's steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any, Protocol

from megaflow.control import messages
from megaflow.control.coordinator.base import events
from megaflow.control.coordinator.base.epoch_clock import is_settled
from megaflow.control.coordinator.base.events import Asked, Event, Instruction
from megaflow.control.coordinator.base.job_state import FeedState
from megaflow.control.coordinator.base.questions import ANSWER_SECONDS
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.coordinator.controller.event_feed import EventFeed
from megaflow.control.coordinator.members.membership_requests import BY_COMMAND
from megaflow.control.coordinator.reading.staged_checks import StagedChecks
from megaflow.control.launcher_messages import Draining, StartProcesses
from megaflow.control.reports import Explanation, HeldBy, JobStatus
from megaflow.control.staging_messages import StagedAnswer
from megaflow.errors import CommandRefused
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.explain import Inquiry
from megaflow.timely.progress.antichain import first_epoch
from megaflow.timely.rescale.messages import Aborted, JoinDue, Joined, LeaveDue, Left
from megaflow.timely.rescale.messages import Event as MembershipEvent

TOPIC = "control"  # of the mail between the workers of a job
EXPLAIN_SECONDS = ANSWER_SECONDS  # after that the answer lists the workers that have not replied
EXPLAINING_MAX = 100  # `explain` requests under way
WATCHING_MAX = 100  # watchers that wait for the next event


class Asker(Protocol):
    """The connection of a client that has sent a request."""

    def send(self, message: events.Answer) -> None:
        """Send an answer; nothing happens if the client is gone."""


@dataclass(frozen=True, slots=True)
class Explaining:
    """A client's question in progress: what holds the output back?"""

    asked: Asked
    epoch: int  # of the control stream when the client asked
    frontier: int | None  # of the output
    question: Inquiry | None  # to the workers; None: nothing holds the output back
    end: float  # seconds of the worker's clock: answer then, even if workers are silent


@dataclass(frozen=True, slots=True)
class Watching:
    """A client's question in progress: what happens next?"""

    asked: Asked  # a `WatchQuery`
    end: float  # seconds of the worker's clock: answer then, even if nothing has happened


@dataclass(eq=False)
class ControllerDriver:
    """Feeds the controller with events and carries out its instructions.

    The processes that the launcher starts join through `contact`, the address of this process. The driver calls
    `handed_over` when another worker has become the coordinator, with the requests to repeat there. After that call
    nothing may be put here.
    """

    worker: Worker
    controller: Controller
    control: InputHandle[Any]  # of the control stream, which has no other writer
    job: str
    output: ProbeHandle  # watches the outputs
    tell_launcher: Callable[[StartProcesses | Draining | events.ForLauncher], None]  # sends a message to the launcher
    contact: tuple[str, int]
    handed_over: Callable[[Sequence[Asked]], None] = lambda asked: None
    attempt: int = 0  # of the job's store
    feed_state: FeedState | None = None  # of the previous coordinator
    _explaining: list[Explaining] = field(default_factory=list, init=False)
    _events: deque[Event] = field(default_factory=deque, init=False)  # put by handlers on the worker's thread
    _checks: StagedChecks = field(init=False)
    _feed: EventFeed = field(init=False)
    _watching: list[Watching] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        worker, members, table = self.worker, self.worker.membership.ids, self.controller.moves.table
        self._checks = StagedChecks(worker.index)
        self._feed = EventFeed(self.attempt, worker.index, members, table, worker.wall, self.feed_state)
        self.worker.rescaling.subscribe(self._notice)
        self.worker.rescaling.coordination.supervise(self)

    def put(self, event: Asked | events.Gone | events.Discovered | events.LauncherWord) -> None:
        """Queue an event and wake the worker, which handles it in its next turn."""
        match event:
            case Asked(_, messages.Request(_, messages.ExplainQuery())):
                self._explain(event)
            case Asked(_, messages.Request(_, messages.WatchQuery())):
                self._watch(event)
            case Asked(_, messages.Request(_, messages.CommitRequest(commit))) if not self.controller.ended:
                self._check_staged(event, commit)
            case Asked(_, messages.Request(_, messages.StopJob())):
                self.tell_launcher(Draining())
                self._events.append(event)
            case events.Gone(client):
                self._checks.gone(client)
                self._watching = [each for each in self._watching if each.asked.client != client]
                self._events.append(event)
            case _:
                self._events.append(event)
        self.worker.allocator.wake()

    def turn(self, now: float, open_epoch: int | None) -> float:
        """Handle the queued events, and tick if it is time. Return the seconds until the next turn is due."""
        while self._events and not self.controller.handed_over:
            self._handle(self._events.popleft(), now)
        if self._explaining:
            self._answer_explained(now)
        if self.controller.handed_over:
            return 0.0
        if self.controller.ended or self.controller.seconds_to_tick(now) <= 0:
            works = self.controller.drain_detector.read_at is not None and self._are_on_their_way()
            self._handle(events.Ticked(open_epoch, works), now)
        seconds = self.controller.seconds_to_tick(now)
        return self._answer_watching(now, seconds) if self._watching else seconds

    def is_known(self, source: str, partition: bytes) -> bool:
        """Tell whether a partition is known from what was put here before the last turn."""
        return self.controller.lines.partitions.is_known(source, partition)

    def is_unread(self, source: str, partition: bytes) -> bool:
        """Tell whether such a partition is not read to its end."""
        return self.controller.lines.partitions.is_unread(source, partition)

    def _are_on_their_way(self) -> bool:
        """Tell whether records are queued anywhere, as far as this worker knows, or wait in one of its operators."""
        graphs = [graph for graph, _ in self.output.places()]
        stamps = ((graph, *stamp) for graph in graphs for stamp in graph.progress.tracker.pointstamps())
        queued = any(count > 0 and place not in graph.listeners for graph, place, _, count in stamps)
        return queued or any(view.waiting for view in self.worker.stateful)

    def _handle(self, event: Event, now: float) -> None:
        instructions = self.controller.handle(event, now)
        self._feed.observe(event, instructions, self.controller.moves.table, now)
        self._do(instructions)

    def _answer_watching(self, now: float, seconds: float) -> float:
        """Answer the watchers for whom there is something new or whose time is over; return when to call again."""
        waiting = []
        for each in self._watching:
            part = self._feed.part(each.asked.request.body)
            if part is None and now < each.end:
                waiting.append(each)
                seconds = min(seconds, each.end - now)
            else:
                answer(each.asked.client, messages.Done(each.asked.request.id, part or self._feed.nothing()))
        self._watching = waiting
        return seconds

    def _check_staged(self, asked: Asked, commit: messages.CommitBatch) -> None:
        """Pass a commit to the controller once the workers that it names hold its lines; refuse it if they do not."""
        try:
            questions = self._checks.begin(asked, commit, self.worker.membership.workers)
        except CommandRefused as error:
            answer(asked.client, messages.Refused(asked.request.id, str(error)))
            return
        for worker, question in questions:
            self.worker.post(worker, TOPIC, question)
        if not questions:
            self._checked(asked, None)

    def _checked(self, asked: Asked, missing: str | None) -> None:
        if missing is None or self.controller.ended:  # closed sources hold nothing: that is no fault of the commit
            self._events.append(asked)
        else:
            answer(asked.client, messages.Refused(asked.request.id, f"nothing is committed: {missing}"))

    def _watch(self, asked: Asked) -> None:
        """Let a watcher wait for the next event. The controller takes no part, because nothing changes."""
        if not refused_as_one_too_many(asked, len(self._watching), WATCHING_MAX):
            self._watching.append(Watching(asked, self.worker.now() + messages.WATCH_SECONDS))

    def _explain(self, asked: Asked) -> None:
        """Ask all workers what they hold. The controller takes no part, because nothing changes."""
        if refused_as_one_too_many(asked, len(self._explaining), EXPLAINING_MAX):
            return
        epoch = self.controller.epoch
        frontier = first_epoch(self.output.frontier)
        question = None
        if frontier is not None and not is_settled(epoch, frontier, self.controller.ended):
            question = self.worker.explainer.ask(self.output, frontier)
        self._explaining.append(Explaining(asked, epoch, frontier, question, self.worker.now() + EXPLAIN_SECONDS))

    def _answer_explained(self, now: float) -> None:
        waiting = []
        for each in self._explaining:
            question = each.question
            if question is not None and question.silent and now < each.end:
                waiting.append(each)
                continue
            held_by: list[HeldBy] = []
            if question is not None:
                self.worker.explainer.forget(question)
                for one in question.holdings():
                    place = one.operator, one.where, one.port, one.worker
                    held_by.append(HeldBy(*place, one.time, one.count, one.kind))
            silent = () if question is None else tuple(sorted(question.silent))
            joining = self.controller.joins.statuses(now)
            report = Explanation(
                self.job, each.epoch, each.frontier, question is None, tuple(held_by), silent, joining,
                watermark=self.controller.watermarks.status(now), missing=self.controller.lines.partitions.unopened,
            )  # fmt: skip
            answer(each.asked.client, messages.Done(each.asked.request.id, report))
        self._explaining = waiting

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case events.Inject(command):
                    self.control.send(command)
                case events.Advance(time):
                    self.control.advance_to(time)
                case events.CloseControl():
                    self.control.close()
                case events.Reply(client, messages.Done(id, JobStatus() as status)):
                    answer(client, messages.Done(id, replace(status, attempt=self.attempt)))
                case events.Reply(client, message):
                    answer(client, message)
                case events.Mail(target, body):
                    self.worker.post(target, TOPIC, body)
                case events.StartWorkers(count, number, other_code):
                    self.tell_launcher(StartProcesses(count, *self.contact, number, other_code))
                case events.AskLeave(worker):
                    self.worker.rescaling.ask_leave(worker, lambda reason: self._left(worker, reason))
                case events.Rule(ids, reason):
                    self.worker.rescaling.coordination.rule(ids, reason)
                case events.GiveUp(reason):
                    self.worker.rescaling.coordination.give_up(reason)
                case events.CallOff(ids, reason):
                    self.worker.rescaling.coordination.call_off(ids, reason)
                case events.Resign():
                    self._leave(instruction)
                case _ if isinstance(instruction, events.ForLauncher):
                    self.tell_launcher(instruction)

    def _leave(self, word: events.Resign) -> None:
        """Hand over to the successor, with the queued reports. Clients repeat their requests there."""
        rescaling = self.worker.rescaling
        rescaling.coordination.give_up(BY_COMMAND)  # leaves that wait: their clients ask the successor again
        rest = list(self._events)  # with the reports that have come meanwhile
        state = replace(word.state, feed=self._feed.state())
        rescaling.hand_over(state, [(event.source, event.body) for event in rest if isinstance(event, events.Mailed)])
        time = self.control.give_away()
        assert time == word.state.epoch, (time, word.state.epoch)
        for each in self._explaining:
            if each.question is not None:
                self.worker.explainer.forget(each.question)
        asked = [event for event in rest if isinstance(event, Asked)]
        questions = [*(each.asked for each in self._explaining), *(each.asked for each in self._watching)]
        self.handed_over([*word.pending, *asked, *self._checks.asked, *questions])
        self._events.clear()
        self._explaining.clear()
        self._watching.clear()

    # The membership

    def join_due(self, ids: tuple[int, ...], address: tuple[str, int]) -> None:
        """See `megaflow.timely.rescale.host.Supervisor`, also for the next two methods."""
        self._events.append(JoinDue(ids, address))

    def leave_due(self, ids: tuple[int, ...]) -> None:
        """Queue the news that a process is due to leave."""
        self._events.append(LeaveDue(ids))

    def reported(self, source: int, body: Any) -> None:
        """Queue a worker's report, or handle it at once if it answers a check of staged lines."""
        if isinstance(body, StagedAnswer):
            if known := self._checks.answered(source, body):
                self._checked(*known)
        else:
            self._events.append(events.Mailed(source, body))

    def _notice(self, event: MembershipEvent) -> None:
        """Queue what the engine has done for the controller. `ask_leave` reports refused leaves."""
        if self.controller.handed_over:
            return
        match event:
            case Joined() | Left():
                self._events.append(event)
                if isinstance(event, Left):
                    for known in self._checks.left(event.ids):
                        self._checked(*known)
            case Aborted(_, ids, reason) if not self.worker.membership.workers.intersection(ids):
                self._events.append(events.ChangeRefused(ids, reason))

    def _left(self, worker: int, reason: str | None) -> None:
        if reason is not None and not self.controller.handed_over:
            self._events.append(events.ChangeRefused((worker,), reason))


def refused_as_one_too_many(asked: Asked, waiting: int, most: int) -> bool:
    """Refuse a request if so many of its kind wait already; return whether it was refused."""
    if waiting >= most:
        reason = f"{most} such requests are already being answered; try again later"
        answer(asked.client, messages.Refused(asked.request.id, reason))
    return waiting >= most


def answer(client: Any, message: events.Answer) -> None:
    """Send an answer to a client, which the controller knows only by identity."""
    asker: Asker = client
    asker.send(message)
