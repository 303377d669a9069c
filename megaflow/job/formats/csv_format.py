"""CSV: the format of an input that the program reads by `flow.csv()`.

A file is parsed exactly as Python's `csv` parses the whole file: a row may span lines, and the parser keeps the state
of quotes across them. A block without such rows and without faults goes through `csv` in one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from megaflow.control.messages import ParserPlace
from megaflow.control.wording import CUT, FILLED, SKIPPED_LINES, quantity
from megaflow.errors import SourceError, UsageError
from megaflow.job.formats.csv_head import Head, HeadRules, find_head, maker
from megaflow.job.formats.csv_parser import FoundRow, ParsedRows, RowParser, fault_of, kept_lines
from megaflow.job.formats.csv_types import Misfit, column_types
from megaflow.job.formats.record_format import (
    SKIPS,
    Count,
    Fault,
    LineStream,
    Name,
    OpenedFile,
    RecordBlock,
    RecordFormat,
    RecordParser,
    Skip,
    remark,
)
from megaflow.job.formats.text_lines import AGAIN, BATCH_BYTES, BLOCK_BYTES, LINE_BYTES_MAX, Text, bytes_of, restored
from megaflow.job.memory_limit import size_text
from megaflow.timely.communication.codec.user_types import is_named_tuple

RAGGED: Final = ("refuse", "fill", "cut")
SHORTER: Final = "ragged='fill' gives None for missing fields."
LONGER: Final = "ragged='cut' leaves out further fields."


class Csv(RecordFormat):
    """Format of one input."""

    block_bytes = BATCH_BYTES  # 64 KB take half again as long, because dicts leave the processor's cache (measured)

    def __init__(
        self, skip: Skip | None = None, header: bool | Sequence[str] = True, as_: Any = dict, delimiter: str = ",",
        quotechar: str = '"', escapechar: str | None = None, comment: str | None = None, skip_lines: int = 0,
        skip_header: bool = False, skip_repeated_header: bool = False, quoting: bool = True, multiline: bool = True,
        types: Any = None, skipinitialspace: bool = False, ragged: str = "refuse",
        count: Count = lambda kind, count, text: None, bytes_max: int = LINE_BYTES_MAX,
    ) -> None:  # fmt: skip
        """The arguments are those of `flow.csv`. Raises UsageError for contradictory or invalid ones."""
        super().__init__(skip, count, bytes_max)
        self.kind: Any = {"dict": dict, "tuple": tuple}.get(as_, as_) if isinstance(as_, str) else as_
        kind = self.kind
        is_named = isinstance(kind, type) and is_named_tuple(kind)
        if self.kind not in (dict, tuple) and not is_named:
            raise UsageError(
                f"flow.csv(): as_ must be dict, tuple or one of the program's NamedTuples, not {as_!r:.80}."
            )
        if isinstance(header, str) or not (isinstance(header, bool) or all(isinstance(each, str) for each in header)):
            raise UsageError(f"flow.csv(): header must be True, False or the names of the columns, not {header!r:.80}.")
        names = None if isinstance(header, bool) else tuple(header)
        if names is not None and (not names or len(set(names)) < len(names) or "" in names):
            raise UsageError(
                f"flow.csv(): header must name each column once, but it names {', '.join(map(repr, names))}."
            )
        if header is False and is_named:
            names = tuple(getattr(kind, "_fields", ()))
        for is_wrong, text in (
            (header is False and self.kind is dict,
             "Without a header a row is a tuple. Give as_=tuple, or the names in header=[…]."),
            (type(skip_lines) is not int or skip_lines < 0,
             f"skip_lines must be a number of lines, not {skip_lines!r:.80}."),
            (skip_header and names is None,
             "skip_header=True replaces the first row by the names in header=[…]. Give these names, or leave "
             "skip_header out."),
            (skip_repeated_header and not (header is True or skip_header),
             "skip_repeated_header=True needs a first row with names: header=True, or header=[…] with "
             "skip_header=True."),
            (ragged not in RAGGED, f"ragged must be 'refuse', 'fill' or 'cut', not {ragged!r:.80}."),
        ):  # fmt: skip
            if is_wrong:
                raise UsageError(f"flow.csv(): {text}")
        self.types = column_types(kind, types, header is not False or names is not None)
        self.rules = HeadRules(names, header is True, skip_header, skip_lines)
        self.spans_lines = multiline
        if multiline:
            self.uncut = (
                "A row of CSV may span lines, but ?unordered splits files between any two lines. Give flow.csv "
                "multiline=False if each line of the files is a row, or leave ?unordered out."
            )
            self.lines_of_faults = SKIPPED_LINES
            self.longest = "row", "Is it CSV?"
        self.skips_repeated = skip_repeated_header
        self.ragged = ragged
        self._dialect = partial(
            RowParser, quotechar=quotechar, escapechar=escapechar, quoting=quoting, comment=comment,
            skipinitialspace=skipinitialspace, bytes_max=bytes_max,
        )  # fmt: skip
        self._rows = self._dialect(delimiter, multiline=multiline)
        self._lines = self._dialect(delimiter, multiline=False)

    def open(self, text: Text, file: OpenedFile) -> RecordParser | None:
        """Return the parser of a file; None if the file must grow first. Raises SourceError for a faulty header."""
        for whole, is_all, must_grow in file.heads(self.bytes_max):
            head = self.head(kept_lines(text.decode(whole, 0)), is_all, text.name)
            if head is not None:
                return CsvParser(self, text, head, bytes_of(whole, head.lines))
            if must_grow:
                return None
        raise self.endless_head(text.name)

    def head(self, lines: Sequence[str], is_all: bool, name: str, by_lines: bool = False) -> Head | None:
        """Return the head of a file with these first lines, which have their ends. None if it needs more lines."""
        rows = self._lines if by_lines else self._rows
        return find_head(lines, is_all, self.rules, rows, partial(self._dialect, multiline=rows.multiline), name)

    def endless_head(self, name: str) -> SourceError:
        """Return the error for an input whose head is longer than a record may be."""
        return SourceError(
            f"The head of {name} does not end in its first {size_text(self.bytes_max)}. Is a closing quote missing? If "
            "not, raise --line-size-max."
        )

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream:
        """Return the parser of lines that have no file. Each line is a row, unless the lines come from a file."""
        return CsvStream(self, name, start, is_piped and self.spans_lines)

    def headless(self) -> Head:
        """Return the head of lines whose beginning is unknown. Raises SourceError if the beginning names the columns.
        """
        if self.rules.has_names or self.rules.skips_first:
            raise SourceError(
                "flow.csv(): The line that names the columns was read by another worker or by Spark. Name the "
                "columns by header=[…], or read Spark's CSV by --rows NAME=spark:csv:FOLDER."
            )
        names = self.rules.names
        return Head(self._lines, names, None if names is None else len(names))


class RecordMaker:
    """Turns the rows of one file into records."""

    def __init__(self, format: Csv, head: Head, where: str) -> None:
        self.head = head
        self._make: Callable[[Any], Any] = maker(head.names, format.kind, where)
        self._types = format.types.of(head.names, where)
        self._repeated = head.first if format.skips_repeated else None
        self._ragged = format.ragged

    def block(self, found: ParsedRows, lines: Callable[[], Sequence[str]], data: bytes) -> RecordBlock:
        """Return the records and faults of rows. Blank rows have no record. `lines` returns the lines of the rows."""
        rows, width = found.rows, self.head.width
        if not found.faults and self._repeated is None and {*map(len, rows)} <= {width}:
            values = rows if self._types is None else self._types.rows(rows)
            if values is not None:
                return RecordBlock([*map(self._make, values)], data, found.ends)
        ends = found.ends or range(1, len(rows) + 1)
        records, kept, faults = list[Any](), list[int](), list[Fault]()
        waiting = [*reversed(found.faults)]
        for index, row in enumerate(rows):
            while waiting and waiting[-1].before <= index:
                faults.append(replace(waiting.pop(), before=len(records)))
            if not row or row == self._repeated:
                continue
            fields, kind = self._fields(row)
            if isinstance(fields, Misfit):
                start = max(ends[index - 1] if index else 0, faults[-1].end if faults else 0)
                fault = fault_of(len(records), FoundRow(row, start, ends[index], fields.reason), lines())
                faults.append(replace(fault, remedy=fields.remedy))
                continue
            if kind:
                faults.append(remark(len(records), ends[index] - 1, kind))
            records.append(self._make(fields))
            kept.append(ends[index])
        faults += (replace(fault, before=len(records)) for fault in reversed(waiting))
        return RecordBlock(records, data, kept, faults)

    def checked(self, found: ParsedRows, lines: Callable[[], Sequence[str]]) -> ParsedRows:
        """Return the rows before a faulty one with a long field of several lines, and its fault: see `csv_parser`."""
        parser, ends = self.head.parser, found.ends
        for index, row in enumerate(found.rows if ends is not None else ()):
            long = [place for place, field in enumerate(row, 1) if parser.is_long(field)]
            if not long or row == self._repeated or not isinstance(fields := self._fields(row)[0], Misfit):
                continue
            assert ends is not None, "rows have several lines"
            faults = [fault for fault in found.faults if fault.before <= index]
            start, all_lines = max((0, *ends[:index][-1:], *(fault.end for fault in faults[-1:]))), lines()
            start = next(n for n in range(start, ends[index]) if not parser.is_comment(all_lines[n]))
            size, reason = parser.long_field(all_lines[start : ends[index]], long[0], fields.reason)
            fault = fault_of(index, FoundRow(None, start, start + size, reason), all_lines)
            faults.append(replace(fault, remedy=fields.remedy))
            return ParsedRows(found.rows[:index], ends[:index], faults, start + size, is_cut=True)
        return found

    def _fields(self, row: list[str]) -> tuple[Sequence[Any] | Misfit, str]:
        """Return the values of a row, or the reason why it is a fault; and the kind of a remark, or ""."""
        width, kind, fields = self.head.width, "", list[str | None](row)
        if width is not None and len(row) != width:
            if self._ragged != ("fill" if len(row) < width else "cut"):
                lines = LONGER if len(row) > width else SHORTER
                reason = f"it has {quantity(len(row), 'field')} for {quantity(width, 'column')}"
                return Misfit(reason, f"{lines} {SKIPS}"), ""
            kind = FILLED if len(row) < width else CUT
            fields = [*fields[:width], *[None] * (width - len(row))]
        return fields if self._types is None else self._types.row(fields), kind


class CsvParser(RecordParser):
    """Parses one file."""

    def __init__(self, format: Csv, text: Text, head: Head, body: int) -> None:
        super().__init__(text)
        self.body, self.head_lines = body, head.lines
        self._rows = head.parser
        self._records = RecordMaker(format, head, text.name)
        self._bytes_max = format.bytes_max
        self._is_full = False  # whether the data being cut are as long as a record may be
        self._open = 0, 0  # a byte, and the characters from there on that were parsed and leave a row open

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the whole records at the beginning of `data`. None if there is none, and more bytes are needed.

        After the fault of a long field, more data may follow even if `is_end`.
        """
        self._is_full = len(data) >= self._bytes_max
        return super().cut(data, position, is_end)

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        quote, size = self._rows.quote, self._open[1] if self._open[0] == position else 0
        goes_on = size > 0 and quote is not None and text.find(quote, size) < 0
        if goes_on and not (is_end or self._is_full):
            return None
        found = self._rows.parse(text, is_end, goes_on)
        if not found.lines and self._is_full and not goes_on:
            found = self._rows.parse(text, is_end, True)
        if len(text) > self._rows.characters_max:
            found = self._records.checked(found, partial(kept_lines, text))
        if not found.lines and text:  # a file that is only a byte order mark has no text
            self._open = position, len(text)
            return None
        if found.ends is not None and (found.is_cut or not is_end):
            data = data[: bytes_of(data, found.lines)]
        return self._records.block(found, partial(kept_lines, text), data)


