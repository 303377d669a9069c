"""What the coordinator's events and instructions mean to those who watch the job: numbered `JobEvent`s.

1. The feed only observes. The driver shows it each event of the controller with the instructions that came back, so no
   decision depends on the feed, and the controller does not know it.
2. Most events tell watchers nothing. For these, the feed compares a few types and one identity, and makes no objects.
   It keeps its events whether or not somebody watches: there are a few for each command and checkpoint, not for each
   record, and whoever begins to watch sees what has happened.
3. The feed keeps the newest EVENTS_MAX events, and fewer if they name more than BINS_MAX bins together. A watcher that
   asks for older ones learns how many are lost.
4. Numbers have no gap. The events and the next number travel to the next coordinator with the state of the job, see
   `job_state`. So a watcher that asks there for its next number misses nothing and sees nothing twice.
5. If an owner changes, the feed compares the routing table with the last one. So it names the bins that change owners,
   whichever command moved them.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from megaflow.control import job_events, messages
from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CommitFailed,
    Committed,
)
from megaflow.control.coordinator.base import events
from megaflow.control.coordinator.base.events import Asked, Event, Instruction, Mailed, Reply
from megaflow.control.coordinator.base.job_state import FeedState
from megaflow.control.job_events import Body, EventsPart, JobEvent
from megaflow.control.launcher_messages import StartFailed
from megaflow.control.reports import StepReport
from megaflow.megaphone.base.routing import RoutingTable, difference
from megaflow.timely.communication.address import address_text
from megaflow.timely.order import grouped
from megaflow.timely.rescale.messages import Joined, Left

EVENTS_MAX: Final = 1_000
BINS_MAX: Final = 1 << 16
OPEN_MAX: Final = 1_000  # commands whose names are kept until they are answered

COMMANDS: Final = {
    messages.BeginPlan: "move-bins",
    messages.ResumePlan: "resume",
    messages.Reconfigure: "move-bins",
    messages.TryBins: "add-workers",
    messages.AddProcesses: "add-workers",
    messages.RemoveWorker: "remove-workers",
    messages.CancelQueued: "remove-workers",
    messages.BootstrapWorker: "bootstrap",
    messages.StopJob: "stop",
    messages.CheckpointJob: "checkpoint",
}
"""The names of requests that change the job, as the command line has them."""


class EventFeed:
    """The events of a job, as its coordinator sees them. One writer: the driver."""

    def __init__(
        self, attempt: int, worker: int, workers: Iterable[int], table: RoutingTable, clock: Callable[[], float],
        state: FeedState | None = None,
    ) -> None:  # fmt: skip
        """`clock` returns seconds since 1970; `state` is that of the previous coordinator of the attempt."""
        self.attempt = attempt
        self.next = 1 if state is None else state.next
        self._clock = clock
        self._table = table
        self._kept: deque[JobEvent] = deque(() if state is None else state.events)
        self._bins = sum(map(_bins_of, self._kept))
        self._open: dict[tuple[Hashable, int], str] = {}  # (client, request) -> command
        self._begun: dict[int, float] = {}  # checkpoint under way -> seconds of the monotonic clock
        self._sizes: dict[int, int] = {}  # checkpoint that is being committed -> bytes
        self._add(job_events.CoordinatorStarted(worker, tuple(sorted(workers)), state is not None))

    def observe(self, event: Event, said: Sequence[Instruction], table: RoutingTable, now: float) -> None:
        """Take in an event of the controller and what it has led to; `table` is the routing table after it."""
        match event:
            case events.Ticked():
                pass
            case Mailed(source, body):
                self._mailed(source, body)
            case Asked():
                self._asked(event)
            case Joined(process=(host, port, workers)):
                self._add(job_events.WorkersJoined(workers, address_text((host, port))))
            case Left(ids=workers):
                self._add(job_events.WorkersLeft(workers))
            case events.ChangeRefused(workers, reason):
                self._add(job_events.ChangeFailed(workers, reason))
            case StartFailed(reason):
                self._add(job_events.ChangeFailed((), reason))
            case Committed(number):
                seconds = now - self._begun.pop(number, now)
                self._add(job_events.CheckpointCommitted(number, self._sizes.pop(number, 0), seconds))
            case CommitFailed(number, reason):
                self._failed(number, reason)
            case events.Gone(client):
                self._open = {key: name for key, name in self._open.items() if key[0] != client}
        if table is not self._table:
            before, self._table = self._table, table
            epochs = [each.message.epoch for each in said if _is_accepted(each)]  # type: ignore[union-attr]
            self._add(job_events.StepBegun(epochs[0] if epochs else 0, tuple(difference(before, table))))
        for each in said:
            self._instructed(each, now)

    def part(self, query: messages.WatchQuery) -> EventsPart | None:
        """Return the events that a watcher asks for; None if there are none yet."""
        first = query.next if query.attempt == self.attempt else 1
        if first >= self.next:
            return None
        oldest = self._kept[0].number
        after = tuple(each for each in self._kept if each.number >= first)
        return EventsPart(self.attempt, self.next, max(0, oldest - first), after)

    def nothing(self) -> EventsPart:
        """Return the answer without events."""
        return EventsPart(self.attempt, self.next, 0, ())

    def state(self) -> FeedState:
        """Return what the next coordinator continues from."""
        return FeedState(self.next, tuple(self._kept))

    def _add(self, body: Body) -> None:
        added = JobEvent(self.attempt, self.next, self._clock(), body)
        self.next += 1
        self._kept.append(added)
        self._bins += _bins_of(added)
        while len(self._kept) > 1 and (len(self._kept) > EVENTS_MAX or self._bins > BINS_MAX):
            self._bins -= _bins_of(self._kept.popleft())

    def _asked(self, asked: Asked) -> None:
        body = asked.request.body
        if command := COMMANDS.get(type(body)):
            if len(self._open) < OPEN_MAX:
                self._open[asked.client, asked.request.id] = command
            if isinstance(body, messages.StopJob):
                self._add(job_events.StopRequested())

    def _mailed(self, source: int, body: object) -> None:
        match body:
            case messages.BinsInstalled(entries):
                groups = grouped(((each.operator, each.epoch, each.target), each) for each in entries)
                for (operator, epoch, worker), rows in groups.items():
                    bins = tuple(row.bin for row in rows)
                    total = sum(row.bytes for row in rows), sum(row.keys for row in rows)
                    longest = max(row.seconds for row in rows)
                    self._add(job_events.BinsArrived(operator, epoch, worker, bins, *total, longest))
            case messages.RoutingReady(worker, seconds):
                self._add(job_events.WorkerReady(worker, seconds))

    def _instructed(self, instruction: Instruction, now: float) -> None:
        match instruction:
            case Reply(client, message):
                self._replied(client, message)
            case events.StartWorkers(count):
                self._add(job_events.JoinBegun(count))
            case events.AskLeave(worker):
                self._add(job_events.LeaveBegun(worker))
            case CheckpointBegun(number, epoch):
                self._begun[number] = now
                self._add(job_events.CheckpointStarted(number, epoch, instruction.names))
            case CheckpointReady(number, segments):
                self._sizes[number] = sum(each.length for each in segments)
            case CheckpointAbandoned(number, reason):
                self._failed(number, reason)
            case events.CloseControl():
                self._add(job_events.InputEnded())

    def _replied(self, client: Hashable, message: events.Answer) -> None:
        if not isinstance(message, messages.Done | messages.Refused):
            return
        command = self._open.pop((client, message.id), None)
        match message:
            case messages.Refused(_, reason) if command is not None:
                self._add(job_events.RequestRefused(command, reason))
            case messages.Done(_, messages.KeptPlan() as plan):
                words = plan.number, plan.strategy, plan.bins, plan.runner, plan.removes
                self._add(job_events.PlanBegun(*words, resumed=command == COMMANDS[messages.ResumePlan]))
            case messages.Done(_, StepReport() as report):
                self._add(job_events.StepDone(report))

    def _failed(self, number: int, reason: str) -> None:
        self._begun.pop(number, None)
        self._sizes.pop(number, None)
        self._add(job_events.CheckpointFailed(number, reason))


def _is_accepted(instruction: Instruction) -> bool:
    return isinstance(instruction, Reply) and isinstance(instruction.message, messages.Accepted)


def _bins_of(event: JobEvent) -> int:
    """Return the number of bins that an event names."""
    body = event.body
    if isinstance(body, job_events.StepBegun):
        return len(body.moves)
    return len(body.bins) if isinstance(body, job_events.BinsArrived) else 0
