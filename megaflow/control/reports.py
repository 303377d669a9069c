"""Reports of a job: its status, what holds its output back, and the results of finished commands.

All are values that cross processes. A worker reports on itself, the coordinator adds the reports up, and a client shows
the sum. None of them contains the job's secret. The command line formats them as text and JSON.
"""

from dataclasses import field
from typing import Any

from megaflow.control.watermark_messages import WatermarkStatus
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import Time

KEYS_REPORTED_MAX = 16  # of one operator: those that certainly have the most records
BUSY_REPORTED_MAX = 64
BLOCKING_LIMITS = ("queues", "network", "launcher", "epochs", "pace")
"""Limits that hold a source back: see `megaflow.job.worker.reading.reading_pace.HeldBack`."""


# The status ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """Latency of lines, from read (or due) until their epoch closed."""

    p50: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class UsefulTime:
    """Records that one operator has applied so far on one worker."""

    records: int = 0
    useful_seconds: float = 0.0  # spent on these records
    late: int = 0  # records that were late for all their windows
    overtaken: int = 0  # late records by the watermark alone: their partition was idle, or is new


@dataclass(frozen=True, slots=True)
class BusyWorker:
    """A worker that has been in one step for more than a second, or all workers of a process that is silent."""

    workers: tuple[int, ...]  # empty: the process has not joined yet
    pid: int
    seconds: float  # so far
    state: str  # busy, silent (no message comes from its process) or suspended
    function: str | None = None  # the innermost function of the user's code; None: not known
    where: str | None = None  # file:line in that function
    operator: str | None = None
    record: str | None = None  # as text
    waits: str | None = None  # for which other system, such as a database, and since how many attempts


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Progress of one partition of a source, as the worker that reads it reports."""

    input: str
    partition: str  # as text
    position: str  # as text, after the records that were read ahead; "": not yet begun
    lag: int | None  # records that exist and are not read; None: the source does not report it


@dataclass(frozen=True, slots=True)
class MissingPartition:
    """A partition of a source, such as a followed file, that no process has opened so far, with unread bytes."""

    input: str
    why: str  # what the processes lack, and why
    worker: int  # that holds it and tries again
    tried: tuple[int, ...]  # the workers of all processes that cannot open it, sorted
    unread: int | None  # bytes; None: unknown


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink on one worker."""

    sink: str
    committed: int | None  # the last checkpoint, or flush, from which it committed rows; None: none
    waiting: int  # rows that are written and not committed
    written: int = 0  # rows since the worker began


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram of durations since the worker began."""

    counts: tuple[int, ...] = ()  # in each bucket of `megaflow.control.latency.BOUNDS_SECONDS`; (): none so far
    seconds: float = 0.0  # their sum


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker's part of the status."""

    id: int
    state: str  # running, joined (has no routing table yet) or leaving, as the coordinator reports
    pid: int
    address: str
    lines: int  # read so far
    records: int  # applied by stateful operators so far
    records_per_second: float  # over the last second or so
    latency_ms: LatencyQuantiles  # of the last ten busy seconds
    bins: int  # owned, of one operator: all operators share one table
    keys: int  # held, of all operators
    done: int = 0  # lines so far whose epoch has closed
    waiting: int | None = 0  # lines due and not read; None: some, of unknown number, as there is no rate
    now: float = 0.0  # seconds of its own clock, when it answered
    busy_seconds: float = 0.0  # so far: spent working
    useful: dict[str, UsefulTime] = field(default_factory=dict)  # operator -> applied so far
    timers: int | None = None  # set and not due, of all operators; None: not asked for
    partitions: tuple[PartitionLag, ...] = ()  # of sources; those that it reads
    inputs: dict[str, int] = field(default_factory=dict)  # named input -> lines, or rows, read so far
    skipped: dict[str, int] = field(default_factory=dict)  # input, "" without a name: faults that were left out
    replaced: dict[str, int] = field(default_factory=dict)  # likewise: sequences of bytes that are not text
    read_counts: dict[str, dict[str, int]] = field(default_factory=dict)  # kind -> input: see `wording.READ_COUNTS`
    sinks: tuple[SinkStatus, ...] = ()  # that the program writes to, by name
    memory_bytes: int | None = None  # resident, of its process with all its workers; None: not known
    blocked_seconds: dict[str, float] = field(default_factory=dict)
    """So far, while there were lines to read and the source was not allowed to, by one of `BLOCKING_LIMITS`."""
    outputs: dict[str, int] = field(default_factory=dict)  # output, "" for the returned stream -> records so far
    arrived: dict[str, int] = field(default_factory=dict)  # operator -> bins that have moved here so far
    pauses: Durations = Durations()  # of these bins, from taken out to installed
    latencies: Durations = Durations()  # of all lines that are done


@dataclass(frozen=True, slots=True)
class OperatorLoad:
    """Load of one stateful operator over the last seconds, with one entry per bin, heaviest first."""

    operator: str
    bins: tuple[int, ...]
    records_per_second: tuple[float, ...]
    busy_ms_per_second: tuple[float, ...]
    keys: tuple[int, ...]
    bytes: tuple[int, ...]  # about
    hot_keys: tuple[tuple[str, int, float, float], ...]  # (key as text, bin, records per second, error of that)


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
    """A plan that has not ended."""

    number: int
    strategy: str
    batch: int | None  # bins a step, for some strategies
    gap_seconds: float  # between steps
    bins: int  # that it moves in total
    left: int  # bins still to move
    runner: str  # the client that makes the steps, as text
    running: bool  # whether the runner is there
    removes: int | None = None  # the worker whose process leaves then