class CsvStream(LineStream):
    """Parses lines that have no file. Each line is a row by itself, unless rows may span lines.

    If they may, the lines come from a file that the launcher reads. An open row waits for the following lines, even
    when another worker takes over the reading. It is parsed again only after another quote: if that seems to end it, or
    if the row is short or has grown by the factor AGAIN. So the cost stays linear.
    """

    def __init__(self, format: Csv, name: Name, start: ParserPlace | None, spans_lines: bool) -> None:
        super().__init__(format, name, start)
        self.takes_marks = spans_lines
        self._csv = format
        self._left_out = 0  # lines of the head that have not arrived yet
        self._records: RecordMaker | None = None
        self._size = self._tried = 0  # characters of the waiting lines, and how many of them were parsed
        self._quotes = self._tried_quotes = 0  # in these lines
        if start is None:
            self._records = RecordMaker(format, format.headless(), "the input")
        elif start.head:
            self._begin(start.head, False)
            self._left_out = max(0, self._left_out - len(start.head))
        self._wait(self._waiting)
        self._tried = 0  # as another stream has parsed them

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""
        goes_on = False
        if self._waiting:
            may_end = self._may_end(lines)
            self._waiting += lines
            if not may_end:
                return []
            lines, goes_on = self._waiting, self._goes_on
        if self._records is None:
            self._begin(lines, False)
        return self._parsed(lines, False, goes_on)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError for an open row."""
        lines, rules, goes_on = self._waiting, self._csv.rules, self._goes_on
        if self._records is None:
            self._begin(lines, not (is_cut and (rules.has_names or rules.skips_first)))
        return self._parsed(lines, not is_cut, goes_on and not is_cut) if lines else []

    def _begin(self, lines: Sequence[str], is_all: bool) -> None:
        """Find the head in the first lines, if it is complete."""
        kept = [*map(restored, lines)] if self.takes_marks else lines
        head = self._csv.head(kept, is_all, "the input", by_lines=not self.takes_marks)
        if head is not None:
            self._records, self._left_out = RecordMaker(self._csv, head, "the input"), head.lines
            self._head = lines[: head.seen]

    def _parsed(self, lines: Sequence[str], is_end: bool, goes_on: bool) -> list[Any]:
        """Return the records of lines. `goes_on`: they are one row that they leave open, at the end or too long."""
        if self._records is None:
            self._wait(lines)
            if self._size > self._csv.bytes_max:
                raise self._csv.endless_head("the input")
            return []
        left_out = min(len(lines), self._left_out)
        self._left_out -= left_out
        self.line += left_out
        lines = lines[left_out:]
        records, is_cut = list[Any](), True
        while is_cut and lines:
            found = self._found(self._records, lines, is_end, goes_on)
            goes_on = False
            records += self.settled(self._records.block(found, partial(list, lines), b""), found.lines)
            lines, is_cut = lines[found.lines :], found.is_cut
        self._wait(lines)
        return records

    def _found(self, records: RecordMaker, lines: Sequence[str], is_end: bool, goes_on: bool) -> ParsedRows:
        """Return the next rows of lines. Raises SourceError for a row that is too long."""
        parser = records.head.parser
        if not self.takes_marks:
            return parser.parse_lines(lines)
        text = "".join(map(restored, lines))
        found = parser.parse(text, is_end, goes_on)
        if found.lines and len(text) > parser.characters_max:
            found = records.checked(found, partial(kept_lines, text))
        if found.lines or len(text) <= self._csv.bytes_max:
            return found
        found = found if goes_on else parser.parse(text, is_end, True)
        if not found.lines:
            raise self._csv.too_long("the input", self._name(self.line))
        return found

    def _wait(self, lines: Sequence[str]) -> None:
        """Keep lines of an open row or head, which were parsed."""
        self._waiting, self._quotes = [*lines], 0
        self._size = self._tried = sum(map(len, lines))
        self._note_quotes(lines)
        self._tried_quotes = self._quotes

    def _note_quotes(self, lines: Sequence[str]) -> bool:
        """Count quotes. Return whether their number is even after one of the lines, so that none seems to be open."""
        quote, has_even = self._quote, False
        if quote is not None:
            for line in lines:
                self._quotes += line.count(quote)
                has_even = has_even or not self._quotes % 2
        return has_even

    @property
    def _quote(self) -> str | None:
        """The quote of the rows; None if it is not known, or if rows may be open without one."""
        return None if self._records is None else self._records.head.parser.quote

    @property
    def _goes_on(self) -> bool:
        """Whether the waiting lines still leave a row open, as no quote has come since they were parsed."""
        return self._quote is not None and self._quotes == self._tried_quotes and bool(self._tried)

    def _may_end(self, lines: Sequence[str]) -> bool:
        """Return whether to parse the waiting lines again, now with these lines."""
        self._size += sum(map(len, lines))
        if self._note_quotes(lines) or self._size > self._csv.bytes_max:
            return True
        return not (self._goes_on or BLOCK_BYTES < self._size < AGAIN * self._tried)
