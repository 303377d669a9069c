"""Messages between the launcher and its worker processes (role "launcher"): lines, outputs, more processes.
The messages of the launcher's admin socket are also here, see `megaflow.job.admin_socket`.

The receiver checks every record; it trusts no record for its type. `Coordinates` also goes to all workers. The
coordinator's controller receives the launcher's answers to `StartProcesses` and `TryToReach`. Messages about
checkpoints are in `megaflow.control.checkpoint_messages`.
"""

from typing import Any

from megaflow.control.checkpoint_messages import CutFailed, CutWritten, LeftOut, TokensAt
from megaflow.control.reports import BusyWorker, MissingPartition
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines from the launcher's stdin or iterable, for the source of the first worker of the coordinator's process.

    They can also be items of any type from the program, each encoded.
    """

    lines: list[str] | list[bytes]
    input: str = ""  # their input; "": the job's only one, which has no name


@dataclass(frozen=True, slots=True)
class LinesEnded:
    """The launcher has no more lines, or sends the rest elsewhere: another process coordinates the job now."""

    elsewhere: bool = False
    cut: tuple[str, ...] = ()  # inputs that a stop has cut off; their last lines may be parts of records


@dataclass(frozen=True, slots=True)
class LinesTaken:
    """The source has taken in this many lines since the last report: credit for the launcher."""

    count: int


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Output of one epoch from one worker, in order: records, or their text lines."""

    worker: int
    epoch: int
    records: list[Any]
    output: str = ""  # its name; "": the stream that the dataflow function returns


@dataclass(frozen=True, slots=True)
class OutputClosed:
    """This worker will send no further output before `epoch`; None: none at all."""

    worker: int
    epoch: int | None
    counts: tuple[tuple[int, int], ...] = ()  # of a durable job: (epoch, records in it) since the last message


@dataclass(frozen=True, slots=True)
class JobStopped:
    """Tell a process that was started by hand that the job has stopped; it answers with `StopNoted`.

    The launcher then ends the other processes, and this one loses its connections to them.
    """

    checkpoint: int  # at which it stopped


@dataclass(frozen=True, slots=True)
class StopNoted:
    """A process that was started by hand knows that the job has stopped."""


@dataclass(frozen=True, slots=True)
class HoldOutput:
    """Ask workers to hold back their output, because the launcher keeps as much as it may; or to go on sending."""

    hold: bool


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """Latencies of the lines that were done in one tenth of a second."""

    start: float  # wall clock, seconds
    buckets: dict[int, int]  # bucket of `megaflow.control.latency` -> lines
    max_ms: float


