"""Rows of CSV in text: the rows that Python's `csv` reads in the whole file, starting at any row.

1. A row that the text leaves open, in quotes or after an escape character, is not among the rows. It is offered again
   with more text. At the end of the file it is a fault.
2. After a fault, parsing continues at the line after the one where `csv` failed.
3. `csv` fails if a field becomes longer than FIELD_CHARACTERS. So a quote without an end cannot swallow more than that.
4. With `multiline=False` each line is a row by itself, and a row that its line leaves open is a fault.
5. A byte order mark at the beginning of a row is left out and counted: `cat` of two files leaves one between them. In
   quotes it is text.
6. A block without comments and marks goes through `csv` in one loop, up to its first fault. Only the rest of the block
   is read row by row.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from megaflow.control.wording import MARKS
from megaflow.errors import UsageError
from megaflow.job.formats.record_format import Fault, remark
from megaflow.job.formats.text_lines import MARK, lines_of

FIELD_CHARACTERS: Final = 1 << 20
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
        if csv.field_size_limit() < FIELD_CHARACTERS:  # the limit of the process, 128 KB by default
            csv.field_size_limit(FIELD_CHARACTERS)

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
        feed = LineFeed(lines, self._comment)
        while True:
            reader = csv.reader(feed, **self._format)
            try:
                while True:
                    begin = feed.begin_row()
                    row = next(reader)
                    yield FoundRow(row, feed.row, feed.taken, marks=feed.marks)
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
                    reason = f"a field has more than {FIELD_CHARACTERS} characters: is a closing quote missing?"
                yield FoundRow(None, feed.row, feed.taken, reason, feed.marks, is_open)

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
        if self.multiline and not self._is_special(text):
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

    def __init__(self, lines: Sequence[str], comment: str | None) -> None:
        self.taken = 0  # number of lines passed to the reader or left out
        self.row = 0  # the first line of the row being read
        self.marks = 0  # byte order marks left out before that row
        self._lines = lines
        self._comment = comment
        self._is_new = True  # no line of that row was passed yet

    def begin_row(self) -> int:
        """Note that the next line begins a row. Return its number."""
        self.row, self._is_new, self.marks = self.taken, True, 0
        return self.row

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
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
