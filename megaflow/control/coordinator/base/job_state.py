"""Values that a controller begins with: a checkpoint (`Durable`), or the state that the previous controller left.

A new controller cannot ask for any of these. `EventTime` holds the program's settings of event time.

The coordinator's part changes hands only when it is at rest:

1. Nothing that was begun is unfinished:
   - no change of the membership and no reconfiguration;
   - no commit that a source has not taken in, and no Spark batch that is being staged;
   - no worker that must still receive the command to read the launcher's lines;
   - no split on its way back;
   - no checkpoint that is neither committed nor abandoned.
   So the old controller owes answers only to requests that have not begun, and to Spark commits that wait to be
   durable. Clients repeat both. The next controller knows the batches that were issued already.
2. The probe behind the outputs has passed the epoch of the last command. Each source holds its capability until it has
   obeyed the earlier commands, and each stateful operator until it has read them. So all workers have read everything
   that the old writer wrote. Otherwise the new writer's commands could overtake them, as they take another path.
3. The engine's hand-over passes on reports that are still on their way to the old coordinator. It also carries this
   state: see `megaflow.timely.rescale.handover`.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from megaflow.control.checkpoint_messages import DurableOperator
from megaflow.control.job_events import JobEvent
from megaflow.control.messages import (
    CommitBatch,
    CommitRequest,
    KeptPlan,
    SourceEnded,
    Split,
    SplitEnd,
    StatusQuery,
    StopJob,
)
from megaflow.control.reading_messages import PartitionMissing
from megaflow.control.reports import CheckpointStatus, LedgerEntry
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import Fingerprint, LastDelivery, SinkToken, SourcePartition
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.megaphone.base.routing import RoutingTable
from megaflow.quick_dataclass import dataclass

BEFORE_HAND_OVER: Final = (StatusQuery, StopJob, CommitRequest, SourceEnded)
"""Requests that are answered while all others are held back: they begin nothing, or end what was begun."""
HELD_MAX: Final = 1_000
"""The most requests that are held back."""
IDLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Durable:
    """Settings of a job with a store, and the checkpoint that it begins with."""

    operators: tuple[DurableOperator, ...]  # those that keep state
    every_seconds: float  # from a commit to the next checkpoint, at least
    committed: int | None = None  # the checkpoint that the job resumes from, if any
    epoch: int = 0  # of that checkpoint, after which control begins
    next_worker: int = 0  # the lowest id that no worker had in earlier incarnations
    code: Fingerprint | None = None  # of the code that this process runs
    spark: tuple[tuple[str, int], ...] = ()  # query, newest batch in the checkpoint
    untaken: tuple[CommitBatch, ...] = ()  # the rest of these batches, at its present workers, to be issued first
    whole: bool = False  # whether the first checkpoint follows no other, although the job resumes from one
    table: RoutingTable = ()  # the first one (if empty, bins are dealt out in turn)
    partitions: tuple[SourcePartition, ...] = ()  # partitions that are still to be read
    finished: tuple[SourcePartition, ...] = ()  # partitions that are read to their ends
    sinks: tuple[str, ...] = ()  # names that the program writes to
    sources: tuple[str, ...] = ()  # names that the program reads, sorted
    columns: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()  # of its CSV inputs, as in a commit
    watermark: int | None = None  # microseconds, if there was one
    clock: int = 0  # microseconds that the job had run
    bound: int | None = None  # microseconds, the greatest of all partitions that were read, if known
    furthest: int | None = None  # microseconds, the greatest timestamp of all records, if known
    run: int = 0  # see `DurablePart`
    last: tuple[LastDelivery, ...] = ()  # of its sinks, as of the first new checkpoint


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """An operator that takes timestamps."""

    out_of_order: int  # microseconds
    inputs: frozenset[str]  # that it follows; "": the lines without a name
    unit: EventUnit | None = None  # of its timestamps; None: not given, so seconds or datetimes
    advances: bool = False  # follows the clock while all partitions are idle


@dataclass(frozen=True, slots=True)
class EventTime:
    """A job's settings of event time. A coordinator that takes over knows the operators by itself."""

    operators: Mapping[str, TimedOperator] = field(default_factory=dict)  # by name
    ordered: tuple[str, ...] = ()  # inputs of lines whose files are read in the order of their names
    pushed: tuple[Partition, ...] = ()  # that the launcher sends
    spark: tuple[str, ...] = ()  # inputs that queries feed
    idle_seconds: float = IDLE_SECONDS  # without a record until a partition is idle
    closes: bool = False  # whether everything closes at the end, even if the job keeps its state
    max_skew: int | None = None  # microseconds that files of an input may be ahead of another input; None: no limit


NO_EVENT_TIME: Final = EventTime()


@dataclass(slots=True)
class RosterState:
    """State of `Roster`, without the membership. No process is leaving and no table is on its way."""

    process: dict[int, tuple[int, ...]]  # worker -> the workers of its process
    ports: dict[int, tuple[str, int]]  # worker -> host, port
    routed: set[int]  # workers that know the routing table; some may not be members yet
    closing: set[int] = field(default_factory=set)  # workers that were commanded to close their sources
    closed: set[int] = field(default_factory=set)  # workers that have reported their sources closed


