"""Rows of CSV in text: the rows that Python's `csv` reads in the whole file, starting at any row.

1. A row that the text leaves open, in quotes or after an escape character, is not among the rows. It is offered again
   with more text. At the end of the file it is a fault.
2. After a fault, parsing continues at the line after the one where `csv` failed.
3. A field may be as long as a record. A quote without an end may look like the beginning of such a field. So if a row
   with a long field of several lines is faulty, or does not end within the longest record, the fault has only the lines
   up to FIELD_CHARACTERS of the field. Parsing continues behind them, and such a quote swallows no more than that. The
   fault ends the block, so that the next lines are read in blocks of the usual size.
4. The limit of `csv` on fields, 128 KB by default, is one for the whole process, and parsers run in several threads. So
   workers raise it to the length of the longest record.
5. With `multiline=False` each line is a row by itself, and a row that its line leaves open is a fault.
6. A byte order mark at the beginning of a row is left out and counted: `cat` of two files leaves one between them. In
   quotes it is text.
7. A block without comments and marks goes through `csv` in one loop, up to its first fault. Only the rest of the block
   is read row by row.
"""

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from megaflow.control.wording import MARKS
from megaflow.errors import UsageError
from megaflow.job.formats.record_format import Fault, remark
from megaflow.job.formats.text_lines import BLOCK_BYTES, LINE_BYTES_MAX, MARK, lines_of

FIELD_CHARACTERS: Final = 1 << 20  # of a faulty field of several lines, up to where its fault reaches
LONG: Final = "a field of several lines has more than {:,} characters{} and {}: is a closing quote missing?"
LINE: Final = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
OPEN: Final = "unexpected end of data"  # the error of `csv` for a row that is open at the end of its lines


class ParsedRows(NamedTuple):
    """Rows, including blank ones, the faults between them, and the number of lines of both."""

    rows: list[list[str]]
    ends: list[int] | None  # how many lines end with each row; None: each row is one line
    faults: list[Fault]  # with the remarks: see `record_format`
    lines: int
    is_cut: bool = False  # whether the last fault is a long field, behind which more lines may follow


class FoundRow(NamedTuple):
    """A row or a fault, with its lines: the first one, and the one after the last."""

    row: list[str] | None
    start: int
    end: int
    reason: str = ""
    marks: int = 0  # byte order marks before it
    is_open: bool = False  # whether the text ends in the row
    is_long: bool = False  # whether it is a fault with the first lines of a long field


class LongField(NamedTuple):
    """A long field of several lines in a faulty row."""

    lines: int  # the first lines of the row, in which it gets long
    reason: str


