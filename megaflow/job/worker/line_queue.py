"""The lines, or rows, that one worker may read now, in small batches.

They come from three places: splits of files, assigned by the coordinator; lines pushed by the launcher; batches of
Spark that were staged here and then committed. The source takes batch by batch; what the coordinator must know of the
end of a split or a commit becomes a report. Splits can be handed back, each from the first line on that was not taken.
No clock: `now` is an argument.

Batches are small (about 6 KB of text) because what a fold makes of one then stays in the processor's
cache: batches of 256 KB run at less than half the speed.
"""

from collections import deque
from collections.abc import Sequence
from math import floor
from typing import Any

from megaflow.control.messages import CommitTaken, PushedEnded, Split, SplitRead
from megaflow.job.splits import BATCH_BYTES, SplitReader, batches_of
from megaflow.job.worker.staging import Staging
from megaflow.job.worker.untaken_lines import LinesCopy

Report = SplitRead | CommitTaken | PushedEnded


class Schedule:
    """An open loop: line i is due at `start + i / rate`, whether or not the source is ready to read it.

    From a change of the rate on, the lines that are due later come at the new one.

    >>> schedule = Schedule(rate=10.0, start=5.0)
    >>> schedule.due(5.0), schedule.due(5.25), schedule.due_at(5)
    (1, 3, 5.5)
    >>> schedule.change(rate=100.0, now=6.0)
    >>> schedule.due(5.95), schedule.due(6.125), schedule.due_at(5), schedule.due_at(20)
    (10, 23, 5.5, 6.1)
    """

    def __init__(self, rate: float, start: float) -> None:
        self._parts = [(0.0, start, rate)]  # (lines before, from when in wall-clock seconds, lines per second)

    def change(self, rate: float, now: float) -> None:
        """Go on at another rate from `now` on, which is not before the last change."""
        lines, start, before = self._parts[-1]
        self._parts.append((lines + max(0.0, now - start) * before, max(now, start), rate))

    def due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        lines, start, rate = next((part for part in reversed(self._parts) if part[1] <= now), self._parts[0])
        return max(0, floor(lines + (now - start) * rate) + 1)

    def due_at(self, line: int) -> float:
        """Return when the line of this number, from 0, is due."""
        lines, start, rate = next(part for part in reversed(self._parts) if part[0] <= line)
        return start + (line - lines) / rate


