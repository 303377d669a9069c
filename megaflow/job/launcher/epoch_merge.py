"""The outputs of all workers, put into epoch order and written.

`EpochMerge` decides (no I/O): an epoch is closed when every worker has said that nothing before a later one is still to
come. Closed epochs leave in increasing order, each output by output if there are several, each of these in order of
worker id, each worker's records in the order it sent them. Workers may come and go: the launcher hears of a new worker
before that sends anything (it has nothing for epochs that are closed by then: see `megaflow.job.worker.output`); a
worker that leaves is waited for until it has closed everything. A `Writer` takes the closed epochs; those of the
command line are in `megaflow.job.launcher.output_specs`.

A checkpoint keeps what precedes an epoch of its own, so its `Mark` leaves exactly between the epochs before that and
the others, however many close at once. It is asked for before that epoch can close anywhere: the coordinator says so
before it lets the epoch pass, by the connection over which its own process closes epochs.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.durable.commits import OutputLength
from megaflow.errors import MegaflowError, ProtocolError
from megaflow.job.spec import Form
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the outputs: all epochs before `epoch` come before it, all others after it."""

    checkpoint: int
    epoch: float  # infinite: the end of the outputs


Leaving: TypeAlias = tuple[int, list[Any], str] | Mark
"""What leaves: an epoch with its records of one output, and the output's name; or a mark."""


class EpochMerge:
    """Merges the outputs of `workers`; one writer, the launcher's loop.

    >>> merge = EpochMerge([0, 1])
    >>> for batch in OutputBatch(1, 5, ["b"]), OutputBatch(0, 5, ["a"]), OutputBatch(0, 6, ["c"]):
    ...     merge.add(batch)
    >>> merge.close(OutputClosed(0, 7)), merge.close(OutputClosed(1, 6))
    ([], [(5, ['a', 'b'], '')])
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._closed: dict[int, float] = dict.fromkeys(workers, 0)  # worker -> what it sends is at this epoch or later
        self._least: float = 0  # of these, ever; epochs before it have left
        self._held: dict[int, dict[tuple[str, int], list[Any]]] = {}  # epoch, none before _least -> output, worker
        self._marks: list[Mark] = []  # that are to leave, by epoch

    def join(self, workers: Iterable[int]) -> None:
        """Wait for these workers, too, from the first epoch on that has not left."""
        for worker in workers:
            assert worker not in self._closed, f"Worker {worker} joined the merge twice."
            self._closed[worker] = self._least

    def add(self, batch: OutputBatch) -> None:
        """Take in records of an epoch that their worker has not closed; raise ProtocolError otherwise."""
        if not batch.epoch >= self._closed.get(batch.worker, float("inf")):
            raise ProtocolError(f"Worker {batch.worker} sent output for epoch {batch.epoch} after closing it.")
        held = self._held.setdefault(batch.epoch, {})
        held.setdefault((batch.output, batch.worker), []).extend(batch.records)

    def mark(self, mark: Mark) -> list[Leaving]:
        """Have a mark leave in its place; return it if that is now. Raises ProtocolError if epochs after it have left.

        Its epoch is not before that of an earlier one.
        """
        if self._least > mark.epoch:
            raise ProtocolError(f"Checkpoint {mark.checkpoint} belongs to epoch {mark.epoch}, which is already closed.")
        if self._least == mark.epoch:
            return [mark]
        self._marks.append(mark)
        return []

    def close(self, closed: OutputClosed) -> list[Leaving]:
        """Take in how far a worker is; return the epochs that are closed by it, with their records, and due marks.

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


class Writer:
    """Where closed epochs go; by itself it wants nothing, and has nothing to flush or close."""

    form: Form = "nothing"  # what it is given: records, or lines that the workers have rendered
    name = "none"  # in a store of durable state
    is_kept = True  # whether it is there after a crash, or needs not be
    is_in_memory = False  # of this process: whoever resumes begins with none of it
    unit = "byte"  # of its length
    freed: Callable[[], None] = staticmethod(lambda: None)  # to be called when that has become less; any thread

    def hold(self, take_over: bool = False) -> int:
        """Keep others from writing there, as long as it is open; return how long it is before the job writes.

        `take_over`: also who writes there now, from `cut_back` on. Raises OutputError if another job writes there.
        """
        return 0

    @property
    def forms(self) -> tuple[tuple[str, Form], ...]:
        """What each output is given, by its name; "" is that of the stream that the dataflow function returns."""
        return (("", self.form),)

    @property
    def parts(self) -> Sequence["Writer"]:
        """The writers of the outputs, one each."""
        return (self,)

    def lengths(self, length: int) -> tuple[OutputLength, ...]:
        """Return what a store is to say of the outputs that are, together, so long."""
        return (OutputLength(self.name, 0 if self.is_in_memory else length),)

    def length_of(self, said: Sequence[OutputLength]) -> int:
        """Return how long the outputs were, together, of which a store says this."""
        return sum(each.length for each in said)

    def write_to(self, output: str, epoch: int, records: list[Any]) -> None:
        """Write the records of one epoch to the output of this name; epochs increase."""
        assert not output, "it has no others"
        self.write(epoch, records)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write the records of one epoch; epochs increase."""

    @property
    def unread_bytes(self) -> int:
        """How much is written and waits for its reader; it counts as what waits to be written does."""
        return 0

    def bytes_of(self, records: list[Any]) -> int:
        """Return how much of memory they take while they wait; 0 if they stay there anyway."""
        return 0 if self.form == "records" else sum(map(len, records))

    def flush(self) -> None:
        """Make what was written visible; at the job's end also that nothing was. A failed job does not call it then."""

    def sync(self) -> int:
        """Make what was written durable; return how long the output is: bytes of a file, records in memory."""
        return 0

    def cut_back(self, length: int) -> None:
        """Take back what was written after it was so long, as far as that can be."""

    def committed(self, length: int) -> None:
        """Learn that a commit is durable that has the output up to this length. Any thread."""

    @contextlib.contextmanager
    def served(
        self, secret: bytes, fail: Callable[[MegaflowError], None], report: Callable[[str], None]
    ) -> Iterator[None]:
        """Have what reads it by a port of this launcher do so during the block; `fail` is told if that has failed."""
        yield

    def waits_text(self) -> str:
        """Say what it waits for, if that takes long; "" for nothing. Any thread."""
        return ""

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until what reads it so has all: nothing is written any more. Raises what has made that fail.

        `pause` waits for so many seconds, and raises if that is to end.
        """

    def close(self) -> None:
        """Flush, and let go of what is open."""


class NothingWriter(Writer):
    """`--output none`: the workers send no records at all."""


class ListWriter(Writer):
    """Keeps the records, for `megaflow.run`."""

    form: Form = "records"
    name = "records"
    is_in_memory = True

    def __init__(self, records: list[Any] | None = None) -> None:
        """`records`: the list that they are added to."""
        self.records: list[Any] = [] if records is None else records
        self._before = len(self.records)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep them."""
        self.records += records

    def sync(self) -> int:
        """Return how many there are."""
        return len(self.records) - self._before

    def cut_back(self, length: int) -> None:
        """Forget those that came later."""
        del self.records[self._before + length :]
