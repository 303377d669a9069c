"""CSV: the format of an input that the program reads by `flow.csv()`.

A file is parsed as Python's `csv` parses the whole of it: a row may span lines, and the parser keeps the state of
quotes across them. A block that has neither such rows nor faults goes through `csv` in one call.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from megaflow.control.messages import ParserPlace
from megaflow.control.wording import quantity
from megaflow.errors import SourceError, UsageError
from megaflow.job.csv_head import Head, HeadRules, find_head, maker
from megaflow.job.csv_parser import FoundRow, ParsedRows, RowParser, fault_of, kept_lines
from megaflow.job.record_format import Beginning, Fault, LineStream, Name, RecordBlock, RecordFormat, RecordParser, Skip
from megaflow.job.text_lines import BATCH_BYTES, BLOCK_BYTES, LINE_BYTES_MAX, Text, bytes_of, restored, whole_lines
from megaflow.timely.communication.codec.user_types import is_named_tuple


class Csv(RecordFormat):
    """The rows of one input."""

    block_bytes = BATCH_BYTES  # 64 KB take half as long again: dicts leave the processor's cache (measured)

    def __init__(
        self, skip: Skip | None = None, header: bool | Sequence[str] = True, as_: Any = dict, delimiter: str = ",",
        quotechar: str = '"', escapechar: str | None = None, comment: str | None = None, skip_lines: int = 0,
        skip_header: bool = False, skip_repeated_header: bool = False, quoting: bool = True, multiline: bool = True,
    ) -> None:  # fmt: skip
        """The arguments are those of `flow.csv`. Raises UsageError for what cannot be meant."""
        super().__init__(skip)
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
        if header is False and self.kind is dict:
            raise UsageError(
                "flow.csv(): Without a header a row is a tuple. Give as_=tuple, or the names in header=[…]."
            )
        if type(skip_lines) is not int or skip_lines < 0:
            raise UsageError(f"flow.csv(): skip_lines must be a number of lines, not {skip_lines!r:.80}.")
        if skip_header and names is None:
            raise UsageError(
                "flow.csv(): skip_header=True replaces the first row by the names in header=[…]. Give these "
                "names, or leave skip_header out."
            )
        if skip_repeated_header and not (header is True or skip_header):
            raise UsageError(
                "flow.csv(): skip_repeated_header=True needs a first row with names: header=True, or header=[…] with "
                "skip_header=True."
            )
        self.rules = HeadRules(names, header is True, skip_header, skip_lines)
        self.spans_lines = multiline
        self.skips_repeated = skip_repeated_header
        self._dialect = partial(
            RowParser, quotechar=quotechar, escapechar=escapechar, quoting=quoting, comment=comment
        )
        self._rows = self._dialect(delimiter, multiline=multiline)
        self._lines = self._dialect(delimiter, multiline=False)

    def open(self, text: Text, beginning: Beginning) -> RecordParser | None:
        """Return the parser of a file; None if the file must grow first. Raises SourceError for a faulty header."""
        size = BLOCK_BYTES
        while True:
            data, is_all = beginning(size)
            whole = data[: whole_lines(data, is_all)]
            head = self.head(kept_lines(text.decode(whole, 0)), is_all, text.name)
            if head is not None:
                return CsvParser(self, text, head, bytes_of(whole, head.lines))
            if len(data) < size:
                return None
            size *= 2
            if size > LINE_BYTES_MAX:
                raise SourceError(
                    f"The head of {text.name} does not end in its first {LINE_BYTES_MAX >> 20} MiB. Is it CSV?"
                )

    def head(self, lines: Sequence[str], is_all: bool, name: str, by_lines: bool = False) -> Head | None:
        """Return the head of a file with these first lines, which have their ends; None: it needs more of them."""
        rows = self._lines if by_lines else self._rows
        return find_head(lines, is_all, self.rules, rows, partial(self._dialect, multiline=rows.multiline), name)

    def stream(
        self, name: Name, start: ParserPlace | None, rest: Sequence[str] | None = None, is_piped: bool = False
    ) -> LineStream:
        """Return what parses lines that have no file. Each is a row, unless they are those of a file."""
        return CsvStream(self, name, start, rest, is_piped and self.spans_lines)

    def headless(self) -> Head:
        """Return what is known of lines whose beginning is not. Raises SourceError if that names the columns."""
        if self.rules.has_names or self.rules.skips_first:
            raise SourceError(
                "flow.csv(): The line that names the columns was read by another worker or by Spark. Name the "
                "columns by header=[…], or read Spark's CSV by --rows NAME=spark:csv:FOLDER."
            )
        names = self.rules.names
        return Head(self._lines, names, None if names is None else len(names))


class RecordMaker:
    """Makes records of the rows of one file."""

    def __init__(self, format: Csv, head: Head, where: str) -> None:
        self.head = head
        self._make: Callable[[Any], Any] = maker(head.names, format.kind, where)
        self._repeated = head.first if format.skips_repeated else None

    def block(self, found: ParsedRows, lines: Callable[[], Sequence[str]], data: bytes) -> RecordBlock:
        """Return the records of rows, and the faults; blank rows have none. `lines` returns those of the rows."""
        rows, width = found.rows, self.head.width
        if not found.faults and self._repeated is None and {*map(len, rows)} <= {width}:
            return RecordBlock([*map(self._make, rows)], data, found.ends)
        ends = found.ends or range(1, len(rows) + 1)
        records, kept, faults = list[Any](), list[int](), list[Fault]()
        waiting = [*reversed(found.faults)]
        for index, row in enumerate(rows):
            while waiting and waiting[-1].before <= index:
                faults.append(replaced(waiting.pop(), len(records)))
            if not row or row == self._repeated:
                continue
            if width is not None and len(row) != width:
                start = max(ends[index - 1] if index else 0, faults[-1].end if faults else 0)
                reason = f"it has {quantity(len(row), 'field')} for {quantity(width, 'column')}"
                faults.append(fault_of(len(records), FoundRow(row, start, ends[index], reason), lines()))
                continue
            records.append(self._make(row))
            kept.append(ends[index])
        faults += (replaced(fault, len(records)) for fault in reversed(waiting))
        return RecordBlock(records, data, kept, faults)


def replaced(fault: Fault, before: int) -> Fault:
    """Return a fault that comes behind so many records."""
    return Fault(before, fault.line, fault.end, fault.reason, fault.shown)


class CsvParser:
    """Parses one file."""

    def __init__(self, format: Csv, text: Text, head: Head, body: int) -> None:
        self.body = body
        self.head_lines = head.lines
        self._text = text
        self._rows = head.parser
        self._records = RecordMaker(format, head, text.name)

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the whole rows at the beginning of `data`; None if there is none, and more bytes are needed."""
        length = whole_lines(data, is_end)
        if not length:
            return None
        data = data[:length]
        text = self._text.decode(data, position)
        found = self._rows.parse(text, is_end)
        if not found.lines:
            return None
        if found.ends is not None and not is_end:
            data = data[: bytes_of(data, found.lines)]
        return self._records.block(found, partial(kept_lines, text), data)


