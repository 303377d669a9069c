"""Lines that have no file: the lines and encoded items that the launcher pushes to one worker, and their parsers.

Lines come in the order of their arrival within each input. Each input has one parser, which also takes lines of Spark.
A parser may hold the lines of an unfinished row, and it knows the columns that the first line named. When another
process takes over the launcher's lines, the report of their end (`PushedEnded`) carries the places of the parsers, and
the next worker continues from them.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

from megaflow.control.messages import ParserPlace
from megaflow.control.watermark_messages import Partition
from megaflow.errors import ProtocolError, SourceError
from megaflow.job.formats.record_format import LINES, LineStream, RecordFormat
from megaflow.job.formats.text_lines import batches_of, without_marks
from megaflow.timely.communication.codec.decode import decode

ITEM_BYTES = 24  # of an object, at least, in addition to its encoding


class PushedLines:
    """Batches that were pushed but not taken. The worker's program adds them, its line queue takes them."""

    def __init__(self) -> None:
        self.partitions: tuple[Partition, ...] = ()  # all that may be pushed; set when the dataflow is built
        self.are_counted = False  # the inputs' first lines come here, so line numbers are known
        self._batches: dict[str, deque[list[Any]]] = {}  # input -> its batches; items are encoded
        self._empty: dict[Partition, float] = {}  # partition without lines -> seconds, since when

    def __bool__(self) -> bool:
        return any(self._batches.values())

    def add(self, lines: list[str] | list[bytes], input: str) -> None:
        """Keep lines of an input, or encoded items."""
        self._empty.pop(partition_of(input, lines), None)
        size = sum(map(len, lines)) + (ITEM_BYTES * len(lines) if lines and type(lines[0]) is bytes else 0)
        self._batches.setdefault(input, deque()).extend(batches_of(lines, size))

    def next_of(self, input: str) -> list[Partition]:
        """Return the partition of the next batch of an input; none if there is no batch."""
        return [partition_of(input, some[0])] if (some := self._batches.get(input)) else []

    def take(self, input: str) -> tuple[Partition, list[Any]] | None:
        """Return the next batch of an input and its partition; None if there is none. Raises SourceError."""
        if not (some := self._batches.get(input)):
            return None
        batch = some.popleft()
        partition = partition_of(input, batch)
        if type(batch[0]) is bytes:
            batch = items_of(input, batch)
        return partition, batch

    def empty(
        self, now: float, untaken: Partition | None = None, is_held: bool = False
    ) -> Iterator[tuple[Partition, float]]:
        """Yield each partition that has nothing to read, with the time of the first call that found it empty.

        `untaken`: a partition whose batch was taken from here but is not completely read. `is_held`: an input is held,
        so the launcher may have lines of other inputs that it does not send. That time does not count.
        """
        if is_held:
            self._empty.clear()
            return
        waiting = {partition_of(input, some[0]) for input, some in self._batches.items() if some} | {untaken}
        for each in self.partitions:
            if each not in waiting:
                yield each, self._empty.setdefault(each, now)

    def clear(self) -> None:
        """Drop all batches."""
        self._batches.clear()


class LineStreams:
    """Parsers of one worker. Its line queue uses them."""

    def __init__(self) -> None:
        self.formats: dict[str, RecordFormat] = {}  # of inputs that are parsed; filled while the dataflow is built
        self.plain = LINES  # of the others
        self.piped: Collection[str] = ()  # inputs whose lines the launcher reads from a file
        self.places: dict[str, ParserPlace] = {}  # input -> where parsing begins
        self.cut: Collection[str] = ()  # inputs that a stop has cut off
        self._streams: dict[str, LineStream | None] = {}

    def begin(self, input: str, lines: list[Any], is_counted: bool) -> tuple[LineStream | None, list[Any]]:
        """Return the parser of the next lines of an input, None if they need none, and the lines in its form.

        `is_counted`: this worker reads the input from its first line on, unless a place says otherwise.
        """
        if input not in self._streams:
            start = self.places.pop(input, ParserPlace(input, 0) if is_counted else None)
            name = partial(line_name, start is not None)
            format = self.formats.get(input, self.plain)
            self._streams[input] = format.stream(name, start, is_piped=input in self.piped)
        stream = self._streams[input]
        if input in self.piped and not (stream is not None and stream.takes_marks):
            lines = without_marks(lines)
        return stream, lines

    def take_places(self, is_counted: bool) -> tuple[ParserPlace, ...]:
        """Return where another worker continues, and stop parsing here; `is_counted` is as for `begin`."""
        if is_counted:
            for input in self.formats:
                if input not in self._streams:
                    self.places.setdefault(input, ParserPlace(input, 0))
        found = [stream.place(input) for input, stream in self._streams.items() if stream is not None]
        found += self.places.values()
        self._streams.clear()
        return tuple(found)

    def take_last(self) -> tuple[str, list[Any]] | None:
        """Return the records of an input that have waited for more lines; None if there are none. Raises SourceError.
        """
        for input in [*self.places]:  # another worker left a row unfinished, and no line has come since
            self.begin(input, [], False)
        for input, stream in self._streams.items():
            if stream is not None and (found := stream.end(input in self.cut)):
                return input, found
        return None


def partition_of(input: str, lines: Sequence[Any]) -> Partition:
    """Return the partition of pushed lines or encoded items.

    >>> partition_of("clicks", [b"item"])
    ('items', 'clicks')
    """
    return "items" if lines and type(lines[0]) is bytes else "pushed", input


def items_of(input: str, encoded: Sequence[bytes]) -> list[Any]:
    """Return items of an input. Raises SourceError if this process does not know an item's class."""
    try:
        return [*map(decode, encoded)]
    except ProtocolError as error:
        raise SourceError(
            f"Cannot read an item of the input {input!r} here: {error}. Import its class in the module of the "
            "dataflow function, or use it in that function. If the class was defined again after the job started, "
            "start the job again."
        ) from error


def line_name(is_known: bool, line: int) -> str:
    """Return the name of a line for an error message.

    >>> line_name(True, 2), line_name(False, 2)
    ("line 3 of the launcher's input", 'a line that is from no file')
    """
    return f"line {line + 1} of the launcher's input" if is_known else "a line that is from no file"
