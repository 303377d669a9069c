"""What the launcher and its worker processes say to each other (role "launcher"): lines, outputs, more processes.
And what the launcher is asked at its side door, see `megaflow.job.side_door`.

The receiver checks every record; none is trusted for its type. `Coordinates` goes to all workers, too, and the
coordinator's controller takes what the launcher answers to `StartProcesses`. Checkpoints have a vocabulary of
their own, `megaflow.control.checkpoint_messages`.
"""

from dataclasses import field
from typing import Any

from megaflow.control.checkpoint_messages import CutFailed, CutWritten, TokensAt
from megaflow.control.reports import BusyWorker
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines from the launcher's stdin or iterable, for the source of the first worker of the coordinator's process.

    Or items of any type that the program gives, each encoded.
    """

    lines: list[str] | list[bytes]
    input: str = ""  # whose they are; "": the job's only ones, which have no name


@dataclass(frozen=True, slots=True)
class LinesEnded:
    """The launcher has no more lines, or those that follow go elsewhere: another process coordinates the job now."""

    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class LinesTaken:
    """The source has taken in this many lines since the last report: credit for the launcher."""

    count: int


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Output of one epoch from one worker, in order: records, or lines that show them."""

    worker: int
    epoch: int
    records: list[Any]
    output: str = ""  # whose they are; "": of the stream that the dataflow function returns


@dataclass(frozen=True, slots=True)
class OutputClosed:
    """No output of this worker before `epoch` is still to come; None: none at all."""

    worker: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class HoldOutput:
    """The launcher has as many outputs as it may keep: no more of them are to come until it says so."""

    hold: bool


@dataclass(frozen=True, slots=True)
class LatencyWindow:
    """How late the lines were that were done in one tenth of a second."""

    start: float  # wall clock, seconds
    buckets: dict[int, int]  # bucket of `megaflow.control.latency` -> lines
    max_ms: float


@dataclass(frozen=True, slots=True)
class ToldOnce:
    """A worker has met something for the first time that the user is to know of, once in a run."""

    worker: int
    about: str  # the same for all that is of one kind, whichever worker says it
    text: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What waits for event time, or for the job's clock."""

    windows: int = 0
    timers: int = 0  # for timestamps
    clock_timers: int = 0

    def __add__(self, other: "Unfinished") -> "Unfinished":
        return Unfinished(
            self.windows + other.windows, self.timers + other.timers, self.clock_timers + other.clock_timers
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is done: its share of the final account."""

    worker: int
    lines: int
    records: int
    latency: tuple[LatencyWindow, ...] = ()  # oldest first; what before, during and after a move is read from
    flow: tuple[float, float] | None = None  # seconds on its machine's clock: first line read, last epoch closed
    cut: CutWritten | CutFailed | None = None  # for the checkpoint at the end; None: it has no part in one
    skipped: dict[str, int] = field(default_factory=dict)  # input -> lines that were left out, as they cannot be parsed
    sinks: TokensAt | CutFailed | None = None  # likewise, of its sinks
    replaced: dict[str, int] = field(default_factory=dict)  # input -> sequences of bytes that are not text
    open: Unfinished = Unfinished()  # that are left
    early: Unfinished = Unfinished()  # that were closed, or fired, only because the job has ended
    deadline: int | None = None  # microseconds, the greatest watermark that one of these would have waited for


@dataclass(frozen=True, slots=True)
class Draining:
    """The coordinator was asked to stop the job: from now on it works off what it has."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker raised: the text to show, last and alone."""

    worker: int
    text: str
    unfit: bool = False  # no traceback, but one line: the store and the program do not fit


@dataclass(frozen=True, slots=True)
class StartProcesses:
    """The coordinator asks the launcher for more processes, which join through this address."""

    count: int
    host: str
    port: int
    number: int = 0  # of this request; it comes back in the answers
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class Started:
    """The launcher has started processes that it was asked for; they will join from these addresses."""

    addresses: tuple[tuple[str, int], ...]  # where each listens
    number: int = 0  # of the request
    pids: tuple[int, ...] = ()  # of each


@dataclass(frozen=True, slots=True)
class StartFailed:
    """After `Started`: one of these processes has ended before it had joined. Instead of it: none could be started."""

    reason: str
    number: int = 0  # of the request
    address: tuple[str, int] | None = None  # of the process that has ended


@dataclass(frozen=True, slots=True)
class StartWaits:
    """So many of the processes that the launcher was asked for cannot be started yet."""

    number: int  # of the request
    count: int
    reason: str  # what they wait for, and what would help


@dataclass(frozen=True, slots=True)
class EndProcess:
    """The coordinator asks the launcher to kill a process that it has started and that does not join."""

    host: str
    port: int
    reason: str  # why the coordinator waits no longer


@dataclass(frozen=True, slots=True)
class ProcessJoined:
    """A process has become part of the job: outputs of these workers will come from there."""

    host: str
    port: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinates:
    """From now on the process that listens there coordinates the job."""

    host: str
    port: int


# At the side door ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WhoIsBusy:
    """Ask the launcher which workers are in a step that takes long, answered by `BusyReport`."""


@dataclass(frozen=True, slots=True)
class BusyReport:
    """Who does not answer because it is busy, and since when."""

    busy: tuple[BusyWorker, ...]  # the longest first, BUSY_REPORTED_MAX at most
    coordinating: tuple[int, ...]  # the workers of the process that coordinates the job
    output: str = ""  # what the output waits for, if that is another one than the workers


@dataclass(frozen=True, slots=True)
class DropName:
    """Ask the launcher to have no checkpoint kept by this name, answered by `NameDropped`."""

    name: str


@dataclass(frozen=True, slots=True)
class NameDropped:
    """It is done, and durable."""

    refused: str | None = None  # why it is not


@dataclass(frozen=True, slots=True)
class EndNow:
    """Have the launcher end the job at once, whatever its workers do; answered by `EndsNow`, before it has."""


@dataclass(frozen=True, slots=True)
class EndsNow:
    """The job ends."""
