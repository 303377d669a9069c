"""How late records were in their partitions, a part of `watermarks`: what a status shows of `megaphone.lateness`.

1. Workers report what they have counted since their last report, so it adds up wherever a partition was read.
2. A job may read partitions for ever. What was counted of those that are read to their ends is added up by operator.
3. Whoever takes the coordinator's part over gets it. A checkpoint has none of it: it is counted anew in each life.
"""

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from megaflow.control.coordinator.idle_time import MICROS
from megaflow.control.coordinator.unread_partitions import Unread, shown
from megaflow.control.watermark_messages import Partition, PartitionLateness
from megaflow.megaphone.lateness import LatenessHistogram

READ: Final = None  # stands for all partitions of an operator that are read to their ends

Late: TypeAlias = tuple[str, Partition | None, tuple[tuple[int, int], ...], int]
"""Operator, partition, records by bucket, and the greatest lateness."""


class SeenLateness:
    """What was counted, by operator and partition. One writer: the watermarks of a job.

    >>> seen = SeenLateness()
    >>> seen.add("clicks", ((("split", 0), ((5, 2),), 5), (("split", 1), ((7, 1),), 7)))
    >>> seen.keep({("split", 1)})
    >>> [(each.partition, each.records, each.max_seconds) for each in seen.statuses([Unread(("split", 1), "", 0)])]
    [('a file', 1, 7e-06), (None, 2, 5e-06)]
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Partition | None], LatenessHistogram] = {}

    def add(self, operator: str, late: Iterable[tuple[Partition, tuple[tuple[int, int], ...], int]]) -> None:
        """Take in what was counted at an operator, by partition."""
        for partition, counts, greatest in late:
            _merge(self._seen, (operator, partition), counts, greatest)

    def keep(self, unread: Collection[Partition]) -> None:
        """Add up what is of other partitions than these, which are read to their ends."""
        self._seen = self._added_up(unread)

    def statuses(self, unread: Iterable[Unread]) -> tuple[PartitionLateness, ...]:
        """Return what a status shows; those last that are read to their ends. Cost: linear in what is unread."""
        known = {each.partition: each for each in unread}
        rows = []
        for (operator, partition), seen in self._added_up(known).items():
            each = None if partition is READ else known[partition]
            input, name = ("", None) if each is None else (each.input, shown(each))
            p50, p99 = seen.quantile(0.5) / MICROS, seen.quantile(0.99) / MICROS
            rows.append(PartitionLateness(operator, input, name, seen.records, p50, p99, seen.greatest / MICROS))
        return tuple(sorted(rows, key=lambda row: row.partition is None))

    def state(self) -> tuple[Late, ...]:
        """Return what whoever goes on with this must know."""
        return tuple((*key, tuple(seen.counts.items()), seen.greatest) for key, seen in self._seen.items())

    def resume(self, state: Iterable[Late]) -> None:
        """Go on from there."""
        for operator, partition, counts, greatest in state:
            _merge(self._seen, (operator, partition), counts, greatest)

    def _added_up(self, unread: Collection[Partition]) -> dict[tuple[str, Partition | None], LatenessHistogram]:
        found: dict[tuple[str, Partition | None], LatenessHistogram] = {}
        for (operator, partition), seen in self._seen.items():
            kept = partition if partition in unread else READ
            _merge(found, (operator, kept), seen.counts.items(), seen.greatest)
        return found


def _merge(
    into: dict[tuple[str, Partition | None], LatenessHistogram], key: tuple[str, Partition | None],
    counts: Iterable[tuple[int, int]], greatest: int,
) -> None:  # fmt: skip
    if key not in into:
        into[key] = LatenessHistogram()
    into[key].merge(counts, greatest)
