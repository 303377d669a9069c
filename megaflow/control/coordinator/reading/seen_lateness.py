"""Lateness of records within their partitions, for status: the sum of the workers' counts (`event_time.lateness`).

A part of `watermarks`.

1. Workers report what they have counted since their last report. So the counts add up wherever a partition was read.
2. A job may read partitions without end. So the counts of partitions that are read to their ends are added up by
   operator.
3. A coordinator that takes over receives the counts. A checkpoint does not contain them: each attempt counts anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from megaflow import event_time
from megaflow.control.coordinator.reading.idle_time import MICROS
from megaflow.control.coordinator.reading.unread_partitions import Describe, Unread, decoded, shown
from megaflow.control.watermark_messages import Partition, PartitionLateness

READ: Final = None  # stands for all partitions of an operator that are read to their ends

Late: TypeAlias = tuple[str, Partition | None, tuple[tuple[int, int], ...], int]
"""Operator, partition, records by bucket, and the greatest lateness."""

ByPartition: TypeAlias = "dict[tuple[str, Partition | None], event_time.LatenessHistogram]"


class SeenLateness:
    """Counts by operator and partition. One writer: the watermarks of a job.

    >>> seen = SeenLateness()
    >>> seen.add("clicks", ((("split", 0), ((5, 2),), 5), (("split", 1), ((7, 1),), 7)))
    >>> seen.keep({("split", 1)})
    >>> [(each.partition, each.records, each.max_seconds) for each in seen.statuses([Unread(("split", 1), "", 0)])]
    [('a file', 1, 7e-06), (None, 2, 5e-06)]
    """

    def __init__(self) -> None:
        self._seen: ByPartition = {}

    def add(self, operator: str, late: Iterable[tuple[Partition, tuple[tuple[int, int], ...], int]]) -> None:
        """Add a worker's counts at an operator, by partition."""
        for partition, counts, greatest in late:
            _merge(self._seen, (operator, partition), counts, greatest)

    def keep(self, unread: Collection[Partition]) -> None:
        """Add up the counts of all other partitions, which are read to their ends."""
        self._seen = self._added_up(unread)

    def statuses(self, unread: Iterable[Unread], describe: Describe = decoded) -> tuple[PartitionLateness, ...]:
        """Return the rows of a status; rows of finished partitions come last. Cost: linear in unread partitions.

        `describe` is as for `shown`.
        """
        known = {each.partition: each for each in unread}
        rows = []
        for (operator, partition), seen in self._added_up(known).items():
            each = None if partition is READ else known[partition]
            input, name = ("", None) if each is None else (each.input, shown(each, describe))
            p50, p99 = seen.quantile(0.5) / MICROS, seen.quantile(0.99) / MICROS
            rows.append(PartitionLateness(operator, input, name, seen.records, p50, p99, seen.greatest / MICROS))
        return tuple(sorted(rows, key=lambda row: row.partition is None))

    def state(self) -> tuple[Late, ...]:
        """Return what the next coordinator needs."""
        return tuple((*key, tuple(seen.counts.items()), seen.greatest) for key, seen in self._seen.items())

    def resume(self, state: Iterable[Late]) -> None:
        """Continue from the state of the previous coordinator."""
        for operator, partition, counts, greatest in state:
            _merge(self._seen, (operator, partition), counts, greatest)

    def _added_up(self, unread: Collection[Partition]) -> ByPartition:
        found: ByPartition = {}
        for (operator, partition), seen in self._seen.items():
            kept = partition if partition in unread else READ
            _merge(found, (operator, kept), seen.counts.items(), seen.greatest)
        return found


def _merge(
    into: ByPartition, key: tuple[str, Partition | None], counts: Iterable[tuple[int, int]], greatest: int
) -> None:
    if key not in into:
        into[key] = event_time.LatenessHistogram()
    into[key].merge(counts, greatest)
