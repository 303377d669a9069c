"""The controller's hands: what the coordinating worker does beside its part of the dataflow.

All runs on the worker's thread. What other parts of the process hand in is queued and worked off in `turn`, between the
worker's steps.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from megaflow.control.checkpoint_messages import CheckpointAbandoned, CheckpointBegun, CheckpointReady
from megaflow.control.coordinator import events
from megaflow.control.coordinator.controller import Controller
from megaflow.control.coordinator.epoch_clock import is_settled
from megaflow.control.coordinator.events import Asked, Event, ForLauncher, Instruction, LauncherWord, Mailed, Resign
from megaflow.control.coordinator.membership_requests import BY_COMMAND
from megaflow.control.coordinator.questions import ANSWER_SECONDS
from megaflow.control.coordinator.staged_checks import StagedChecks
from megaflow.control.launcher_messages import Draining, EndProcess, StartFailed, StartProcesses
from megaflow.control.messages import CommitBatch, CommitRequest, Done, ExplainQuery, Refused, Request, StopJob
from megaflow.control.reports import Explanation, HeldBy
from megaflow.control.staging_messages import StagedAnswer
from megaflow.errors import CommandRefused
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.explain import Inquiry
from megaflow.timely.rescale.messages import Aborted, JoinDue, Joined, LeaveDue, Left
from megaflow.timely.rescale.messages import Event as MembershipEvent

TOPIC = "control"  # of the mail between the workers of a job
EXPLAIN_SECONDS = ANSWER_SECONDS  # after that whoever has not said what it holds is named
EXPLAINING_MAX = 100  # questions of that kind under way


class Asker(Protocol):
    """Whoever asked something."""

    def send(self, message: events.Answer) -> None:
        """Send an answer; nothing happens if the client is gone."""


@dataclass(frozen=True, slots=True)
class Explaining:
    """A client's question what holds the output back, under way."""

    asked: Asked
    epoch: int  # of the control stream when it was asked
    frontier: int | None  # of the output
    question: Inquiry | None  # to the workers; None: nothing holds it back
    end: float  # seconds of the worker's clock: wait no longer


