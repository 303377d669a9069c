"""Messages between coordinator and sources about splits and partitions: their readers, their starts, and the rate.

    coordinator ─ AssignSplits, AssignPartitions ─▶ sources ─ SplitRead, of each ─▶ coordinator
    coordinator ─ RevokeSplits ─▶ sources ─ SplitsRevoked ─▶ coordinator ─ AssignSplits ─▶ others
    coordinator ─ RevokePartitions ─▶ a source ─ PartitionsRevoked ─▶ coordinator ─ AssignPartitions ─▶ others
    a source ─ PartitionMissing ─▶ coordinator ─ RevokeSplits, RevokePartitions, or StayWithPartition ─▶ the source
    coordinator ─ Withdraw ─▶ sources of workers that leave ─ SplitsReturned ─▶ coordinator ─ AssignSplits ─▶ others
    coordinator ─ ShareRate, ReadLimits ─▶ sources

Commands are on the control stream, so all sources see them in one order. Reports are mail. Two modules explain why this
loses nothing and reads nothing twice: `megaflow.control.coordinator.reading.lines_to_read` and
`megaflow.job.worker.reading.source_operator`.

The receiver checks every record with `megaflow.control.shapes`; it trusts no record for its type.
"""

from dataclasses import field
from typing import TypeAlias

from megaflow.control.messages import Split, SplitEnd
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import SourcePartition
from megaflow.quick_dataclass import dataclass

# Coordinator to sources ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AssignSplits:
    """Give splits to workers."""

    assignments: dict[int, tuple[Split, ...]]  # worker -> splits


@dataclass(frozen=True, slots=True)
class AssignPartitions:
    """Give partitions of sources to workers, each from its position on."""

    assignments: dict[int, tuple[SourcePartition, ...]]  # worker -> partitions
    sights: dict[int, bytes] | None = None
    """Number -> what the source said of the partition when it was new, for some. None: readers compare nothing."""


@dataclass(frozen=True, slots=True)
class RevokeSplits:
    """Take back splits that are not wholly read; each of these workers answers with one `SplitsRevoked`."""

    numbers: dict[int, tuple[int, ...]]  # worker -> numbers of splits that it holds


@dataclass(frozen=True, slots=True)
class RevokePartitions:
    """Take back partitions of sources from a worker, at any position; it answers with `PartitionsRevoked`."""

    worker: int
    numbers: tuple[int, ...]  # of partitions that it was given


@dataclass(frozen=True, slots=True)
class StayWithPartition:
    """Keep trying to open a partition, as no process of the job can; of a split: open it now, or fail."""

    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class ShareRate:
    """These workers have splits; from now on they share `--rate` equally."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Read no file whose bound of event time exceeds the limit of its input, until new limits arrive."""

    limits: dict[str, int]  # input -> microseconds; other inputs have no limit


# Sources to the coordinator ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitRead:
    """A source has read a split or a partition to its end."""

    number: int
    left: tuple[SourcePartition, ...] = ()  # its end, if the next run may continue there, or it ended ANEW; else empty
    end: SplitEnd | None = None  # None: the job has no store, or it is a partition


@dataclass(frozen=True, slots=True)
class SplitsReturned:
    """The source of a leaving worker has closed, and returns unread splits, each from its `start` on.

    This is the source's last report. Returned splits keep their numbers.
    """

    splits: tuple[Split, ...]
    partitions: tuple[SourcePartition, ...] = ()  # the unread ones
    taken: dict[str, int] = field(default_factory=dict)  # input with a name -> lines that the source has read


@dataclass(frozen=True, slots=True)
class SplitsRevoked:
    """A source has handed back the requested splits; these are the unread ones, each from its `start` on."""

    splits: tuple[Split, ...]  # without those that it had read to their ends


@dataclass(frozen=True, slots=True)
class PartitionsRevoked:
    """A source has handed back the requested partitions; these are the ones that have not ended."""

    partitions: tuple[SourcePartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionMissing:
    """A source cannot open a partition or a split that it was given. It keeps it until it is revoked.

    It looks for a partition again and again, but not for a split.
    """

    number: int
    why: str = ""  # what its process lacks, and why
    unread: int | None = None  # bytes of a partition that were not read; None: unknown
    differs: bool = False  # its process finds another partition of that name, such as a file with the same inode


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """A source has opened a partition that was missing."""

    number: int


def partition_of(part: Split | SourcePartition) -> Partition:
    """Return the name by which maxima are kept of a split or a source's partition."""
    return ("split" if isinstance(part, Split) else "partition"), part.number


PartReport: TypeAlias = (
    SplitRead | SplitsReturned | SplitsRevoked | PartitionsRevoked | PartitionMissing | PartitionSeen
)
"""Sources' reports on splits and partitions."""
