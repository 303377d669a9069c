"""The outputs of all workers, put into epoch order and written.

`EpochMerge` decides (no I/O): an epoch is closed when every worker has said that nothing before a later one is still to
come. Closed epochs leave in increasing order, each in order of worker id, each worker's records in the order it sent
them. Workers may come and go: the launcher hears of a new worker before that sends anything (it has nothing for epochs
that are closed by then: see `megaflow.job.worker.output`); a worker that leaves is waited for until it has closed
everything. A `Writer` takes the closed epochs; those of the command line are in `megaflow.job.launcher.output_file`.
"""

from collections.abc import Iterable
from typing import Any

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.errors import ProtocolError
from megaflow.job.spec import Form


class EpochMerge:
    """Merges the outputs of `workers`; one writer, the launcher's loop.

    >>> merge = EpochMerge([0, 1])
    >>> for batch in OutputBatch(1, 5, ["b"]), OutputBatch(0, 5, ["a"]), OutputBatch(0, 6, ["c"]):
    ...     merge.add(batch)
    >>> merge.close(OutputClosed(0, 7)), merge.close(OutputClosed(1, 6))
    ([], [(5, ['a', 'b'])])
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._closed: dict[int, float] = dict.fromkeys(workers, 0)  # worker -> what it sends is at this epoch or later
        self._least: float = 0  # of these, ever; epochs before it have left
        self._held: dict[int, dict[int, list[Any]]] = {}  # epoch -> worker -> records, none before _least

    def join(self, workers: Iterable[int]) -> None:
        """Wait for these workers, too, from the first epoch on that has not left."""
        for worker in workers:
            assert worker not in self._closed, f"worker {worker} came twice"
            self._closed[worker] = self._least

    def add(self, batch: OutputBatch) -> None:
        """Take in records of an epoch that their worker has not closed; raise ProtocolError otherwise."""
        if not batch.epoch >= self._closed.get(batch.worker, float("inf")):
            raise ProtocolError(f"worker {batch.worker} sent output for epoch {batch.epoch} after closing it")
        self._held.setdefault(batch.epoch, {}).setdefault(batch.worker, []).extend(batch.records)

    def close(self, closed: OutputClosed) -> list[tuple[int, list[Any]]]:
        """Take in how far a worker is; return the epochs that are closed by it, with their records.

        Costs O(workers) and O(epochs held) when something closes.
        """
        if closed.epoch is None:
            self._closed.pop(closed.worker, None)  # it has left, or all have come to their end
        elif closed.worker in self._closed:
            self._closed[closed.worker] = max(closed.epoch, self._closed[closed.worker])
        least = min(self._closed.values(), default=float("inf"))
        if least <= self._least:
            return []
        self._least = least
        leaving = [(epoch, self._held.pop(epoch)) for epoch in sorted(self._held) if epoch < least]
        return [(epoch, [record for worker in sorted(each) for record in each[worker]]) for epoch, each in leaving]


class Writer:
    """Where closed epochs go; by itself it wants nothing, and has nothing to flush or close."""

    form: Form = "nothing"  # what it is given: records, or lines that the workers have rendered

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write the records of one epoch; epochs increase."""

    def flush(self) -> None:
        """Make what was written visible; at the job's end also that nothing was. A failed job does not call it then."""

    def close(self) -> None:
        """Flush, and let go of what is open."""


class NothingWriter(Writer):
    """`--output none`: the workers send no records at all."""


class ListWriter(Writer):
    """Keeps the records, for `megaflow.run`."""

    form: Form = "records"

    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep them."""
        self.records += records