class ControllerDriver:
    """Feeds the controller with events and does what it says."""

    def __init__(
        self,
        worker: Worker,
        controller: Controller,
        control: InputHandle[Any],
        job: str,
        output: ProbeHandle,
        tell_launcher: Callable[[StartProcesses | Draining | ForLauncher], None] | None = None,
        contact: tuple[str, int] = ("", 0),
        handed_over: Callable[[Sequence[Asked]], None] = lambda asked: None,
    ) -> None:
        """`control` is the handle of the control stream, which has no other writer; `output` watches the outputs.

        `tell_launcher` sends it a message; processes that it starts join through `contact`, the address of this one.
        `handed_over` is told when another worker coordinates, and which requests are to be made there: nothing may be
        put here then.
        """
        self._job = job
        self._tell_launcher = tell_launcher
        self._handed_over = handed_over
        self._contact = contact
        self._output = output
        self._explaining: list[Explaining] = []
        self._checks = StagedChecks(worker.index)
        self._worker = worker
        self._controller = controller
        self._control = control
        self._events: deque[Event] = deque()  # put by handlers on the worker's thread, drained by `turn`
        worker.rescaling.subscribe(self._notice)
        worker.rescaling.coordination.supervise(self)

    def put(self, event: Asked | events.Gone | events.Discovered | LauncherWord) -> None:
        """Have an event handled in the next turn, at once."""
        match event:
            case Asked(_, Request(_, ExplainQuery())):
                self._explain(event)
            case Asked(_, Request(_, CommitRequest(commit))) if not self._controller.ended:
                self._check_staged(event, commit)
            case Asked(_, Request(_, StopJob())):
                if self._tell_launcher is not None:
                    self._tell_launcher(Draining())
                self._events.append(event)
            case events.Gone(client):
                self._checks.gone(client)
                self._events.append(event)
            case _:
                self._events.append(event)
        self._worker.allocator.wake()

    def turn(self, now: float, open_epoch: int | None) -> float:
        """Handle what has come, tick if it is time; return in how many seconds the next turn is due at the latest."""
        while self._events and not self._controller.handed_over:
            self._do(self._controller.handle(self._events.popleft(), now))
        if self._explaining:
            self._answer_explained(now)
        if self._controller.handed_over:
            return 0.0
        if self._controller.ended or self._controller.seconds_to_tick(now) <= 0:
            works = self._controller.last_lines.under_way and self._are_on_their_way()
            self._do(self._controller.handle(events.Ticked(open_epoch, works), now))
        return self._controller.seconds_to_tick(now)

    def is_known(self, source: str, partition: bytes) -> bool:
        """Tell whether a partition is known, of all that was put here before the last turn."""
        return self._controller.lines.partitions.is_known(source, partition)

    def _are_on_their_way(self) -> bool:
        """Tell whether records are queued somewhere, as far as is known here, or wait in an operator of this worker."""
        graphs = [graph for graph, _ in self._output.places()]
        stamps = ((graph, *stamp) for graph in graphs for stamp in graph.progress.tracker.pointstamps())
        queued = any(count > 0 and place not in graph.listeners for graph, place, _, count in stamps)
        return queued or any(view.waiting for view in self._worker.stateful)

    def _check_staged(self, asked: Asked, commit: CommitBatch) -> None:
        """Have the controller hear of a commit when the workers that it names hold its lines; else refuse it."""
        try:
            questions = self._checks.begin(asked, commit, self._worker.membership.workers)
        except CommandRefused as error:
            answer(asked.client, Refused(asked.request.id, str(error)))
            return
        for worker, question in questions:
            self._worker.post(worker, TOPIC, question)
        if not questions:
            self._checked(asked, None)

    def _checked(self, asked: Asked, missing: str | None) -> None:
        if missing is None or self._controller.ended:  # sources that have closed hold nothing: no fault of the commit
            self._events.append(asked)
        else:
            answer(asked.client, Refused(asked.request.id, f"nothing is committed: {missing}"))

    def _explain(self, asked: Asked) -> None:
        """Ask all workers what they hold. The controller is not concerned: nothing changes."""
        if len(self._explaining) >= EXPLAINING_MAX:
            reason = f"{EXPLAINING_MAX} such requests are already being answered; try again later"
            answer(asked.client, Refused(asked.request.id, reason))
            return
        epoch = self._controller.epoch
        frontier = next((time for time in self._output.frontier.elements if isinstance(time, int)), None)
        question = None
        if frontier is not None and not is_settled(epoch, frontier, self._controller.ended):
            question = self._worker.explainer.ask(self._output, frontier)
        self._explaining.append(Explaining(asked, epoch, frontier, question, self._worker.now() + EXPLAIN_SECONDS))

    def _answer_explained(self, now: float) -> None:
        waiting = []
        for each in self._explaining:
            question = each.question
            if question is not None and question.silent and now < each.end:
                waiting.append(each)
                continue
            held_by: list[HeldBy] = []
            if question is not None:
                self._worker.explainer.forget(question)
                for one in question.holdings():
                    place = one.operator, one.where, one.port, one.worker
                    held_by.append(HeldBy(*place, one.time, one.count, one.kind))
            silent = () if question is None else tuple(sorted(question.silent))
            joining = self._controller.joins.statuses(now)
            report = Explanation(
                self._job, each.epoch, each.frontier, question is None, tuple(held_by), silent, joining,
                watermark=self._controller.watermarks.status(now),
            )  # fmt: skip
            answer(each.asked.client, Done(each.asked.request.id, report))
        self._explaining = waiting

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case events.Inject(command):
                    self._control.send(command)
                case events.Advance(time):
                    self._control.advance_to(time)
                case events.CloseControl():
                    self._control.close()
                case events.Reply(client, message):
                    answer(client, message)
                case events.Mail(target, body):
                    self._worker.post(target, TOPIC, body)
                case events.StartWorkers(count, number, other_code):
                    self._start_processes(count, number, other_code)
                case events.AskLeave(worker):
                    self._worker.rescaling.ask_leave(worker, lambda reason: self._left(worker, reason))
                case events.Rule(ids, reason):
                    self._worker.rescaling.coordination.rule(ids, reason)
                case events.GiveUp(reason):
                    self._worker.rescaling.coordination.give_up(reason)
                case events.CallOff(ids, reason):
                    self._worker.rescaling.coordination.call_off(ids, reason)
                case EndProcess() | CheckpointBegun() | CheckpointReady() | CheckpointAbandoned():
                    if self._tell_launcher is not None:
                        self._tell_launcher(instruction)
                case Resign():
                    self._leave(instruction)

    def _leave(self, word: Resign) -> None:
        """Hand over, and with it what is reported here; what is asked here is to be asked there."""
        rescaling = self._worker.rescaling
        rescaling.coordination.give_up(BY_COMMAND)  # the leaves that wait: who has asked for them asks there
        rest = list(self._events)  # with what was reported meanwhile
        rescaling.hand_over(word.state, [(event.source, event.body) for event in rest if isinstance(event, Mailed)])
        time = self._control.give_away()
        assert time == word.state.epoch, (time, word.state.epoch)
        for each in self._explaining:
            if each.question is not None:
                self._worker.explainer.forget(each.question)
        asked = [event for event in rest if isinstance(event, Asked)]
        self._handed_over([*word.pending, *asked, *self._checks.asked, *(each.asked for each in self._explaining)])
        self._events.clear()
        self._explaining.clear()

    # The membership

    def join_due(self, ids: tuple[int, ...], address: tuple[str, int]) -> None:
        """See `megaflow.timely.rescale.host.Supervisor`, like the next two."""
        self._events.append(JoinDue(ids, address))

    def leave_due(self, ids: tuple[int, ...]) -> None:
        """A process is to leave."""
        self._events.append(LeaveDue(ids))

    def reported(self, source: int, body: Any) -> None:
        """A worker reports something."""
        if isinstance(body, StagedAnswer):
            if known := self._checks.answered(source, body):
                self._checked(*known)
        else:
            self._events.append(Mailed(source, body))

    def _start_processes(self, count: int, number: int, other_code: bool) -> None:
        if self._tell_launcher is not None:
            self._tell_launcher(StartProcesses(count, *self._contact, number, other_code))
        else:
            reason = "this job has no launcher to start a process; start one by hand: megaflow run FILE --join NAME"
            self._events.append(StartFailed(reason, number))

    def _notice(self, event: MembershipEvent) -> None:
        """Have the controller told what the engine has done; of a leave that was refused `ask_leave` tells."""
        if self._controller.handed_over:
            return
        match event:
            case Joined() | Left():
                self._events.append(event)
                if isinstance(event, Left):
                    for known in self._checks.left(event.ids):
                        self._checked(*known)
            case Aborted(_, ids, reason) if not self._worker.membership.workers.intersection(ids):
                self._events.append(events.ChangeRefused(ids, reason))

    def _left(self, worker: int, reason: str | None) -> None:
        if reason is not None and not self._controller.handed_over:
            self._events.append(events.ChangeRefused((worker,), reason))


def answer(client: Any, message: events.Answer) -> None:
    """Send an answer to a client of the controller's, which knows it by identity only."""
    asker: Asker = client
    asker.send(message)
