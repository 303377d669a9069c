"""Formats: how the bytes of a file become records, however the file is divided into pieces for reading.

Readers of splits and of followed files work in the same way: `RecordFormat.open` makes the parser of one file, and
`RecordParser.cut` turns the next bytes into a block of records.

1. A parser gets bytes that start a record, and returns only whole records. The reader offers the rest again, with more.
2. A block knows the bytes before each of its records. So positions, hand-overs and resumes are between records.
3. Faults belong to the block. With `on_error="skip"` a fault is counted when reading passes it, so that a record that
   another worker reads again is counted once. Otherwise the records before the fault come first, and then the error.
4. A format may change a record that it keeps: it leaves out a byte order mark, for example. Such a change is a remark.
   Remarks stand among the faults and are counted in the same way, but they are never errors.
5. Lines without a file (from an iterable or Spark) go through `RecordFormat.stream`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from megaflow.control.messages import ParserPlace
from megaflow.control.wording import UNFINISHED
from megaflow.errors import SourceError
from megaflow.job.formats.text_lines import BLOCK_BYTES, LINE_BYTES_MAX, LINE_END, Text, bytes_of, lines_of, whole_lines
from megaflow.job.memory_limit import size_text
from megaflow.quick_dataclass import dataclass

LONGER_ALLOWED: Final = "--line-size-max allows a longer"
SHOWN: Final = 80  # characters of a line in an error
SKIPS: Final = "on_error='skip' skips records that cannot be parsed."

Beginning: TypeAlias = Callable[[int], tuple[bytes, bool]]
"""Returns the first bytes of a file, as many as requested, and whether they are the whole file."""

Name: TypeAlias = Callable[[int], str]
"""Returns the name of a block's line, counted from 0, for an error. May read the file up to that line."""

Skip: TypeAlias = Callable[[Callable[[], str]], None]
"""Counts a fault. The argument returns its text, which only the first fault of an input needs."""

