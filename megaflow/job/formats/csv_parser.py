"""Rows of CSV in text: the rows that Python's `csv` reads in the whole file, starting at any row.

1. A row that the text leaves open, in quotes or after an escape character, is not among the rows. It is offered again
   with more text. At the end of the file it is a fault.
2. After a fault, parsing continues at the line after the one where `csv` failed.
3. `csv` fails if a field becomes longer than FIELD_CHARACTERS. So a quote without an end cannot swallow more than that.
4. With `multiline=False` each line is a row by itself, and a row that its line leaves open is a fault.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from megaflow.errors import UsageError
from megaflow.job.formats.record_format import Fault
from megaflow.job.formats.text_lines import lines_of

FIELD_CHARACTERS: Final = 1 << 20
OPEN: Final = "unexpected end of data"  # the error of `csv` for a row that is open at the end of its lines


class ParsedRows(NamedTuple):
    """Rows, including blank ones, the faults between them, and the number of lines of both."""

    rows: list[list[str]]
    ends: list[int] | None  # how many lines end with each row; None: each row is one line
    faults: list[Fault]
    lines: int


class FoundRow(NamedTuple):
    """A row or a fault, with its lines: the first one, and the one after the last."""

    row: list[str] | None
    start: int
    end: int
    reason: str = ""


class RowParser:
    """Parses rows of one dialect."""

    def __init__(
        self, delimiter: str = ",", quotechar: str = '"', escapechar: str | None = None, quoting: bool = True,
        comment: str | None = None, multiline: bool = True,
    ) -> None:  # fmt: skip
        """Raises UsageError if the arguments are not a valid dialect."""
        self.delimiter = delimiter
        self.multiline = multiline
        self._comment = comment
        self._format: dict[str, Any] = {"delimiter": delimiter, "escapechar": escapechar, "strict": True}
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
        has_comments = self._comment is not None and any(line.startswith(self._comment) for line in lines)
        found = None if has_comments else self._one_a_line(lines)
        return found or self._collected(lines, True)

    def parse(self, text: str, is_end: bool) -> ParsedRows:
        """Return the rows of whole lines, up to a row that they leave open. `is_end`: no text follows."""
        found = None if self._has_comments(text) else self._one_a_line(lines_of(text))
        return found or self._collected(kept_lines(text), is_end)

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
                    yield FoundRow(row, feed.row, feed.taken)
            except StopIteration:
                if feed.taken > begin:  # comments follow the last row
                    yield FoundRow([], begin, feed.taken)
                return
            except csv.Error as error:
                reason = str(error)
                if reason == OPEN:
                    if not is_end:
                        return
                    reason = "a quoted field does not end, or the file ends with an escape character"
                elif reason.startswith("field larger"):
                    reason = f"a field has more than {FIELD_CHARACTERS} characters: is a closing quote missing?"
                yield FoundRow(None, feed.row, feed.taken, reason)

    def _one_a_line(self, lines: Sequence[str]) -> ParsedRows | None:
        """Return the rows of lines without comments. None if some line is not exactly one row."""
        try:
            rows = [*csv.reader(lines, **self._format)]
        except csv.Error:
            return None
        return ParsedRows(rows, None, [], len(lines)) if len(rows) == len(lines) else None

    def _has_comments(self, text: str) -> bool:
        comment = self._comment
        return comment is not None and (text.startswith(comment) or f"\n{comment}" in text or f"\r{comment}" in text)

    def _collected(self, lines: Sequence[str], is_end: bool) -> ParsedRows:
        rows, ends, faults, taken = list[list[str]](), list[int](), list[Fault](), 0
        for found in self.walk(lines, is_end):
            taken = found.end
            if found.row is None:
                faults.append(fault_of(len(rows), found, lines))
            else:
                rows.append(found.row)
                ends.append(found.end)
        return ParsedRows(rows, ends, faults, taken)

    def _one_by_one(self, lines: Sequence[str]) -> Iterator[FoundRow]:
        for index, line in enumerate(lines):
            if self._comment is not None and line.startswith(self._comment):
                yield FoundRow([], index, index + 1)
                continue
            try:
                yield FoundRow(next(csv.reader([line], **self._format)), index, index + 1)
            except csv.Error as error:
                reason = str(error)
                if reason == OPEN:
                    reason = "a quoted field does not end in its line, but each line is a row here"
                yield FoundRow(None, index, index + 1, reason)


class LineFeed:
    """Lines for a `csv.reader`, without the comments between rows."""

    def __init__(self, lines: Sequence[str], comment: str | None) -> None:
        self.taken = 0  # number of lines passed to the reader or left out
        self.row = 0  # the first line of the row being read
        self._lines = lines
        self._comment = comment
        self._is_new = True  # no line of that row was passed yet

    def begin_row(self) -> int:
        """Note that the next line begins a row. Return its number."""
        self.row, self._is_new = self.taken, True
        return self.row

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self.taken < len(self._lines):
            line = self._lines[self.taken]
            self.taken += 1
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
    return Fault(before, found.start, found.end, f"a row of CSV: {found.reason}{span}", shown)


def kept_lines(text: str) -> list[str]:
    """Return the lines of a text with their ends.

    >>> kept_lines("a\\r\\nb\\rc\\n")
    ['a\\r\\n', 'b\\r', 'c\\n']
    """
    return [*io.StringIO(text, newline="")]
