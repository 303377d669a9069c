"""Messages between workers and the coordinator about event time: the progress of partitions, and the job's clock.

    an event_time operator ─ MaximaSeen ─▶ coordinator ─ Watermark, on the control stream ─▶ operators with timers
    a source ─ PartitionsIdle ─▶ coordinator
    coordinator ─ TellMaxima, on the control stream ─▶ sources ─ MaximaTold ─▶ coordinator
    an operator with timers by the clock ─ ClockWanted ─▶ coordinator ─ Clock, on the control stream ─▶ such operators

`megaflow.control.coordinator.reading.watermarks` computes watermarks from these, and explains why reports may come
late.
1. A worker reports at most every 50 ms. Its answer to `TellMaxima` does not wait.
2. Maxima cover all partitions with records since the last report, also those whose maximum has not grown: a report
   about an idle partition makes it active again.
3. The worker that reads a partition reports that it is idle, before it reports that it has handed it back.

The receiver checks every record with `megaflow.control.shapes`; it trusts no record for its type.
"""

from dataclasses import field
from typing import TypeAlias

from megaflow.quick_dataclass import dataclass

Partition: TypeAlias = tuple[str, int | str]
"""Data that is read in one order; its kind and its name:

    ("split", number)    a file, or a piece of one
    ("partition", number)  a partition of a source that the program reads by `flow.read`, or a file that is followed
    ("pushed", input)    the lines that the launcher reads; the input is "" if the lines have no name
        ("items", input)     the items of an iterable
        ("spark", query)     all data of a query
"""


def may_have_idle_branches(partition: Partition) -> bool:
    """Return whether one operator alone may find a partition idle; see rule 5 of `idle_branches`."""
    return partition[0] in ("partition", "spark")


# Workers to the coordinator ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MaximaSeen:
    """The greatest timestamp that an operator has seen in each partition with records since the last report."""

    operator: str  # that takes timestamps
    maxima: tuple[tuple[Partition, int], ...]  # microseconds
    firsts: tuple[tuple[Partition, int], ...] = ()  # first timestamp of files from which it had seen none
    late: tuple[tuple[Partition, tuple[tuple[int, int], ...], int], ...] = ()
    """Partitions with records below the running maximum since the last report: the number of these records by bucket,
    and the greatest lateness in microseconds, as in `megaflow.event_time.lateness`."""


@dataclass(frozen=True, slots=True)
class PartitionsIdle:
    """Partitions with nothing to read, or with no record that reached an operator, for the timeout."""

    partitions: tuple[Partition, ...]  # that this worker reads
    operator: str = ""  # that alone got no record of them; "": none did


@dataclass(frozen=True, slots=True)
class ClockWanted:
    """Whether an operator of the worker has timers by the clock."""

    wanted: bool


@dataclass(frozen=True, slots=True)
class MaximaTold:
    """The answer to `TellMaxima`: this worker's operators have reported all that they have seen."""


# Coordinator to sources, on the control stream --------------------------------------------


EventTimeReport: TypeAlias = MaximaSeen | PartitionsIdle | ClockWanted | MaximaTold


@dataclass(frozen=True, slots=True)
class TellMaxima:
    """All lines are read and processed: report the rest of the maxima, then answer with `MaximaTold`."""


# In a status ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldsBack:
    """The partition that keeps the watermark from rising."""

    operator: str  # that takes timestamps
    input: str  # "" if it has no name
    partition: str  # as text
    maximum: int | None  # microseconds, the greatest timestamp seen in it; None: it has not begun
    worker: int | None = None  # its reader, now or soon; None: it was given to no worker, or to several
    bound: int | None = None  # microseconds, all its records are at or after this, if it has not begun; None: not known
    in_order: bool = False  # the bound follows, or would follow, from the order in which files are read
    lag_seconds: float | None = None  # of its maximum behind the greatest timestamp of all; None: it has no maximum


@dataclass(frozen=True, slots=True)
class IdlePartition:
    """A partition without records for the timeout; it does not hold the watermark back."""

    input: str  # "" if it has no name
    partition: str  # as text
    idle_seconds: float  # since it became idle
    lag_seconds: float | None = None  # of its maximum behind the greatest timestamp of all; None: it has no maximum
    operator: str | None = None  # at which alone it is idle; None: at all


@dataclass(frozen=True, slots=True)
class PartitionLateness:
    """Delays in seconds of records behind a later record of their partition, since the job began or was resumed."""

    operator: str  # that takes timestamps
    input: str  # "" if it has no name, or for all partitions that are read to their ends
    partition: str | None  # as text; None: all partitions that are read to their ends
    records: int  # that came after a later record; the following fields are about these
    p50_seconds: float
    p99_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Progress of event time."""

    micros: int | None  # None: there is no watermark yet
    is_infinite: bool = False  # all lines are read
    age_seconds: float = 0.0  # since it rose; if there is none, since the job began
    lag_seconds: float | None = None  # behind the greatest timestamp; None: no timestamp was seen
    held_by: HoldsBack | None = None  # None: no partition that is still to be read
    idle_partitions: tuple[IdlePartition, ...] = ()
    all_idle_seconds: float | None = None  # for which all partitions have been idle; None: some are not
    stands_at: str | None = None  # operator without `advance_when_idle` whose bound then counts, as others are further
    lateness: tuple[PartitionLateness, ...] = ()  # of partitions that had records out of order
    read_limits: dict[str, int] = field(default_factory=dict)
    """Input -> microseconds up to which its files are read, with `--max-skew`; other inputs have no limit.
    """

    @property
    def idle(self) -> tuple[str, ...]:
        """The partitions that are idle at all operators, as text."""
        return tuple(each.partition for each in self.idle_partitions if each.operator is None)