Count: TypeAlias = Callable[[str, int, Callable[[], str] | None], None]
"""Adds to the count of a kind of remark: see `wording.READ_COUNTS`. The last argument returns a text for the first."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """Questions that a parser may ask about its file."""

    path: str
    beginning: Beginning
    lines_before: Callable[[int], int]  # for a byte; costs reading up to it

    def heads(self, bytes_max: int) -> Iterator[tuple[bytes, bool, bool]]:
        """Yield beginnings of whole lines, each twice as long, up to `bytes_max`.

        With each: whether it is the whole file, and whether the file must grow before a longer one can be read.
        """
        size = 0
        while size < bytes_max:
            size = min(max(BLOCK_BYTES, 2 * size), bytes_max)
            data, is_all = self.beginning(size)
            yield data[: whole_lines(data, is_all)], is_all, len(data) < size


@dataclass(frozen=True, slots=True)
class Fault:
    """A row or line that cannot be parsed, or a remark."""

    before: int  # number of records of its block before it
    line: int  # the line with which it begins, from 0 in the block
    end: int  # the line after it
    reason: str  # the end of "… is not …", with the cause
    shown: str  # the text of the line
    remedy: str = SKIPS
    is_fatal: bool = False  # whether it ends a job that skips faults
    is_open: bool = False  # whether the text ends in the middle of a record that begins here
    ends_file: bool = False  # whether the rest of the file is left out because of it
    counted_as: str = ""  # the kind of a remark; "": it is a fault
    count: int = 1  # of a remark

    def moved(self, records: int, lines: int) -> "Fault":
        """Return the fault in a block that begins so many records and lines later."""
        return replace(self, before=self.before - records, line=self.line - lines, end=self.end - lines)

    def error(self, name: Name) -> SourceError:
        """Return the error of a job that does not skip faults."""
        return SourceError(f"{self.text(name)}. {self.remedy}")

    def text(self, name: Name) -> str:
        """Return a sentence without its full stop."""
        shown = f"{self.shown[:SHOWN]!r}{'…' if len(self.shown) > SHOWN else ''}"
        left_out = ", so the rest of the file is left out" if self.ends_file else ""
        return f"{name(self.line)} is not {self.reason}{left_out}; the line is {shown}"


def remark(before: int, line: int, kind: str, count: int = 1) -> Fault:
    """Return a remark of a kind, for what begins with a line and comes after so many records."""
    return Fault(before, line, line, "", "", counted_as=kind, count=count)


@dataclass(slots=True, eq=False, repr=False)
class RecordBlock:
    """Records, their bytes, and the faults between them."""

    records: list[Any]
    data: bytes
    ends: list[int] | None = None  # how many lines of the data end with each record; None: each record is one line
    faults: Sequence[Fault] = ()

    is_last = False
    """Whether the rest of the file is left out because of the last fault."""

    def bytes_before(self, records: int) -> int:
        """Return where reading continues after so many records. After the last one, this is the end of the data.

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

    def without_open(self) -> "RecordBlock":
        """Return the block before the record in which its text ends, which is its last fault."""
        size = bytes_of(self.data, self.faults[-1].line)
        return RecordBlock(self.records, self.data[:size], self.ends, self.faults[:-1])

    def split(self, limit: int) -> tuple["RecordBlock", "RecordBlock | None"]:
        """Return a first part and the rest (None if empty). The part is one fault, or records before a fault.

        Either comes with the remarks up to it.

        >>> first, rest = RecordBlock(["a", "b", "c"], b"a\\nb\\n\\nc\\n", [1, 2, 4]).split(2)
        >>> first.records, first.data, rest.records, rest.data, rest.ends
        (['a', 'b'], b'a\\nb\\n', ['c'], b'\\nc\\n', [2])
        """
        first = next((index for index, fault in enumerate(self.faults) if not fault.counted_as), None)
        count = min(limit, len(self.records), limit if first is None else self.faults[first].before)
        if count == len(self.records) and first is None:
            return self, None
        passed = sum(fault.before < count for fault in self.faults[:first])
        if first is not None and not count:
            passed = first + 1
        part, rest = self._parts(count, passed)
        return part, rest if rest.data or rest.records else None

    def _parts(self, count: int, passed: int) -> tuple["RecordBlock", "RecordBlock"]:
        """Return a part of so many records and faults, and the rest. Without a record, it ends with a fault."""
        ends, lines = self.ends, count
        if not count:
            lines = self.faults[passed - 1].end
        elif ends is not None:
            lines = ends[count - 1]
        at = bytes_of(self.data, lines)
        faults = [fault.moved(count, lines) for fault in self.faults[passed:]]
        rest = RecordBlock(self.records[count:], self.data[at:], ends and [end - lines for end in ends[count:]], faults)
        return RecordBlock(self.records[:count], self.data[:at], ends and ends[:count], self.faults[:passed]), rest

    def passed(self, records: int) -> list[Fault]:
        """Return the faults that reading has passed when so many records are taken."""
        if records >= len(self.records):
            return [*self.faults]
        return [fault for fault in self.faults if fault.before < records]


class RecordParser:
    """Turns the bytes of one file into records, from any position between records. This one cuts lines."""

    body = 0
    """The byte at which the records begin, after a header."""
    head_lines = 0
    """Number of lines before that byte."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the whole records at the beginning of `data`. None if there is none, and more bytes are needed.

        `is_end` says that nothing follows. Then the block contains all of the data.
        """
        length = whole_lines(data, is_end)
        if not length:
            return None
        data = data[:length]
        return self._block(self._text.decode(data, position), data, position, is_end)

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the records of whole lines like `cut`. `text` is the text of `data`."""
        return RecordBlock(lines_of(text), data)


class LineStream(ABC):
    """Turns the lines of an input without a file into records: the lines of an iterable, for example, or of Spark."""

    takes_marks = False
    """Whether the stream expects lines of a file as `text_lines.piped_lines` cuts them."""

    def __init__(self, format: "RecordFormat", name: Name, start: ParserPlace | None) -> None:
        """`name` returns the name of a line by its number in the stream, from 0. `start` None: lines have no order."""
        start = start or ParserPlace("", 0)
        self.line = start.line  # number of the next line
        self._head: Sequence[str] = start.head
        self._waiting = [*start.open]  # lines of an open record or head
        self._format = format
        self._name = name

    @abstractmethod
    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError.

        `is_cut`: a stop has cut off the input. An open record is then left out without an error.
        """
        return []

    def place(self, input: str) -> ParserPlace:
        """Return the place where another stream continues with the following lines."""
        return ParserPlace(input, self.line, tuple(self._head), tuple(self._waiting))

    def settled(self, block: RecordBlock, lines: int) -> list[Any]:
        """Return the records of a block of the next so many lines. Count its faults, or raise the first one."""
        begin = self.line

        def name(index: int) -> str:
            return self._name(begin + index)

        if error := next(filter(self._format.is_error, block.faults), None):
            raise error.error(name)
        self._format.note(block.faults, name)
        self.line += lines
        return block.records


