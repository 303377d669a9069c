"""The splits of one worker, which reads those of an input one after another, with one file open for each input."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from megaflow.control.messages import Split
from megaflow.control.reading_messages import PartitionMissing, SplitRead
from megaflow.errors import SourceError
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.formats.raw_file import may_be_open_elsewhere


class OpenSplits:
    """The splits that a worker has not read to the end. One writer: its line queue."""

    def __init__(
        self, left_out: Callable[[SplitReader], None], report: Callable[[SplitRead | PartitionMissing], None]
    ) -> None:
        """`left_out` counts the lines that a reader has passed without a record; it is called when there may be more.

        `report` receives the report of each split that is read to its end, or that this process cannot open.
        """
        self._readers: dict[str, deque[SplitReader]] = {}  # input -> its readers, in the order of reading
        self._missing: dict[int, SplitReader] = {}  # number -> a reader whose file this process cannot open
        self._stays: set[int] = set()  # numbers of splits that no process could open; this one tries again
        self._left_out = left_out
        self._report = report

    def __len__(self) -> int:
        return sum(map(len, self._readers.values())) + len(self._missing)

    def add(self, readers: Iterable[SplitReader]) -> None:
        """Also read these splits."""
        for each in readers:
            self._readers.setdefault(each.split.input, deque()).append(each)

    def first(self, input: str) -> SplitReader | None:
        """Return the reader of an input that is read next; None if there is none."""
        some = self._readers.get(input)
        return some[0] if some else None

    def read(self, input: str) -> tuple[SplitReader | None, list[Any]]:
        """Return the next batch of an input, an empty one if there is none. Raises SourceError.

        Splits that another process may be able to open are passed over and reported.
        """
        some = self._readers.get(input)
        while some:
            reader = some[0]
            try:
                batch = reader.next_batch()
            except SourceError as error:
                number = reader.split.number
                if reader.is_open or number in self._stays or not may_be_open_elsewhere(error.__cause__):
                    raise
                self._missing[number] = some.popleft()
                self._report(PartitionMissing(number))
                continue
            if batch:
                return reader, batch
            self._end(reader)
        return None, []

    def stay(self, number: int) -> None:
        """Read a split that no process could open next: open it, or raise. Do nothing if it is not here."""
        if (reader := self._missing.pop(number, None)) is not None:
            self._stays.add(number)
            self._readers[reader.split.input].appendleft(reader)

    def rest(self, untaken: SplitReader | None, lines: int) -> tuple[Split, ...]:
        """Return the rest of each split. The last `lines` lines of the batch of `untaken` belong to its rest.

        A split without a rest is read to its end, even if it is not its turn to give a batch.
        """
        rest = []
        for each in self._all():
            if (split := each.rest(lines if each is untaken else 0)) is not None:
                rest.append(split)
            elif not each.next_batch():
                self._end(each)
        return tuple(rest)

    def numbers(self) -> list[int]:
        """Return the numbers of all splits."""
        return [each.split.number for each in self._all()]

    def close(self, numbers: Collection[int]) -> None:
        """Stop reading these splits; count the lines that the next reader does not pass, such as a header."""
        for input, some in self._readers.items():
            for each in some:
                if each.split.number in numbers:
                    self._left_out(each)
                    each.close()
            self._readers[input] = deque(each for each in some if each.split.number not in numbers)
        self._missing = {number: each for number, each in self._missing.items() if number not in numbers}
        self._stays.difference_update(numbers)

    def end(self) -> None:
        """Stop reading all splits."""
        for each in self._all():
            each.close()
        self._readers.clear()
        self._missing.clear()

    def _end(self, reader: SplitReader) -> None:
        """Remove a reader that has nothing left."""
        self._left_out(reader)
        self._readers[reader.split.input].remove(reader)
        self._report(SplitRead(reader.split.number, end=reader.stopped))

    def _all(self) -> list[SplitReader]:
        return [*(each for some in self._readers.values() for each in some), *self._missing.values()]
