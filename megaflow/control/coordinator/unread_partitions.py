"""What is still to be read of a job, as event time sees it: partitions, of which input each is, and who reads it.

A partition is unread until all of it was taken in: whether it is in the pool, given, handed back, or being read. Others
know that: `LinesToRead` of files and sources and the launcher's lines, `Commits` of Spark's batches.

A source that has not said which partitions it has stands here as one, since the job began or was resumed; so does an
input of Spark's whose query has not begun. Of files that are read in an order, and that nobody was given, those that
have begun are here and the next one: what comes after it has nothing earlier.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.messages import PushedEnded, Split
from megaflow.control.reading_messages import PortionsRevoked, SplitsReturned, SplitsRevoked
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import Portion
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.membership import WorkerId

SHOWN_MAX: Final = 100  # characters
SHOWN: Final = {
    "split": "a file", "portion": "partitions that it has not reported yet", "pushed": "the launcher's input",
    "items": "the items", "spark": "the query",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unread:
    """A partition that is not read to its end."""

    partition: Partition
    input: str
    worker: WorkerId | None  # that was given it; None: nobody, or several
    what: Split | Portion | None = None  # None: it is neither, or stands for all that a source is to find


class UnreadPartitions:
    """All of them, as they are by now."""

    def __init__(
        self, lines: LinesToRead, commits: Commits, roster: Roster, pushed: Iterable[Partition], spark: Iterable[str]
    ) -> None:
        """`pushed`: what the launcher sends; `spark`: the inputs that queries feed."""
        self.pushed, self.spark = tuple(pushed), tuple(spark)
        self._lines = lines
        self._commits = commits
        self._roster = roster

    def are_ordered(self, each: Unread) -> bool:
        """Tell whether one is a file of an input that is read in an order."""
        return isinstance(each.what, Split) and each.input in self._lines.ordered

    def passed_on(self, report: object) -> list[Partition]:
        """Return the partitions that a worker has handed back by a report, or that others read from now on."""
        match report:
            case SplitsReturned(splits, portions):
                return [*(("split", each.number) for each in splits), *(("portion", each.number) for each in portions)]
            case SplitsRevoked(splits):
                return [("split", each.number) for each in splits]
            case PortionsRevoked(portions):
                return [("portion", each.number) for each in portions]
            case PushedEnded():
                return [*self.pushed]
        return []

    def among(self, partitions: Iterable[Partition]) -> set[Partition]:
        """Return these without the files and partitions of sources that are read to their ends.

        Cost: linear in these, and in all that are not.
        """
        numbers = {split.number for split, _ in self._lines.unread}
        numbers.update(portion.number for portion, _ in self._lines.partitions.unread)
        return {each for each in partitions if each[0] not in ("split", "portion") or each[1] in numbers}

    def all(self, has_begun: Callable[[Partition], bool]) -> Iterator[Unread]:
        """Go over them; `has_begun` tells whether something was seen of a file."""
        passed: set[str] = set()  # inputs in an order, whose next file was there
        for split, worker in self._lines.unread:
            if worker is not None or split.input not in passed:
                each = Unread(("split", split.number), split.input, worker, split)
                if worker is None and self.are_ordered(each) and not has_begun(each.partition):
                    passed.add(split.input)
                yield each
        for portion, worker in self._lines.partitions.unread:
            yield Unread(("portion", portion.number), portion.input, worker, portion)
        for source in self._lines.partitions.unheard:
            yield Unread(("portion", source), source, None)
        for kind, input in self.pushed if self._lines.pushed else ():
            yield Unread((kind, input), str(input), self._roster.pushed_to)
        if not self._commits.over:
            over = {input_of(query) for query in self._commits.ended if not self._commits.has_batches(query)}
            yield from (Unread(("spark", input), input, None) for input in self.spark if input not in over)


def input_of(query: str) -> str:
    """Return the input that a query of Spark's feeds, by the query's name; "" if it feeds lines.

    >>> input_of("orders-0123abcd"), input_of("0123abcd")
    ('orders', '')
    """
    return query.rpartition("-")[0]


def shown(unread: Unread) -> str:
    """Return how a partition shows.

    >>> shown(Unread(("split", 7), "", 0, Split(7, "logs/a.json", 0, 9))), shown(Unread(("pushed", ""), "", 0))
    ('logs/a.json', "the launcher's input")
    """
    match unread.what:
        case Split(path=path, start=start):
            return f"{path} from byte {start} on" if start else path
        case Portion(partition=partition):
            text = repr(decode(partition))
            return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"
    return SHOWN[unread.partition[0]]
