"""Rows of CSV in text: the rows that Python's `csv` reads in the whole file, starting at any row.

1. A row that the text leaves open, in quotes or after an escape character, is not among the rows. It is offered again
   with more text. At the end of the file it is a fault.
2. After a fault, parsing continues at the line after the one where `csv` failed.
3. A field of several lines with more than FIELD_CHARACTERS is a fault. So a quote without an end cannot swallow more
   than that. A field in one line may be as long as a line. The limit of `csv`, 128 KB by default, is one for the whole
   process, and parsers run in several threads. So it is set once, in the workers, to the length of the longest line.
4. With `multiline=False` each line is a row by itself, and a row that its line leaves open is a fault.
5. A byte order mark at the beginning of a row is left out and counted: `cat` of two files leaves one between them. In
   quotes it is text.
6. A block without comments and marks goes through `csv` in one loop, up to its first fault. Only the rest of the block
   is read row by row.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from megaflow.control.wording import MARKS
from megaflow.errors import UsageError
from megaflow.job.formats.record_format import Fault, remark
from megaflow.job.formats.text_lines import LINE_BYTES_MAX, MARK, lines_of

FIELD_CHARACTERS: Final = 1 << 20  # of a field of several lines
LONG: Final = (
    f"a field of several lines has more than {FIELD_CHARACTERS:,} characters: is a closing quote missing? If not, "
    "write such texts as JSON lines"
)
OPEN: Final = "unexpected end of data"  # the error of `csv` for a row that is open at the end of its lines


class ParsedRows(NamedTuple):
    """Rows, including blank ones, the faults between them, and the number of lines of both."""

    rows: list[list[str]]
    ends: list[int] | None  # how many lines end with each row; None: each row is one line
    faults: list[Fault]  # with the remarks: see `record_format`
    lines: int


class FoundRow(NamedTuple):
    """A row or a fault, with its lines: the first one, and the one after the last."""

    row: list[str] | None
    start: int
    end: int
    reason: str = ""
    marks: int = 0  # byte order marks before it
    is_open: bool = False  # whether the text ends in the row


class LongField(Exception):
    """A field of several lines has too many characters, and has not ended."""


class RowParser:
    """Parses rows of one dialect."""

    def __init__(
        self, delimiter: str = ",", quotechar: str = '"', escapechar: str | None = None, quoting: bool = True,
        comment: str | None = None, multiline: bool = True, skipinitialspace: bool = False,
    ) -> None:  # fmt: skip
        """Raises UsageError if the arguments are not a valid dialect."""
        self.delimiter = delimiter
        self.multiline = multiline
        self._comment = comment
        self._format: dict[str, Any] = {"delimiter": delimiter, "escapechar": escapechar, "strict": True}
        self._format["skipinitialspace"] = bool(skipinitialspace)
        self._format |= {"quotechar": quotechar} if quoting else {"quoting": csv.QUOTE_NONE}
        try:
            csv.reader([], **self._format)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"flow.csv(): {error}: delimiter={delimiter!r:.20}, quotechar={quotechar!r:.20}, "
                f"escapechar={escapechar!r:.20}"
            ) from None
        if comment is not None and not (isinstance(comment, str) and comment):
            raise UsageError(f"flow.csv(): comment must be the text that begins a comment, not {comment!r:.20}.")
        if csv.field_size_limit() < LINE_BYTES_MAX:
            csv.field_size_limit(LINE_BYTES_MAX)

    def parse_lines(self, lines: Sequence[str]) -> ParsedRows:
        """Return the rows of lines, with each line as one row."""
        text = "\n".join(lines)
        found = None if self._is_special(text) else self._one_a_line(lines)
        return found or self._collected(lines, True, text)

    def parse(self, text: str, is_end: bool) -> ParsedRows:
        """Return the rows of whole lines, up to a row that they leave open. `is_end`: no text follows."""
        found = None if self._is_special(text) else self._one_a_line(lines_of(text))
        return found or self._collected(kept_lines(text), is_end, text)

    def walk(self, lines: Sequence[str], is_end: bool) -> Iterator[FoundRow]:
        """Yield rows and faults of lines, which have their ends, like `parse`."""
        if not self.multiline:
            yield from self._one_by_one(lines)
            return
        feed = LineFeed(lines, self._comment, self._characters_open)
        while True:
            reader = csv.reader(feed, **self._format)
            try:
                while True:
                    begin = feed.begin_row()
                    row = next(reader)
                    if feed.is_long(row):
                        raise LongField
                    yield FoundRow(row, feed.row, feed.taken, marks=feed.marks)
            except LongField:
                yield FoundRow(None, feed.row, feed.taken, LONG, feed.marks)
            except StopIteration:
                if feed.taken > begin:  # comments follow the last row
                    yield FoundRow([], begin, feed.taken, marks=feed.marks)
                return
            except csv.Error as error:
                reason, is_open = str(error), False
                if reason == OPEN:
                    if not is_end:
                        return
                    is_open = True
                    reason = "a quoted field does not end, or the file ends with an escape character"
                elif reason.startswith("field larger"):
                    reason = f"{reason}, which csv.field_size_limit sets"
                yield FoundRow(None, feed.row, feed.taken, reason, feed.marks, is_open)

    def _characters_open(self, lines: Sequence[str]) -> int:
        """Return the number of characters so far of the field that is open at the end of lines of one row."""
        return len(next(csv.reader(lines, **{**self._format, "strict": False}))[-1])

    def _one_a_line(self, lines: Sequence[str]) -> ParsedRows | None:
        """Return the rows of lines without comments. None if some line is not exactly one row."""
        try:
            rows = [*csv.reader(lines, **self._format)]
        except csv.Error:
            return None
        return ParsedRows(rows, None, [], len(lines)) if len(rows) == len(lines) else None

    def _is_special(self, text: str) -> bool:
        """Return whether the text may have comments between rows, or marks before them."""
        comment = self._comment
        return MARK in text or (
            comment is not None and (text.startswith(comment) or f"\n{comment}" in text or f"\r{comment}" in text)
        )

    def _collected(self, lines: Sequence[str], is_end: bool, text: str) -> ParsedRows:
        rows, ends, faults = list[list[str]](), list[int](), list[Fault]()
        if self.multiline and len(text) <= FIELD_CHARACTERS and not self._is_special(text):
            reader = csv.reader(lines, **self._format)
            with suppress(csv.Error):
                for row in reader:
                    rows.append(row)
                    ends.append(reader.line_num)
        begin = taken = ends[-1] if ends else 0
        for found in self.walk(lines[begin:], is_end):
            found = found._replace(start=found.start + begin, end=found.end + begin)
            taken = found.end
            if found.marks:
                faults.append(remark(len(rows), found.start, MARKS, found.marks))
            if found.row is None:
                faults.append(fault_of(len(rows), found, lines))
            else:
                rows.append(found.row)
                ends.append(found.end)
        return ParsedRows(rows, ends, faults, taken)

    def _one_by_one(self, lines: Sequence[str]) -> Iterator[FoundRow]:
        for index, line in enumerate(lines):
            bare = line.lstrip(MARK)
            marks = len(line) - len(bare)
            if self._comment is not None and bare.startswith(self._comment):
                yield FoundRow([], index, index + 1, marks=marks)
                continue
            try:
                yield FoundRow(next(csv.reader([bare], **self._format)), index, index + 1, marks=marks)
            except csv.Error as error:
                reason = str(error)
                if reason == OPEN:
                    reason = "a quoted field does not end in its line, but each line is a row here"
                yield FoundRow(None, index, index + 1, reason, marks)


class LineFeed:
    """Lines for a `csv.reader`, without the comments between rows and the byte order marks before them."""

    def __init__(
        self, lines: Sequence[str], comment: str | None, characters_open: Callable[[Sequence[str]], int]
    ) -> None:
        """`characters_open` returns the length of the field that is open after some lines of a row."""
        self.taken = 0  # number of lines passed to the reader or left out
        self.row = 0  # the first line of the row being read
        self.marks = 0  # byte order marks left out before that row
        self._lines = lines
        self._comment = comment
        self._characters_open = characters_open
        self._is_new = True  # no line of that row was passed yet
        self._characters = 0  # of the lines of that row that were passed
        self._allowed = 0  # no field of that row is too long before the row has more characters than this

    def begin_row(self) -> int:
        """Note that the next line begins a row. Return its number."""
        self.row, self._is_new, self.marks = self.taken, True, 0
        self._characters, self._allowed = 0, FIELD_CHARACTERS
        return self.row

    def is_long(self, row: Sequence[str]) -> bool:
        """Return whether a field of a whole row spans lines and is too long."""
        if self._characters <= FIELD_CHARACTERS:
            return False
        return any(len(each) > FIELD_CHARACTERS and ("\n" in each or "\r" in each) for each in row)

    def _check(self) -> None:
        """Raise LongField if the field that is open is too long."""
        lines = [*self._lines[self.row : self.taken]]
        lines[0] = lines[0].lstrip(MARK)
        if (size := self._characters_open(lines)) > FIELD_CHARACTERS:
            raise LongField
        self._allowed = self._characters + FIELD_CHARACTERS - size

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._characters > self._allowed and not self._is_new and self.taken < len(self._lines):
            self._check()
        while self.taken < len(self._lines):
            line = self._lines[self.taken]
            self.taken += 1
            if self._is_new and line.startswith(MARK):
                bare = line.lstrip(MARK)
                self.marks += len(line) - len(bare)
                line = bare
            if self._is_new and self._comment is not None and line.startswith(self._comment):
                self.row = self.taken
                continue
            self._is_new = False
            self._characters += len(line)
            return line
        raise StopIteration


def fault_of(before: int, found: FoundRow, lines: Sequence[str]) -> Fault:
    """Return the fault found in these lines, after so many rows or records."""
    shown, size = lines[found.start].rstrip("\r\n"), found.end - found.start
    span = f"; the row takes {size} lines" if size > 1 else ""
    return Fault(before, found.start, found.end, f"a row of CSV: {found.reason}{span}", shown, is_open=found.is_open)


def kept_lines(text: str) -> list[str]:
    """Return the lines of a text with their ends.

    >>> kept_lines("a\\r\\nb\\rc\\n")
    ['a\\r\\n', 'b\\r', 'c\\n']
    """
    return [*io.StringIO(text, newline="")]
