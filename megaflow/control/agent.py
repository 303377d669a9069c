"""The controller's hands: in each worker an agent that answers for it, in the coordinator also one that carries out.

All run on their worker's thread. What other parts of the process hand in is queued and worked
off in `turn`, between the worker's steps.

Reports while the coordinator's part changes hands. A worker mails them to whom it takes for the coordinator. The old
one forwards what still comes to it; the new one keeps what comes early, until it is told to coordinate. That is when
the engine has heard from all members, by the same ways, that they know of the change: then nothing is forwarded any
more. It first takes in what was forwarded: so of each worker it hears everything in the order in which it was sent.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from megaflow.control.controller import Controller
from megaflow.control.events import (
    Advance,
    Answer,
    Asked,
    ChangeRefused,
    CloseControl,
    Event,
    GiveUp,
    Gone,
    HandOver,
    Inject,
    Instruction,
    Launched,
    Mail,
    Mailed,
    Reply,
    Retire,
    StartWorkers,
    Ticked,
    WorkersJoined,
    WorkersLeft,
)
from megaflow.control.explanation import explanation_record, is_settled
from megaflow.control.loads import operator_load
from megaflow.control.messages import (
    Coordinates,
    Done,
    ExplainQuery,
    Forwarded,
    LedgerEntry,
    Refused,
    RoutingReady,
    StartFailed,
    StartProcesses,
    StatusAsk,
    WorkerStatus,
)
from megaflow.control.statistics import Lateness, RateMeter
from megaflow.errors import ProtocolError
from megaflow.front import Worker
from megaflow.timely.dataflow.input import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.explain import Question
from megaflow.timely.rescale.messages import Aborted, Joined, Left
from megaflow.timely.rescale.messages import Event as MembershipEvent

TOPIC = "control"
EXPLAIN_SECONDS = 5.0  # after that whoever has not said what it holds is named
EXPLAINING_MAX = 100  # questions of that kind under way
EARLY_MAX = 10_000  # reports kept for a coordinator; each worker sends ten a second


class Client(Protocol):
    """Whoever asked something."""

    def send(self, message: Answer) -> None:
        """Send an answer; nothing happens if the client is gone."""


class Agent:
    """What a worker says of itself, and its way to the coordinator."""

    def __init__(
        self,
        worker: Worker,
        address: str,
        lines: Callable[[], int],
        lateness: Lateness,
        waiting: Callable[[float], int | None] = lambda now: 0,
        moved: Callable[[Coordinates], None] = lambda word: None,
    ) -> None:
        """`address` is the process's port; `lines` tells how many lines were read, `lateness` how late they were.

        `waiting` tells how many are due now and not read, None if nobody knows; `moved` is called when another
        coordinator says that it serves.
        """
        self._worker = worker
        self._moved = moved
        self._address = address
        self._lines = lines
        self._lateness = lateness
        self._waiting = waiting
        self._began = worker.now()
        self._rate = RateMeter()
        self._coordinator: Coordinator | None = None
        self._successor: int | None = None  # it has coordinated, and this one does now
        self._forwarded: list[Mailed] = []  # for the coordinator that this worker is to be
        self._early: list[Mailed] = []  # likewise, and sent directly
        self._learning = False  # this worker has joined, and its operators do not all know their tables
        worker.on_mail(TOPIC, self._read)

    def coordinate(self, coordinator: "Coordinator") -> None:
        """Give what workers report to `coordinator`, which is here, what has come already included."""
        self._coordinator, self._successor = coordinator, None
        for mailed in (*self._forwarded, *self._early):
            coordinator.put(mailed)
        self._forwarded.clear()
        self._early.clear()

    def hand_over(self, successor: int, reports: Iterable[Mailed]) -> None:
        """Forward to another worker what workers still report here, and these reports first."""
        self._coordinator, self._successor = None, successor
        for mailed in reports:
            self._take(mailed, forwarded=False)

    def joined(self) -> None:
        """Tell the coordinator when the stateful operators know their tables; for a worker that has just joined."""
        self._learning = True

    def report(self, body: object) -> None:
        """Tell the coordinator."""
        self._worker.post(self._worker.membership.coordinator, TOPIC, body)

    def turn(self, now: float, open_epoch: int | None) -> None:
        """Do the books between two steps; `open_epoch` is the first that may still have output, None if none has."""
        self._lateness.settle(open_epoch, now)
        self._rate.observe(now, self._records())
        views = self._worker.stateful
        if self._learning and all(view.ready for view in views):
            self._learning = False
            seconds = max((view.bootstrap_seconds for view in views), default=0.0)
            self.report(RoutingReady(self._worker.index, seconds))

    def _read(self, source: int, body: Any) -> None:
        match body:
            case StatusAsk(id, loads):
                self._worker.post(source, TOPIC, self.status(id, loads))
            case Coordinates():
                self._moved(body)
            case Forwarded(origin, report):
                self._take(Mailed(origin, report), forwarded=True)
            case _:
                self._take(Mailed(source, body), forwarded=False)

    def _take(self, mailed: Mailed, forwarded: bool) -> None:
        if self._coordinator is not None:
            self._coordinator.put(mailed)
        elif self._successor is not None:
            self._worker.post(self._successor, TOPIC, Forwarded(mailed.source, mailed.body))
        elif len(self._forwarded) + len(self._early) < EARLY_MAX:
            (self._forwarded if forwarded else self._early).append(mailed)
        else:
            raise ProtocolError(
                f"worker {mailed.source} mailed {mailed.body!r:.100} to worker {self._worker.index}, which does not "
                f"coordinate the job and has {EARLY_MAX} reports to a coordinator already"
            )

    def _records(self) -> int:
        return sum(view.records for view in self._worker.stateful)

    def status(self, id: int, loads: bool = False) -> WorkerStatus:
        """The answer to the question `id`; the ledger's new rows go with it, once. `loads` take their time."""
        views = self._worker.stateful
        now = self._worker.now()
        self._rate.observe(now, self._records())
        recent = self._lateness.log.recent()
        return WorkerStatus(
            id=id,
            worker=self._worker.index,
            pid=os.getpid(),
            address=self._address,
            lines=self._lines(),
            records=self._records(),
            records_per_second=self._rate.per_second(),
            latency_ms_p50=recent.quantile(0.5),
            latency_ms_p99=recent.quantile(0.99),
            latency_ms_max=recent.max_ms,
            bins={view.name: len(view.owned()) for view in views},
            keys={view.name: view.keys() for view in views},
            ledger=tuple(
                LedgerEntry(view.name, row.bin, row.time, row.source, row.target, row.bytes, row.keys, row.seconds)
                for view in views
                for row in view.take_ledger()
            ),
            loads=tuple(
                operator_load(view.name, view.load(), view.keys_by_bin(), view.bytes_by_bin(), view.bin_of_key)
                for view in views
            ) if loads else (),
            now=now,
            busy_seconds=now - self._began - self._worker.parked_seconds,
            done=self._lateness.done,
            waiting=self._waiting(now),
            useful={view.name: (view.records, view.meter.busy_seconds) for view in views},
        )


