"""`DatabaseSink`: rows into a table of a database, exactly once: a transaction writes a checkpoint's rows and its mark.

1. A mark in the table `megaflow_marks` notes each delivered token. A transaction writes the mark first, and the token
   is the table's key. So of two transactions with one token, the second waits for the first. It then finds the mark or
   does all the work itself. That also holds if the first one's connection was lost, or its process killed, and the
   server has not noticed yet.
2. A mark is needed until the next checkpoint is durable (rule 5 of `sink`). It is kept far longer, for MARKS_KEPT
   deliveries of the worker that wrote it: a worker that was suspended and replaced may wake up and deliver again.
3. With a key, the last row or `Delete` of each key counts. Parallel workers could not tell which is last after the bin
   of a key has moved. So one worker writes all rows, in the order of epochs, and a transaction contains the last one of
   each key.
4. Rows are written and deleted in the order of their keys. So two jobs that write the same keys never wait for each
   other in a cycle, unless another program writes as well. The database then ends one transaction, which is retried.
5. As far as possible, an invalid row is refused before a checkpoint keeps it, see `row_check`. If the database refuses
   the rows of a token, each row is tried by itself, in a transaction that is undone. So the error shows the row, and
   `megaflow state outbox` can drop or rewrite it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeAlias

from megaflow.connect.database import Cursor, Database, Place, TryAgain, is_called, may_pass
from megaflow.connect.row_check import RowCheck
from megaflow.connect.sink import OutboxSink, SinkPlace
from megaflow.connect.sql_statements import (
    ADD_MARK,
    CREATE_MARKS,
    DROP_MARK,
    FIND_MARK,
    MARKS,
    delete,
    insert,
    no_rows,
    table_name,
    upsert,
)
from megaflow.errors import MegaflowError, OutputError, ProgramError, RecordRefused, UsageError

AT_ONCE: Final = {"IntegrityError", "DuplicateObject", "DuplicateTable"}  # PostgreSQL's, of two that make one table
MARKS_KEPT: Final = 1000  # of one worker: a quarter of an hour of checkpoints

Row: TypeAlias = tuple[Any, ...]
Batch: TypeAlias = tuple[str, list[tuple[int, Row]]]  # a statement; positions of records, and their rows or keys


class TransactionUndone(MegaflowError):
    """Raised in a transaction to undo it."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Record that makes a `DatabaseSink` with a key delete the row of that key, if there is one."""

    key: Any  # its value; of several columns a tuple of theirs, in the order of `key=`


