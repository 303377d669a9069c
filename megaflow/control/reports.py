"""What a job reports of itself: its status, what holds its output back, and the accounts of commands that are done.

All are values that cross processes: a worker reports on itself, the coordinator adds the reports up, a client shows the
sum. None of them names the job's secret. How they look as text and JSON is the command line's to say.
"""

from dataclasses import field
from typing import Any

from megaflow.control.watermark_messages import WatermarkStatus
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import Time

KEYS_REPORTED_MAX = 16  # of one operator: those that certainly have the most records
BUSY_REPORTED_MAX = 64


# The status ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """How late lines were, from read (or due) to their epoch closed."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class UsefulTime:
    """What one operator has applied so far on one worker."""

    records: int = 0
    useful_seconds: float = 0.0  # spent on them
    late: int = 0  # of them, too late for all their windows
    overtaken: int = 0  # of these, late by the watermark alone: their partition was idle, or is new


@dataclass(frozen=True, slots=True)
class BusyWorker:
    """A worker that is in one step for more than a second, or all those of a process of which nothing is heard."""

    workers: tuple[int, ...]  # empty: those of a process that has not joined yet
    pid: int
    seconds: float  # so far
    state: str  # busy, silent (nothing is heard of its process) or suspended
    function: str | None = None  # the innermost one of the user's own code; None: not known
    where: str | None = None  # file:line in there
    operator: str | None = None
    record: str | None = None  # how it shows


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one partition of a source has been read, by the worker that reads it."""

    input: str
    partition: str  # as it shows
    position: str  # likewise, behind what was read ahead; "": it is to be read from its beginning
    lag: int | None  # records that are there and not read; None: the source does not say


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink on one worker."""

    sink: str
    committed: int | None  # the last checkpoint, or flush, of which it has committed something; None: none
    waiting: int  # rows that were written and are not committed


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker's part of the status."""

    id: int
    state: str  # running, joined (has no routing table yet) or leaving; the coordinator says which
    pid: int
    address: str
    lines: int  # read so far
    records: int  # applied by stateful operators so far
    records_per_second: float  # over the last second or so
    latency_ms: LatencyQuantiles  # of the last ten busy seconds
    bins: int  # owned, of one operator: all operators share one table
    keys: int  # held, of all operators
    done: int = 0  # lines so far whose epoch has closed
    waiting: int | None = 0  # lines due and not read; None: some are, and no rate says how many
    now: float = 0.0  # seconds of its own clock, when it answered
    busy_seconds: float = 0.0  # so far: not waiting for something to do
    useful: dict[str, UsefulTime] = field(default_factory=dict)  # operator -> applied so far
    timers: int | None = None  # set and not due, of all operators; None: not asked for
    partitions: tuple[PartitionLag, ...] = ()  # of sources, that it reads
    inputs: dict[str, int] = field(default_factory=dict)  # of those that have names: lines, or rows, read so far
    skipped: dict[str, int] = field(default_factory=dict)  # input, "" without a name: lines that cannot be parsed
    replaced: dict[str, int] = field(default_factory=dict)  # likewise: sequences of bytes that are not text
    sinks: tuple[SinkStatus, ...] = ()  # that the program writes to, by name


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """The load of one stateful operator over the last seconds; one entry per bin, heaviest first."""

    operator: str
    bins: tuple[int, ...]
    records_per_second: tuple[float, ...]
    busy_ms_per_second: tuple[float, ...]
    keys: tuple[int, ...]
    bytes: tuple[int, ...]  # about
    hot_keys: tuple[tuple[str, int, float, float], ...]  # (how it shows, bin, records per second, error of that)


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One stateful operator."""

    name: str
    bins: int
    table: tuple[int, ...] | None = None  # bin -> worker; None: not asked for
    load: OperatorLoad | None = None  # None: not asked for


@dataclass(frozen=True, slots=True)
class PendingMove:
    """A reconfiguration that has not taken effect yet."""

    epoch: int
    bins: int  # that change owner


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """A plan that is not over."""

    number: int
    strategy: str
    batch: int | None  # bins a step, for some strategies
    gap_seconds: float  # between steps
    bins: int  # that it moves, all together
    left: int  # bins that are still to move
    runner: str  # who makes the steps, for people
    running: bool  # whether the runner is there
    removes: int | None = None  # the worker whose process leaves then


@dataclass(frozen=True, slots=True)
class ChangeStatus:
    """A change of the membership that was asked for and is not done."""

    change: str  # the command
    processes: int | None = None  # to add
    server: int | None = None  # of a bootstrap
    worker: int | None = None  # to remove, or to bootstrap
    done: int = 0  # steps
    steps: int = 1
    waiting: bool = False  # for another change to end


@dataclass(frozen=True, slots=True)
class JoiningStatus:
    """A process on its way into the job."""

    address: str  # where it listens; empty before it is started
    pid: int | None  # None: it was started by hand, or is not started yet
    seconds: float  # since it was asked for, or, started by hand, since its turn came
    workers: tuple[int, ...]  # its workers, once they are members
    waits: str  # for what


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A bin that was moved and is installed; reported by its new owner."""

    operator: str
    bin: int
    epoch: int
    source: int  # worker
    target: int  # worker
    bytes: int
    keys: int
    seconds: float  # from taken out to installed


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The last checkpoint that was committed, and whether the next one will be."""

    number: int | None = None  # None: there is none yet
    epoch: int = 0  # it keeps the effects of all before
    age_seconds: float = 0.0  # since it was committed
    bytes: int = 0  # that were written for it; 0 if it was made before the job began
    seconds: float = 0.0  # from its begin until it was committed
    under_way: bool = False  # the next one
    failing_seconds: float | None = None  # since the first of those failed that were tried after it; None: none has
    reason: str | None = None  # why the last of these did


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A running job, as its coordinator knows it and its workers report it.

    If the coordinator is busy, only its name and who is busy are known: the state is "busy", the epoch None. The epoch
    is None, too, if the state is "recovering": the job has lost a process, and is about to go on.
    """

    job: str
    state: str  # starting, running, ending, stopping; or busy, recovering
    epoch: int | None
    frontier: int | None  # output is complete before it; None: all is
    workers: tuple[WorkerStatus, ...]  # by id; without those that are silent
    operators: tuple[OperatorStatus, ...]
    pending: tuple[PendingMove, ...] = ()
    plan: PlanStatus | None = None
    changes: tuple[ChangeStatus, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()  # the newest last
    joining: tuple[JoiningStatus, ...] = ()
    silent: tuple[int, ...] = ()  # workers that have not answered, sorted
    busy: tuple[BusyWorker, ...] = ()  # by the word of the launcher, if some are silent
    checkpoint: CheckpointStatus | None = None  # None: nothing is durable
    watermark: WatermarkStatus | None = None  # None: no operator takes timestamps
    restart: str | None = None  # which of how many, while it recovers
    output: str | None = None  # what that waits for, by the word of the launcher; None: for no one but the workers


# What holds the output back -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Something in one operator that keeps an epoch open."""

    operator: str
    where: str  # file:line of its declaration
    port: str  # output 0: capabilities; input 0: records
    worker: int | None  # None: between two workers
    epoch: Time
    count: int
    kind: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What holds a job's output back."""

    job: str
    epoch: int | None  # of the control stream; None: the coordinator is busy
    frontier: int | None  # the epoch that is held open; None: none is
    settled: bool  # the output is as far as it can be
    held_by: tuple[HeldBy, ...] = ()  # by the answers of all workers but the silent ones
    silent: tuple[int, ...] = ()  # workers that have not answered, sorted
    joining: tuple[JoiningStatus, ...] = ()  # processes on their way in, which may hold the end or a change back
    busy: tuple[BusyWorker, ...] = ()  # by the word of the launcher, if some are silent
    watermark: WatermarkStatus | None = None  # what holds it back, too; None: no operator takes timestamps


# Accounts -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepReport:
    """A reconfiguration that has taken effect."""

    epoch: int
    bins: int
    bytes: int
    keys: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The steps of a plan, all together."""

    steps: int
    bins: int
    bytes: int
    keys: int
    seconds: float
    epochs: tuple[int, ...]  # one a step


@dataclass(frozen=True, slots=True)
class JoinedProcess:
    """A process that has joined, and its way there."""

    workers: tuple[int, ...]
    seconds: dict[str, float]  # phase -> duration
    bytes: int  # of progress
    paused_seconds: float  # that records waited there for a routing table, at most


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Processes that were added, and why others were not."""

    joins: tuple[JoinedProcess, ...]
    failed: tuple[str, ...]  # a reason for each process that is missing


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """A process that has left."""

    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class BootstrapReport:
    """A worker that has its routing table."""

    worker: int
    server: int | None = None  # by whom it was given it; None, like `epoch`: it had its table already
    epoch: int | None = None
    seconds: float = 0.0
    paused_seconds: float = 0.0  # that records waited there for it


@dataclass(frozen=True, slots=True)
class StateReport:
    """An operator's state of a key after all records of the epochs before one."""

    operator: str
    key: Any  # what the words that were typed mean
    state: str | None  # in the form that was asked for; None: there is none
    epoch: int
    worker: int  # that owned the key
