"""Formats: how the bytes of a file become records, in whatever pieces the file is read.

Readers of splits and of followed files share this one way: `RecordFormat.open` makes the parser of one file, and
`RecordParser.cut` turns the next bytes into a block of records.

1. A parser gets bytes that start a record, and returns whole records only. The reader offers the rest again, with more.
2. A block knows the bytes before each of its records. So positions, hand-overs and resumes stand between records.
3. Faults belong to the block. With `on_error="skip"` a fault is counted when reading passes it, so that a record that
   another worker reads again is counted once. Otherwise the records before the fault come first, and then the error.
4. Lines that have no file (an iterable, Spark) go through `RecordFormat.stream`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from megaflow.control.messages import ParserPlace
from megaflow.errors import SourceError
from megaflow.job.text_lines import BLOCK_BYTES, LINE_END, Text, bytes_of, lines_of, whole_lines
from megaflow.quick_dataclass import dataclass

SHOWN: Final = 80  # characters of a line in an error

Beginning: TypeAlias = Callable[[int], tuple[bytes, bool]]
"""Returns the first bytes of a file, as many as asked for, and whether they are the whole file."""

Name: TypeAlias = Callable[[int], str]
"""Returns the name of a block's line, counted from 0, for an error. May read the file up to there."""

Skip: TypeAlias = Callable[[Callable[[], str]], None]
"""Counts a fault. The argument returns its text, which only the first fault of an input needs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row or line that cannot be parsed."""

    before: int  # records of its block that come before it
    line: int  # of the block, from 0, with which it begins
    end: int  # the line behind it
    reason: str  # with what is wrong
    shown: str  # the line

    def moved(self, records: int, lines: int) -> "Fault":
        """Return the fault in a block that begins so many records and lines later."""
        return Fault(self.before - records, self.line - lines, self.end - lines, self.reason, self.shown)

    def error(self, name: Name) -> SourceError:
        """Return the error of a job that does not skip faults."""
        return SourceError(f"{self.text(name)}. on_error='skip' skips records that cannot be parsed.")

    def text(self, name: Name) -> str:
        """Return a sentence without its end."""
        shown = f"{self.shown[:SHOWN]!r}{'…' if len(self.shown) > SHOWN else ''}"
        return f"{name(self.line)} is not {self.reason}; the line is {shown}"


class RecordBlock:
    """Records, the bytes that they were, and the faults between them."""

    __slots__ = ("data", "ends", "faults", "records")

    def __init__(
        self, records: list[Any], data: bytes, ends: list[int] | None = None, faults: Sequence[Fault] = ()
    ) -> None:
        """`ends`: how many lines of the data end with each record; None: each record is one line."""
        self.records = records
        self.data = data
        self.ends = ends
        self.faults = faults

    def bytes_before(self, records: int) -> int:
        """Return where reading continues after so many records; after the last one, behind all of the data.

        >>> block = RecordBlock(["a", "b"], b"a\\n\\nb\\n\\n", [1, 3])
        >>> block.bytes_before(0), block.bytes_before(1), block.bytes_before(2)
        (0, 2, 6)
        """
        if records >= len(self.records):
            return len(self.data)
        return bytes_of(self.data, records if self.ends is None else self.ends[records - 1] if records else 0)

    def lines_before(self, records: int) -> int:
        """Return how many lines reading has passed when so many records are taken."""
        if self.ends is None:
            return min(records, len(self.records))
        if records >= len(self.records):
            return len(LINE_END.findall(self.data)) + (not self.data.endswith((b"\n", b"\r")))
        return self.ends[records - 1] if records else 0

    def split(self, limit: int) -> tuple["RecordBlock", "RecordBlock | None"]:
        """Return a first part and the rest, None if there is none. The part is one fault, or records before a fault.

        >>> first, rest = RecordBlock(["a", "b", "c"], b"a\\nb\\n\\nc\\n", [1, 2, 4]).split(2)
        >>> first.records, first.data, rest.records, rest.data, rest.ends
        (['a', 'b'], b'a\\nb\\n', ['c'], b'\\nc\\n', [2])
        """
        count = min(limit, len(self.records), self.faults[0].before if self.faults else limit)
        if count == len(self.records) and not self.faults:
            return self, None
        passed = 1 if self.faults and not count else 0
        ends, lines = self.ends, count
        if passed:
            lines = self.faults[0].end
        elif ends is not None:
            lines = ends[count - 1]
        at = bytes_of(self.data, lines)
        faults = [fault.moved(count, lines) for fault in self.faults[passed:]]
        rest = RecordBlock(self.records[count:], self.data[at:], ends and [end - lines for end in ends[count:]], faults)
        part = RecordBlock(self.records[:count], self.data[:at], ends and ends[:count], self.faults[:passed])
        return part, rest if rest.data or rest.records else None

    def passed(self, records: int) -> list[Fault]:
        """Return the faults that reading has passed when so many records are taken."""
        if records >= len(self.records):
            return [*self.faults]
        return [fault for fault in self.faults if fault.before < records]


