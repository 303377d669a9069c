"""What the parts of a running job say to each other, each conversation a set of frozen records.

1. *On the control stream*, numbered, from the coordinator to every operator: the routing commands of
   `megaflow.megaphone.routing` and, for sources, `CommitBatch`, `ReadPushed`, `Withdraw`, `EndOfLines`.
2. *Client to coordinator* (role "control"): a `Request` with a body; the answer is `Refused`, or `Accepted`, perhaps
   some `CommandProgress`, and later `Done`.
3. *Worker to worker* (mail): what sources and joined workers report to the coordinator, status, and trials of bins.

The launcher's conversation with its processes is in `megaflow.control.launcher_messages`; statuses and accounts, which
some records carry, are in `megaflow.control.reports`; what is said of checkpoints is in
`megaflow.control.checkpoint_messages`, and of staged lines in `megaflow.control.staging_messages`, of
who reads which splits and partitions in `megaflow.control.reading_messages`, and of event time in
`megaflow.control.watermark_messages`.

The receiver checks every record, by `megaflow.control.shapes`; none is trusted for its type.
"""

from typing import Any, TypeAlias

from megaflow.control.reports import LedgerEntry, OperatorLoad, WorkerStatus
from megaflow.control.watermark_messages import Partition
from megaflow.durable.incarnation import DurablePart
from megaflow.quick_dataclass import dataclass

# 1. On the control stream -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Split:
    """A byte range of a file; whoever holds it reads the lines that *start* in it.

    A file that is decoded as a stream is one split, of which `skip` bytes of text were read: see
    `megaflow.job.stream_reader`.
    """

    number: int  # unique in the job
    path: str
    start: int  # bytes
    end: int  # bytes, exclusive
    input: str = ""  # whose lines these are; "": the job's only ones, which have no name
    skip: int = 0  # bytes of text
    encoding: str = ""  # Python's name; "": UTF-8
    compression: str = ""  # such as gzip; "": none
    maxima: tuple[tuple[str, int], ...] = ()  # (operator, the greatest timestamp that it has seen of what is before)


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Take exactly these staged attempts into the stream; discard the batch's others."""

    query: str
    run: str  # one call of foreachBatch
    batch: int
    winners: dict[int, tuple[int, int, int]]  # partition -> (worker, task attempt, lines)


@dataclass(frozen=True, slots=True)
class ParserPlace:
    """How far the lines of an input that the launcher sends are parsed: what the worker that reads on must know."""

    input: str
    line: int  # the number of the first line in `open`, or else of the next one; from 0
    head: tuple[str, ...] = ()  # the lines before the first record, as a header
    open: tuple[str, ...] = ()  # those of a record that is not complete


@dataclass(frozen=True, slots=True)
class ReadPushed:
    """The launcher's lines are to be read by this worker from now on; its process gets them."""

    worker: int
    places: tuple[ParserPlace, ...] = ()  # of those that are parsed
    maxima: tuple[tuple[str, Partition, int], ...] = ()  # as of `PushedEnded`


@dataclass(frozen=True, slots=True)
class Withdraw:
    """These workers are leaving: their sources close, and return what they have not read by `SplitsReturned`.

    No later command gives them lines, and no earlier one has given them Spark's lines that are not taken in.
    """

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndOfLines:
    """No more lines: sources close."""


# 2. Client to coordinator -------------------------------------------------------------

RUNNER_LENGTH_MAX = 200  # characters
NO_REQUEST = -1


@dataclass(frozen=True, slots=True)
class Request:
    """One question or command; `id` is the client's and comes back in every answer."""

    id: int
    body: Any


@dataclass(frozen=True, slots=True)
class StatusQuery:
    """Ask for the `JobStatus`, answered by `Done`."""

    bins: bool = False  # with a table per operator
    loads: bool = False  # and with loads by bin and by key
    partial: bool = False  # without the workers that do not answer at once, if there are some


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """Ask what holds the output back, answered by `Done` with an `Explanation`."""


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Change owners at one time: `Move` and `Map` commands, validated together, all or none."""

    commands: tuple[Any, ...]
    plan: int | None = None  # the number of the plan that it is a step of; None: of none


@dataclass(frozen=True, slots=True)
class BeginPlan:
    """Announce the steps to a wanted table, each to come as a `Reconfigure`; `Done` carries the `KeptPlan`."""

    table: tuple[int, ...]  # bin -> worker, that the plan was made from; refused if it has changed meanwhile
    target: tuple[int, ...]  # bin -> worker, that it leads to
    strategy: str
    batch: int | None  # bins a step, for some strategies
    gap_seconds: float  # between steps
    runner: str  # who makes the steps, for people
    removes: int | None = None  # the worker whose process is to be removed then


@dataclass(frozen=True, slots=True)
class RenewPlan:
    """Say, between two steps, that the runner of the plan with this number is there; `Done` carries nothing."""

    number: int


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """Go on with the plan that nobody runs any more; `Done` carries the `KeptPlan`."""

    runner: str  # who makes the steps from now on, for people


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The last plan that was begun, as the coordinator keeps it; what is left of it is what the table lacks."""

    number: int  # of the plan; each has its own, and a new one whenever another command takes it up
    target: tuple[int, ...]  # bin -> worker
    strategy: str
    batch: int | None
    gap_seconds: float
    bins: int  # that it moves, all together
    runner: str
    over: bool = False  # its last step was issued, and what it removes is being removed
    removes: int | None = None  # the worker whose process is to be removed then


@dataclass(frozen=True, slots=True)
class TryBins:
    """Ask whether all that is in these bins can travel, as is asked before bins move; change nothing."""

    bins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddProcesses:
    """Start this many worker processes, have them join, and make their workers ready to own bins."""

    count: int
    other_code: bool = False  # whether they may run other code than the job