@dataclass(slots=True)
class CommitsState:
    """State of `Commits` when sources have taken in every commit."""

    queries: int  # how many have not ended
    newest: dict[str, int]  # query -> newest issued batch
    durable: dict[str, int] | None  # query -> newest durable batch; None: the job has no store
    ended: set[str] = field(default_factory=set)  # queries
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)  # (query, batch) -> epoch, oldest first
    watermark: int | None = None  # microseconds, the greatest that a query has given; None: none has


@dataclass(slots=True)
class PartitionsState:
    """State of `Partitions` when each known partition is read or held by a worker."""

    asked: set[str]  # sources that may still find some
    unheard: set[str]  # sources that have not named their partitions yet
    known: dict[tuple[str, bytes], SourcePartition]  # without positions, except the ends of those that may go on
    holders: dict[int, int | None]  # number of an unread one -> its worker; None: not given yet
    bounds: dict[int, int]  # number -> microseconds of event time before which it has nothing; unread ones only
    missing: dict[int, dict[int, PartitionMissing]]  # number of an unread one -> worker -> its process's report
    staying: dict[int, int]  # number of one that no process finds -> the worker that keeps looking
    sights: dict[int, bytes]  # number of an unread one -> what its source said of it when it was new

    @property
    def to_ask(self) -> list[str]:
        """The sources that may still find some, in an order that is the same in all processes."""
        return sorted(self.asked)


@dataclass(slots=True)
class LinesState:
    """State of `LinesToRead` when no split is on its way back."""

    ordered: frozenset[str]  # inputs whose files are read in an order
    pushed: bool  # the launcher has more lines
    held: dict[int, dict[int, Split]] = field(default_factory=dict)  # worker -> number -> split, in reading order
    sharers: tuple[int, ...] = ()  # workers that share `--rate` equally; empty: no such command was issued
    begun: dict[int, tuple[int, Split]] = field(default_factory=dict)  # number -> first reader, of these, from byte 0
    read: dict[int, SplitEnd] = field(default_factory=dict)  # split read to its end, until a checkpoint has that
    missing: dict[int, set[int]] = field(default_factory=dict)  # number -> workers whose processes cannot open it
    refused: dict[int, int | None] = field(default_factory=dict)
    """Number of a missing one that waits for another process -> the worker that has it; None: it is in the pool."""
    taken: dict[int, dict[str, int]] = field(default_factory=dict)
    """Worker whose source has closed -> input -> lines that it has read; -1: all that had left before, in total."""


@dataclass(frozen=True, slots=True)
class WatermarksState:
    """State of `Watermarks`, without what other parts know about reading."""

    micros: int | None  # the watermark
    clock: int  # microseconds that the job has run
    told: int  # microseconds, as the clock was issued last
    wanting: set[int]  # workers with timers by the clock
    maxima: dict[tuple[str, Partition], int]  # operator, unread partition -> microseconds
    greatest: int | None  # microseconds, of all records seen; None: there were none
    firsts: dict[tuple[str, str], dict[str, int]]  # operator, input -> path -> microseconds, for files read in an order
    idle: dict[Partition, float]  # idle partition -> for how many seconds
    pushed: tuple[Partition, ...]  # that the launcher sends
    spark: tuple[str, ...]  # inputs that queries feed
    idle_seconds: float
    age_seconds: float  # since the watermark rose
    bound: int | None = None  # microseconds, the greatest of all partitions; None: no record was seen
    closes: bool = True  # whether everything closes at the end
    late: tuple[tuple[str, Partition | None, tuple[tuple[int, int], ...], int], ...] = ()  # see `SeenLateness`
    branches: dict[tuple[str, Partition], float] = field(default_factory=dict)
    """Operator, partition that is idle there alone -> for how many seconds."""
    furthest: int | None = None  # microseconds, of all records seen in all attempts; None: there were none
    gone: dict[str, int] = field(default_factory=dict)  # operator -> the greatest bound of partitions that are gone
    gone_waits: float = 0.0  # seconds until these count as idle


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """State of `Checkpoints` when none is under way."""

    next: int  # the number of the next checkpoint
    since: int | None  # the last committed checkpoint, which the next one follows; None: it follows none
    next_worker: int  # the lowest id that no worker had had when the last checkpoint began
    status: CheckpointStatus  # its ages count from its arrival
    tokens: tuple[SinkToken, ...] = ()  # of workers that have left, for the next one
    last: tuple[LastDelivery, ...] = ()  # of each sink, as of the next one


@dataclass(frozen=True, slots=True)
class FeedState:
    """State of `EventFeed`."""

    next: int  # the number of the next event
    events: tuple[JobEvent, ...]  # the newest, oldest first


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a `Controller` when nothing is under way."""

    epoch: int  # of the control stream
    command: int  # the next number
    question: int  # the next id; answers to earlier ones still come
    table: RoutingTable
    lines: LinesState
    pool: tuple[Split, ...]  # that no worker holds
    partitions: PartitionsState
    roster: RosterState
    commits: CommitsState
    ledger: tuple[LedgerEntry, ...]
    starts: int  # the number of the next `StartWorkers`; answers to earlier ones still come
    plan: KeptPlan | None  # its next step tells who runs it
    checkpoints: CheckpointState | None  # None: the job has no store
    watermarks: WatermarksState
    feed: FeedState | None = None  # the driver adds it
