"""What is said of a checkpoint, by all who take part in it.

    coordinator ─ Checkpoint, on the control stream ─▶ operators and sources: each cuts by itself
    coordinator ─ CheckpointBegun ─▶ launcher             before that: it marks its output there
    workers     ─ CutWritten | CutFailed, PositionsAt, TokensAt ─▶ coordinator
    coordinator ─ CheckpointReady | CheckpointAbandoned ─▶ launcher
    launcher    ─ Committed | CommitFailed ─▶ coordinator ─ Committed ─▶ workers, and whoever has asked

1. One is under way at a time. Each `CheckpointBegun` is followed by either `CheckpointReady`, which the launcher
   answers, or `CheckpointAbandoned`, which it does not. Whoever coordinates when it begins sees it to its end.
2. At the job's end there is neither: with `at_end` the checkpoint keeps the effects of all lines, each worker's
   `Ended` has its part, and the launcher commits when it has all.
3. After a `last` one that is committed the job is stopped: the launcher ends the workers.
4. What sinks have prepared is committed by workers once they have the word, which the launcher waits for only at a stop
   and at the end: `Committed` comes by the coordinator, `CommittedAtEnd` from the launcher, as nobody coordinates then.

The receiver checks every record, by `megaflow.control.shapes`; none is trusted for its type.
"""


from megaflow.control.messages import Split
from megaflow.durable.commits import Fingerprint, Portion, SinkToken, UntakenLines
from megaflow.durable.segments import SegmentRef
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DurableOperator:
    """A stateful operator of the job."""

    name: str
    bins: int
    version: int = 1  # of its states
    kind: str = ""  # see `durable.restored`
    form: str = ""  # likewise


# Workers to the coordinator, or in `Ended` to the launcher --------------------------------


@dataclass(frozen=True, slots=True)
class CutWritten:
    """All that a worker has to keep for a checkpoint is on the disk."""

    checkpoint: int
    segments: tuple[SegmentRef, ...]  # none, if nothing has changed
    whole: tuple[tuple[str, tuple[int, ...]], ...]  # (operator, bins that were written whole), sorted
    seconds: float  # of a processor that it took


@dataclass(frozen=True, slots=True)
class CutFailed:
    """A worker could not write it; the next one may succeed."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class PositionsAt:
    """What is left of each split and portion that a source holds: what it has read has times before the checkpoint's.

    And what is left of Spark's lines that were committed before that; it is on the disk.
    """

    checkpoint: int
    splits: tuple[Split, ...]
    untaken: tuple[UntakenLines, ...] = ()
    portions: tuple[Portion, ...] = ()


@dataclass(frozen=True, slots=True)
class TokensAt:
    """What a worker's sinks have prepared and not committed: all that they were given before the checkpoint's time."""

    checkpoint: int
    tokens: tuple[SinkToken, ...]


@dataclass(frozen=True, slots=True)
class TokensLeft:
    """What the sinks of a worker that leaves have prepared: for the next checkpoint, and for others to commit."""

    tokens: tuple[SinkToken, ...]


# Coordinator to a worker that has joined ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnderWayAtJoin:
    """Which checkpoint was under way, or none: its sinks have not heard its command, and it waits for them."""

    epoch: int
    checkpoint: int | None
    since: int | None


# Coordinator to the launcher -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBegun:
    """A checkpoint is about to go on the control stream; no output of `epoch` or later has left any worker."""

    checkpoint: int
    epoch: int  # it keeps the effects of all before
    since: int | None  # the committed one that it follows; None: it is whole by itself
    operators: tuple[DurableOperator, ...]
    table: tuple[int, ...]  # bin -> worker, at the epoch
    next_worker: int  # the lowest id that no worker has had
    last: bool = False  # the job is to stop: when it is committed the launcher ends the workers
    at_end: bool = False  # all lines are read: it keeps the effects of all times, see rule 2
    code: Fingerprint | None = None  # of the coordinator's process
    spark: tuple[tuple[str, int], ...] = ()  # query, the newest batch that was committed before the epoch
    names: tuple[str, ...] = ()  # that it is to have
    known: tuple[Portion, ...] = ()  # the partitions of sources; those of which nothing is left then are wholly read
    sinks: tuple[str, ...] = ()  # that the program writes to
    tokens: tuple[SinkToken, ...] = ()  # of workers that have left, at the end; one before has them when it is ready
    watermark: int | None = None  # microseconds, the last finite one that was issued; None: there was none
    clock: int = 0  # microseconds that the job has run, as operators were told last
    sources: tuple[str, ...] = ()  # that the program reads, sorted
    members: tuple[int, ...] = ()  # the workers of the job


@dataclass(frozen=True, slots=True)
class CheckpointReady:
    """All workers have written, all sources have said where they are, and all output before its epoch is complete."""

    checkpoint: int
    segments: tuple[SegmentRef, ...]
    whole: tuple[tuple[str, tuple[int, ...]], ...]  # (operator, bins that were written whole), of all workers, sorted
    splits: tuple[Split, ...]  # that are still to be read, by number
    untaken: tuple[UntakenLines, ...] = ()  # of Spark's batches, those of one worker one behind the other
    portions: tuple[Portion, ...] = ()  # that are still to be read, the first first
    tokens: tuple[SinkToken, ...] = ()  # of sinks, those of one worker in their order
    committers: tuple[int, ...] = ()  # the workers that are to commit these, sorted
    bound: int | None = None  # microseconds, the greatest of all partitions; None: nothing was seen, or it is the end


@dataclass(frozen=True, slots=True)
class CheckpointAbandoned:
    """Nothing comes of it; the next one has another number and the same `since`."""

    checkpoint: int
    reason: str


# Launcher to the coordinator, and that to all workers -------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint is durable."""

    checkpoint: int
    refused: tuple[tuple[str, str], ...] = ()  # (name that it was to have, why it has not)
    tokens: tuple[SinkToken, ...] = ()  # of workers that have left, which the worker that gets this is to commit


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """It is not, and will not be."""

    checkpoint: int
    reason: str


# Launcher to workers, and their answer --------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedAtEnd:
    """The last checkpoint is durable."""

    checkpoint: int
    worker: int  # that is to commit these tokens, too, before its own
    tokens: tuple[SinkToken, ...] = ()


@dataclass(frozen=True, slots=True)
class SinksCommitted:
    """A worker has committed what a checkpoint has of its sinks, and what it was given of others."""

    worker: int
    checkpoint: int
