"""The lines that one worker may read now, from wherever they come, in small batches.

Three origins: splits of files, assigned by the coordinator; lines pushed by the launcher; batches
of Spark that were staged here and then committed. Each is a list of batches to be had one by one;
what has to be told of its end becomes a report. No clock: `now` is an argument.

Batches are small (about 6 KB of text) because what a fold makes of one then stays in the processor's
cache: batches of 256 KB run at less than half the speed.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from megaflow.control.messages import CommitTaken, PushedEnded, Split, SplitRead
from megaflow.run.splits import SplitReader
from megaflow.run.staging import Staging

BATCH_BYTES = 6144

Report = SplitRead | CommitTaken | PushedEnded


def batches_of(lines: list[str], size: int) -> Iterator[list[str]]:
    """Slice lines of `size` bytes in all into batches of about 6 KB each.

    >>> [len(batch) for batch in batches_of(["a" * 40] * 250, 10_000)]
    [153, 97]
    """
    step = max(1, len(lines) * BATCH_BYTES // max(1, size))
    return (lines[start : start + step] for start in range(0, len(lines), step))


class Schedule:
    """An open loop: line i is due at `start + i / rate`, whether or not anybody is there to read it.

    >>> schedule = Schedule(rate=10.0, start=5.0)
    >>> schedule.due(5.0), schedule.due(5.25), schedule.due_at(5)
    (1, 3, 5.5)
    """

    __slots__ = ("_rate", "_start")

    def __init__(self, rate: float, start: float) -> None:
        self._rate = rate  # lines per second
        self._start = start  # wall-clock seconds

    def due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        return max(0, int((now - self._start) * self._rate) + 1)

    def due_at(self, line: int) -> float:
        """Return when the line of this number, from 0, is due."""
        return self._start + line / self._rate


class LineFeed:
    """Assigned, pushed and committed lines of one worker, and the order in which it reads them.

    Written by the source operator (splits) and by the worker's program (pushed lines); drained by the
    source operator.
    """

    def __init__(
        self, staging: Staging, encoding_errors: str = "replace", rate: float | None = None, share: float = 1.0
    ) -> None:
        """`rate` is the lines per second of all workers together; None reads as fast as it can.

        `share` is this worker's part of it. Splits change that to their part of all bytes, so that the
        workers end together.
        """
        self.lines_taken = 0
        self._staging = staging  # what is committed there is read from there
        self._rate = rate
        self._share = share
        self._encoding_errors = encoding_errors
        self._origins: deque[Generator[list[str], None, None]] = deque()  # to be read one after the other
        self._pushed: deque[list[str]] = deque()
        self._pushed_ended = False
        self._next: list[str] = []  # the batch that comes next; looked up ahead so that an end is known at once
        self._schedule: Schedule | None = None  # from the first line on, if there is a rate
        self._reports: list[Report] = []
        self._credit = 0  # pushed lines taken and not yet reported

    @property
    def ready(self) -> bool:
        """Whether there is a line to read, due or not."""
        if not self._next:
            self._look_ahead()
        return bool(self._next)

    def assign(self, splits: Sequence[Split], all_bytes: int) -> None:
        """Read these splits, too; `all_bytes` is how much all workers are given with them."""
        if splits:
            self._share = sum(split.end - split.start for split in splits) / all_bytes
        self._origins.extend(self._read_split(split) for split in splits)

    def push(self, lines: list[str]) -> None:
        """Read these lines, too; `take_credit` tells how many are taken."""
        self._pushed.extend(batches_of(lines, sum(map(len, lines))))

    def end_pushed(self) -> None:
        """No more lines will be pushed; a `PushedEnded` reports when all are taken."""
        self._pushed_ended = True

    def take(self, now: float) -> tuple[list[str], float] | None:
        """Return the next lines that are due and the time since which the first has been; None if there is none."""
        if not self.ready:
            return None
        since = now
        batch = self._next
        if self._rate is not None:
            if self._schedule is None:
                self._schedule = Schedule(self._rate * self._share, now)
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
        self._next = []
        self._pushed.clear()
        for origin in self._origins:
            origin.close()
        self._origins.clear()
        self._staging.close()

    def _look_ahead(self) -> None:
        """Find the next batch, the last one having been handed out, and note what has ended with that one."""
        self._reports += self._staging.take_finished()
        while self._origins:
            self._next = next(self._origins[0], [])
            if self._next:
                return
            self._origins.popleft()
        self._next = self._staging.take(BATCH_BYTES)
        if self._next:
            return
        if self._pushed:
            self._next = self._pushed.popleft()
            self._credit += len(self._next)
        elif self._pushed_ended:
            self._pushed_ended = False
            self._reports.append(PushedEnded())

    def _read_split(self, split: Split) -> Generator[list[str], None, None]:
        with closing(SplitReader(split, self._encoding_errors)) as reader:
            while not reader.done:
                start = reader.position
                lines = reader.read()
                yield from batches_of(lines, reader.position - start)
        self._reports.append(SplitRead(split.number))
