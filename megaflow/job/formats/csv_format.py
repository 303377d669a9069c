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
from megaflow.job.formats.text_lines import BATCH_BYTES, LINE_BYTES_MAX, Text, bytes_of, restored
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
        count: Count = lambda kind, count, text: None,
    ) -> None:  # fmt: skip
        """The arguments are those of `flow.csv`. Raises UsageError for contradictory or invalid ones."""
        super().__init__(skip, count)
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
        self.skips_repeated = skip_repeated_header
        self.ragged = ragged
        self._dialect = partial(
            RowParser, quotechar=quotechar, escapechar=escapechar, quoting=quoting, comment=comment,
            skipinitialspace=skipinitialspace,
        )  # fmt: skip
        self._rows = self._dialect(delimiter, multiline=multiline)
        self._lines = self._dialect(delimiter, multiline=False)

    def open(self, text: Text, file: OpenedFile) -> RecordParser | None:
        """Return the parser of a file; None if the file must grow first. Raises SourceError for a faulty header."""
        for whole, is_all, must_grow in file.heads():
            head = self.head(kept_lines(text.decode(whole, 0)), is_all, text.name)
            if head is not None:
                return CsvParser(self, text, head, bytes_of(whole, head.lines))
            if must_grow:
                return None
        raise SourceError(f"The head of {text.name} does not end in its first {LINE_BYTES_MAX >> 20} MiB. Is it CSV?")

    def head(self, lines: Sequence[str], is_all: bool, name: str, by_lines: bool = False) -> Head | None:
        """Return the head of a file with these first lines, which have their ends. None if it needs more lines."""
        rows = self._lines if by_lines else self._rows
        return find_head(lines, is_all, self.rules, rows, partial(self._dialect, multiline=rows.multiline), name)

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

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        found = self._rows.parse(text, is_end)
        if not found.lines and text:  # a file that is only a byte order mark has no text
            return None
        if found.ends is not None and not is_end:
            data = data[: bytes_of(data, found.lines)]
        return self._records.block(found, partial(kept_lines, text), data)


class CsvStream(LineStream):
    """Parses lines that have no file. Each line is a row by itself, unless rows may span lines.

    If they may, the lines come from a file that the launcher reads. An open row waits for the following lines, even
    when another worker takes over the reading.
    """

    def __init__(self, format: Csv, name: Name, start: ParserPlace | None, spans_lines: bool) -> None:
        super().__init__(format, name, start)
        self.takes_marks = spans_lines
        self._csv = format
        self._left_out = 0  # lines of the head that have not arrived yet
        self._records: RecordMaker | None = None
        if start is None:
            self._records = RecordMaker(format, format.headless(), "the input")
        elif start.head:
            self._begin(start.head, False)
            self._left_out = max(0, self._left_out - len(start.head))

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""
        lines = [*self._waiting, *lines] if self._waiting else lines
        if self._records is None:
            self._begin(lines, False)
        return self._parsed(lines, False)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError for an open row."""
        lines, rules = self._waiting, self._csv.rules
        if self._records is None:
            self._begin(lines, not (is_cut and (rules.has_names or rules.skips_first)))
        return self._parsed(lines, not is_cut) if lines else []

    def _begin(self, lines: Sequence[str], is_all: bool) -> None:
        """Find the head in the first lines, if it is complete."""
        kept = [*map(restored, lines)] if self.takes_marks else lines
        head = self._csv.head(kept, is_all, "the input", by_lines=not self.takes_marks)
        if head is not None:
            self._records, self._left_out = RecordMaker(self._csv, head, "the input"), head.lines
            self._head = lines[: head.seen]

    def _parsed(self, lines: Sequence[str], is_end: bool) -> list[Any]:
        if self._records is None:
            self._waiting = [*lines]
            return []
        left_out = min(len(lines), self._left_out)
        self._left_out -= left_out
        self.line += left_out
        lines = lines[left_out:]
        if self.takes_marks:
            found = self._records.head.parser.parse("".join(map(restored, lines)), is_end)
        else:
            found = self._records.head.parser.parse_lines(lines)
        self._waiting = [*lines[found.lines :]]
        return self.settled(self._records.block(found, lambda: lines, b""), found.lines)
