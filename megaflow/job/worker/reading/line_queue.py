"""The lines, rows or records that one worker may read now, in small batches.

They come from four places:
- splits of files, which the coordinator assigns (`open_splits`)
- lines that the launcher pushes
- batches of Spark, which are staged here and then committed
- partitions of sources (`open_partitions`)

Inputs are read interleaved, in the order of `reading_turns`, so live lines do not wait for the ends of files. The files
of one input are read one after the other. The queue looks up one batch at a time, of any input. The source takes batch
by batch. The coordinator gets a report of the end of each split and commit. A worker can hand back splits and
partitions, each from its first untaken record on. No clock: `now` is an argument.

Batches are small (about 6 KB of text), so that the results of a fold stay in the processor's cache: batches of 256 KB
run at less than half the speed.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from megaflow.control.messages import CommitTaken, ParserPlace, PushedEnded, Split
from megaflow.control.reading_messages import PartitionMissing, PartitionSeen, SplitRead
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import SourcePartition
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.formats.record_format import LineStream
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.job.formats.text_lines import BATCH_BYTES
from megaflow.job.worker.reading.open_partitions import OpenPartitions, PartitionReader
from megaflow.job.worker.reading.open_splits import OpenSplits
from megaflow.job.worker.reading.pushed_lines import LineStreams, PushedLines
from megaflow.job.worker.reading.reading_pace import Schedule
from megaflow.job.worker.reading.reading_turns import Lane, ReadingTurns
from megaflow.job.worker.reading.staging import Staging
from megaflow.job.worker.reading.untaken_lines import LinesCopy

Report = SplitRead | PartitionMissing | PartitionSeen | CommitTaken | PushedEnded
RECORDS_MAX = 256  # per batch of a source: about as many as lines of a file
RATED_SECONDS = 0.005  # with a rate, a source's batch has the records of this time at most, as it is taken whole


class LineQueue:
    """Assigned, pushed and committed lines of one worker; its source operator reads them.

    The source operator adds splits, and the worker's program adds pushed lines.
    """

    def __init__(
        self, staging: Staging, encoding_errors: str = "strict", rate: float | None = None, share: float = 1.0
    ) -> None:
        """`rate`: lines per second of all workers together. `share`: this worker's part of it until it has splits."""
        self.lines_taken = 0
        self.taken_of: dict[str, int] = {}  # input with a name -> its lines
        self.share = share
        self.staging = staging  # the queue reads what is committed there
        self.rate = rate  # None: lines are due as soon as they can be read
        self.turns = ReadingTurns()
        self.waited = 0.0  # seconds for which the input of the next batch was held so far
        self.input = ""  # of the lines or rows that were taken last; "": it has no name
        self.partition: Partition = "pushed", ""  # of the lines or rows that were taken last
        self.pushed = PushedLines()
        self.open_partitions = OpenPartitions()  # the partitions of sources
        self.streams = LineStreams()  # the parsers of lines that have no file
        self._stream: LineStream | None = None  # parses the next batch when it is taken
        self._reader: PartitionReader | None = None  # the partition of the next batch
        self.now = 0.0  # seconds; set by the source whenever it runs
        self._encoding_errors = encoding_errors
        self.replaced = ReplacedBytes()  # bytes that are not valid text
        self._splits = OpenSplits(self._count_left_out, lambda report: self._reports.append(report))
        self._split: SplitReader | None = None  # the split of the next batch
        self._from_pushed = False  # the next batch was pushed
        self._assigned = False  # there are splits, which set the share
        self._is_new = False  # splits have come while there was nothing to read
        self._pushed_ended: PushedEnded | None = None  # to be reported when all pushed lines are taken
        self.expects_pushed = False  # this worker reads the launcher's lines, and has not reported their end
        self._next: list[Any] = []  # the next batch; looked up ahead so that an end is known at once
        self._schedule: Schedule | None = None  # from the first line on, if there is a rate
        self._scheduled = 0.0  # the share for which it was made
        self._reports: list[Report] = []
        self._credit = 0  # pushed lines that were taken but not reported

    @property
    def ready(self) -> bool:
        """Whether there is a line to read, due or not."""
        if not self._next:
            self._look_ahead()
        return bool(self._next)

    @property
    def has_staged(self) -> bool:
        """Whether lines of Spark are committed and not taken."""
        return bool(self.staging.pending_lines) or bool(self._next and self.partition[0] == "spark")

    def assign(self, splits: Sequence[Split]) -> None:
        """Also read these splits."""
        self._is_new = self._is_new or bool(splits and not (self._next or self._splits or self.pushed))
        self._splits.add(map(self.reader, splits))
        for each in splits:
            self.turns.add(("split", each.input))

    def add_partitions(self, partitions: Iterable[SourcePartition], sights: Mapping[int, bytes] | None = None) -> None:
        """Also read these partitions of sources. `sights`: see `OpenPartitions.add`."""
        for each in partitions:
            self.open_partitions.add([each], sights)
            self.turns.add(("partition", each.input))

    def stay(self, number: int) -> None:
        """Note that no process could open a split, or finds a partition."""
        (self._splits if number >= 0 else self.open_partitions).stay(number)

    def share_rate(self, workers: int) -> None:
        """Read at an equal share of the rate among the `workers` that have splits."""
        self.share, self._assigned = 1 / workers, True

    def reader(self, split: Split) -> SplitReader:
        """Return a reader of a split."""
        format = self.streams.formats.get(split.input, self.streams.plain)
        return reader_of(split, self._encoding_errors, format.block_bytes, format, self.replaced)

    def share_alike(self, workers: int) -> None:
        """Read at an equal share of the rate among `workers`, unless splits or pushed lines set the share."""
        if not self._assigned and not self.expects_pushed:
            self.share = 1 / workers

    def give_back(self, numbers: Collection[int] | None = None) -> tuple[Split, ...]:
        """Stop reading these splits, or all; return the rests of those that are not completely taken.

        `take_reports` reports a split that was taken to its last line, as usual.
        """
        rest = tuple(split for split in self.remainders() if numbers is None or split.number in numbers)
        given = {split.number for split in rest}
        if self._split is not None and self._split.split.number in given:
            self._next, self._split = [], None
        self._splits.close(given)
        return rest

    def remainders(self) -> tuple[Split, ...]:
        """Return the rest of each split that is not completely taken. Cost: reads no more than `ready` does."""
        if not self._next:
            self._look_ahead()
        return self._splits.rest(self._split, len(self._next))

    def partitions_left(self) -> tuple[SourcePartition, ...]:
        """Return the rest of each partition that has not ended. Call it after `remainders`."""
        return self.open_partitions.rest(self._reader if self._next else None)

    def give_back_partitions(self, numbers: Collection[int] | None = None) -> tuple[SourcePartition, ...]:
        """Stop reading these partitions, or all; return their rests."""
        self.open_partitions.settle(numbers)
        rest = tuple(each for each in self.partitions_left() if numbers is None or each.number in numbers)
        given = {each.number for each in rest}
        if self._reader is not None and self._reader.unread.number in given:
            self._next, self._reader = [], None
        self.open_partitions.close(given)
        return rest

    def untaken(self) -> LinesCopy | None:
        """Return the rest of Spark's committed lines; None if there are none. Call it after `remainders`."""
        copy = self.staging.copy(self._next if self.partition[0] == "spark" else ())
        return copy if copy.lines else None

    def expect_pushed(self, from_the_first: bool = False, places: Iterable[ParserPlace] = ()) -> None:
        """Read the launcher's lines, at the whole rate; `places` are the positions at which their parsers begin."""
        self.expects_pushed, self.share, self.pushed.are_counted = True, 1.0, from_the_first
        self.streams.places = {place.input: place for place in places}

    def push(self, lines: list[str] | list[bytes], input: str = "") -> None:
        """Also read these lines or encoded items of an input; `take_credit` returns how many are taken."""
        self.pushed.add(lines, input)
        self.turns.add(("pushed", input))

    def end_pushed(self, elsewhere: bool = False, cut: Collection[str] = ()) -> None:
        """Note that no more lines will be pushed here; a `PushedEnded` reports when all are taken."""
        self._pushed_ended, self.streams.cut = PushedEnded(elsewhere), cut

    def take(self, now: float, lines_max: int = sys.maxsize) -> tuple[list[Any], float] | None:
        """Return the next lines that are due, and since when the first is; None if no line is due.

        At most `lines_max` lines, but a whole batch of a source's partition. Lines without a file are parsed here, so
        they may become fewer records, or none.
        """
        self.now = now
        if not self.ready:
            return None
        since = now
        batch = self._next if self._reader is not None else self._next[:lines_max]
        if self.rate is not None:
            if self._schedule is None:
                self._schedule = Schedule(self.rate * self.share, now)
            elif self._is_new:
                self._schedule.begin(self.lines_taken, self.rate * self.share, now)
            elif self._scheduled != self.share:
                self._schedule.change(self.rate * self.share, now)
            self._scheduled, self._is_new = self.share, False
            due = self._schedule.due(now) - self.lines_taken
            if due <= 0:
                return None
            since = self._schedule.due_at(self.lines_taken)
            batch = batch[:due] if self._reader is None else batch
        self._next = self._next[len(batch) :]
        self._count(self.input, len(batch))
        if self._from_pushed:
            self._credit += len(batch)
        if self._split is not None:
            self._split.note(len(self._next))
            self._count_left_out(self._split)
        return (batch if self._stream is None else self._stream.feed(batch)), since

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next line is due, at least 0.0; None if there is no line.

        Idle partitions have no line: `open_partitions.wait` returns when to look at them.
        """
        self.now = now
        if not self.ready:
            return None
        if self._schedule is None:
            return 0.0
        return max(0.0, self._schedule.due_at(self.lines_taken) - now)

    def waiting(self, now: float) -> int | None:
        """Return how many lines are due and not taken; None if there are some but no rate determines how many.

        Looks only at the next batch. Cost: O(changes of the rate).
        """
        if not self._next:
            return 0
        if self.rate is None:
            return None
        return 0 if self._schedule is None else max(0, self._schedule.due(now) - self.lines_taken)

    def partitions(self) -> set[Partition]:
        """Return the partitions that are read here, except those of Spark."""
        found: set[Partition] = {("split", each) for each in self._splits.numbers()}
        found.update(("partition", each) for each in self.open_partitions.numbers())
        return found.union(self.pushed.partitions if self.expects_pushed else ())

    def empty(self, now: float) -> Iterator[tuple[Partition, float]]:
        """Yield each partition that has nothing to read, and since when; for Spark, only the coordinator knows."""
        for number, since in self.open_partitions.empty(now):
            yield ("partition", number), since
        if self.expects_pushed:
            untaken = self.partition if self._next and self._from_pushed else None
            yield from self.pushed.empty(now, untaken, self.turns.are_held("pushed"))

    def take_reports(self, may_look: bool = True) -> list[Report]:
        """Return the reports since the last call, each once; `may_look`: look ahead now, which may find more."""
        if may_look and not self._next:
            self._look_ahead()
        reports, self._reports = self._reports, []
        return reports

    def take_credit(self) -> int:
        """Return how many pushed lines were taken since the last call."""
        credit, self._credit = self._credit, 0
        return credit

    def close(self) -> None:
        """Drop everything unread, and close the files."""
        self._next, self._split, self._reader = [], None, None
        self.pushed.clear()
        self._splits.end()
        self.open_partitions.end()
        self.staging.close()

    def _count(self, input: str, lines: int) -> None:
        """Count lines that were taken."""
        self.lines_taken += lines
        if input:
            self.taken_of[input] = self.taken_of.get(input, 0) + lines

    def _count_left_out(self, reader: SplitReader) -> None:
        """Count the lines that a split has passed without a record of their own."""
        if left_out := reader.take_left_out():
            self._count(reader.split.input, left_out)

    def _look_ahead(self) -> None:
        """Find the next batch after the last one was taken, and note what ended with that one."""
        if self.staging.has_committed:
            self._reports += self.staging.take_finished()
        self._from_pushed = False
        self._reader = self._stream = self._split = None
        if self._pushed_ended is not None and not self.pushed and self._take_last_pushed(self._pushed_ended):
            return
        for place, lane in enumerate(self.turns.order(self._partitions_next)):
            if lane not in self.turns.barred and NEXT[lane[0]](self, lane[1]):
                self.waited = self.turns.took(place, self.partition, self.now)
                return
        self.turns.found_none(self.now)

    def _partitions_next(self, lane: Lane) -> Sequence[Partition]:
        """Return the partitions of an input that will be read next."""
        kind, input = lane
        if kind == "split":
            first = self._splits.first(input)
            return [] if first is None else [(kind, first.split.number)]
        if kind == "partition":
            return [(kind, number) for number in self.open_partitions.ready(input)]
        return self.pushed.next_of(input) if kind == "pushed" and self._pushed_ended is None else []

    def _next_of_partitions(self, input: str) -> bool:
        """Find a batch of a source's partition; tell whether there is one."""
        limit = RECORDS_MAX
        if self.rate is not None:
            limit = min(limit, max(1, int(self.rate * self.share * RATED_SECONDS)))
        found = self.open_partitions.read(input, limit, self.now, self._reports.append)
        if found is not None:
            self._reader, self._next = found
            self.input, self.partition = input, ("partition", self._reader.unread.number)
        return found is not None

    def _next_of_splits(self, input: str) -> bool:
        """Find a batch of a file; tell whether there is one."""
        self._split, self._next = self._splits.read(input)
        if self._split is not None:
            self.input, self.partition = input, ("split", self._split.split.number)
        return self._split is not None

    def _next_of_spark(self, _input: str) -> bool:
        """Find a batch from Spark; tell whether there is one."""
        self._next = self.staging.take(BATCH_BYTES) if self.staging.has_committed else []
        if self._next:
            self.input, self.partition = self.staging.input, ("spark", self.staging.query)
            self._stream, _ = self.streams.begin(self.input, self._next, False)
        return bool(self._next)

    def _next_pushed(self, input: str) -> bool:
        """Find a batch of pushed lines; tell whether there is one."""
        found = self.pushed.take(input)
        if found is not None:
            self.partition, self._next = found
            self.input, self._from_pushed = input, True
            self._stream, self._next = self.streams.begin(input, self._next, self.pushed.are_counted)
        return self._from_pushed

    def _take_last_pushed(self, ended: PushedEnded) -> bool:
        """Report the end of pushed lines here; tell whether records have waited for that end, and are read first."""
        if ended.elsewhere:
            ended = replace(ended, places=self.streams.take_places(self.pushed.are_counted))
        elif (last := self.streams.take_last()) is not None:
            self.input, self._next = last
            self.partition = "pushed", self.input
            self._count(self.input, -len(self._next))  # as their lines were counted already
            return True
        self._reports.append(ended)
        self._pushed_ended, self.expects_pushed = None, False
        return False


NEXT: Final[dict[str, Callable[[LineQueue, str], bool]]] = {
    "split": LineQueue._next_of_splits, "partition": LineQueue._next_of_partitions, "pushed": LineQueue._next_pushed,
    "spark": LineQueue._next_of_spark,
}  # fmt: skip
