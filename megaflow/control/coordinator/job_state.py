"""What a controller begins with: a checkpoint (`Durable`), or what the one before leaves to it: all it cannot ask for.

And what the program says of event time (`EventTime`).

The part changes hands only when it is at rest:

1. Nothing that was begun is unfinished: no change of the membership, no reconfiguration, no commit that a source has
   not taken in, no Spark batch that is being staged, no worker yet to be told to read the launcher's lines, no split
   on its way back, no checkpoint that is neither committed nor given up. So no answer is owed but to requests that
   have not begun, and those are asked again; a commit that was answered already is known by its batch.
2. The probe behind the outputs has passed the epoch of the last command. As each source holds its capability until it
   has obeyed the commands before it, and each stateful operator until it has read them, all workers have read all that
   the old writer wrote. What the new one writes comes by another way and could overtake it otherwise.
3. Reports that are still under way to the old coordinator are passed on by the engine's hand-over, which carries this
   state, too: see `megaflow.timely.rescale.handover`.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from megaflow.control.checkpoint_messages import DurableOperator
from megaflow.control.messages import CommitBatch, CommitRequest, KeptPlan, SourceEnded, Split, StatusQuery, StopJob
from megaflow.control.reports import CheckpointStatus, LedgerEntry
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import Fingerprint, Portion, SinkToken
from megaflow.megaphone.event_unit import EventUnit
from megaflow.megaphone.routing import RoutingTable
from megaflow.quick_dataclass import dataclass

BEFORE_HAND_OVER: Final = (StatusQuery, StopJob, CommitRequest, SourceEnded)
"""Requests that are answered while all others are held back: what begins nothing, and what ends what was begun."""
HELD_MAX: Final = 1_000
"""Requests that are held back."""
IDLE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Durable:
    """How a job is durable, and what it begins with."""

    operators: tuple[DurableOperator, ...]  # those that keep state
    every_seconds: float  # from a commit to the next checkpoint, at least
    committed: int | None = None  # the checkpoint that it goes on from; None: it begins anew
    epoch: int = 0  # of that one; control begins after it
    next_worker: int = 0  # the lowest id that no worker had in earlier incarnations
    code: Fingerprint | None = None  # what this process runs
    spark: tuple[tuple[str, int], ...] = ()  # query, the newest batch that is in
    untaken: CommitBatch | None = None  # what is left of these, where it is by now; to be issued first
    whole: bool = False  # whether the first checkpoint is to follow none though it goes on from one
    table: RoutingTable = ()  # the first one; empty: bins are dealt round
    portions: tuple[Portion, ...] = ()  # that are still to be read
    finished: tuple[Portion, ...] = ()  # and of which nothing is
    sinks: tuple[str, ...] = ()  # that the program writes to
    sources: tuple[str, ...] = ()  # and those that it reads, sorted
    watermark: int | None = None  # microseconds; None: there was none
    clock: int = 0  # microseconds that the job had run
    bound: int | None = None  # microseconds, the greatest of all partitions that were read; None: not known


@dataclass(frozen=True, slots=True)
class TimedOperator:
    """An operator that takes timestamps."""

    out_of_order: int  # microseconds
    inputs: frozenset[str]  # that it follows; "": the lines without a name
    unit: EventUnit | None = None  # of its timestamps; None: the program does not say, so seconds or datetimes
    advances: bool = False  # follows the clock while all partitions are idle


@dataclass(frozen=True, slots=True)
class EventTime:
    """What a job has to do with event time. Who takes the coordinator's part over knows the operators by itself."""

    operators: Mapping[str, TimedOperator] = field(default_factory=dict)  # by name
    ordered: tuple[str, ...] = ()  # inputs of lines whose files are read in the order of their names
    pushed: tuple[Partition, ...] = ()  # what the launcher sends
    spark: tuple[str, ...] = ()  # inputs that queries feed
    idle_seconds: float = IDLE_SECONDS  # that a partition has nothing until it is idle
    closes: bool = False  # whether everything closes at the end, also if the job keeps its state


NO_EVENT_TIME: Final = EventTime()