class LineQueue:
    """Assigned, pushed and committed lines of one worker, and the order in which it reads them.

    Written by the source operator (splits) and by the worker's program (pushed lines); drained by the
    source operator.
    """

    def __init__(
        self, staging: Staging, encoding_errors: str = "replace", rate: float | None = None, share: float = 1.0
    ) -> None:
        """`rate` is the lines per second of all workers together; None reads as fast as it can.

        `share` is this worker's part of it, until splits bring theirs: see `assign`.
        """
        self.lines_taken = 0
        self.share = share
        self.staging = staging  # what is committed there is read from there
        self.rate = rate  # None: lines are due as soon as they can be read
        self._encoding_errors = encoding_errors
        self._splits: deque[SplitReader] = deque()  # to be read one after the other
        self._from_split = False  # the next batch is of the first of them
        self._from_spark = False  # the next batch was staged
        self._assigned = False  # splits have brought their share
        self._pushed: deque[list[str]] = deque()
        self._pushed_ended: PushedEnded | None = None  # to be reported when they are taken
        self.expects_pushed = False  # the launcher's lines are read here, and their end was not reported
        self._next: list[Any] = []  # the batch that comes next; looked up ahead so that an end is known at once
        self._schedule: Schedule | None = None  # from the first line on, if there is a rate
        self._scheduled = 0.0  # the share that it is made for
        self._reports: list[Report] = []
        self._credit = 0  # pushed lines taken and not yet reported

    @property
    def ready(self) -> bool:
        """Whether there is a line to read, due or not."""
        if not self._next:
            self._look_ahead()
        return bool(self._next)

    def assign(self, splits: Sequence[Split], all_bytes: int, share: float = 1.0) -> None:
        """Read these splits, too.

        `all_bytes` is how much all workers are given with them, `share` the part of the rate at which all these
        splits are to be read together: each worker gets its part by bytes, so that all end together.
        """
        if not splits:
            return
        own = share * sum(split.end - split.start for split in splits) / max(1, all_bytes)
        self.share = self.share + own if self._assigned else own
        self._assigned = True
        self._splits.extend(map(self.reader, splits))

    def reader(self, split: Split) -> SplitReader:
        """Return what reads a split."""
        return SplitReader(split, self._encoding_errors)

    def share_alike(self, workers: int) -> None:
        """Read as much of the rate as each of so many workers does, unless splits say otherwise."""
        if not self._assigned and not self.expects_pushed:
            self.share = 1 / workers

    def give_back(self) -> tuple[tuple[Split, ...], float]:
        """Return the splits that are not wholly taken, and their share of the rate; they are not read here any more.

        A split that is taken to its last line is reported by `take_reports`, as ever.
        """
        rest = self.remainders()
        if self._from_split:
            self._next, self._from_split = [], False
        self._close_splits()
        share = 0.0
        if self._assigned:
            share, self.share, self._assigned = self.share, 0.0, False
        return rest, share

    def remainders(self) -> tuple[Split, ...]:
        """Return what is left of each split that is not wholly taken. Cost: reads no more than `ready` does."""
        if not self._next:
            self._look_ahead()
        untaken = len(self._next) if self._from_split else 0
        rest = [each.rest(0 if index else untaken) for index, each in enumerate(self._splits)]
        return tuple(split for split in rest if split is not None)

    def untaken(self) -> LinesCopy | None:
        """Return what is left of Spark's lines that are committed; None if nothing is. After `remainders`."""
        copy = self.staging.copy(self._next if self._from_spark else ())
        return copy if copy.lines else None

    def expect_pushed(self) -> None:
        """Read what the launcher pushes, at the whole rate."""
        self.expects_pushed, self.share = True, 1.0

    def push(self, lines: list[str]) -> None:
        """Read these lines, too; `take_credit` tells how many are taken."""
        self._pushed.extend(batches_of(lines, sum(map(len, lines))))

    def end_pushed(self, elsewhere: bool = False) -> None:
        """Note that no more lines will be pushed here; a `PushedEnded` reports when all are taken."""
        self._pushed_ended = PushedEnded(elsewhere)

    def take(self, now: float) -> tuple[list[Any], float] | None:
        """Return the next lines that are due and the time since which the first has been; None if there is none."""
        if not self.ready:
            return None
        since = now
        batch = self._next
        if self.rate is not None:
            if self._schedule is None:
                self._schedule = Schedule(self.rate * self.share, now)
            elif self._scheduled != self.share:
                self._schedule.change(self.rate * self.share, now)
            self._scheduled = self.share
            due = self._schedule.due(now) - self.lines_taken
            if due <= 0:
                return None
            since = self._schedule.due_at(self.lines_taken)
            batch = batch[:due]
        self._next = self._next[len(batch) :]
        self.lines_taken += len(batch)
        return batch, since

    def due_in(self, now: float) -> float | None:
        """Return in how many seconds the next line is due, 0.0 at least; None if there is none."""
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

    def take_reports(self) -> list[Report]:
        """Return, once, what has happened since the last call."""
        if not self._next:
            self._look_ahead()
        reports, self._reports = self._reports, []
        return reports

    def take_credit(self) -> int:
        """Return, once, how many pushed lines have been taken since the last call, the next batch included."""
        credit, self._credit = self._credit, 0
        return credit

    def close(self) -> None:
        """Drop what is unread and close the files."""
        self._next, self._from_split = [], False
        self._pushed.clear()
        self._close_splits()
        self.staging.close()

    def _close_splits(self) -> None:
        for each in self._splits:
            each.close()
        self._splits.clear()

    def _look_ahead(self) -> None:
        """Find the next batch once the last one was handed out, and note what ended with that one."""
        self._reports += self.staging.take_finished()
        self._from_spark = False
        while self._splits:
            self._next = self._splits[0].next_batch()
            self._from_split = bool(self._next)
            if self._next:
                return
            self._reports.append(SplitRead(self._splits.popleft().split.number))
        self._next = self.staging.take(BATCH_BYTES)
        self._from_spark = bool(self._next)
        if self._next:
            return
        if self._pushed:
            self._next = self._pushed.popleft()
            self._credit += len(self._next)
        elif self._pushed_ended is not None:
            self._reports.append(self._pushed_ended)
            self._pushed_ended, self.expects_pushed = None, False
