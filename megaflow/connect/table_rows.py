"""Records as rows of a table: their columns and key, and checks of both, of a batch at once where that is possible.

The check of a batch looks at each column: its types, its least and greatest integer, and all its texts joined. This
costs a tenth of checking each value. If it does not accept the batch, each record is checked by itself, which finds the
record and the reason.

A transaction writes rows in chunks, each small enough for memory:
1. Only the database knows which keys are equal. To it, texts may be equal in two cases. Two times that Python finds
   equal may be an hour apart to it, if one of them is after the clocks were set back. So a row is left out only if a
   later row of its chunk has a key of the same types and encoded bytes.
2. The other rows are in the order of the last row of each such key. So if two keys are equal to the database, its last
   row is the last one of both.
3. A chunk depends on the rows alone. So a second try of a transaction has the same chunks.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, repeat
from typing import Any, Final, TypeAlias, TypeVar

from megaflow.connect.row_check import RowCheck
from megaflow.errors import CannotTravel, ProgramError, RecordRefused
from megaflow.timely.communication.codec.encode import encode

T = TypeVar("T")

KEY_KINDS: Final = frozenset({int, str, bytes, bool})  # that equal themselves

Row: TypeAlias = tuple[Any, ...]

Change: TypeAlias = tuple[int, tuple[Row, Row | None]]
"""Position of a record, and its key and row; None: the key is to have no row."""

CHUNK_ROWS: Final = 10_000  # some megabytes
PART_ROWS: Final = 1000  # that are looked at together, since that takes a fraction of the time
EXACT: Final[frozenset[type]] = frozenset({str, int, bytes, bool})  # types whose equal values have equal bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Record that makes a `DatabaseSink` with a key delete the row of that key, if there is one."""

    key: Any  # its value; of several columns a tuple of theirs, in the order of `key=`


class TableRows:
    """The rows of one table that a sink writes."""

    def __init__(self, table: str, columns: Sequence[str], key: Sequence[str]) -> None:
        """`table`: its name in errors."""
        self._table, self._columns, self._key = table, columns, key
        self._key_places = [columns.index(name) for name in key]

    def check(self, records: Sequence[Any], row_check: RowCheck | None) -> None:
        """Raise ProgramError for a record that is not a row or has a value that cannot be written."""
        if row_check is not None and (rows := self.all_rows(records)):
            if self._has_plain_keys(values := [*zip(*rows)]) and row_check.accepts(values):
                return
        for record in records:
            self._checked(record, row_check)

    def all_changes(self, records: Sequence[Any]) -> Iterable[tuple[Row, Row]] | None:
        """Return the keys and rows of records, if each of them has a row and its key is of plain values."""
        if not (rows := self.all_rows(records)) or not self._has_plain_keys(values := [*zip(*rows)]):
            return None
        return zip(zip(*[values[place] for place in self._key_places]), rows)

    def each_change(self, records: Iterable[Any], start: int) -> Iterator[tuple[int, tuple[Row, Row | None]]]:
        """Yield the position of each record, and its key and row, record by record. Raises RecordRefused."""
        for position, record in enumerate(records, start):
            try:
                change = self.key_and_row(record)
            except ProgramError as error:  # kept by another program, or before its table was another one
                raise RecordRefused(str(error), position) from error
            yield position, change

    def _has_plain_keys(self, values: Sequence[Sequence[Any]]) -> bool:
        return all({*map(type, values[place])} <= KEY_KINDS for place in self._key_places)

    def all_rows(self, records: Sequence[Any]) -> Sequence[Row] | None:
        """Return the rows of records, if each of them has one."""
        if {*map(type, records)} <= {tuple} and {*map(len, records)} <= {len(self._columns)}:
            return records
        try:
            return [self._row(record) for record in records]
        except ProgramError:
            return None

    def key_and_row(self, record: Any) -> tuple[Row, Row | None]:
        """Return the key and row of a record, as `_change` does; without keys the row twice. Raises ProgramError."""
        if not self._key:
            row = self._row(record)
            return row, row
        key, changed = self._change(record)
        for name, value in zip(self._key, key, strict=True):
            if changed is not None and (value is None or value != value):  # SQLite makes NULL of NaN
                raise ProgramError(
                    f"the record {record!r:.200} cannot be written to {self._table}: its key column {name!r} is "
                    f"{value}, which equals no value, so a later row would not replace this one; filter such records "
                    "out, or give them a key"
                )
        return key, changed

    def _checked(self, record: Any, row_check: RowCheck | None) -> None:
        """Raise ProgramError for a record that cannot be written."""
        key, row = self.key_and_row(record)
        if row_check is None:
            return
        for place, value in zip(self._key_places, key, strict=True) if row is None else enumerate(row):
            if (reason := row_check(place, value)) is not None:
                raise ProgramError(
                    f"the record {record!r:.200} cannot be written to {self._table}, column "
                    f"{self._columns[place]!r}: {reason}; map the stream to values that the database accepts"
                )

    def _change(self, record: Any) -> tuple[Row, Row | None]:
        """Return a key and its row; None: it is to have none."""
        if not isinstance(record, Delete):
            row = self._row(record)
            return tuple([row[place] for place in self._key_places]), row
        key = (record.key,) if len(self._key) == 1 else record.key
        if not isinstance(key, tuple) or len(key) != len(self._key):
            wanted = ", ".join(self._key)
            raise ProgramError(f"{record!r:.200}: the key of {self._table} is {wanted}: give a tuple of these")
        return key, None

    def _row(self, record: Any) -> Row:
        columns = self._columns
        if isinstance(record, Mapping):
            if len(record) == len(columns) and all(name in record for name in columns):
                return tuple([record[name] for name in columns])
        elif isinstance(record, tuple) and hasattr(record, "_fields"):
            if {*record._fields} == {*columns}:
                return tuple([getattr(record, name) for name in columns])
        elif isinstance(record, tuple | list) and len(record) == len(columns):
            return tuple(record)
        if isinstance(record, Delete):
            raise ProgramError(
                f"{record!r:.200}: no key is given for the rows of {self._table}: name its columns with key="
            )
        raise ProgramError(
            f"the record {record!r:.200} is not a row of {self._table} with the columns {', '.join(columns)}: give a "
            "tuple of their values, or a dict or NamedTuple with their names"
        )


