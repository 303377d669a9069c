"""Messages about a checkpoint, between all parts that take part in it.

    coordinator ─ Checkpoint, on the control stream ─▶ operators and sources: each cuts by itself
    coordinator ─ CheckpointBegun ─▶ launcher             before that: it marks its output there
    workers     ─ CutWritten | CutFailed, PositionsAt, TokensAt ─▶ coordinator
    coordinator ─ CheckpointReady | CheckpointAbandoned ─▶ launcher
    launcher    ─ Committed | CommitFailed ─▶ coordinator ─ Committed ─▶ workers, and the clients that asked

1. At most one checkpoint is under way. Either `CheckpointReady` or `CheckpointAbandoned` follows each
   `CheckpointBegun`; the launcher answers only the former. The process that coordinates when a checkpoint begins
   coordinates until it ends.
2. Neither follows at the end of the job. With `at_end`, the checkpoint contains the effects of all lines. Each worker's
   `Ended` carries its part, and the launcher commits when it has all of them.
3. The commit of a `last` checkpoint stops the job: the launcher ends the workers.
4. The launcher opens no input. Readers send prints of the data that they have read (`megaflow.job.formats.raw_file`):
   with the position of a split, and when they report its end. The coordinator keeps the latter until a checkpoint
   contains them.
5. When workers learn that the checkpoint is committed, they commit the records that their sinks have prepared. They
   learn it from the coordinator (`Committed`) or, at the end of the job, from the launcher (`CommittedAtEnd`), because
   no process coordinates then. The launcher waits for the workers' commits only at a stop and at the end.

The receiver checks every record with `megaflow.control.shapes`; it trusts no record for its type.
"""


from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from megaflow.control.messages import Split, SplitEnd
from megaflow.durable.commits import Fingerprint, LastDelivery, SinkToken, SourcePartition, UntakenLines
from megaflow.durable.segments import SegmentRef
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DurableOperator:
    """A stateful operator of the job."""

    name: str
    bins: int
    version: int = 1  # of its states
    kind: str = ""  # as in `durable.restored`
    form: str = ""  # as in `durable.restored`
    partial: int | None = None  # as in `durable.state_migration`


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Counts of input that workers left out or changed, in one attempt. No code changes the dicts.

    >>> LeftOut({"orders": 1}, late={"sum": 2}) + LeftOut({"orders": 3})
    LeftOut(skipped={'orders': 4}, replaced={}, read_counts={}, windowed={}, late={'sum': 2})
    """

    skipped: dict[str, int] = field(default_factory=dict)  # input -> skipped faults: parts that cannot be parsed
    replaced: dict[str, int] = field(default_factory=dict)  # input -> sequences of bytes that are not text
    read_counts: dict[str, dict[str, int]] = field(default_factory=dict)  # see `wording.READ_COUNTS`
    windowed: dict[str, int] = field(default_factory=dict)  # operator with windows -> records that it received
    late: dict[str, int] = field(default_factory=dict)  # operator with windows -> records that it left out as late

    def __add__(self, other: "LeftOut") -> "LeftOut":
        one, two = self.read_counts, other.read_counts
        return LeftOut(
            _sum(self.skipped, other.skipped), _sum(self.replaced, other.replaced),
            {kind: _sum(one.get(kind, {}), two.get(kind, {})) for kind in {**one, **two}},
            _sum(self.windowed, other.windowed), _sum(self.late, other.late),
        )  # fmt: skip


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))


@dataclass(frozen=True, slots=True)
class OfCheckpoint:
    """Message about one checkpoint."""

    checkpoint: int


# Workers to the coordinator, or in `Ended` to the launcher --------------------------------


@dataclass(frozen=True, slots=True)
class CutWritten(OfCheckpoint):
    """A worker has written everything that it keeps for a checkpoint to disk."""

    segments: tuple[SegmentRef, ...]  # empty if nothing has changed
    whole: tuple[tuple[str, tuple[int, ...]], ...]  # (operator, bins that were written whole), sorted
    seconds: float  # of processor time
    left_out: LeftOut = LeftOut()  # by its operators with windows, of records before the checkpoint's time


@dataclass(frozen=True, slots=True)
class CutFailed(OfCheckpoint):
    """A worker could not write its part of a checkpoint; the next one may succeed."""

    reason: str
    errno: int = 0  # of the system's error; 0: it was no system error


@dataclass(frozen=True, slots=True)
class PositionsAt(OfCheckpoint):
    """Remainder of each split and partition that a source holds; all earlier records are before the checkpoint's time.

    It also contains the rest of Spark's lines that were committed before that time; these are on disk.
    """

    splits: tuple[Split, ...]
    untaken: tuple[UntakenLines, ...] = ()
    partitions: tuple[SourcePartition, ...] = ()
    lines: int = 0  # lines that the worker has read before the checkpoint's time, in this attempt
    left_out: LeftOut = LeftOut()  # while it read them


@dataclass(frozen=True, slots=True)
class TokensAt(OfCheckpoint):
    """Tokens that a worker's sinks have prepared and not committed, for all records before the checkpoint's time."""

    tokens: tuple[SinkToken, ...]


@dataclass(frozen=True, slots=True)
class TokensLeft:
    """Tokens of a leaving worker's sinks, for the next checkpoint; other workers commit them."""

    tokens: tuple[SinkToken, ...]