class RecordFormat:
    """Lines as they are: the format of an input that the program does not parse."""

    block_bytes = BLOCK_BYTES
    """How much a reader reads at once. Records that need more memory than lines come in blocks as large as a batch."""
    is_of_lines = True
    """Whether each record begins at the beginning of a line."""
    uncut = ""
    """Why a file must not be cut between any two lines, and what to do instead. "" if it may be."""
    unfollowed = ""
    """Why a growing file cannot be read, and what to do instead. "" if it can."""
    longest = "line", "Is it a text file?"
    """The unit that a reader reads as a whole, and the hint if one is too long."""

    lines_of_faults = ""
    """How further lines of skipped faults are counted: a kind of remark. "" if a fault has one line."""

    def __init__(
        self, skip: Skip | None = None, count: Count = lambda kind, count, text: None, bytes_max: int = LINE_BYTES_MAX
    ) -> None:
        """`skip` counts faults. If it is None, a fault is an error. `count` counts remarks.

        `bytes_max`: the longest line or other record, with its end. A parser of decoded lines counts characters.
        """
        self.skip = skip
        self.count = count
        self.bytes_max = bytes_max

    def open(self, text: Text, file: OpenedFile) -> RecordParser | None:
        """Return the parser of a file. None if the file must grow first. Raises SourceError."""
        return RecordParser(text)

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream | None:
        """Return the parser of lines that have no file. None: the lines are the records.

        `start`: the place where it begins; None: the earlier lines are unknown. `is_piped`: they are the lines of one
        file, which the launcher reads.
        """
        return None

    def too_long(self, name: str, place: str) -> SourceError:
        """Return the error for an input with a line, or another record, of more than `bytes_max`."""
        return too_long(self.longest, self.bytes_max, name, place)

    def settled(self, block: RecordBlock, name: Name) -> RecordBlock:
        """Return the part of a block that can be read. Raises SourceError if a fault comes first."""
        first = next((fault for fault in block.faults if not fault.counted_as), None)
        if first is None or not any(map(self.is_error, block.faults)):
            return block
        if not first.before and self.is_error(first):
            raise first.error(name)
        return block.split(len(block.records))[0]

    def is_error(self, fault: Fault) -> bool:
        """Return whether a fault ends the job."""
        return not fault.counted_as and (self.skip is None or fault.is_fatal)

    def note(self, faults: Sequence[Fault], name: Name) -> None:
        """Count faults and remarks."""
        for fault in faults:
            if fault.counted_as:
                self.count(fault.counted_as, fault.count, None)
            elif self.skip is not None:
                self.skip(lambda fault=fault: fault.text(name))  # type: ignore[misc]
                if self.lines_of_faults and fault.end - fault.line > 1:
                    self.count(self.lines_of_faults, fault.end - fault.line - 1, None)

    def leave(self, fault: Fault, name: Name) -> None:
        """Count a record that is left to the next run."""
        self.count(UNFINISHED, 1, lambda: f"{fault.text(name)}. The next run reads it again, with what the file gains")


def too_long(longest: tuple[str, str], bytes_max: int, name: str, place: str) -> SourceError:
    """Return the error for an input with more bytes in a record than are allowed. `longest`: see `RecordFormat`.

    >>> print(too_long(("line", "Is it a text file?"), 64 << 20, "'a'", "byte 0"))
    'a' has a line of more than 64 MiB at byte 0. Is it a text file? --line-size-max allows a longer line.
    """
    what, remedy = longest
    size = size_text(bytes_max)
    return SourceError(f"{name} has a {what} of more than {size} at {place}. {remedy} {LONGER_ALLOWED} {what}.")


LINES: Final = RecordFormat()