@dataclass(frozen=True, slots=True)
class ToldOnce:
    """A worker's notice for the user about something that it has met for the first time; shown once in a run."""

    worker: int
    about: str  # equal for all notices of one kind, from any worker
    text: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Counts of windows and timers that wait for event time or for the job's clock."""

    windows: int = 0
    timers: int = 0  # for timestamps
    clock_timers: int = 0

    def __add__(self, other: "Unfinished") -> "Unfinished":
        return Unfinished(
            self.windows + other.windows, self.timers + other.timers, self.clock_timers + other.clock_timers
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is done; this is its share of the final account."""

    worker: int
    lines: int
    records: int
    latency: tuple[LatencyWindow, ...] = ()  # oldest first; for the figures before, during and after a move
    flow: tuple[float, float] | None = None  # seconds on its machine's clock: first line read, last epoch closed
    cut: CutWritten | CutFailed | None = None  # for the checkpoint at the end; None: it takes no part in one
    sinks: TokensAt | CutFailed | None = None  # for the checkpoint at the end, as for `cut`
    open: Unfinished = Unfinished()  # still left
    early: Unfinished = Unfinished()  # closed, or fired, only because the job has ended
    deadline: int | None = None  # microseconds, the greatest watermark that any of these would have waited for
    left_out: LeftOut = LeftOut()
    missing: tuple[MissingPartition, ...] = ()  # partitions that no process could open; from the coordinator only
    keys: int = 0  # with a state, of all operators
    state_bytes: int = 0  # of these states, about


@dataclass(frozen=True, slots=True)
class Draining:
    """The coordinator was asked to stop the job; it now processes what it has read."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker raised an error; the launcher shows its text last and alone."""

    worker: int
    text: str
    unfit: bool = False  # one line, no traceback: the store and the program do not fit
    raised: str = ""  # the class of the error, as "module:name"
    passes: bool = False  # one line, no traceback: an external system was out of reach for too long


@dataclass(frozen=True, slots=True)
class StartProcesses:
    """Ask the launcher for more processes, which join through this address."""

    count: int
    host: str
    port: int
    number: int = 0  # of this request; the answers repeat it
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class Started:
    """The launcher has started the requested processes; they will join from these addresses."""

    addresses: tuple[tuple[str, int], ...]  # where each process listens
    number: int = 0  # of the request
    pids: tuple[int, ...] = ()  # of each


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A process ended before it joined (after `Started`), or none could be started (instead of `Started`)."""

    reason: str
    number: int = 0  # of the request
    address: tuple[str, int] | None = None  # of the process that ended


@dataclass(frozen=True, slots=True)
class StartWaits:
    """The launcher cannot start some of the requested processes yet."""

    number: int  # of the request
    count: int  # of processes that wait
    reason: str  # what they wait for, and what would help


@dataclass(frozen=True, slots=True)
class CancelStarts:
    """Ask the launcher to give up all processes that wait for a slot; it answers `StartFailed` for each."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Ask the launcher to kill a process that it has started and that does not join."""

    host: str
    port: int
    reason: str  # why the coordinator stops waiting


@dataclass(frozen=True, slots=True)
class TryToReach:
    """Ask the launcher to connect to a process that asks to join; it answers with `Reached`."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether the launcher can connect to a process that asks to join."""

    host: str
    port: int
    trouble: str = ""  # why it cannot, and what to do; "": it can


@dataclass(frozen=True, slots=True)
class ProcessJoined:
    """A process has become part of the job and will send the outputs of these workers."""

    host: str
    port: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """The process that listens at this address coordinates the job from now on."""

    host: str
    port: int


# At the admin socket ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhoIsBusy:
    """Ask the launcher which workers are in a long step; it answers with `BusyReport`."""


@dataclass(frozen=True, slots=True)
class BusyReport:
    """Workers that do not answer because they are busy, and for how long."""

    busy: tuple[BusyWorker, ...]  # the longest first, at most BUSY_REPORTED_MAX
    coordinating: tuple[int, ...]  # the workers of the coordinating process
    output: str = ""  # what the output or the input waits for, other than a worker


@dataclass(frozen=True, slots=True)
class DropName:
    """Ask the launcher to remove this name from its checkpoint; it answers with `NameDropped`."""

    name: str


@dataclass(frozen=True, slots=True)
class NameDropped:
    """The name is removed, durably, unless the launcher refused."""

    refused: str | None = None  # the reason; None: the name is removed


@dataclass(frozen=True, slots=True)
class WhereResults:
    """Ask where readers of another program find the job's results; the launcher answers with `ResultsAt`."""

    is_local: bool  # all readers are on this machine
    driver: str  # the name of this machine for executors, if Spark is right


@dataclass(frozen=True, slots=True)
class ResultsAt:
    """The port for readers, which is open from now on."""

    job: str = ""  # as offsets name it
    schema: str = ""  # as `StructType.json` writes it
    addresses: tuple[tuple[str, int], ...] = ()  # the likeliest first
    refused: str = ""  # why there are no results for them; "": there are


@dataclass(frozen=True, slots=True)
class EndNow:
    """Ask the launcher to end the job at once, whatever its workers do. It first answers with `EndsNow`."""


@dataclass(frozen=True, slots=True)
class EndsNow:
    """The launcher ends the job."""


@dataclass(frozen=True, slots=True)
class StopRestart:
    """Ask the launcher to stop a job that resumes after a loss and waits for processes. It answers `RestartStops`."""


@dataclass(frozen=True, slots=True)
class RestartStops:
    """Whether the job stops. False: it does not wait for processes, so its coordinator answers now or soon."""

    stops: bool
