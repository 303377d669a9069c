"""What coordinator and sources say of splits and partitions: who reads which, from where on, at which rate.

    coordinator ─ AssignSplits, AssignPortions ─▶ sources ─ SplitRead, of each ─▶ coordinator
    coordinator ─ RevokeSplits ─▶ sources ─ SplitsRevoked ─▶ coordinator ─ AssignSplits ─▶ others
    coordinator ─ RevokePortions ─▶ a source ─ PortionsRevoked ─▶ coordinator ─ AssignPortions ─▶ others
    coordinator ─ Withdraw ─▶ sources of workers that leave ─ SplitsReturned ─▶ coordinator ─ AssignSplits ─▶ others
    coordinator ─ ShareRate ─▶ sources

Commands are on the control stream, so all sources see them in one order; reports are mail. Why nothing is lost or read
twice by that: `megaflow.control.coordinator.lines_to_read`, `megaflow.job.worker.source_operator`.

The receiver checks every record, by `megaflow.control.shapes`; none is trusted for its type.
"""


from megaflow.control.messages import Split
from megaflow.durable.commits import Portion
from megaflow.quick_dataclass import dataclass

# Coordinator to sources ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AssignSplits:
    """Give splits to workers."""

    assignments: dict[int, tuple[Split, ...]]  # worker -> splits


@dataclass(frozen=True, slots=True)
class AssignPortions:
    """Give partitions of sources to workers, each from a position on."""

    assignments: dict[int, tuple[Portion, ...]]  # worker -> portions


@dataclass(frozen=True, slots=True)
class RevokeSplits:
    """Take splits back that are not read, or not wholly: each of these workers answers by one `SplitsRevoked`."""

    numbers: dict[int, tuple[int, ...]]  # worker -> of splits that it was given


@dataclass(frozen=True, slots=True)
class RevokePortions:
    """Take partitions of sources back from a worker, wherever they are; it answers by `PortionsRevoked`."""

    worker: int
    numbers: tuple[int, ...]  # that it was given


@dataclass(frozen=True, slots=True)
class ShareRate:
    """These workers, who have splits, read them in equal parts of `--rate` from now on."""

    workers: tuple[int, ...]


# Sources to the coordinator ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitRead:
    """A source has read a split, or a portion, to its end."""

    number: int


@dataclass(frozen=True, slots=True)
class SplitsReturned:
    """The source of a leaving worker has closed; these splits it has not read, each from its `start` on.

    It is the source's last report. A split that was returned keeps its number.
    """

    splits: tuple[Split, ...]
    portions: tuple[Portion, ...] = ()  # likewise


@dataclass(frozen=True, slots=True)
class SplitsRevoked:
    """A source has handed back what it was told to; these splits it has not read, each from its `start` on."""

    splits: tuple[Split, ...]  # but for those that it had read to their ends


@dataclass(frozen=True, slots=True)
class PortionsRevoked:
    """A source has handed back what it was told to; these partitions have not ended."""

    portions: tuple[Portion, ...]
