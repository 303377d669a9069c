"""What workers and the coordinator say of event time: how far partitions are, and whether the job's clock is asked for.

    an event_time operator ─ MaximaSeen ─▶ coordinator ─ Watermark, on the control stream ─▶ operators with timers
    a source ─ PartitionsIdle ─▶ coordinator
    coordinator ─ TellMaxima, on the control stream ─▶ sources ─ MaximaTold ─▶ coordinator
    an operator with timers by the clock ─ ClockWanted ─▶ coordinator ─ Clock, on the control stream ─▶ such operators

What follows from these, and why reports may come late: `megaflow.control.coordinator.watermarks`.
1. A worker reports at most every 50 ms, sooner only if it has reported nothing for that long.
2. Maxima are of partitions of which something was seen since the last report, whether or not they are greater than
   before: a report of a partition that was idle makes it active again.
3. That a partition is idle is said by who reads it, before it says that it has handed it back.

The receiver checks every record, by `megaflow.control.shapes`; none is trusted for its type.
"""

from typing import TypeAlias

from megaflow.quick_dataclass import dataclass

Partition: TypeAlias = tuple[str, int | str]
"""What is read in one order, and what it is:

    ("split", number)    a file, or a piece of one
    ("portion", number)  a partition of a source that the program reads by `flow.read`, or a file that is followed
    ("pushed", input)    the lines that the launcher reads; the input is "" if the lines have no name
    ("items", input)     the items of an iterable
    ("spark", query)     all that a query gives
"""

# Workers to the coordinator ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MaximaSeen:
    """The greatest timestamps that an operator has seen of partitions that it has seen something of since the last."""

    operator: str  # that takes timestamps
    maxima: tuple[tuple[Partition, int], ...]  # microseconds
    firsts: tuple[tuple[Partition, int], ...] = ()  # of files that it has seen nothing of before: the first one
    late: tuple[tuple[Partition, tuple[tuple[int, int], ...], int], ...] = ()
    """Of partitions with records below the running maximum since then: how many, by bucket, and the greatest lateness
    in microseconds, as in `megaflow.megaphone.lateness`."""


@dataclass(frozen=True, slots=True)
class PartitionsIdle:
    """Partitions with nothing to read for the timeout, or no record of which has come to an operator for so long."""

    partitions: tuple[Partition, ...]  # that are read here


@dataclass(frozen=True, slots=True)
class ClockWanted:
    """Whether an operator of the worker has timers by the clock."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class MaximaTold:
    """All that this worker's operators have seen was reported: the answer to `TellMaxima`."""


# Coordinator to sources, on the control stream --------------------------------------------


@dataclass(frozen=True, slots=True)
class TellMaxima:
    """All lines are read and worked off: report what is not reported yet, then say so by `MaximaTold`."""


# In a status ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldsBack:
    """The partition that keeps the watermark from rising."""

    operator: str  # that takes timestamps
    input: str  # "" if it has no name
    partition: str  # as it shows
    maximum: int | None  # microseconds, the greatest timestamp that was seen of it; None: it has not begun
    worker: int | None = None  # that reads it, or is to; None: nobody was told to, or several do
    bound: int | None = None  # microseconds before which it has nothing, if it has not begun; None: not known
    in_order: bool = False  # that is known, or would be, from the order in which files are read
    lag_seconds: float | None = None  # that its maximum is behind the greatest timestamp of all; None: it has none


@dataclass(frozen=True, slots=True)
class IdlePartition:
    """A partition that does not count, as nothing has come of it for the timeout."""

    input: str  # "" if it has no name
    partition: str  # as it shows
    idle_seconds: float  # since it does not count
    lag_seconds: float | None = None  # that its maximum is behind the greatest timestamp of all; None: it has none


@dataclass(frozen=True, slots=True)
class PartitionLateness:
    """By how many seconds records of a partition came after a later one of it, since the job began or was resumed."""

    operator: str  # that takes timestamps
    input: str  # "" if it has no name, or for all that are read to their ends
    partition: str | None  # as it shows; None: all that are read to their ends
    records: int  # that came after a later one; the following are of these
    p50_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """How far event time is."""

    micros: int | None  # None: there is no watermark yet
    is_infinite: bool = False  # all lines are read
    age_seconds: float = 0.0  # since it rose, or, if there is none, since the job began
    lag_seconds: float | None = None  # that it is behind the greatest timestamp; None: nothing was seen
    held_by: HoldsBack | None = None  # None: by nothing that is to be read
    idle_partitions: tuple[IdlePartition, ...] = ()
    all_idle_seconds: float | None = None  # that all partitions are idle; None: not all are
    lateness: tuple[PartitionLateness, ...] = ()  # of partitions that had records out of order

    @property
    def idle(self) -> tuple[str, ...]:
        """The partitions that do not count, as they show."""
        return tuple(each.partition for each in self.idle_partitions)
