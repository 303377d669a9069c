"""The merge of all workers' outputs into epoch order. It decides and does no I/O; a `Writer` takes the closed epochs.

1. An epoch is closed when every worker has reported that it will send nothing more for it or for earlier epochs.
2. Closed epochs leave in increasing order. Within an epoch, records are ordered by output, then by worker id, then as
   their worker sent them.
3. Workers may come and go. The launcher learns of a new worker before the worker sends anything. A new worker has
   nothing for epochs that are already closed (see `megaflow.job.worker.writing.output`). A leaving worker holds epochs
   back until it has closed everything.
4. A checkpoint contains everything before its epoch. So its `Mark` leaves exactly between the earlier epochs and the
   others, however many close at once. The mark is requested before its epoch can close: the coordinator announces it
   before it lets the epoch pass, over the connection on which its own process closes epochs.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the outputs: all epochs before `epoch` come before it, all others after it."""

    checkpoint: int
    epoch: float  # infinite: the end of the outputs


Leaving: TypeAlias = tuple[int, list[Any], str] | Mark
"""What leaves the merge: (epoch, its records of one output, the output's name), or a mark."""


class EpochMerge:
    """Merge of the outputs of `workers`. One writer: the launcher's loop.

    >>> merge = EpochMerge([0, 1])
    >>> for batch in OutputBatch(1, 5, ["b"]), OutputBatch(0, 5, ["a"]), OutputBatch(0, 6, ["c"]):
    ...     merge.add(batch)
    >>> merge.close(OutputClosed(0, 7)), merge.close(OutputClosed(1, 6))
    ([], [(5, ['a', 'b'], '')])
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._closed: dict[int, float] = dict.fromkeys(workers, 0)  # worker -> the least epoch that it may still send
        self._least: float = 0  # the least of these so far; epochs before it have left
        self._held: dict[int, dict[tuple[str, int], list[Any]]] = {}  # epoch, none before _least -> output, worker
        self._marks: list[Mark] = []  # that have not left, by epoch

    def join(self, workers: Iterable[int]) -> None:
        """Also wait for these workers, from the first epoch that has not left."""
        for worker in workers:
            assert worker not in self._closed, f"Worker {worker} joined the merge twice."
            self._closed[worker] = self._least

    def add(self, batch: OutputBatch) -> None:
        """Take in records of an epoch. Raises ProtocolError if their worker has closed it."""
        if not batch.epoch >= self._closed.get(batch.worker, float("inf")):
            raise ProtocolError(f"Worker {batch.worker} sent output for epoch {batch.epoch} after closing it.")
        held = self._held.setdefault(batch.epoch, {})
        held.setdefault((batch.output, batch.worker), []).extend(batch.records)

    def mark(self, mark: Mark) -> list[Leaving]:
        """Let a mark leave in its place; return it if that is now. Raises ProtocolError if epochs after it have left.

        The epochs of marks must not decrease.
        """
        if self._least > mark.epoch:
            raise ProtocolError(f"Checkpoint {mark.checkpoint} belongs to epoch {mark.epoch}, which is already closed.")
        if self._least == mark.epoch:
            return [mark]
        self._marks.append(mark)
        return []

    def close(self, closed: OutputClosed) -> list[Leaving]:
        """Note how far a worker has closed; return the epochs that this closes, with their records, and due marks.

        Costs O(workers) and O(epochs held) when something closes.
        """
        if closed.epoch is None:
            self._closed.pop(closed.worker, None)  # it has left, or the job ends
        elif closed.worker in self._closed:
            self._closed[closed.worker] = max(closed.epoch, self._closed[closed.worker])
        least = min(self._closed.values(), default=float("inf"))
        if least <= self._least:
            return []
        self._least = least
        closed_now = [(epoch, self._held.pop(epoch)) for epoch in sorted(self._held) if epoch < least]
        leaving: list[Leaving] = [
            (epoch, [record for _, records in some for record in records], output)
            for epoch, each in closed_now
            for output, some in groupby(sorted(each.items(), key=itemgetter(0)), key=lambda item: item[0][0])
        ]
        while self._marks and self._marks[0].epoch <= least:
            mark = self._marks.pop(0)
            leaving.insert(sum(isinstance(each, Mark) or each[0] < mark.epoch for each in leaving), mark)
        return leaving