class RowParser:
    """Parses rows of one dialect."""

    def __init__(
        self, delimiter: str = ",", quotechar: str = '"', escapechar: str | None = None, quoting: bool = True,
        comment: str | None = None, multiline: bool = True, skipinitialspace: bool = False,
        bytes_max: int = LINE_BYTES_MAX,
    ) -> None:  # fmt: skip
        """`bytes_max`: of a row. Raises UsageError if the arguments are not a valid dialect."""
        self.delimiter = delimiter
        self.quote = quotechar if quoting and escapechar is None else None  # if not None, all open rows are in quotes
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
        self.characters_max = min(FIELD_CHARACTERS, bytes_max // 4)  # a character has up to four bytes
        if csv.field_size_limit() < bytes_max:
            csv.field_size_limit(bytes_max)

    def parse_lines(self, lines: Sequence[str]) -> ParsedRows:
        """Return the rows of lines, with each line as one row."""
        text = "\n".join(lines)
        found = None if self._is_special(text) else self._one_a_line(lines)
        return found or self._collected(text, True, lines=lines)

    def parse(self, text: str, is_end: bool, is_full: bool = False) -> ParsedRows:
        """Return the rows of whole lines, up to a row that they leave open, or up to the fault of a long field.

        `is_end`: no text follows. `is_full`: the text is one row that it leaves open, and that may not be longer.
        """
        if is_full and self.quote is not None:  # the lines behind the last quote are all in the open field
            text = text[: 1 + text.find("\n", text.rfind(self.quote) + 2 * self.characters_max)] or text
        is_usual = len(text) <= BLOCK_BYTES and not is_full and not self._is_special(text)
        found = self._one_a_line(lines_of(text)) if is_usual else None
        return found or self._collected(text, is_end, is_full)

    def walk(self, lines: Sequence[str], is_end: bool, is_full: bool = False) -> Iterator[FoundRow]:
        """Yield rows and faults of lines, which have their ends, like `parse`, but also behind long fields."""
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
                    if feed.row > begin:  # comments are no part of the row
                        yield FoundRow([], begin, feed.row)
                    yield FoundRow(row, feed.row, feed.taken, marks=feed.marks)
            except StopIteration:
                if feed.taken > begin:  # comments follow the last row
                    yield FoundRow([], begin, feed.taken, marks=feed.marks)
                return
            except csv.Error as error:
                reason = str(error)
                if (is_open := reason == OPEN) and not (is_end or is_full):
                    return
                if found := self._open_field(lines[feed.row : feed.taken if is_open else feed.taken - 1]):
                    feed.taken = feed.row + found.lines
                    reason = found.reason + (" If not, raise --line-size-max" if is_open and not is_end else "")
                    yield FoundRow(None, feed.row, feed.taken, reason, feed.marks, is_long=True)
                    continue
                if is_open:
                    if not is_end:
                        return
                    reason = "a quoted field does not end, or the file ends with an escape character"
                elif reason.startswith("field larger"):
                    reason = f"{reason}, which csv.field_size_limit sets"
                yield FoundRow(None, feed.row, feed.taken, reason, feed.marks, is_open)

    def is_long(self, field: str) -> bool:
        """Return whether a field spans lines and is long."""
        return len(field) > self.characters_max and ("\n" in field or "\r" in field)

    def _open_field(self, lines: Sequence[str]) -> LongField | None:
        """Return the field that is open after lines of one row, if it is long."""
        if sum(map(len, lines)) <= self.characters_max:
            return None
        place, characters = self._last_field(lines, len(lines))
        return self.long_field(lines, place, "no valid end") if characters > self.characters_max else None

    def long_field(self, lines: Sequence[str], place: int, what: str) -> LongField:
        """Return a long field of a row, given by its place from 1 on. `what` says why it is faulty.

        Costs parsing the lines up to its part in the fault some ten times.
        """
        begin = first_true(lambda size: self._last_field(lines, size)[0] >= place, len(lines))
        end = first_true(lambda size: self._last_field(lines, size) > (place, self.characters_max), len(lines))
        where = f" from line {begin} of the row on" if begin > 1 else ""
        return LongField(end, LONG.format(self.characters_max, where, what))

    def is_comment(self, line: str) -> bool:
        """Return whether a line between two rows is a comment."""
        return self._comment is not None and line.lstrip(MARK).startswith(self._comment)

    def _last_field(self, lines: Sequence[str], size: int) -> tuple[int, int]:
        """Return the place of the last field that is in the first lines of a row, and its characters there."""
        first = chain((lines[0].lstrip(MARK),), islice(lines, 1, size))
        row = next(csv.reader(first, **{**self._format, "strict": False}))
        return len(row), len(row[-1])

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

    def _collected(
        self, text: str, is_end: bool, is_full: bool = False, lines: Sequence[str] | None = None
    ) -> ParsedRows:
        rows, ends, faults = list[list[str]](), list[int](), list[Fault]()
        if self.multiline and not is_full and not self._is_special(text):
            reader = csv.reader(lines_with_ends(text), **self._format)
            try:
                for row in reader:
                    rows.append(row)
                    ends.append(reader.line_num)
                is_done = True
            except csv.Error as error:
                is_done = str(error) == OPEN and not is_end
            if is_done:
                return ParsedRows(rows, ends, faults, ends[-1] if ends else 0)
        lines = kept_lines(text) if lines is None else lines
        begin = taken = ends[-1] if ends else 0
        for found in self.walk(lines[begin:] if begin else lines, is_end, is_full):
            found = found._replace(start=found.start + begin, end=found.end + begin)
            taken = found.end
            if found.marks:
                faults.append(remark(len(rows), found.start, MARKS, found.marks))
            if found.row is None:
                faults.append(fault_of(len(rows), found, lines))
            else:
                rows.append(found.row)
                ends.append(found.end)
            if found.is_long or is_full:
                return ParsedRows(rows, ends, faults, taken, is_cut=True)
        return ParsedRows(rows, ends, faults, taken)

    def _one_by_one(self, lines: Sequence[str]) -> Iterator[FoundRow]:
        for index, line in enumerate(lines):
            bare = line.lstrip(MARK)
            marks = len(line) - len(bare)
            if self.is_comment(bare):
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


def first_true(test: Callable[[int], bool], last: int) -> int:
    """Return the first number from 1 on for which a test is true, as it is for all numbers after it. It is for `last`.

    >>> [first_true(lambda number: number >= first, 9) for first in (1, 2, 5, 9)]
    [1, 2, 5, 9]
    """
    high = 1
    while high < last and not test(high):
        high *= 2
    return bisect_left(range(last + 1), True, high // 2 + 1, min(high, last), key=test)


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
    return [*lines_with_ends(text)]


def lines_with_ends(text: str) -> Iterator[str]:
    """Return the lines of a text like `kept_lines`. Takes little memory if the text is long."""
    if len(text) <= BLOCK_BYTES:
        return io.StringIO(text, newline="")  # faster, but it has a copy of the text, in four bytes per character
    return (found[0] for found in LINE.finditer(text))
