"""Partitions that are still to be read, as event time sees them: the input and the reader of each.

A partition is unread until all of it was taken in, no matter whether it is in the pool, given, handed back, or being
read. Other modules know that: `LinesToRead` knows files, sources and the launcher's lines; `Commits` knows Spark's
batches.

A source that has not named its partitions since the job began or was resumed counts as one partition. So does a Spark
input whose query has not begun. Of files that are read in an order and that no worker holds, this module lists those
that have begun, and the next one. The files after it have no earlier records than it has.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.messages import PushedEnded, Split
from megaflow.control.reading_messages import PartitionsRevoked, SplitsReturned, SplitsRevoked, partition_of
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import SourcePartition, input_of
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.membership import WorkerId

SHOWN_MAX: Final = 100  # characters
SHOWN: Final = {
    "split": "a file", "partition": "partitions that it has not reported yet", "pushed": "the launcher's input",
    "items": "the items", "spark": "the query",
}  # fmt: skip

Describe: TypeAlias = Callable[[SourcePartition], str]


@dataclass(frozen=True, slots=True)
class Unread:
    """A partition that is not read to its end."""

    partition: Partition
    input: str
    worker: WorkerId | None  # its holder; None: it has none, or several
    what: Split | SourcePartition | None = None  # None: it is neither, or stands for all partitions of a source


class UnreadPartitions:
    """All unread partitions of a job, computed from the other modules at each call."""

    def __init__(
        self, lines: LinesToRead, commits: Commits, roster: Roster, pushed: Iterable[Partition], spark: Iterable[str]
    ) -> None:
        """`pushed`: partitions that the launcher sends. `spark`: inputs that queries feed."""
        self.pushed, self.spark = tuple(pushed), tuple(spark)
        self._lines = lines
        self._commits = commits
        self._roster = roster

    def are_ordered(self, each: Unread) -> bool:
        """Tell whether a partition is a file of an input that is read in an order."""
        return isinstance(each.what, Split) and each.input in self._lines.state.ordered

    def passed_on(self, report: object) -> list[Partition]:
        """Return the partitions that a worker hands back by a report, or that others read from now on."""
        match report:
            case SplitsReturned(splits, partitions):
                return [*map(partition_of, splits), *map(partition_of, partitions)]
            case SplitsRevoked(parts) | PartitionsRevoked(parts):
                return [*map(partition_of, parts)]
            case PushedEnded():
                return [*self.pushed]
        return []

    def among(self, partitions: Iterable[Partition]) -> set[Partition]:
        """Return these partitions without the files and sources' partitions that are read to their ends.

        Cost: linear in these, and in all unread partitions.
        """
        numbers = {split.number for split, _ in self._lines.unread}
        numbers.update(each.number for each, _ in self._lines.partitions.unread)
        return {each for each in partitions if each[0] not in ("split", "partition") or each[1] in numbers}

    def all(self, has_begun: Callable[[Partition], bool]) -> Iterator[Unread]:
        """Iterate over all unread partitions; `has_begun` tells whether a record of a file was seen."""
        passed: set[str] = set()  # ordered inputs whose next file was listed
        for split, worker in self._lines.unread:
            if worker is not None or split.input not in passed:
                each = Unread(("split", split.number), split.input, worker, split)
                if worker is None and self.are_ordered(each) and not has_begun(each.partition):
                    passed.add(split.input)
                yield each
        for partition, worker in self._lines.partitions.unread:
            yield Unread(("partition", partition.number), partition.input, worker, partition)
        for source in sorted(self._lines.partitions.state.unheard):
            yield Unread(("partition", source), source, None)
        for kind, input in self.pushed if self._lines.state.pushed else ():
            yield Unread((kind, input), str(input), self._roster.pushed_to)
        if not self._commits.over:
            over = {input_of(query) for query in self._commits.state.ended if not self._commits.has_batches(query)}
            yield from (Unread(("spark", input), input, None) for input in self.spark if input not in over)


def decoded(partition: SourcePartition) -> str:
    """Return the text of a partition whose source does not describe it."""
    text = repr(decode(partition.partition))
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


def shown(unread: Unread, describe: Describe = decoded) -> str:
    """Return how a status shows a partition. `describe` returns the text of a source's partition.

    >>> shown(Unread(("split", 7), "", 0, Split(7, "logs/a.json", 0, 9))), shown(Unread(("pushed", ""), "", 0))
    ('logs/a.json', "the launcher's input")
    """
    match unread.what:
        case Split(path=path, start=start):
            return f"{path} from byte {start} on" if start else path
        case SourcePartition() as partition:
            return describe(partition)
    return SHOWN[unread.partition[0]]