@dataclass(frozen=True, slots=True)
class ChangeStatus:
    """A requested change of the membership that is not done."""

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
    seconds: float  # since it was requested or, if started by hand, since its turn came
    workers: tuple[int, ...]  # its workers, once they are members
    waits: str  # the condition that it waits for


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A bin that was moved and installed, as its new owner reports."""

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
    """The last committed checkpoint, and whether the next one succeeds."""

    number: int | None = None  # None: there is none yet
    epoch: int = 0  # it contains the effects of all earlier epochs
    age_seconds: float = 0.0  # since it was committed
    bytes: int = 0  # written for it; 0 if it was made before the job began
    seconds: float = 0.0  # from its beginning until it was committed
    under_way: bool = False  # the next one
    failing_seconds: float | None = None  # since the first later checkpoint failed; None: none has
    reason: str | None = None  # why the last one failed
    total_bytes: int = 0  # written for all checkpoints since the job began or resumed


@dataclass(frozen=True, slots=True, repr=False)
class JobStatus:
    """A running job, as its coordinator and workers report it.

    If the coordinator is busy, only the job's name and the busy workers are known: the state is "busy" and the epoch
    None. The epoch is also None if the state is "recovering": the job has lost a process and is about to resume. If the
    launcher does not answer either, the state is "silent".
    """

    job: str
    state: str  # starting, running, ending, stopping; or busy, recovering, silent
    epoch: int | None
    frontier: int | None  # output is complete before it; None: all is
    workers: tuple[WorkerStatus, ...]  # by id; without silent ones
    operators: tuple[OperatorStatus, ...]
    pending: tuple[PendingMove, ...] = ()
    plan: PlanStatus | None = None
    changes: tuple[ChangeStatus, ...] = ()
    ledger: tuple[LedgerEntry, ...] = ()  # the newest last
    joining: tuple[JoiningStatus, ...] = ()
    silent: tuple[int, ...] = ()  # workers that have not answered, sorted
    busy: tuple[BusyWorker, ...] = ()  # as the launcher reports, if some are silent
    checkpoint: CheckpointStatus | None = None  # None: nothing is durable
    watermark: WatermarkStatus | None = None  # None: no operator takes timestamps
    restart: str | None = None  # which restart of how many, while it recovers
    output: str | None = None  # what the job waits for, as the launcher reports; None: only for the workers
    launcher: str | None = None  # why it does not answer, if the state is "silent"
    attempt: int = 0  # launches and restarts that the store has seen; 0: there is none, or no worker has answered
    missing: tuple[MissingPartition, ...] = ()  # that their holders cannot open
    taken_before: dict[str, int] = field(default_factory=dict)  # input with a name -> lines read by workers that left

    def __repr__(self) -> str:
        lines, records = (sum(getattr(each, what) for each in self.workers) for what in ("lines", "records"))
        counts = f"workers {len(self.workers)}, epoch {self.epoch}, lines {lines}, records {records}"
        return f"<JobStatus: {self.job!r} is {self.state}; {counts}>"


# Explanations -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A capability or record in one operator that keeps an epoch open."""

    operator: str
    where: str  # file:line of its declaration
    port: str  # output 0: capabilities; input 0: records
    worker: int | None  # None: between two workers
    epoch: Time
    count: int
    kind: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons that hold a job's output back."""

    job: str
    epoch: int | None  # of the control stream; None: the coordinator is busy
    frontier: int | None  # the epoch that is held open; None: none is
    settled: bool  # the output is as complete as it can be
    held_by: tuple[HeldBy, ...] = ()  # as all workers but the silent ones report
    silent: tuple[int, ...] = ()  # workers that have not answered, sorted
    joining: tuple[JoiningStatus, ...] = ()  # processes on their way in, which may hold the end or a change back
    busy: tuple[BusyWorker, ...] = ()  # as the launcher reports, if some are silent
    watermark: WatermarkStatus | None = None  # also what holds the watermark back; None: no operator takes timestamps
    output: str | None = None  # what the job waits for, as the launcher reports; None: only for the workers
    missing: tuple[MissingPartition, ...] = ()  # partitions that their holders cannot open


# Accounts -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepReport:
    """A reconfiguration that has taken effect."""

    epoch: int
    bins: int  # each in all operators
    bytes: int
    keys: int
    seconds: float
    operators: int = 1


@dataclass(frozen=True, slots=True)
class MoveReport:
    """The steps of a plan, in total."""

    steps: int
    bins: int  # each in all operators
    bytes: int
    keys: int
    seconds: float
    epochs: tuple[int, ...]  # one a step
    operators: int = 1


@dataclass(frozen=True, slots=True)
class JoinedProcess:
    """A process that has joined, and the phases of its join."""

    workers: tuple[int, ...]
    seconds: dict[str, float]  # phase -> duration
    bytes: int  # of progress
    paused_seconds: float  # the longest wait of its records for a routing table


@dataclass(frozen=True, slots=True)
class JoinReport:
    """Processes that were added, and the reasons why others were not."""

    joins: tuple[JoinedProcess, ...]
    failed: tuple[str, ...]  # a reason for each process that is missing


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """A process that has left."""

    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class BootstrapReport:
    """A worker that has received its routing table."""

    worker: int
    server: int | None = None  # the sender of the table; None, like `epoch`: it had its table already
    epoch: int | None = None
    seconds: float = 0.0
    paused_seconds: float = 0.0  # that its records waited for the table


@dataclass(frozen=True, slots=True)
class StateReport:
    """An operator's state of a key after all records of earlier epochs."""

    operator: str
    key: Any  # the meaning of the words that were typed
    state: str | None  # in the requested form; None: there is none
    epoch: int
    worker: int  # that owned the key