# Coordinator to a worker that has joined ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnderWayAtJoin:
    """Checkpoint under way, or none, for the sinks of a new worker.

    They have not received its command, and the checkpoint waits for their tokens.
    """

    epoch: int
    checkpoint: int | None
    since: int | None
    last: tuple[LastDelivery, ...] = ()  # as in the command


# Coordinator to the launcher -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBegun(OfCheckpoint):
    """A checkpoint is about to go on the control stream; no output of `epoch` or later has left any worker."""

    epoch: int  # the checkpoint contains the effects of all earlier epochs
    since: int | None  # the commit that it builds on, by its checkpoint; None: it is complete by itself
    operators: tuple[DurableOperator, ...]
    table: tuple[int, ...]  # bin -> worker, at the epoch
    next_worker: int  # the lowest id that no worker has had
    last: bool = False  # the job is stopping: the launcher ends the workers after the commit
    at_end: bool = False  # all lines are read: it contains the effects of all times, see rule 2
    code: Fingerprint | None = None  # of the coordinator's process
    spark: tuple[tuple[str, int], ...] = ()  # query, its newest batch that was committed before the epoch
    names: tuple[str, ...] = ()  # requested for it
    known: tuple[SourcePartition, ...] = ()  # partitions of sources; those with no remainder at the cut are wholly read
    # (their ends are here if they were reported before, else in `CheckpointReady.ended`)
    sinks: tuple[str, ...] = ()  # that the program writes to
    tokens: tuple[SinkToken, ...] = ()  # at the end: of workers that have left; otherwise `CheckpointReady` has them
    watermark: int | None = None  # microseconds, the last finite one issued; None: none was
    clock: int = 0  # microseconds that the job has run, as last told to operators
    sources: tuple[str, ...] = ()  # that the program reads, sorted
    members: tuple[int, ...] = ()  # the workers of the job
    columns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()  # of its CSV inputs, as in a commit
    read: tuple[tuple[int, SplitEnd], ...] = ()  # only at the end; otherwise `CheckpointReady` has them
    furthest: int | None = None  # microseconds, the greatest timestamp so far; later ones are in `CheckpointReady`


@dataclass(frozen=True, slots=True)
class CheckpointReady(OfCheckpoint):
    """All workers have written, all sources reported their positions, and all output before its epoch is complete."""

    segments: tuple[SegmentRef, ...]
    whole: tuple[tuple[str, tuple[int, ...]], ...]  # (operator, bins written whole), of all workers, sorted
    splits: tuple[Split, ...]  # still to be read, by number
    untaken: tuple[UntakenLines, ...] = ()  # of Spark's batches, each worker's in order
    partitions: tuple[SourcePartition, ...] = ()  # still to be read, in reading order
    tokens: tuple[SinkToken, ...] = ()  # of sinks, each worker's in order
    committers: tuple[int, ...] = ()  # the workers that commit these, sorted
    bound: int | None = None  # microseconds, the greatest of all partitions; None: nothing was seen, or it is the end
    furthest: int | None = None  # microseconds, the greatest timestamp so far, if any
    lines: int = 0  # lines read by its workers before its epoch, in this attempt
    ended: tuple[SourcePartition, ...] = ()  # reported since it began: ends that the next run may continue
    read: tuple[tuple[int, SplitEnd], ...] = ()  # of splits read to their ends since the last checkpoint
    left_out: LeftOut = LeftOut()  # by its workers before its epoch, in this attempt


@dataclass(frozen=True, slots=True)
class CheckpointAbandoned(OfCheckpoint):
    """A checkpoint was given up. The next one has another number and the same `since`."""

    reason: str


# Launcher to the coordinator, and that to all workers -------------------------------------


@dataclass(frozen=True, slots=True)
class Committed(OfCheckpoint):
    """A checkpoint is durable."""

    refused: tuple[tuple[str, str], ...] = ()  # (requested name, why the checkpoint does not have it)
    tokens: tuple[SinkToken, ...] = ()  # of workers that have left; the receiver commits them


@dataclass(frozen=True, slots=True)
class CommitFailed(OfCheckpoint):
    """A checkpoint is not durable, and never will be."""

    reason: str


# Launcher to workers, and their answer --------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommittedAtEnd(OfCheckpoint):
    """The last checkpoint is durable."""

    worker: int  # it also commits these tokens, before its own
    tokens: tuple[SinkToken, ...] = ()


@dataclass(frozen=True, slots=True)
class SinksCommitted:
    """A worker has committed its own tokens of a checkpoint, and those that it was given."""

    worker: int
    checkpoint: int