class CsvStream(LineStream):
    """Parses lines that have no file. Each is a row by itself, unless rows may span lines.

    Then the lines are those of a file that the launcher reads. A row that is open waits for the lines that follow, also
    where another worker reads on.
    """

    def __init__(
        self, format: Csv, name: Name, start: ParserPlace | None, rest: Sequence[str] | None, spans_lines: bool
    ) -> None:
        super().__init__(format, name, 0 if start is None else start.line)
        self.takes_marks = spans_lines
        self._csv = format
        self._waiting: Sequence[str] = () if start is None else start.open  # of an open row, or of an open head
        self._head: Sequence[str] = () if start is None else start.head
        self._left_out = 0  # lines of the head that are still to come
        self._records: RecordMaker | None = None
        if start is None:
            self._records = RecordMaker(format, format.headless(), "the input")
        elif self._head or rest is not None:
            self._begin([*start.head, *(rest or ())], rest is not None)
            self._left_out = max(0, self._left_out - len(start.head))

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""
        lines = [*self._waiting, *lines] if self._waiting else lines
        if self._records is None:
            self._begin(lines, False)
        return self._parsed(lines, False)

    def end(self) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError for a row that is open."""
        lines = self._waiting
        if self._records is None:
            self._begin(lines, True)
        return self._parsed(lines, True) if lines else []

    def place(self, input: str) -> ParserPlace:
        """Return where another stream goes on with the lines that follow."""
        return ParserPlace(input, self.line, tuple(self._head), tuple(self._waiting))

    def _begin(self, lines: Sequence[str], is_all: bool) -> None:
        """Find the head in the first lines, if it is there."""
        kept = [*map(restored, lines)] if self.takes_marks else lines
        head = self._csv.head(kept, is_all, "the input", by_lines=not self.takes_marks)
        if head is not None:
            self._records, self._left_out = RecordMaker(self._csv, head, "the input"), head.lines
            self._head = lines[: head.seen]

    def _parsed(self, lines: Sequence[str], is_end: bool) -> list[Any]:
        if self._records is None:
            self._waiting = lines
            return []
        left_out = min(len(lines), self._left_out)
        self._left_out -= left_out
        self.line += left_out
        lines = lines[left_out:]
        if self.takes_marks:
            found = self._records.head.parser.parse("".join(map(restored, lines)), is_end)
        else:
            found = self._records.head.parser.parse_lines(lines)
        self._waiting = lines[found.lines :]
        return self.settled(self._records.block(found, lambda: lines, b""), found.lines)
