"""`DatabaseSink`: rows into a table of a database, exactly once: a transaction writes a checkpoint's rows and its mark.

1. A mark in the table `megaflow_marks` notes each delivered token. A transaction writes the mark first, and the token
   is the table's key. So of two transactions with one token, the second waits for the first. It then finds the mark or
   does all the work itself. That also holds if the first one's connection was lost, or its process killed, and the
   server has not noticed yet.
2. A mark is needed until the next checkpoint is durable (rule 5 of `sink`). It is kept far longer, for MARKS_KEPT
   deliveries of the worker that wrote it: a worker that was suspended and replaced may wake up and deliver again. Those
   of this checkpoint and of the last delivery stay in any case. No
   other marks are removed: a mark bears the sink's name only, and another job may have a sink of that name.
3. With a key, the last row or `Delete` of each key counts. Parallel workers could not tell which is last after the bin
   of a key has moved. So one worker writes all rows, in the order of epochs.
4. Only the database knows which keys are equal, so `latest_of_keys` leaves out few rows. A statement writes one row.
5. A transaction reads its records in chunks, so memory is bounded. A second try reads the same chunks again.
6. Rows are locked in the order of records. So two jobs that write the same keys may wait for each other in a cycle. The
   database then ends one transaction, which is retried. On PostgreSQL the retry locks the table against other writers
   first. Otherwise one job of several could lose each time, until its patience ends.
7. With a store, a row of `megaflow_deliveries` beside each mark has the store's lineage, the table and the checkpoint.
   So a resumed job finds out whether store and table stand at the same checkpoint (`megaflow.durable.lineage`). A table
   that this user can neither find nor make costs only that. Each delivery also looks for the rows of the sink's last
   one, of all workers, as `expect` names them. One is gone if the database was restored meanwhile, or if a server
   without the last transactions has taken over. Then no worker delivers, so none hides the gap.
8. As far as possible, an invalid row is refused before a checkpoint keeps it, see `row_check`. If the database refuses
   the rows of a token, each row is tried by itself, in a transaction that is undone. So the error shows the row, and
   `megaflow state outbox` can drop or rewrite it. If the statement fails without a row, the table is at fault.
9. A worker that joins a running job makes nothing: the others have made all tables. If one is missing, its process sees
   another database under the same address, such as a relative path in another folder. A mark that it writes shows
   whether a database with all tables is the job's.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, groupby
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

from megaflow.connect import sql_statements as sql
from megaflow.connect.database import Cursor, Database
from megaflow.connect.database_address import Place
from megaflow.connect.postgres_rows import PostgresRows, lock_alone, postgres_rows
from megaflow.connect.row_check import RowCheck, row_check
from megaflow.connect.sink import OutboxSink, SinkPlace
from megaflow.connect.table_rows import Change, Row, TableRows, latest_of_keys, whole
from megaflow.connect.table_rows import Delete as Delete  # stores of earlier versions name it here
from megaflow.connect.transient_errors import (
    TryAgain,
    is_called,
    is_denied,
    is_final,
    is_of_file,
    may_pass,
    said,
    state_of,
)
from megaflow.errors import MegaflowError, OutputError, RecordRefused, UsageError

AT_ONCE: Final = {"IntegrityError", "DuplicateObject", "DuplicateTable"}  # PostgreSQL's, of two that make one table
ENDED_STATES: Final = "40"  # SQLSTATE of deadlocks and of transactions that cannot be serialized
MARKS_KEPT: Final = 1000  # of one worker: a quarter of an hour of checkpoints
TOKENS_LOOKED_UP: Final = 100  # by one query
MARKS_NEEDED: Final = (
    f"sinks select, insert and delete its rows; an administrator can make it: {sql.shown(sql.CREATE_MARKS)}"
)
DELIVERIES_NEEDED: Final = (
    f"an administrator can make the table, of which sinks select, insert and delete rows: "
    f"{sql.shown(sql.CREATE_DELIVERIES)}"
)
ELSEWHERE: Final = (
    "this process sees another database under the same address. Let the address mean the same database in all processes"
)

_log = logging.getLogger("megaflow.connect")

Batch: TypeAlias = tuple[str, Sequence[int], Sequence[Row]]  # a statement; positions of records, their rows or keys


class TransactionUndone(MegaflowError):
    """Raised in a transaction to undo it."""


class DatabaseSink(OutboxSink[Any]):
    """Sink that writes records as rows of a table, exactly once with `--state`.

        DatabaseSink("sqlite:shop.db", "orders", ["number", "cents"])                inserts each record
        DatabaseSink("env:SHOP", "totals", ["customer", "cents"], key="customer")    keeps the last row per customer

    connect             "sqlite:PATH", "postgresql://USER@HOST/NAME", "env:NAME" or "file:PATH" with one of these, or a
                        function that returns a DB-API 2 connection, which each worker calls
    table, columns      must exist; the case of names counts, and "a.b" is b in schema a
    key                 one column or several: the table must have them as its key, or a unique index of them.
                        None and NaN, which equal nothing, are refused in them
    create              a statement that makes a missing table: CREATE TABLE IF NOT EXISTS …; else None or False
    patience_seconds    how long to retry a lost or locked database before the job ends with an error

    Records are tuples or lists of the columns' values in order, or dicts and NamedTuples with the columns' names. With
    a key, a row replaces the previous one, and `Delete(key)` deletes it. One worker then writes all rows, in the order
    of epochs. So rows of one key must come from one key of the fold before, as its outputs do. Without a key, each
    worker writes its own records. The rows of a checkpoint are written in one transaction, while the worker waits. The
    sink also makes the tables `megaflow_marks` and `megaflow_deliveries`, which hold the tokens of written rows and
    their checkpoints, in the database's default schema. Raises UsageError for invalid arguments.
    `megaflow.connect.database_sink` has the details.
    """

    def __init__(
        self,
        connect: Place,
        table: str | Sequence[str],
        columns: Sequence[str],
        key: str | Sequence[str] = (),
        *,
        create: str | Literal[False] | None = None,
        patience_seconds: float = 60.0,
    ) -> None:
        self._target = sql.table_name(table)
        self._table = sql.shown(self._target)
        self._names = table.split(".") if isinstance(table, str) else [*table]
        self._columns = [columns] if isinstance(columns, str) else [*columns]
        self._key = [key] if isinstance(key, str) else [*key]
        if not self._columns or len({*self._columns}) < len(self._columns):
            raise UsageError(f"columns of {self._table}: give at least one name, each once, not {self._columns!r}")
        if not {*self._key} <= {*self._columns}:
            raise UsageError(f"key of {self._table}: {self._key!r} must be among the columns {self._columns!r}")
        self._create = create or None
        self._connect: Place = connect
        self._patience_seconds = patience_seconds
        self._may_make = True  # see rule 9
        self._database = self._opened()
        self._statement = (
            sql.upsert(self._target, self._columns, self._key) if self._key else sql.insert(self._target, self._columns)
        )
        self._deletion = sql.delete(self._target, self._key)
        self._rows = TableRows(self._table, self._columns, self._key)
        self._delivered: deque[tuple[int, str]] = deque()  # n and tokens, oldest first
        self._expected = frozenset[str]()  # tokens of the sink's last delivery before the next one
        self._row_check: RowCheck | None = None  # known once it is open, as is the next one
        self._postgres: PostgresRows | None = None
        if self._key:
            self.parallel, self.ordered, self.rewrites = False, True, True

    def __repr__(self) -> str:
        return f"DatabaseSink({self._database.title}, {self._table})"

    def _opened(self) -> Database:
        may_create = self._create is not None and self._may_make
        return Database(self._connect, OutputError, self._patience_seconds, writes=True, may_create=may_create)

    def open(self, place: SinkPlace) -> None:
        """Connect, and find the tables or make them."""
        self._may_make = not place.joined
        self._database = self._opened()
        self._delivered, self._expected = deque(), frozenset()
        self._sink, self._lineage = place.sink, place.lineage
        failure = self._found(sql.MARKS, sql.CREATE_MARKS)
        if failure is None:
            self._database.begin_probing()
            failure = self._failure(lambda cursor: cursor.execute(sql.DROP_MARK, ""))  # first needed far later
        if failure is not None:
            remedy = f"; {MARKS_NEEDED}" if "megaflow_marks" in str(failure) else ""
            raise OutputError(f"{failure}{remedy}") from failure.__cause__
        if self._lineage and (failure := self._deliveries_failure()) is not None:
            self._lineage, self.delivered = "", None  # type: ignore[assignment, method-assign]
            _log.warning("%s; so %s is not compared with the store; %s", failure, self._table, DELIVERIES_NEEDED)
        self._look()
        self._plan(self._statement)
        if self._lineage:
            self._whole_name = self._database.transaction(self._find_whole_name)[:200]

    def delivered(self, lineage: str) -> tuple[int, list[str]] | None:
        """Return the newest checkpoint of a lineage with rows of this sink in the table, and the tokens of these rows.

        If there are none, those of other sinks in the table count: this one may have got another name. None if the
        lineage has no rows there. If the program gives no schema, and there are no other rows, those of
        this sink in the table of another schema count: a dump may have been restored as another database.
        """

        def find(cursor: Cursor) -> tuple[int, list[str]] | None:
            found = list[tuple[int, str]]()
            by_table = [lineage, self._whole_name]
            for query, given in (
                (sql.NEWEST_OF_SINK, [*by_table, self._sink[:200]]), (sql.NEWEST_DELIVERIES, by_table)
            ):  # fmt: skip
                if not found:
                    cursor.execute(sql.exact_case(query) if cursor.is_mysql else query, *given * 2)
                    found = [(int(n), str(token)) for n, token in cursor.rows()]
            if not found and len(self._names) == 1:
                name = f".{self._as_compared(cursor, self._table)}"
                cursor.execute(sql.DELIVERIES_OF_SINK, lineage, self._sink[:200])
                found = [(int(n), str(token)) for n, token, target in cursor.rows() if str(target).endswith(name)]
            newest = max(found, default=(0, ""))[0]
            return (newest, [token for n, token in found if n == newest]) if found else None

        return self._database.transaction(find)

    def _find_whole_name(self, cursor: Cursor) -> str:
        """Return the name of the table with its schema: a program may write it or not."""
        query = sql.SCHEMA_OF.get(cursor.driver)
        if query is None or len(self._names) > 1:
            return self._as_compared(cursor, self._table)
        cursor.execute(query)
        return self._as_compared(cursor, sql.shown(sql.table_name([str(cursor.rows()[0][0]), *self._names])))

    def _as_compared(self, cursor: Cursor, name: str) -> str:
        """Return a name in lower case if the database takes names that differ in case for one."""
        ignores_case = cursor.driver in sql.IGNORING_CASE
        if cursor.is_mysql:
            cursor.execute(sql.NAME_CASE)
            ignores_case = int(cursor.rows()[0][0]) != 0
        return name.lower() if ignores_case else name

    def _deliveries_failure(self) -> OutputError | None:
        """Return why the rows beside the marks cannot be kept; None if they can."""
        token = f"probe {uuid4().hex}"

        def try_one(cursor: Cursor) -> None:
            cursor.execute(sql.ADD_DELIVERY, token, self._lineage, "", 0)
            cursor.execute(sql.DROP_DELIVERY, token)

        return self._found(sql.DELIVERIES, sql.CREATE_DELIVERIES) or self._failure(try_one)

    def _found(self, table: str, create: str) -> OutputError | None:
        """Find a table of megaflow's own, or make it; return a failure as `_failure`."""
        try:
            return self._failure(lambda cursor: _find(cursor, table))
        except TransactionUndone:
            return self._made(create)

    def _failure(self, work: Callable[[Cursor], object]) -> OutputError | None:
        """Do the work in a transaction; return the failure if it cannot pass. Raises OutputError for all others."""
        try:
            self._database.transaction(work)
        except OutputError as error:
            if not is_final(error):
                raise
            return error
        return None

    def _look(self) -> None:
        """Find the table and its columns, or make the table. Raises OutputError, of a fault with its remedy."""
        missing = self._failure(self._find_table)
        if missing is None:
            return
        columns = ", ".join(self._columns)
        what = f"the table {self._table} with the columns {columns} must exist, unless create= creates it"
        if self._create is None:
            hint = "" if is_denied(missing.__cause__) else f"; {what}"
            raise OutputError(f"{missing}{hint}") from missing.__cause__
        if (failure := self._made(self._create)) is not None:
            raise OutputError(f"{missing}; create= did not create it: {failure}") from failure.__cause__
        if (failure := self._failure(self._find_table)) is not None:
            raise OutputError(f"{failure}; {what}") from failure.__cause__

    def _plan(self, statement: str) -> None:
        """Let the database check a statement without a row. Raises OutputError, of a fault with its remedy."""
        if (failure := self._failure(lambda cursor: cursor.plan(statement))) is not None:
            key = f" and a primary key or unique index of exactly {', '.join(self._key)}" if self._key else ""
            needed = f"the columns {', '.join(self._columns)}{key}, and let this user change its rows"
            raise OutputError(f"{failure}; the table {self._table} must have {needed}") from failure.__cause__

    def _find_table(self, cursor: Cursor) -> None:
        """Learn what the columns take. Raises OutputError if the table cannot be written to exactly once."""
        cursor.execute(sql.no_rows(self._target, self._columns))
        self._row_check = row_check(cursor.raw, len(self._columns))
        self._postgres = postgres_rows(cursor, self._table, self._columns, copies=not self._key)
        if not cursor.is_mysql:
            return
        if (fault := sql.mysql_fault(cursor, self._names, self._columns, self._key)) is not None:
            raise OutputError(f"{self._database.title}: the table {self._table} {fault}")
        if self._key:
            self._statement = sql.mysql_upsert(self._target, self._columns, self._key)

    def probe(self) -> str:
        """Write a mark without rows, which `sees` finds from other processes, if they use the same database."""
        token = f"probe {uuid4().hex}"
        self._database.transaction(lambda cursor: cursor.execute(sql.ADD_MARK, token, "probe of a process"))
        return token

    def sees(self, token: str) -> bool:
        """Return whether the probe of another process is here."""

        def find(cursor: Cursor) -> bool:
            cursor.execute(sql.FIND_MARK, token)
            return bool(cursor.rows())

        return self._database.transaction(find)

    def forget(self, token: str) -> None:
        """Remove a probe."""
        self._database.transaction(lambda cursor: cursor.execute(sql.DROP_MARK, token))

    def check(self, records: list[Any]) -> None:
        """Raise ProgramError for a record that is not a row or has a value that cannot be written."""
        self._rows.check(records, self._row_check)

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        """Write these records and the mark of their token in one transaction, unless the mark is there.

        Raises RecordRefused if the database refuses a row, OutputError for other failures.
        """
        again = [*records] if isinstance(records, Iterator) else records
        many = [*self._delivered][: max(0, len(self._delivered) + 1 - MARKS_KEPT)]
        old = [each for each in many if each[0] != n and each[1] not in self._expected]
        was_ended = False  # by the server, in favor of another transaction

        def write(cursor: Cursor) -> None:
            nonlocal was_ended
            try:
                if was_ended and self._postgres is not None:
                    lock_alone(cursor, self._target)
                is_new = self._mark(cursor, token)
                if self._lineage:
                    self._check_last(cursor)
                    cursor.execute(sql.DROP_DELIVERY, token)  # of a job of another lineage, or whose mark was deleted
                    cursor.execute(sql.ADD_DELIVERY, token, self._lineage, self._whole_name, n)
                if is_new:
                    for _, each in old:
                        cursor.execute(sql.DROP_MARK, each)
                        if self._lineage:
                            cursor.execute(sql.DROP_DELIVERY, each)
                    self._write(cursor, self._batches(again))
            except Exception as error:
                was_ended = state_of(error).startswith(ENDED_STATES)
                raise

        if (refused := self._failure(write)) is not None:
            self._find_refused(again)
            if self._postgres is None or not self._postgres.copy:
                raise refused
            self._postgres.copy = ""
            self._database.transaction(write)
        for each in old:
            self._delivered.remove(each)
        self._delivered.append((n, token))

    def expect(self, tokens: list[str]) -> None:
        """Note which tokens the next delivery must find: see rule 7."""
        self._expected = frozenset(tokens)

    def _check_last(self, cursor: Cursor) -> None:
        """Raise OutputError if a row of the last delivery, or of this worker's own, is gone: see rule 7."""
        wanted = sorted(self._expected.union(token for _, token in [*self._delivered][-1:]))
        found = set[str]()
        for start in range(0, len(wanted), TOKENS_LOOKED_UP):
            tokens = wanted[start : start + TOKENS_LOOKED_UP]
            cursor.execute(sql.find_deliveries(len(tokens)), *tokens)
            found.update(str(token) for (token,) in cursor.rows())
        if not found.issuperset(wanted):
            raise OutputError(
                f"{self._database.title}: what sink {self._sink!r} wrote to {self._table} last is not there any more. "
                "The database was restored to an earlier time, or a server has taken over that lacks the last "
                "transactions. The rows since then would stay missing, so nothing more is written. Restore a store and "
                f"a database of one time; to go on with the rows as they are, give --accept-rows {self._sink}"
            )

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _write(self, cursor: Cursor, batches: Iterable[Batch]) -> None:
        for statement, some in groupby(batches, key=lambda batch: batch[0]):
            chunks = (rows for _, _, rows in some)
            if self._postgres is not None and statement == self._statement:
                self._postgres.write(cursor, statement, chunks)
            else:
                for rows in chunks:
                    cursor.execute_each(statement, rows)

    def _bound(self, statement: str, row: Row) -> Row:
        return row if self._postgres is None or statement is not self._statement else self._postgres.bound([row])[0]

    def _find_refused(self, records: Iterable[Any]) -> None:
        """Raise RecordRefused for the first row that the database refuses by itself, if there is one.

        Raises OutputError instead if the database refuses the statement with any row.
        """
        statement = self._statement

        def try_each(cursor: Cursor) -> None:
            nonlocal statement
            for statement, positions, rows in self._batches(records):
                for position, row in zip(positions, rows, strict=True):
                    try:
                        cursor.execute(statement, *self._bound(statement, row))
                    except Exception as error:
                        if may_pass(error) or is_of_file(error):
                            raise
                        raise RecordRefused(
                            f"{self._database.title} refuses the row {row!r:.200} for {self._table}: {said(error)}",
                            position,
                        ) from error
            raise TransactionUndone(f"{self._table} accepts each row by itself")

        try:
            with suppress(TransactionUndone):
                self._database.transaction(try_each)
        except RecordRefused:
            self._plan(statement)  # to drop the row would not help
            raise

    def _made(self, statement: str) -> OutputError | None:
        """Make a table, unless it exists or another process is about to make it; return a failure as `_failure`."""
        if not self._may_make:
            return OutputError(f"{self._database.title} lacks a table that the running job has made there: {ELSEWHERE}")

        def make(cursor: Cursor) -> None:
            try:
                cursor.execute(statement)
            except Exception as error:
                if is_called(error, AT_ONCE if "IF NOT EXISTS" in statement.upper() else set()):
                    raise TryAgain(f"another worker is creating a table: {error}") from error
                raise

        return self._failure(make)

    def _mark(self, cursor: Cursor, token: str) -> bool:
        """Mark the token as delivered; return whether it was not."""
        cursor.execute(sql.FIND_MARK, token)
        if cursor.rows():
            return False
        try:
            cursor.execute(sql.ADD_MARK, token, self._sink[:200])
        except Exception as error:
            if is_called(error, {"IntegrityError"}):
                raise TryAgain(f"another connection is writing the same rows: {error}") from error
            raise
        return True

    def _batches(self, records: Iterable[Any]) -> Iterator[Batch]:
        """Yield each statement with its rows, or keys, chunk by chunk.

        Beside the rows are the positions of their records. Raises RecordRefused for what is no row.
        """
        if not self._key:
            for start, chunk in whole(records):
                rows = self._rows.all_rows(chunk) or [row for _, (row, _) in self._rows.each_change(chunk, start)]
                yield self._statement, range(start, start + len(rows)), rows
            return
        for chunk in latest_of_keys(self._changes(records)):
            for is_row, some in groupby(chunk, key=lambda change: change[1][1] is not None):
                changes = [*some]
                positions = [position for position, _ in changes]
                batch = [key if row is None else row for _, (key, row) in changes]
                yield self._statement if is_row else self._deletion, positions, batch

    def _changes(self, records: Iterable[Any]) -> Iterator[Change]:
        """Yield the position of each record, and its key and row."""
        for start, chunk in whole(records):
            changes = self._rows.all_changes(chunk)
            yield from self._rows.each_change(chunk, start) if changes is None else zip(count(start), changes)


def _find(cursor: Cursor, table: str) -> None:
    """Raise TransactionUndone if a table of megaflow's own is missing: after an error, drivers refuse to commit."""
    name = sql.shown(table).strip('"')
    try:
        cursor.execute(sql.no_rows(table))
    except Exception as error:
        if is_called(error, {"DatabaseError"}) and not is_denied(error) and name in str(error):
            raise TransactionUndone(f"there is no table {name}") from error  # all drivers name it
        raise
