"""The lines, rows or records that one worker may read now, in small batches.

They come from four places: splits of files, assigned by the coordinator; lines pushed by the launcher; batches of Spark
that were staged here and then committed; partitions of sources (`open_portions`), assigned as splits are. Splits are
read one after the other, Spark's lines after them, a batch of what is pushed between any two of theirs, and a batch of
partitions between any two of all these: so what a program feeds the job live does not wait for the ends of files, nor
does the stop that works it off. The source takes batch by batch; what the coordinator must know of the end of a split
or a commit becomes a report. Splits and partitions can be handed back, each from the first record on that was not
taken. No clock: `now` is an argument.

Batches are small (about 6 KB of text) because what a fold makes of one then stays in the processor's
cache: batches of 256 KB run at less than half the speed.
"""

import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from megaflow.control.messages import CommitTaken, ParserPlace, PushedEnded, Split
from megaflow.control.reading_messages import SplitRead
from megaflow.control.watermark_messages import Partition
from megaflow.durable.commits import Portion
from megaflow.job.record_format import LINES, LineStream
from megaflow.job.split_reader import SplitReader
from megaflow.job.stream_reader import reader_of
from megaflow.job.text_encoding import ReplacedBytes
from megaflow.job.text_lines import BATCH_BYTES
from megaflow.job.worker.line_streams import LineStreams
from megaflow.job.worker.open_portions import OpenPortions, PortionReader
from megaflow.job.worker.pushed_lines import PushedLines
from megaflow.job.worker.reading_pace import Schedule
from megaflow.job.worker.staging import Staging
from megaflow.job.worker.untaken_lines import LinesCopy

Report = SplitRead | CommitTaken | PushedEnded
RECORDS_MAX = 256  # of a source, in a batch: about as many as lines of a file
RATED_SECONDS = 0.005  # a batch of a source is taken whole, so with a rate it has what comes in so long


