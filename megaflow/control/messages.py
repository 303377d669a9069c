"""Messages between the parts of a running job; each conversation is a set of frozen records.

1. *On the control stream*, numbered, from the coordinator to every operator: the routing commands of
   `megaflow.megaphone.base.routing` and, for sources, `CommitBatch`, `ReadPushed`, `Withdraw`, `EndOfLines`.
2. *Client to coordinator* (role "control"): a `Request` with a body. The answer is `Refused`, or `Accepted`, any number
   of `CommandProgress`, and later `Done`.
3. *Worker to worker* (mail): reports of sources and joined workers to the coordinator, status, and trials of bins.

Other modules contain the other conversations:

- `megaflow.control.launcher_messages`: between the launcher and its processes
- `megaflow.control.reports`: the statuses and accounts that some records carry
- `megaflow.control.checkpoint_messages`: about checkpoints
- `megaflow.control.staging_messages`: about staged lines
- `megaflow.control.reading_messages`: about the workers that read splits and partitions
- `megaflow.control.watermark_messages`: about event time

The receiver checks every record with `megaflow.control.shapes`; it trusts no record for its type.
"""

from dataclasses import field
from typing import Any, Literal, TypeAlias

from megaflow.control.reports import LedgerEntry, OperatorLoad, WorkerStatus
from megaflow.control.watermark_messages import Partition
from megaflow.durable.incarnation import DurablePart
from megaflow.quick_dataclass import dataclass

# 1. On the control stream -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """A byte range of a file. The worker that holds it reads the lines that *start* in it.

    A file that is decoded as a stream is one split, and `skip` counts the bytes of its text that were read: see
    `megaflow.job.files.stream_reader`.
    """

    number: int  # unique in the job
    path: str
    start: int  # bytes
    end: int  # bytes, exclusive
    input: str = ""  # the input of its lines; "": the job's only one, which has no name
    skip: int = 0  # bytes of text
    encoding: str = ""  # Python's name; "": UTF-8
    compression: str = ""  # such as gzip; "": none
    maxima: tuple[tuple[str, int], ...] = ()  # (operator, the greatest timestamp that it has seen in earlier lines)
    natural: bool = False  # whether digits in names count as numbers, if the input is read in the order of names
    print: str = field(default="", compare=False)  # of the file up to `start`; "": the job has no store


@dataclass(frozen=True, slots=True)
class SplitEnd:
    """Where the last reader of a split has stopped."""

    print: str  # of the file up to there
    open_from: int | None = None  # byte of a record in which the file ends, so that a later run reads it; None: none
    end: int | None = None  # byte at which it has stopped, if the last line ends after the split; None: the split's end
    changed_ns: int = 0  # with `end`, the last modification of the file, which may have grown after the plan
    is_left_out: bool = False  # a fault has ended the file, so that later runs do not read what it gains


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Take exactly these staged attempts into the stream; discard the batch's others."""

    query: str
    run: str  # one call of foreachBatch
    batch: int
    winners: dict[int, tuple[int, int, int]]  # partition -> (worker, task attempt, lines)
    is_whole: bool = False  # whether all of its records enter at the epoch of the commit
    watermark: int | None = None  # microseconds; issued with the batch, so it acts on the records after it


@dataclass(frozen=True, slots=True)
class ParserPlace:
    """Progress of the parser of an input that the launcher sends, for the worker that continues to read it."""

    input: str
    line: int  # the number of the first line in `open`, or of the next line if `open` is empty; from 0
    head: tuple[str, ...] = ()  # the lines before the first record, as a header
    open: tuple[str, ...] = ()  # the lines of an incomplete record


@dataclass(frozen=True, slots=True)
class ReadPushed:
    """Read the launcher's lines on this worker from now on; the launcher sends them to its process."""

    worker: int
    places: tuple[ParserPlace, ...] = ()  # of the inputs that are parsed
    maxima: tuple[tuple[str, Partition, int], ...] = ()  # as in `PushedEnded`


@dataclass(frozen=True, slots=True)
class Withdraw:
    """These workers are leaving: their sources close, and return unread parts by `SplitsReturned`.

    No later command gives them lines. They have taken in all of Spark's lines that earlier commands gave them.
    """

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndOfLines:
    """There are no further lines: sources close."""


# 2. Client to coordinator -------------------------------------------------------------