@dataclass(frozen=True, slots=True)
class RemoveWorker:
    """Have the process with this worker leave; its workers own no bins any more."""

    worker: int
    ask_only: bool = False  # change nothing: answer whether it could leave, bins aside


@dataclass(frozen=True, slots=True)
class BootstrapWorker:
    """Give a worker that has joined the routing table of `server`."""

    server: int
    worker: int


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop reading, work off what was read, end."""

    drain: bool = True  # whether to close windows and fire timers then; a job that keeps its state does not do so


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """Make a checkpoint; `Done` carries the `CheckpointStatus` when it is committed."""

    name: str | None = None  # by which it is kept until that is dropped; refused if another one has it


@dataclass(frozen=True, slots=True)
class GetState:
    """Ask for an operator's state of a key, at an epoch that is closed then; `Done` carries a `StateReport`."""

    operator: str
    key: str  # as it was typed
    as_json: bool = False  # rather than as Python writes it


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Commit a staged Spark batch; `Done` carries the epoch. A replay is answered alike."""

    commit: CommitBatch
    ordered: bool = True  # its lines enter only when all those of the query's batches before have


@dataclass(frozen=True, slots=True)
class IngestPorts:
    """Ask where to stage: `Done` carries a list of (worker, host, port)."""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """The Spark query is over: when its commits are taken in, so are its lines."""

    query: str


@dataclass(frozen=True, slots=True)
class SettingsQuery:
    """Ask any process of a job what one that joins it must know: `Done` carries `JobSettings`."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What a process that is started by hand has in common with the others."""

    job: str
    workers: int  # in each process
    rate: float | None  # lines per second, of all sources together
    encoding_errors: str
    outputs: tuple[tuple[str, str], ...]  # name of an output -> form of the records that the launcher wants of it
    durable: DurablePart | None = None  # None: nothing is
    rows: tuple[str, ...] = ()  # the names of its inputs of rows
    lines: tuple[str, ...] = ()  # and of those of lines
    followed: tuple[tuple[str, str, str], ...] = ()  # those of these whose files are followed, pattern, encoding
    piped: tuple[str, ...] = ()  # inputs whose lines are those of a file that the launcher reads
    unordered: tuple[str, ...] = ()  # inputs whose files are cut for several workers


@dataclass(frozen=True, slots=True)
class Accepted:
    """The command is on the stream at `epoch`; `Done` follows when it has taken effect."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CommandProgress:
    """How far a long command has come; `Done` or `Refused` follows."""

    id: int
    done: int  # steps
    steps: int
    what: str  # was done last


@dataclass(frozen=True, slots=True)
class Done:
    """The answer, or the account of what the command did."""

    id: int
    result: Any


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing has changed, and why."""

    id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing has changed: the coordinator is there, ask again."""

    id: int  # NO_REQUEST, if nothing was asked: for a client whose connection ends before it asks
    host: str
    port: int


Command: TypeAlias = (
    StatusQuery | ExplainQuery | Reconfigure | BeginPlan | RenewPlan | ResumePlan | AddProcesses | RemoveWorker
    | BootstrapWorker | StopJob | CheckpointJob | GetState | CommitRequest | IngestPorts | SourceEnded | SettingsQuery
    | TryBins
)  # fmt: skip
"""What a client may ask: the bodies of its requests. Any other is refused at the door."""


# 3. Worker to worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitTaken:
    """A source has taken in its part of a committed batch."""

    query: str
    batch: int


@dataclass(frozen=True, slots=True)
class PushedEnded:
    """The launcher's lines are over and taken in, or, if the others go elsewhere, those that came here are."""

    elsewhere: bool = False
    places: tuple[ParserPlace, ...] = ()  # where another worker reads on
    maxima: tuple[tuple[str, Partition, int], ...] = ()  # (operator, of what was pushed, greatest timestamp), if so


@dataclass(frozen=True, slots=True)
class Busy:
    """A source has data: tick fast for a while, or, if it always has more than it can read, less fast."""

    saturated: bool = False


@dataclass(frozen=True, slots=True)
class RoutingReady:
    """A worker that has joined: each of its stateful operators knows its routing table."""

    worker: int
    seconds: float = 0.0  # that records waited there for a table, at most


@dataclass(frozen=True, slots=True)
class TableWish:
    """A worker on its way in, from a process that was started by hand: it is to be given its routing table."""

    server: int | None = None  # by this worker; None, or one that has none itself: by the coordinator


@dataclass(frozen=True, slots=True)
class BinsInstalled:
    """Bins that have come to a worker, and are whole there."""

    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class StatesShown:
    """States that were asked for, by the worker that owned the bins of their keys at that time."""

    answers: tuple[tuple[int, int, str | None, str | None], ...]  # (lookup, place, text, fault): see `Shown`


@dataclass(frozen=True, slots=True)
class StatusAsk:
    """The coordinator asks a worker how it does."""

    id: int
    loads: bool = False  # with the loads of its operators


@dataclass(frozen=True, slots=True)
class TrialAsk:
    """The coordinator asks whether what is in these bins can travel, and whether these classes are known here."""

    by: int  # the coordinator; it and the id come back in the answer
    id: int
    bins: tuple[int, ...]
    classes: tuple[tuple[int, str, str], ...] = ()  # see the codec's `ClassName`


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """What came of it."""

    by: int
    id: int
    fault: str | None  # operator, key and type of what cannot travel; or the class that is not known
    classes: tuple[tuple[int, str, str], ...]  # of what is in the bins


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """A worker's part of the status."""

    id: int  # of the question
    status: WorkerStatus  # but for the worker's state, which the coordinator knows
    loads: tuple[OperatorLoad, ...] = ()  # if it was asked for them