class DatabaseSink(OutboxSink[Any]):
    """Sink that writes records as rows of a table, exactly once with `--state`.

        DatabaseSink("sqlite:shop.db", "orders", ["number", "cents"])                inserts each record
        DatabaseSink("env:SHOP", "totals", ["customer", "cents"], key="customer")    keeps the last row per customer

    connect             "sqlite:PATH", "postgresql://USER@HOST/NAME", "env:NAME" or "file:PATH" with one of these, or a
                        function that returns a DB-API 2 connection, not in autocommit, which each worker calls
    table, columns      must exist; the case of names counts, and "a.b" is b in schema a
    key                 one column or several: the table must have them as its key, or a unique index of them.
                        None and NaN, which equal nothing, are refused in them
    create              a statement that makes a missing table: CREATE TABLE IF NOT EXISTS …
    patience_seconds    how long to retry a lost or locked database before the job ends with an error

    Records are tuples or lists of the columns' values in order, or dicts and NamedTuples with the columns' names. With
    a key, a row replaces the previous one, and `Delete(key)` deletes it. One worker then writes all rows, in the order
    of epochs. So rows of one key must come from one key of the fold before, as its outputs do. Without a key, each
    worker writes its own records. The rows of a checkpoint are written in one transaction, while the worker waits. The
    sink also makes the table `megaflow_marks`, which holds the tokens of written rows, in the database's default
    schema. Raises UsageError for invalid arguments. `megaflow.connect.database_sink` has the details.
    """

    def __init__(
        self,
        connect: Place,
        table: str | Sequence[str],
        columns: Sequence[str],
        key: str | Sequence[str] = (),
        *,
        create: str | None = None,
        patience_seconds: float = 60.0,
    ) -> None:
        self._table = table_name(table)
        self._columns = [columns] if isinstance(columns, str) else [*columns]
        self._key = [key] if isinstance(key, str) else [*key]
        if not self._columns or len({*self._columns}) < len(self._columns):
            raise UsageError(f"columns of {self._table}: give at least one name, each once, not {self._columns!r}")
        if not {*self._key} <= {*self._columns}:
            raise UsageError(f"key of {self._table}: {self._key!r} must be among the columns {self._columns!r}")
        self._create = create
        self._connect: Place = connect
        self._patience_seconds = patience_seconds
        self._database = Database(connect, OutputError, patience_seconds)
        self._statement = (
            upsert(self._table, self._columns, self._key) if self._key else insert(self._table, self._columns)
        )
        self._deletion = delete(self._table, self._key)
        self._key_places = [self._columns.index(name) for name in self._key]
        self._delivered: deque[str] = deque()  # tokens, oldest first
        self._row_check: RowCheck | None = None  # known once it is open
        if self._key:
            self.parallel, self.ordered = False, True

    def __repr__(self) -> str:
        return f"DatabaseSink({self._database.title}, {self._table})"

    def open(self, place: SinkPlace) -> None:
        """Connect, and find the tables or make them."""
        self._database = Database(self._connect, OutputError, self._patience_seconds)
        self._delivered = deque()
        self._sink = place.sink
        if self._create is not None:
            self._make(self._create)
        if not self._database.transaction(_has_marks):
            self._make(CREATE_MARKS)

        def look(cursor: Cursor) -> RowCheck | None:
            cursor.execute(no_rows(self._table, self._columns))
            return cursor.row_check(len(self._columns))

        try:
            self._row_check = self._database.transaction(look)
        except OutputError as error:
            if not isinstance(error.__cause__, Exception) or may_pass(error.__cause__):
                raise
            columns = ", ".join(self._columns)
            what = f"the table {self._table} with the columns {columns} must exist, unless create= creates it"
            raise OutputError(f"{error}; {what}") from error.__cause__

    def check(self, records: list[Any]) -> None:
        """Raise ProgramError for a record that is not a row or has a value that cannot be written."""
        for record in records:
            self._checked(record)

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        """Write these records and the mark of their token in one transaction, unless the mark is there.

        Raises RecordRefused if the database refuses a row, OutputError for other failures.
        """
        batches = [*self._batches(records)]  # which a second try needs, too
        old = [*self._delivered][: max(0, len(self._delivered) + 1 - MARKS_KEPT)]

        def write(cursor: Cursor) -> None:
            if self._mark(cursor, token):
                for each in old:
                    cursor.execute(DROP_MARK, each)
                for statement, rows in batches:
                    cursor.execute_each(statement, [row for _, row in rows])

        refused: OutputError | None = None
        try:
            self._database.transaction(write)
        except OutputError as error:
            if not isinstance(error.__cause__, Exception) or may_pass(error.__cause__):
                raise
            refused = error
        if refused is not None:  # out of the handler, or the error would have this one as its context
            self._find_refused(batches)
            raise refused
        for _ in old:
            self._delivered.popleft()
        self._delivered.append(token)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _find_refused(self, batches: Sequence[Batch]) -> None:
        """Raise RecordRefused for the first row that the database refuses by itself, if there is one."""

        def try_each(cursor: Cursor) -> None:
            for statement, rows in batches:
                for position, row in rows:
                    try:
                        cursor.execute(statement, *row)
                    except Exception as error:
                        if may_pass(error):
                            raise
                        said = " ".join(str(error).split())
                        raise RecordRefused(
                            f"{self._database.title} refuses the row {row!r:.200} for {self._table}: "
                            f"{type(error).__name__}: {said}",
                            position,
                        ) from error
            raise TransactionUndone(f"{self._table} accepts each row by itself")

        with suppress(TransactionUndone):
            self._database.transaction(try_each)

    def _make(self, statement: str) -> None:
        """Make a table, unless it exists or another process is about to make it."""

        def make(cursor: Cursor) -> None:
            try:
                cursor.execute(statement)
            except Exception as error:
                if is_called(error, AT_ONCE if "IF NOT EXISTS" in statement.upper() else set()):
                    raise TryAgain(f"another worker is creating a table: {error}") from error
                raise

        self._database.transaction(make)

    def _mark(self, cursor: Cursor, token: str) -> bool:
        """Mark the token as delivered; return whether it was not."""
        cursor.execute(FIND_MARK, token)
        if cursor.rows():
            return False
        try:
            cursor.execute(ADD_MARK, token, self._sink[:200])
        except Exception as error:
            if is_called(error, {"IntegrityError"}):
                raise TryAgain(f"another connection is writing the same rows: {error}") from error
            raise
        return True

    def _batches(self, records: Iterable[Any]) -> Iterator[Batch]:
        """Yield each statement with its rows, or keys; those of a key are in an order that all writers have.

        Beside each row is the position of its record. Raises RecordRefused for what is no row.
        """
        if not self._key:
            if rows := [(position, row) for position, (row, _) in self._changes(records)]:
                yield self._statement, rows
            return
        latest = {key: (position, row) for position, (key, row) in self._changes(records)}
        changes = sorted(latest.items(), key=lambda change: [repr(value) for value in change[0]])  # of any types
        for is_row, some in groupby(changes, key=lambda change: change[1][1] is not None):
            yield self._statement if is_row else self._deletion, [
                (position, key if row is None else row) for key, (position, row) in some
            ]

    def _changes(self, records: Iterable[Any]) -> Iterator[tuple[int, tuple[Row, Row | None]]]:
        """Yield the position of each record, and its key and row. What the driver cannot bind it says by itself."""
        for position, record in enumerate(records):
            try:
                change = self._key_and_row(record)
            except ProgramError as error:  # kept by another program, or before its table was another one
                raise RecordRefused(str(error), position) from error
            yield position, change

    def _key_and_row(self, record: Any) -> tuple[Row, Row | None]:
        """Return the key and row of a record, as `_change` does; without keys the row twice. Raises ProgramError."""
        if not self._key:
            row = self._row(record)
            return row, row
        key, changed = self._change(record)
        try:
            hash(key)
        except TypeError as error:
            raise ProgramError(
                f"the record {record!r:.200} cannot be written to {self._table}: its key {key!r:.80} cannot be "
                f"hashed ({error}); give plain values"
            ) from None
        for name, value in zip(self._key, key, strict=True):
            if changed is not None and (value is None or value != value):  # SQLite makes NULL of NaN
                raise ProgramError(
                    f"the record {record!r:.200} cannot be written to {self._table}: its key column {name!r} is "
                    f"{value}, which equals no value, so a later row would not replace this one; filter such records "
                    "out, or give them a key"
                )
        return key, changed

    def _checked(self, record: Any) -> None:
        """Raise ProgramError for a record that cannot be written."""
        key, row = self._key_and_row(record)
        if row is None:
            self._check_values(record, self._key_places, key)
        else:
            self._check_values(record, range(len(row)), row)

    def _check_values(self, record: Any, places: Sequence[int], values: Row) -> None:
        if self._row_check is None:
            return
        for place, value in zip(places, values, strict=True):
            if (reason := self._row_check(place, value)) is not None:
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


def _has_marks(cursor: Cursor) -> bool:
    """Tell whether the table of marks is there."""
    try:
        cursor.execute(no_rows(MARKS))
    except Exception as error:
        if is_called(error, {"OperationalError", "ProgrammingError"}) and "megaflow_marks" in str(error):
            return False  # so say all drivers
        raise
    return True
