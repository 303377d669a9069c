"""The splits of one worker, which reads those of an input one after another, with one file open for each input."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from megaflow.control.messages import Split, SplitEnd
from megaflow.control.reading_messages import SplitRead
from megaflow.job.files.split_reader import SplitReader


class OpenSplits:
    """The splits that a worker has not read to the end. One writer: its line queue."""

    def __init__(self, left_out: Callable[[SplitReader], None], ended: Callable[[SplitRead], None]) -> None:
        """`left_out` counts the lines that a reader has passed without a record; it is called when there may be more.

        `ended` receives the report of each split that is read to its end.
        """
        self._readers: dict[str, deque[SplitReader]] = {}  # input -> its readers, in the order of reading
        self._left_out = left_out
        self._ended = ended

    def __len__(self) -> int:
        return sum(map(len, self._readers.values()))

    def add(self, readers: Iterable[SplitReader]) -> None:
        """Also read these splits."""
        for each in readers:
            self._readers.setdefault(each.split.input, deque()).append(each)

    def first(self, input: str) -> SplitReader | None:
        """Return the reader of an input that is read next; None if there is none."""
        some = self._readers.get(input)
        return some[0] if some else None

    def read(self, input: str) -> tuple[SplitReader | None, list[Any]]:
        """Return the next batch of an input, an empty one if there is none. Raises SourceError."""
        some = self._readers.get(input)
        while some:
            reader = some[0]
            if batch := reader.next_batch():
                return reader, batch
            self._end(reader)
        return None, []

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

    def end(self) -> None:
        """Stop reading all splits."""
        for each in self._all():
            each.close()
        self._readers.clear()

    def _end(self, reader: SplitReader) -> None:
        """Remove a reader that has nothing left."""
        self._left_out(reader)
        self._readers[reader.split.input].remove(reader)
        end = SplitEnd(reader.print, reader.open_from) if reader.print else None
        self._ended(SplitRead(reader.split.number, end=end))

    def _all(self) -> list[SplitReader]:
        return [each for some in self._readers.values() for each in some]