class RecordParser(Protocol):
    """Makes records of the bytes of one file. To be used from any position between records."""

    body: int
    """The byte at which the records begin, behind a header."""
    head_lines: int
    """Lines before that byte."""

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the whole records at the beginning of `data`; None if there is none, and more bytes are needed.

        `is_end` says that nothing follows. Then all of the data is in the block.
        """


class LineStream(ABC):
    """Makes records of the lines of one input that come without a file: of an iterable, say, or of Spark."""

    takes_marks = False
    """Whether the lines of a file that the launcher reads come as `text_lines.piped_lines` cuts them."""

    def __init__(self, format: "RecordFormat", name: Name, line: int = 0) -> None:
        """`name` returns that of a line, by its number in the stream from 0; `line` is that of the next one."""
        self.line = line
        self._format = format
        self._name = name

    @abstractmethod
    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""

    def end(self) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError."""
        return []

    def place(self, input: str) -> ParserPlace:
        """Return where another stream goes on with the lines that follow."""
        return ParserPlace(input, self.line)

    def settled(self, block: RecordBlock, lines: int) -> list[Any]:
        """Return the records of a block of so many lines, which come next. Count its faults, or raise the first."""
        begin = self.line

        def name(index: int) -> str:
            return self._name(begin + index)

        if self._format.skip is None and block.faults:
            raise block.faults[0].error(name)
        self._format.note(block.faults, name)
        self.line += lines
        return block.records


class RecordFormat:
    """Lines as they are: the format of an input that the program does not have parsed."""

    block_bytes = BLOCK_BYTES
    """How much a reader reads at once. Records that cost more memory than lines come in blocks as large as a batch."""
    spans_lines = False
    """Whether a record may have several lines, so that a file cannot be cut between any two of them."""

    def __init__(self, skip: Skip | None = None) -> None:
        """`skip` counts faults. If it is None, a fault is an error."""
        self.skip = skip

    def open(self, text: Text, beginning: Beginning) -> RecordParser | None:
        """Return the parser of a file; None if the file must grow first. Raises SourceError."""
        return LinesParser(text)

    def stream(
        self, name: Name, start: ParserPlace | None, rest: Sequence[str] | None = None, is_piped: bool = False
    ) -> LineStream | None:
        """Return what parses lines that have no file; None: the lines are the records.

        `start`: where it begins; None: the lines before are not known. `rest`: all lines that will come, if they are
        known. `is_piped`: they are those of one file, which the launcher reads.
        """
        return None

    def settled(self, block: RecordBlock, name: Name) -> RecordBlock:
        """Return the part of a block that can be read. Raises SourceError for a fault that comes first."""
        if self.skip is not None or not block.faults:
            return block
        if not block.faults[0].before:
            raise block.faults[0].error(name)
        return block.split(len(block.records))[0]

    def note(self, faults: Sequence[Fault], name: Name) -> None:
        """Count faults."""
        for fault in faults:
            if self.skip is not None:
                self.skip(lambda fault=fault: fault.text(name))  # type: ignore[misc]


class LinesParser:
    """Cuts lines."""

    body = head_lines = 0

    def __init__(self, text: Text) -> None:
        self.text = text

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the whole lines at the beginning of `data`; None if there is none, and more bytes are needed."""
        length = whole_lines(data, is_end)
        if not length:
            return None
        data = data[:length]
        return self.made(lines_of(self.text.decode(data, position)), data)

    def made(self, lines: list[str], data: bytes) -> RecordBlock:
        """Return the block of some lines."""
        return RecordBlock(lines, data)


LINES: Final = RecordFormat()