class LineQueue:
    """Assigned, pushed and committed lines of one worker, and the order in which it reads them.

    Written by the source operator (splits) and by the worker's program (pushed lines); drained by the
    source operator.
    """

    def __init__(
        self, staging: Staging, encoding_errors: str = "strict", rate: float | None = None, share: float = 1.0
    ) -> None:
        """`rate` is the lines per second of all workers together; None reads as fast as it can.

        `share` is this worker's part of it, until it has splits: see `share_rate`.
        """
        self.lines_taken = 0
        self.taken_of: dict[str, int] = {}  # input that has a name -> lines of it
        self.share = share
        self.staging = staging  # what is committed there is read from there
        self.rate = rate  # None: lines are due as soon as they can be read
        self.input = ""  # whose lines, or rows, were taken last; "": they have no name
        self.partition: Partition = "pushed", ""  # and of which partition they were
        self.pushed = PushedLines()
        self.portions = OpenPortions()  # what is read of sources
        self.streams = LineStreams()  # what parses lines that have no file
        self._stream: LineStream | None = None  # what parses the next batch when it is taken
        self._portion: PortionReader | None = None  # the next batch is of this partition
        self._spares_portions = True  # the last batch was of one
        self._spares_pushed = False  # the last batch of lines was pushed
        self.now = 0.0  # seconds; the source says so whenever it runs
        self._encoding_errors = encoding_errors
        self.replaced = ReplacedBytes()  # bytes that were not text
        self._splits: deque[SplitReader] = deque()  # to be read one after the other
        self._from_split = False  # the next batch is of the first of them
        self._from_spark = False  # the next batch was staged
        self._from_pushed = False  # it was pushed
        self._assigned = False  # there are splits, and this is their share
        self._is_new = False  # splits have come after there was nothing to read
        self._pushed_ended: PushedEnded | None = None  # to be reported when they are taken
        self.expects_pushed = False  # the launcher's lines are read here, and their end was not reported
        self._next: list[Any] = []  # the batch that comes next; looked up ahead so that an end is known at once
        self._schedule: Schedule | None = None  # from the first line on, if there is a rate
        self._scheduled = 0.0  # the share that it is made for
        self._reports: list[Report] = []
        self._credit = 0  # pushed lines that were taken and not reported

    @property
    def ready(self) -> bool:
        """Whether there is a line to read, due or not."""
        if not self._next:
            self._look_ahead()
        return bool(self._next)

    def _report_pushed_ended(self) -> None:
        assert self._pushed_ended is not None, "it has come"
        self._reports.append(self._pushed_ended)
        self._pushed_ended, self.expects_pushed = None, False

    def assign(self, splits: Sequence[Split]) -> None:
        """Read these splits, too."""
        self._is_new = self._is_new or bool(splits and not (self._next or self._splits or self.pushed))
        self._splits.extend(map(self.reader, splits))

    def share_rate(self, workers: int) -> None:
        """Read splits at the rate of one of so many workers that have some."""
        self.share, self._assigned = 1 / workers, True

    def reader(self, split: Split) -> SplitReader:
        """Return what reads a split."""
        format = self.streams.formats.get(split.input, LINES)
        return reader_of(split, self._encoding_errors, format.block_bytes, format, self.replaced)

    def share_alike(self, workers: int) -> None:
        """Read as much of the rate as each of so many workers does, unless splits say otherwise."""
        if not self._assigned and not self.expects_pushed:
            self.share = 1 / workers

    def give_back(self, numbers: Collection[int] | None = None) -> tuple[Split, ...]:
        """Return those of these splits, or of all, that are not wholly taken; they are not read here any more.

        A split that is taken to its last line is reported by `take_reports`, as ever.
        """
        rest = [split for split in self.remainders() if numbers is None or split.number in numbers]
        given = {split.number for split in rest}
        if self._from_split and self._splits[0].split.number in given:
            self._next, self._from_split = [], False
        for each in self._splits:
            if each.split.number in given:
                self._count_left_out(each)  # its header, which the next reader does not pass
                each.close()
        self._splits = deque(each for each in self._splits if each.split.number not in given)
        return tuple(rest)

    def remainders(self) -> tuple[Split, ...]:
        """Return what is left of each split that is not wholly taken. Cost: reads no more than `ready` does."""
        if not self._next:
            self._look_ahead()
        untaken = len(self._next) if self._from_split else 0
        rest = [each.rest(0 if index else untaken) for index, each in enumerate(self._splits)]
        return tuple(split for split in rest if split is not None)

    def portions_left(self) -> tuple[Portion, ...]:
        """Return what is left of each partition that has not ended. After `remainders`."""
        return self.portions.rest(self._portion if self._next else None)

    def give_back_portions(self, numbers: Collection[int] | None = None) -> tuple[Portion, ...]:
        """Return what is left of these partitions, or of all; they are not read here any more."""
        rest = tuple(each for each in self.portions_left() if numbers is None or each.number in numbers)
        given = {each.number for each in rest}
        if self._portion is not None and self._portion.portion.number in given:
            self._next, self._portion = [], None
        self.portions.close(given)
        return rest

    def untaken(self) -> LinesCopy | None:
        """Return what is left of Spark's lines that are committed; None if nothing is. After `remainders`."""
        copy = self.staging.copy(self._next if self._from_spark else ())
        return copy if copy.lines else None

    def expect_pushed(self, from_the_first: bool = False, places: Iterable[ParserPlace] = ()) -> None:
        """Read what the launcher pushes, at the whole rate; parse it from these places on."""
        self.expects_pushed, self.share, self.pushed.are_counted = True, 1.0, from_the_first
        self.streams.places = {place.input: place for place in places}

    def push(self, lines: list[str] | list[bytes], input: str = "") -> None:
        """Read these lines of an input, or encoded items, too; `take_credit` tells how many are taken."""
        self.pushed.add(lines, input)

    def end_pushed(self, elsewhere: bool = False) -> None:
        """Note that no more lines will be pushed here; a `PushedEnded` reports when all are taken."""
        self._pushed_ended = PushedEnded(elsewhere)

    def take(self, now: float, lines_max: int = sys.maxsize) -> tuple[list[Any], float] | None:
        """Return the next lines that are due and the time since which the first has been; None if there is none.

        There are `lines_max` at most, but of a source's partition as many as it has put out together. Lines without a
        file are parsed here; so they may become fewer records, or none.
        """
        self.now = now
        if not self.ready:
            return None
        since = now
        batch = self._next if self._portion is not None else self._next[:lines_max]
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
            batch = batch[:due] if self._portion is None else batch
        self._next = self._next[len(batch) :]
        self._count(self.input, len(batch))
        if self._from_pushed:
            self._credit += len(batch)
        if self._from_split:
            self._splits[0].note(len(self._next))
            self._count_left_out(self._splits[0])
        return (batch if self._stream is None else self._stream.feed(batch)), since

    def due_in(self, now: float) -> float | None:
        """Return in how many seconds the next line is due, 0.0 at least; None if there is none.

        Partitions that are idle have none: `portions.wait` says when they are to be looked at.
        """
        self.now = now
        if not self.ready:
            return None
        if self._schedule is None:
            return 0.0
        return max(0.0, self._schedule.due_at(self.lines_taken) - now)

    def waiting(self, now: float) -> int | None:
        """Return how many lines are due and not taken; None if there are some, and no rate says how many.

        Looks no further than the batch that comes next. Cost: O(changes of the rate).
        """
        if not self._next:
            return 0
        if self.rate is None:
            return None
        return 0 if self._schedule is None else max(0, self._schedule.due(now) - self.lines_taken)

    def partitions(self) -> set[Partition]:
        """Return those that are read here, those of Spark left out."""
        found: set[Partition] = {("split", each.split.number) for each in self._splits}
        found.update(("portion", number) for number in self.portions.numbers())
        return found.union(self.pushed.partitions if self.expects_pushed else ())

    def empty(self, now: float) -> Iterator[tuple[Partition, float]]:
        """Yield each partition that has nothing to read, and since when; of Spark only the coordinator knows."""
        for number, since in self.portions.empty(now):
            yield ("portion", number), since
        if self.expects_pushed:
            yield from self.pushed.empty(now, self.partition if self._next and self._from_pushed else None)

    def take_reports(self) -> list[Report]:
        """Return, once, what has happened since the last call."""
        if not self._next:
            self._look_ahead()
        reports, self._reports = self._reports, []
        return reports

    def take_credit(self) -> int:
        """Return, once, how many pushed lines have been taken since the last call."""
        credit, self._credit = self._credit, 0
        return credit

    def close(self) -> None:
        """Drop what is unread and close the files."""
        self._next, self._from_split = [], False
        self._portion = None
        self.pushed.clear()
        self._close_splits()
        self.portions.end()
        self.staging.close()

    def _count(self, input: str, lines: int) -> None:
        """Count lines that were taken."""
        self.lines_taken += lines
        if input:
            self.taken_of[input] = self.taken_of.get(input, 0) + lines

    def _count_left_out(self, reader: SplitReader) -> None:
        """Count the lines that a split has without a record of their own."""
        if left_out := reader.take_left_out():
            self._count(reader.split.input, left_out)

    def _close_splits(self) -> None:
        for each in self._splits:
            each.close()
        self._splits.clear()

    def _look_ahead(self) -> None:
        """Find the next batch once the last one was handed out, and note what ended with that one."""
        self._reports += self.staging.take_finished()
        self._from_spark = self._from_split = self._from_pushed = False
        self._portion = self._stream = None
        self._spares_portions = not self._spares_portions
        if not (self._next_of_portions(spares=False) or self._next_of_lines()):
            self._next_of_portions(spares=True)

    def _next_of_portions(self, spares: bool) -> bool:
        """Find a batch of a partition, if it is their turn; tell whether there is one."""
        if self._spares_portions is not spares or not self.portions:
            return False
        limit = RECORDS_MAX
        if self.rate is not None:
            limit = min(limit, max(1, int(self.rate * self.share * RATED_SECONDS)))
        found = self.portions.read(limit, self.now, lambda number: self._reports.append(SplitRead(number)))
        if found is not None:
            self._portion, self._next = found
            self.input, self.partition = self._portion.portion.input, ("portion", self._portion.portion.number)
        return found is not None

    def _next_of_lines(self) -> bool:
        """Find a batch of all else; tell whether there is one."""
        if self._spares_pushed:
            self._spares_pushed = False
            return self._next_assigned() or self._next_pushed()
        return self._next_pushed() or self._next_assigned()

    def _next_assigned(self) -> bool:
        """Find a batch of a split or of Spark's; tell whether there is one."""
        while self._splits:
            self._next = self._splits[0].next_batch()
            self._from_split = bool(self._next)
            if self._next:
                self.input, self.partition = self._splits[0].split.input, ("split", self._splits[0].split.number)
                self._stream = self._splits[0].stream
                return True
            self._count_left_out(self._splits[0])
            self._reports.append(SplitRead(self._splits.popleft().split.number))
        self._next = self.staging.take(BATCH_BYTES)
        self._from_spark = bool(self._next)
        if self._next:
            self.input, self.partition = self.staging.input, ("spark", self.staging.query)
            self._stream, _ = self.streams.begin(self.input, self._next, False)
        return self._from_spark

    def _next_pushed(self) -> bool:
        """Find a batch of what was pushed; tell whether there is one."""
        if self.pushed:
            self.partition, self._next = self.pushed.take()
            self.input = str(self.partition[1])
            self._from_pushed = self._spares_pushed = True
            self._stream, self._next = self.streams.begin(self.input, self._next, self.pushed.are_counted)
        elif self._pushed_ended is not None and self._pushed_ended.elsewhere:
            self._pushed_ended = replace(self._pushed_ended, places=self.streams.take_places(self.pushed.are_counted))
            self._report_pushed_ended()
        elif self._pushed_ended is not None and (last := self.streams.take_last()) is not None:
            self.input, self._next = last
            self.partition = "pushed", self.input
            self._count(self.input, -len(self._next))  # their lines were counted
        elif self._pushed_ended is not None:
            self._report_pushed_ended()
        return bool(self._next)