@dataclass(frozen=True, slots=True)
class Explaining:
    """A client's question what holds the output back, under way."""

    asked: Asked
    epoch: int  # of the control stream when it was asked
    frontier: int | None  # of the output
    question: Question | None  # to the workers; None: nothing holds it back
    end: float  # seconds of the worker's clock: wait no longer


class Coordinator:
    """Feeds the controller with events and does what it says."""

    def __init__(
        self,
        worker: Worker,
        controller: Controller,
        control: InputHandle[Any],
        job: str,
        output: ProbeHandle,
        start: Callable[[StartProcesses], None] | None = None,
        contact: tuple[str, int] = ("", 0),
        hand_over: Callable[[HandOver, Sequence[Event]], None] = lambda word, rest: None,
    ) -> None:
        """`control` is the handle of the control stream, which has no other writer; `output` watches the outputs.

        `start` asks the launcher for processes that join through `contact`, the address of this process. `hand_over` is
        told the controller's last word, and what has come since: then nothing may be put here any more.
        """
        self._job = job
        self._start = start
        self._hand_over = hand_over
        self._contact = contact
        self._output = output
        self._explaining: list[Explaining] = []
        self._worker = worker
        self._controller = controller
        self._control = control
        self._events: deque[Event] = deque()  # put by handlers on the worker's thread, drained by `turn`
        worker.rescaling.subscribe(self._notice)
        if worker.rescaling.coordinator is not None:  # else nobody can join
            worker.rescaling.coordinator.veto = self._admit

    def put(self, event: Asked | Gone | Mailed | Launched) -> None:
        """Have an event handled in the next turn, at once."""
        if isinstance(event, Asked) and isinstance(event.request.body, ExplainQuery):
            self._explain(event)
        else:
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
            self._do(self._controller.handle(Ticked(open_epoch), now))
        return self._controller.seconds_to_tick(now)

    def _explain(self, asked: Asked) -> None:
        """Ask all workers what they hold. The controller is not concerned: nothing changes."""
        if len(self._explaining) >= EXPLAINING_MAX:
            reason = f"{EXPLAINING_MAX} such questions are being answered already"
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
            facts = (self._job, each.epoch, each.frontier, question is None)
            record = explanation_record(*facts)
            if question is not None:
                self._worker.explainer.forget(question)
                record = explanation_record(*facts, question.holdings(), question.silent)
            answer(each.asked.client, Done(each.asked.request.id, record))
        self._explaining = waiting

    def _do(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Inject(command):
                    self._control.send(command)
                case Advance(time):
                    self._control.advance_to(time)
                case CloseControl():
                    self._control.close()
                case Reply(client, message):
                    answer(client, message)
                case Mail(target, body):
                    self._worker.post(target, TOPIC, body)
                case StartWorkers(count):
                    self._start_processes(count)
                case Retire(worker):
                    self._worker.rescaling.ask_leave(worker, lambda reason: self._left(worker, reason))
                case GiveUp(reason):
                    self._worker.rescaling.give_up(reason)
                case HandOver():
                    self._leave(instruction)

    def _leave(self, word: HandOver) -> None:
        """Hand over, and all that nobody has answered with it."""
        rest = [*self._events, *(each.asked for each in self._explaining)]
        for each in self._explaining:
            if each.question is not None:
                self._worker.explainer.forget(each.question)
        self._events.clear()
        self._explaining.clear()
        self._hand_over(word, rest)

    # The membership

    def _admit(self, kind: str, ids: tuple[int, ...]) -> str | None:
        return self._controller.admit(kind, ids, self._worker.now())

    def _start_processes(self, count: int) -> None:
        if self._start is not None:
            self._start(StartProcesses(count, *self._contact))
        else:
            self._events.append(Launched(StartFailed("nobody is there who could start a process")))

    def _notice(self, event: MembershipEvent) -> None:
        """Have the controller told what the engine has done; of a leave that was refused `ask_leave` tells."""
        if self._controller.handed_over:
            return
        match event:
            case Joined(_, ids, members, (host, port, _), seconds, size):
                self._events.append(WorkersJoined(ids, members, host, port, seconds, size))
            case Left(_, ids, members):
                self._events.append(WorkersLeft(ids, members))
            case Aborted(_, ids, reason) if not self._worker.membership.workers.intersection(ids):
                self._events.append(ChangeRefused(ids, reason))

    def _left(self, worker: int, reason: str | None) -> None:
        if reason is not None:
            self._events.append(ChangeRefused((worker,), reason))


def answer(client: Any, message: Answer) -> None:
    """Send an answer to a client of the controller's, which knows it by identity only."""
    asker: Client = client
    asker.send(message)