RUNNER_LENGTH_MAX = 200  # characters
NO_REQUEST = -1
WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One question or command; the client chooses `id`, and every answer repeats it."""

    id: int
    body: Any


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Ask for the `JobStatus`; `Done` carries it."""

    bins: bool = False  # with a table per operator
    loads: bool = False  # and with loads by bin and by key
    partial: bool = False  # without workers that do not answer within ANSWER_SECONDS
    ledger: bool = True  # with the bins that moved last


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """Ask what holds the output back; `Done` carries an `Explanation`."""


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """Ask for the job's events from this one on; `Done` carries an `EventsPart`, without events after WATCH_SECONDS."""

    attempt: int  # whose events the client has seen; another one: ask for all that are kept
    next: int  # the number of the first event to return


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Change owners at one time, by `Move` and `Map` commands: all of them are valid, or none takes effect."""

    commands: tuple[Any, ...]
    plan: int | None = None  # the number of its plan; None: it belongs to none


@dataclass(frozen=True, slots=True)
class BeginPlan:
    """Announce the steps to a wanted table; each follows as a `Reconfigure`. `Done` carries the `KeptPlan`."""

    table: tuple[int, ...]  # bin -> worker, from which the plan was made; refused if it has changed meanwhile
    target: tuple[int, ...]  # bin -> worker, after the last step
    strategy: str
    batch: int | None  # bins a step, for some strategies
    gap_seconds: float  # between steps
    runner: str  # the process that makes the steps, as text
    removes: int | None = None  # the worker whose process leaves after the last step


@dataclass(frozen=True, slots=True)
class RenewPlan:
    """Report between two steps that the runner of this plan still exists; `Done` carries nothing."""

    number: int


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Take up the plan that has lost its runner; `Done` carries the `KeptPlan`."""

    runner: str  # the process that makes the steps from now on, as text


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The last plan that was begun, as the coordinator keeps it. Bins whose owner differs from `target` remain."""

    number: int  # unique; a command that takes the plan up gives it a new one
    target: tuple[int, ...]  # bin -> worker
    strategy: str
    batch: int | None
    gap_seconds: float
    bins: int  # that it moves in total
    runner: str
    over: bool = False  # the last step was issued, and the removal, if any, is in progress
    removes: int | None = None  # the worker whose process leaves after the last step


@dataclass(frozen=True, slots=True)
class TryBins:
    """Ask whether the contents of these bins can travel, as before a move; change nothing."""

    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddProcesses:
    """Start this many worker processes, let them join, and make their workers ready to own bins."""

    count: int
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class RemoveWorker:
    """Remove the process with this worker. Its workers must own no bins."""

    worker: int
    ask_only: bool = False  # change nothing: answer whether it could leave, apart from its bins


@dataclass(frozen=True, slots=True)
class CancelQueued:
    """Give up the processes to be added that wait for a slot. The answer is their number."""


@dataclass(frozen=True, slots=True)
class BootstrapWorker:
    """Give a worker that has joined the routing table of `server`."""

    server: int
    worker: int


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop reading, process all lines that were read, and end."""

    drain: bool = True  # whether windows then close and timers fire; never in a job that keeps its state


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """Take a checkpoint; `Done` carries the `CheckpointStatus` after the commit."""

    name: str | None = None  # by which it is kept until the name is dropped; refused if another checkpoint has it


StateForm: TypeAlias = Literal["text", "json", "value"]
"""Form of a state in an answer: Python's repr, JSON, or the value, encoded and then in base64."""


@dataclass(frozen=True, slots=True)
class GetState:
    """Ask for an operator's state of a key at an epoch that has closed; `Done` carries a `StateReport`."""

    operator: str
    key: str  # as it was typed
    form: StateForm = "text"


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Commit a staged Spark batch; `Done` carries the epoch. A repeated request gets the same answer."""

    commit: CommitBatch
    ordered: bool = True  # its lines enter only after those of all earlier batches of the query
    after: tuple[str, ...] = ()  # queries; it also enters only after all of their batches that were issued


@dataclass(frozen=True, slots=True)
class IngestPorts:
    """Ask where to stage lines; `Done` carries a list of (worker, host, port)."""


@dataclass(frozen=True, slots=True)
class RaiseWatermark:
    """Raise the watermark of a job whose Spark query gives it, between two batches; `Done` carries None."""

    micros: int


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """A Spark query is over: its lines end when its commits are taken in."""

    query: str


@dataclass(frozen=True, slots=True)
class SettingsQuery:
    """Ask any process of a job for the settings that a joining process needs; `Done` carries `JobSettings`."""


@dataclass(frozen=True, slots=True)
class InputNames:
    """The inputs of a job, by kind. The name of an input without one is ""."""

    rows: tuple[str, ...] = ()  # inputs of rows, which Spark's queries feed
    lines: tuple[str, ...] = ()  # inputs of lines and items; none: the lines have no name
    items: tuple[str, ...] = ()  # those in `lines` that have items
    followed: tuple[tuple[str, str, str], ...] = ()  # (input whose files are followed, pattern, encoding)
    ordered: tuple[str, ...] = ()  # inputs of lines whose files are begun in the order of their names
    unordered: tuple[str, ...] = ()  # inputs of lines whose files are cut, so that several workers read one
    is_given: bool = True  # False: the job has no input; the program reads only sources


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings that a process started by hand shares with the others."""

    job: str
    workers: int  # in each process
    rate: float | None  # lines per second, of all sources in total
    encoding_errors: str
    outputs: tuple[tuple[str, str], ...]  # (output, form of its records for the launcher)
    durable: DurablePart | None = None  # None: the job has no store
    inputs: InputNames = InputNames()
    piped: tuple[str, ...] = ()  # inputs whose lines come from a file that the launcher reads
    line_size_max: int = 64 << 20  # bytes of a line


