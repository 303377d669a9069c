"""What happens in a job, as one numbered sequence of values: page, metrics, `control watch` and logs read these.

The coordinator numbers the events of a job (see `megaflow.control.coordinator.controller.event_feed`). A client adds
`Recovering` and `Waiting`, which only the launcher knows, and `EventsLost` (see `megaflow.job.watching`).

1. The pair (attempt, number) identifies an event. Numbers are consecutive and continue when the coordinator moves to
   another worker. After the job has lost a process and resumed, they begin anew with a higher attempt.
2. No event contains a state or a record of the program. Names of operators and reasons are texts of any content.
"""

from typing import TypeAlias

from megaflow.control.reports import StepReport
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    """A worker coordinates the job from now on: at the start of an attempt, or because its predecessor leaves."""

    worker: int
    workers: tuple[int, ...]  # of the job, sorted
    taken_over: bool = False  # from a predecessor of the same attempt


@dataclass(frozen=True, slots=True)
class PlanBegun:
    """A client moves bins step by step, or continues a plan that was left."""

    plan: int
    strategy: str
    bins: int  # that it moves in total
    runner: str  # the client, as text
    removes: int | None = None  # the worker whose process leaves then
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class StepBegun:
    """Bins change owners at an epoch."""

    epoch: int
    moves: tuple[tuple[int, int, int], ...]  # (bin, from worker, to worker)


@dataclass(frozen=True, slots=True)
class BinsArrived:
    """Moved bins of one operator are complete at their new owner."""

    operator: str
    epoch: int  # of their step
    worker: int
    bins: tuple[int, ...]
    bytes: int
    keys: int
    seconds: float  # the longest time from taken out to installed: for that long, records of a bin waited


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step has taken effect."""

    report: StepReport


@dataclass(frozen=True, slots=True)
class JoinBegun:
    """Processes are being started, by `add-workers`."""

    processes: int


@dataclass(frozen=True, slots=True)
class WorkersJoined:
    """A process has joined, with these workers. They own no bins yet."""

    workers: tuple[int, ...]
    address: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that has joined knows the routing table."""

    worker: int
    paused_seconds: float  # the longest wait of its records for the table


@dataclass(frozen=True, slots=True)
class LeaveBegun:
    """The process of this worker is asked to leave."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    """A process has left, with these workers."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChangeFailed:
    """A process did not join or leave."""

    workers: tuple[int, ...]  # empty: it was never a member
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointStarted:
    """The coordinator has begun a checkpoint."""

    checkpoint: int
    epoch: int  # it contains the effects of all earlier epochs
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A checkpoint is durable."""

    checkpoint: int
    bytes: int
    seconds: float  # since it was begun


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint was abandoned, or could not be made durable."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A command has changed nothing."""

    command: str  # such as add-workers
    reason: str


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The job stops reading and ends when all lines that were read are processed."""


@dataclass(frozen=True, slots=True)
class InputEnded:
    """The sources close: no line follows."""


@dataclass(frozen=True, slots=True)
class Recovering:
    """The job has lost a process and resumes from its last checkpoint."""

    text: str  # which restart of how many


@dataclass(frozen=True, slots=True)
class Waiting:
    """A part of the job waits for another system, such as a database."""

    text: str  # for what, since when, and the number of attempts; "": no longer


@dataclass(frozen=True, slots=True)
class EventsLost:
    """So many earlier events are no longer kept."""

    count: int


Body: TypeAlias = (
    CoordinatorStarted | PlanBegun | StepBegun | BinsArrived | StepDone | JoinBegun | WorkersJoined | WorkerReady
    | LeaveBegun | WorkersLeft | ChangeFailed | CheckpointStarted | CheckpointCommitted | CheckpointFailed
    | RequestRefused | StopRequested | InputEnded | Recovering | Waiting | EventsLost
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One event of a job."""

    attempt: int  # of the job's store: how many launches and restarts it has seen; 0 without a store
    number: int  # from 1, consecutive; 0: a client has added it
    time: float  # seconds since 1970, by the coordinator's clock
    body: Body


@dataclass(frozen=True, slots=True)
class EventsPart:
    """The answer to a `WatchQuery`: events after the requested one, oldest first."""

    attempt: int
    next: int  # the number of the next event, to be asked for
    lost: int  # events after the requested one that the coordinator no longer has
    events: tuple[JobEvent, ...]