@dataclass(frozen=True, slots=True)
class RosterState:
    """What `Roster` knows beside the membership; no process is leaving, no table on its way."""

    processes: tuple[tuple[int, ...], ...]  # the workers of each
    ports: tuple[tuple[int, str, int], ...]  # worker, host, port
    routed: tuple[int, ...]  # know the routing table
    closing: tuple[int, ...]  # were told to close their sources
    closed: tuple[int, ...]  # have said that they did


@dataclass(frozen=True, slots=True)
class CommitsState:
    """What `Commits` knows when every commit is taken in and answered."""

    queries: int  # still to end
    ended: tuple[str, ...]  # queries
    epochs: tuple[tuple[str, int, int], ...]  # query, batch, epoch; oldest first
    newest: tuple[tuple[str, int], ...]  # query, newest batch that was issued
    durable: tuple[tuple[str, int], ...] | None = None  # query, newest durable batch; None: nothing is durable


@dataclass(frozen=True, slots=True)
class PartitionsState:
    """What `Partitions` knows when all that are known are in somebody's hands, or read."""

    asked: tuple[str, ...] = ()  # sources that may still find some
    known: tuple[Portion, ...] = ()  # without positions
    held: tuple[tuple[int, int], ...] = ()  # (number, worker) of those that are not read
    unheard: tuple[str, ...] = ()  # sources that have not said yet which there are
    bounds: tuple[tuple[int, int], ...] = ()  # (number, microseconds before which it has nothing) of those not read


@dataclass(frozen=True, slots=True)
class LinesState:
    """What `LinesToRead` knows when no split is on its way back."""

    pool: tuple[Split, ...]  # that nobody was given
    held: tuple[tuple[int, tuple[Split, ...]], ...]  # worker, what it was given and has not read, in that order
    sharers: tuple[int, ...]  # who read `--rate` in equal parts; none: nobody was told
    pushed: bool  # the launcher has more lines
    partitions: PartitionsState
    ordered: tuple[str, ...] = ()  # inputs whose files are read in an order
    begun: tuple[tuple[int, Split], ...] = ()  # (worker that was given it from its beginning, file), of these


@dataclass(frozen=True, slots=True)
class WatermarksState:
    """What `Watermarks` knows beside what is read."""

    micros: int | None  # the watermark
    clock: int  # microseconds that the job has run
    told: int  # likewise, as the clock was issued last
    wanting: tuple[int, ...]  # workers with timers by the clock
    maxima: tuple[tuple[str, Partition, int], ...]  # operator, of what is not read to its end, microseconds
    greatest: int | None  # microseconds, of all that was seen; None: nothing was
    firsts: tuple[tuple[str, str, str, int], ...]  # operator, input, path, microseconds; of files in their order
    idle: tuple[tuple[Partition, float], ...]  # those that are, and for how many seconds
    pushed: tuple[Partition, ...]  # what the launcher sends
    spark: tuple[str, ...]  # inputs that queries feed
    idle_seconds: float
    age_seconds: float  # since the watermark rose
    bound: int | None = None  # microseconds, the greatest of all partitions; None: nothing was seen
    closes: bool = True  # whether everything closes at the end
    late: tuple[tuple[str, Partition | None, tuple[tuple[int, int], ...], int], ...] = ()  # see `SeenLateness`


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What `Checkpoints` knows when none is under way."""

    next: int  # the number of the next one
    since: int | None  # the last that was committed
    next_worker: int  # the lowest id that no worker has had, when one was begun last
    status: CheckpointStatus  # ages count from the moment when it is received
    tokens: tuple[SinkToken, ...] = ()  # of workers that have left, for the next one


@dataclass(frozen=True, slots=True)
class JobState:
    """What a `Controller` knows when nothing is under way."""

    epoch: int  # of the control stream
    command: int  # the next number
    question: int  # the next id; answers to earlier ones still come
    table: RoutingTable
    lines: LinesState
    roster: RosterState
    commits: CommitsState
    ledger: tuple[LedgerEntry, ...]
    starts: int  # the number of the next `StartWorkers`; answers to earlier ones still come
    plan: KeptPlan | None  # its runner comes with its next step
    checkpoints: CheckpointState | None = None  # None: nothing is durable
    watermarks: WatermarksState | None = None  # None: the job knows no event time
