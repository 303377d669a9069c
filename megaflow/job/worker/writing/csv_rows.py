"""Records as rows of CSV, for `--output csv:PATH`; a record that does not fit the columns is refused, with its value.

A row is a dict, a NamedTuple or a dataclass, whose keys or fields are the columns, in any order. If the user gives the
columns, a tuple or list with as many values is also a row. Otherwise each worker takes the columns from its first
record, and sends them before its rows. The launcher writes the first line and checks that all workers have the same.

| Python | CSV |
|---|---|
| None | empty |
| bool, int, float, str | as Python writes them; a lone surrogate: U+FFFD |
| other single values of `json_lines` | as there: a date in ISO 8601, an Enum as its value, … |

A field that contains a comma, a quote or a line end is quoted. So is a byte order mark at the beginning of a row, which
readers otherwise leave out. Lists and dicts are refused: a field is one value.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, TypeAlias

from megaflow.errors import ProgramError
from megaflow.job.formats.text_lines import MARK
from megaflow.job.worker.writing.json_lines import ATOMS, plain, shown
from megaflow.rows.row_values import is_utf8

REMEDY = "map the records to dicts of such values before you output them, or use --output jsonl:PATH"

Row: TypeAlias = Sequence[Any]


class CsvRows:
    """Renderer of one worker's records."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        """Without `columns`, the first record names them."""
        self._says = not columns
        self._columns = tuple(columns)
        self._pick: Callable[[Any], Any] = picker(self._columns)

    def render(self, epoch: int, records: list[Any]) -> list[Any]:
        """Return a line for each record, with its line end; first the columns as a tuple, if they were not given.

        Raises ProgramError for a record that does not fit.

        >>> CsvRows().render(7, [{"word": "a,b", "count": 3}, {"count": 4, "word": None}])
        [('word', 'count'), '"a,b",3\\n', ',4\\n']
        """
        if not self._columns and records:
            self._columns = columns_of(records[0])
            self._pick = picker(self._columns)
        lines: list[str] = []
        write = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerow  # so it also quotes \r
        left = iter(records)  # what is left, for the note on an exception of a user's class
        for record in left:
            row = self._row(record)
            write(row if ATOMS.issuperset(map(type, row)) else [cell(value, record) for value in row])
        ended = [f"{line[:-2] if line.isascii() else readable(line[:-2])}\n" for line in lines]
        return [self._columns, *ended] if self._says and ended else ended

    def _row(self, record: Any) -> Row:
        """Return the values in the order of the columns."""
        columns = self._columns
        if isinstance(record, Mapping):
            if len(record) == len(columns) and all(map(record.__contains__, columns)):
                return self._pick(record)  # type: ignore[no-any-return]
            raise misfit(record, "keys", [*record], columns)
        names = names_of(record)
        if names == columns or (names is None and not self._says and isinstance(record, tuple | list)):
            if len(row := values_of(record)) == len(columns):
                return row
            raise refusal(record, f"it has {len(row)} values for {len(columns)} columns")
        if names is None:
            raise refusal(record, f"its type, {type(record).__name__}, is not a row and names no columns")
        if sorted(names) != sorted(columns):
            raise misfit(record, "fields", names, columns)
        return self._pick(dict(zip(names, values_of(record), strict=True)))  # type: ignore[no-any-return]


def picker(columns: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that takes the values of the columns out of a mapping, in order."""
    return itemgetter(*columns) if len(columns) > 1 else lambda record: [record[name] for name in columns]


def names_of(record: Any) -> tuple[str, ...] | None:
    """Return the fields of a NamedTuple or dataclass; None: it is neither."""
    if is_dataclass(record) and not isinstance(record, type):
        return tuple(field.name for field in fields(record))
    found: tuple[str, ...] | None = getattr(record, "_fields", None) if isinstance(record, tuple) else None
    return found


def values_of(record: Any) -> Row:
    """Return the values of a NamedTuple or dataclass, or of another tuple or list."""
    return record if isinstance(record, tuple | list) else [getattr(record, field.name) for field in fields(record)]


def columns_of(record: Any) -> tuple[str, ...]:
    """Return the columns that a record names. Raises ProgramError if it names none."""
    names = tuple(record) if isinstance(record, Mapping) else names_of(record)
    if names is None:
        kind = type(record).__name__
        raise refusal(
            record, f"its type, {kind}, names no columns: return dicts, NamedTuples or dataclasses, or give --output "
                "csv:PATH?columns=NAME,…"
        )  # fmt: skip
    if not names or not all(isinstance(name, str) and name for name in names):
        raise refusal(record, f"its keys, {', '.join(map(shown, names)) or 'none'}, cannot name columns; {REMEDY}")
    return names


def cell(value: Any, record: Any) -> Any:
    """Return a value in a form that the csv module writes. Raises ProgramError if it is not a single value."""
    if type(value) in ATOMS:
        return value
    try:
        made = plain(value)
    except (ProgramError, RecursionError):
        made = [value]
    if isinstance(made, list | dict):
        raise refusal(record, f"{shown(value)} of type {type(value).__name__} is not a single value; {REMEDY}")
    return made


def readable(line: str) -> str:
    """Return a line with its byte order mark in quotes, and U+FFFD in place of lone surrogates, which UTF-8 lacks.

    >>> readable("\\ufeffa,b")
    '"\\ufeffa",b'
    """
    if not is_utf8(line):
        line = line.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if line.startswith(MARK):
        first, *rest = line.split(",", 1)
        line = ",".join([f'"{first}"', *rest])
    return line


def misfit(record: Any, what: str, names: Sequence[Any], columns: Sequence[str]) -> ProgramError:
    """Return the error for a record with other columns."""
    had = ", ".join(map(str, names)) or "none"
    return refusal(record, f"its {what} are {had}, but the columns are {', '.join(columns)}; {REMEDY}")


def refusal(record: Any, why: str) -> ProgramError:
    """Return the error for a record."""
    return ProgramError(f"--output csv: The record {shown(record)} does not fit: {why}.")