@dataclass(frozen=True, slots=True)
class Accepted:
    """The command is on the stream at `epoch`; `Done` follows when it has taken effect."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommandProgress:
    """Progress of a long command; `Done` or `Refused` follows."""

    id: int
    done: int  # steps
    steps: int
    what: str  # the last step, in words


@dataclass(frozen=True, slots=True)
class Done:
    """The answer, or the account of the command's effects."""

    id: int
    result: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """The command has changed nothing, for this reason."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Moved:
    """The coordinator is at this address: ask again there. Nothing has changed."""

    id: int  # NO_REQUEST: to a client that has asked nothing, before its connection ends
    host: str
    port: int


Command: TypeAlias = (
    StatusQuery | ExplainQuery | WatchQuery | Reconfigure | BeginPlan | RenewPlan | ResumePlan | AddProcesses
    | RemoveWorker | CancelQueued | BootstrapWorker | StopJob | CheckpointJob | GetState | CommitRequest | IngestPorts
    | RaiseWatermark | SourceEnded | SettingsQuery | TryBins
)  # fmt: skip
"""Bodies of a client's requests. The receiving process refuses any other body."""


# 3. Worker to worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitTaken:
    """A source has taken in its part of a committed batch."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class PushedEnded:
    """The launcher's lines have ended, or go elsewhere from now on; this source has taken in all that came."""

    elsewhere: bool = False
    places: tuple[ParserPlace, ...] = ()  # where another worker continues
    maxima: tuple[tuple[str, Partition, int], ...] = ()  # (operator, pushed input, greatest timestamp), if `elsewhere`


@dataclass(frozen=True, slots=True)
class Busy:
    """A source has data: tick fast for a while; or less fast, if it always has more than it can read."""

    saturated: bool = False


@dataclass(frozen=True, slots=True)
class RoutingReady:
    """All stateful operators of a worker that has joined know their routing table."""

    worker: int
    seconds: float = 0.0  # the longest wait of records there for a table


@dataclass(frozen=True, slots=True)
class TableWish:
    """A joining worker whose process was started by hand asks for its routing table."""

    server: int | None = None  # the worker to get it from; None, or a worker without one: the coordinator


@dataclass(frozen=True, slots=True)
class BinsInstalled:
    """Bins that have arrived at a worker and are complete there."""

    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class StatesShown:
    """Requested states, from the worker that owned the bins of their keys at that time."""

    answers: tuple[tuple[int, int, str | None, str | None], ...]  # (lookup, place, text, fault), as in `Shown`


@dataclass(frozen=True, slots=True)
class StatusAsk:
    """The coordinator asks a worker for its status."""

    id: int
    loads: bool = False  # with the loads of its operators


@dataclass(frozen=True, slots=True)
class TrialAsk:
    """The coordinator asks a worker whether the contents of these bins can travel, and if it knows these classes."""

    by: int  # the coordinator; the answer repeats it and the id
    id: int
    bins: tuple[int, ...]
    classes: tuple[tuple[int, str, str], ...] = ()  # see the codec's `ClassName`


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """A worker's answer to a `TrialAsk`."""

    by: int
    id: int
    fault: str | None  # operator, key and type of a value that cannot travel, or an unknown class; None: all is well
    classes: tuple[tuple[int, str, str], ...]  # of the values in the bins


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """A worker's part of the status."""

    id: int  # of the question
    status: WorkerStatus  # without the worker's state, which the coordinator knows
    loads: tuple[OperatorLoad, ...] = ()  # if it was asked for them
