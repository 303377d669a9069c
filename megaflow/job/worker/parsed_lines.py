"""Lines as records: JSON, and CSV, whole batches at a time, with the file and line of what cannot be parsed.

A batch goes through the standard library's parser in one call. Only if that fails is each of its lines parsed alone, to
find the one to be named. A CSV row must stand in one line: lines are read by several workers, so a field in quotes that
goes on in the next one is refused, not guessed at.
"""

import csv
import json
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Literal, TypeAlias

from megaflow.errors import SourceError, UsageError
from megaflow.job.worker.line_place import LinePlace
from megaflow.job.worker.named_inputs import SkippedLines
from megaflow.timely.communication.codec.user_types import is_named_tuple

OnError: TypeAlias = Literal["raise", "skip"]
"""What becomes of a line that cannot be parsed: the job ends with an error, or goes on without the line."""

Batch: TypeAlias = tuple[str, list[str], LinePlace]
"""The name of an input, some of its lines, and where they begin."""

ON_ERROR: Final = ("raise", "skip")
SHOWN: Final = 80  # characters of a line in an error


class LineParser:
    """Makes records of the lines of one input; what it is called with may be of another."""

    what = "JSON"

    def __init__(self, input: str, on_error: OnError, skipped: SkippedLines) -> None:
        """`skipped` counts the lines that are left out."""
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error must be 'raise' or 'skip', not {on_error!r:.80}")
        self._input = input
        self._skipped = skipped if on_error == "skip" else None

    def __call__(self, batch: Batch) -> list[Any]:
        """Return the records of a batch. Raises SourceError, which names the first line that cannot be parsed."""
        input, lines, place = batch
        if input != self._input:
            return []
        try:
            return self.parse(lines, place)
        except (ValueError, RecursionError, csv.Error):
            return [*chain.from_iterable(self._alone(line, index, place) for index, line in enumerate(lines))]

    def parse(self, lines: list[str], place: LinePlace) -> list[Any]:
        """Return the records of lines. Raises ValueError, RecursionError or csv.Error."""
        return [*map(json.loads, lines)]

    def one(self, line: str, place: LinePlace) -> list[Any]:
        """Return the record of a line, none of a blank one. Raises ValueError, RecursionError or csv.Error."""
        return [json.loads(line)] if line and not line.isspace() else []

    def _alone(self, line: str, index: int, place: LinePlace) -> list[Any]:
        try:
            return self.one(line, place)
        except (ValueError, RecursionError, csv.Error) as error:
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)

            def text() -> str:
                shown = f"{line[:SHOWN]!r}{'…' if len(line) > SHOWN else ''}"
                return f"{place.line(index)} is not {self.what}: {reason}; the line is {shown}"

            if self._skipped is None:
                raise SourceError(f"{text()}. on_error='skip' leaves out what cannot be parsed") from None
            self._skipped.note(self._input, text)
            return []


class CsvParser(LineParser):
    """Makes a record of each row, by the columns that the file's first line names, or the program."""

    what = "a row of CSV"

    def __init__(
        self, input: str, on_error: OnError, header: bool | Sequence[str], as_: Any, delimiter: str, quotechar: str,
        skipped: SkippedLines,
    ) -> None:  # fmt: skip
        super().__init__(input, on_error, skipped)
        self._kind: Any = {"dict": dict, "tuple": tuple}.get(as_, as_) if isinstance(as_, str) else as_
        is_named = isinstance(self._kind, type) and is_named_tuple(self._kind)
        if self._kind not in (dict, tuple) and not is_named:
            raise UsageError(f"flow.csv(): as_ must be dict, tuple or a NamedTuple of the program, not {as_!r:.80}")
        if isinstance(header, str) or not (isinstance(header, bool) or all(isinstance(each, str) for each in header)):
            raise UsageError(f"flow.csv(): header must be True, False or the names of the columns, not {header!r:.80}")
        self._has_header = header is True
        self._columns: tuple[str, ...] | None = None if isinstance(header, bool) else self._checked(tuple(header), "")
        if header is False and is_named:
            self._columns = tuple(getattr(self._kind, "_fields", ()))
        if header is False and self._kind is dict:
            raise UsageError("flow.csv(): without a header a row is a tuple: give as_=tuple, or header=[…] with names")
        try:
            csv.reader([], delimiter=delimiter, quotechar=quotechar)
        except TypeError as error:
            raise UsageError(f"flow.csv(): {error}: {delimiter!r:.20}, {quotechar!r:.20}") from None
        self._format: dict[str, Any] = {"delimiter": delimiter, "quotechar": quotechar, "strict": True}
        self._makers: dict[str, tuple[int | None, Callable[[Any], Any]]] = {}  # path -> fields of a row, row -> record

    def parse(self, lines: list[str], place: LinePlace) -> list[Any]:
        """Return the records of lines."""
        rows = [*csv.reader(lines, **self._format)]
        if len(rows) != len(lines):
            raise ValueError("some span lines")
        width, make = self._maker(place)
        if place.is_first and self._has_header:
            del rows[0]
        if width is not None and any(len(row) != width for row in rows):
            raise ValueError("some have other fields")
        return [*map(make, rows)]

    def one(self, line: str, place: LinePlace) -> list[Any]:
        """Return the record of a line, none of a blank one or of that with the names."""
        width, make = self._maker(place)
        if not line or (place.is_first and self._has_header and line == place.first_line()):
            return []
        [row] = self._rows(line)
        if width is not None and len(row) != width:
            raise ValueError(f"it has {len(row)} fields, and there are {width} columns")
        return [make(row)]

    def _rows(self, line: str) -> list[list[str]]:
        try:
            return [*csv.reader([line], **self._format)]
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                raise ValueError("a field in quotes does not end, and rows that span lines are not read") from None
            raise

    def _maker(self, place: LinePlace) -> tuple[int | None, Callable[[Any], Any]]:
        """Return how many fields a row of a file has, None if that does not matter, and what makes its record."""
        if place.path not in self._makers:
            self._makers[place.path] = self._made(place)
        return self._makers[place.path]

    def _made(self, place: LinePlace) -> tuple[int | None, Callable[[Any], Any]]:
        names = self._columns
        if self._has_header:
            try:
                [row] = self._rows(place.first_line()) or [[]]
            except (ValueError, csv.Error) as error:
                raise SourceError(f"the first line of {place.path!r} does not name columns: {error}") from None
            names = self._checked(tuple(row), place.path)
        if names is None:
            return None, tuple
        width = len(names)
        if self._kind is tuple:
            return width, tuple
        if self._kind is dict:
            return width, lambda row: dict(zip(names, row))
        fields, make = self._kind._fields, self._kind._make
        if fields == names:
            return width, make
        if sorted(fields) != sorted(names):
            raise SourceError(
                f"flow.csv(): {place.path or 'the input'!r} has the columns {', '.join(names)}, and "
                f"{self._kind.__qualname__} has the fields {', '.join(fields)}: give it those"
            )
        in_order = itemgetter(*map(names.index, fields))
        return width, lambda row: make(in_order(row))

    @staticmethod
    def _checked(names: tuple[str, ...], path: str) -> tuple[str, ...]:
        if not names or len(set(names)) < len(names) or "" in names:
            where = f"the first line of {path!r}" if path else "flow.csv(): header"
            raise SourceError(f"{where} must name each column once, and names {', '.join(map(repr, names))}")
        return names