def whole(records: Iterable[T]) -> Iterator[tuple[int, list[T]]]:
    """Yield chunks of all records, each behind the position of its first one.

    >>> [*whole(["a", "b"])]
    [(0, ['a', 'b'])]
    """
    rest = iter(records)
    for start in count(0, CHUNK_ROWS):
        if not (chunk := [*islice(rest, CHUNK_ROWS)]):
            return
        yield start, chunk


def latest_of_keys(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield chunks of rows of different keys, each with the last row of each key.

    >>> changes = [(0, (("a",), ("a", 1))), (1, (("A",), ("A", 2))), (2, (("a",), ("a", 3)))]
    >>> [[row for _, (_, row) in chunk] for chunk in latest_of_keys(changes)]
    [[('A', 2), ('a', 3)]]
    """
    latest: dict[Hashable, Change] = {}
    rest = iter(changes)
    while part := [*islice(rest, min(PART_ROWS, CHUNK_ROWS - len(latest)))]:
        identities = _identities([key for _, (key, _) in part])
        last = dict(zip(identities, part, strict=True))
        if len(last) < len(part):  # some are not in the order of the last rows
            last = {}
            for identity, change in zip(identities, part, strict=True):
                last.pop(identity, None)
                last[identity] = change
        if not latest.keys().isdisjoint(last):
            for identity in last:
                latest.pop(identity, None)
        latest |= last
        if len(latest) == CHUNK_ROWS:
            yield [*latest.values()]
            latest.clear()
    if latest:
        yield [*latest.values()]


def _identities(keys: Sequence[Row]) -> list[Hashable]:
    """Return of each key what only keys of the same types and encoded bytes have in common: types and values."""
    kinds = [{*map(type, values)} for values in zip(*keys, strict=True)]
    if all(len(each) == 1 and each <= EXACT for each in kinds):
        return [*zip(repeat(tuple(next(iter(each)) for each in kinds)), keys)]
    return [
        (tuple(map(type, key)), tuple([value if type(value) in EXACT else _encoded(value) for value in key]))
        for key in keys
    ]


def _encoded(value: Any) -> object:
    try:
        return encode(value)
    except CannotTravel:
        return object()  # no other key is known to be the same
