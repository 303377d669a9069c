"""A database that is reached by DB-API 2: connections, retries, and one transaction at a time.

The database is one of
    sqlite:PATH                     a file of SQLite
    postgresql://USER@HOST/NAME     PostgreSQL, by psycopg; its password is in ~/.pgpass or in PGPASSWORD
    env:NAME, file:PATH             one of these, or another form that psycopg accepts, in an environment variable of
                                    the workers or the first line of a file that only its owner can read; it may
                                    contain a password there
    a function without arguments    returns a new connection of any driver whose transactions `transactions` can undo

1. This module never keeps, shows or raises a password. It reads the password when it connects, and removes the words of
   the password from the driver's messages, but not the host. If it cannot tell where the password stands in an address,
   it removes all words of the address. Errors of a function are shown as they are.
2. A transaction is done as a whole or not at all. If its connection is lost, it is unknown whether it was committed, so
   it is tried again. Each transaction must therefore be safe to repeat.
3. Transient failures are retried for `patience_seconds`: lost and refused connections, locks, deadlocks, transactions
   that cannot be serialized, a server that is starting. Each try has its own connection, because the state of a failed
   connection is unknown. The log has the reason of each failure. If a reason repeats, the log has it only before
   attempts 2, 4, 8, 16 and so on. A refused user or database is no transient failure. Nor is a missing file of SQLite:
   it is created only for a sink that creates its table, and only once.
4. If a file is replaced under its name, its connection counts as lost.
"""

import importlib
import logging
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Final, TypeVar
from urllib.parse import quote

from megaflow.connect import database_address as addresses
from megaflow.connect import exact_values
from megaflow.connect.sql_statements import BY_NAME, PARAMETER, PARAMSTYLES, arranged, shown, written_for
from megaflow.connect.transactions import MYSQL, PLANNERS, RECIPES, Transactions, driver_of, file_at, kept_probe
from megaflow.connect.transient_errors import CannotConnect, TryAgain, may_pass, said
from megaflow.errors import MegaflowError, Outage, UsageError
from megaflow.timely.dataflow.running_place import Waits

R = TypeVar("R")
_log = logging.getLogger("megaflow.connect")

CONNECT_SECONDS: Final = 10  # for one attempt
SILENCE_MS: Final = 30_000  # without an acknowledgement, after which a server is given up
PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between tries; the last one from then on
POSITIONAL: Final = {"psycopg", "psycopg2", "pymysql", "MySQLdb"}  # say pyformat, and are faster with format
REMEDY: Final = "wait until the database can be used, or give a longer patience_seconds="
TROUBLE_CHARACTERS: Final = 160  # of the last error, in reports of what a worker waits for


class Cursor:
    """A cursor that takes the statements of `sql_statements`."""

    def __init__(self, cursor: Any, paramstyle: str) -> None:
        self.raw = cursor  # of the driver
        self._paramstyle = paramstyle
        self.driver = driver_of(type(cursor))
        self.is_mysql = self.driver in MYSQL

    def execute(self, statement: str, *values: Any) -> None:
        """Run a statement with the values of its parameters."""
        text = written_for(self._paramstyle if values else "qmark", statement, backquotes=self.is_mysql)
        if values:
            self.raw.execute(text, arranged(self._paramstyle, values))
        else:
            self.raw.execute(text)

    def plan(self, statement: str) -> None:
        """Let the database plan a statement without values and without running it, where it supports that."""
        if driver_of(type(self.raw)) in PLANNERS:
            self.execute(f"EXPLAIN {statement.replace(PARAMETER, 'NULL')}")
            self.rows()

    def execute_exactly(self, statement: str, *values: Any) -> None:
        """Run a query whose values are to arrive as they are. Raises ValueError if the driver would change them."""
        exact_values.prepare(self.raw)
        self.execute(statement, *values)
        exact_values.check(self.raw)

    def execute_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of these rows of values."""
        text = written_for(self._paramstyle, statement, backquotes=self.is_mysql)
        if self._paramstyle in BY_NAME:
            rows = [arranged(self._paramstyle, row) for row in rows]
        self.raw.executemany(text, rows if isinstance(rows, list) else [*rows])

    def copy_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Copy rows to PostgreSQL; psycopg only."""
        with self.raw.copy(shown(statement)) as copy:
            for row in rows:
                copy.write_row(row)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows of the query that was run."""
        rows: list[Any] = self.raw.fetchall()
        if rows and type(rows[0]) is tuple:
            return rows
        return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]

    def columns(self) -> list[str]:
        """Return the names of the columns of the query that was run."""
        return [column[0] for column in self.raw.description]


class Database:
    """A place, and the connection to it that is open, if one is. Used by one thread."""

    def __init__(
        self, place: addresses.Place, failure: type[MegaflowError], patience_seconds: float, *, writes: bool = False,
        may_create: bool = False,
    ) -> None:  # fmt: skip
        """`failure`: the class of the error if something cannot be done. `may_create`: create a missing file of SQLite.

        Raises UsageError if `place` is not one of the forms above.
        """
        addresses.check_place(place)
        self._place = addresses.absolute(place)
        self._failure = failure
        self._patience_seconds = patience_seconds
        self._writes = writes
        self._may_create = may_create
        self._is_probing = False
        self._transactions: Transactions | None = None  # of the connection
        self._paramstyle = ""
        self._shown = self.title  # with the address that an env:NAME or file:PATH has, once that is known

    def __repr__(self) -> str:
        return f"Database({self.title})"

    @property
    def title(self) -> str:
        """Name of the database in errors, without secrets."""
        if not isinstance(self._place, str):
            return f"the database of {getattr(self._place, '__name__', type(self._place).__name__)}()"
        return f"the database {self._place}"

    def transaction(self, work: Callable[[Cursor], R]) -> R:
        """Call `work` and commit; return what it returns. It may be called several times: see rules 2 and 3.

        Blocks until the commit. Raises the failure if the work cannot be done, Outage if it cannot be done in time.
        """
        until: float | None = None
        waits = Waits(self._shown)  # for reports about this thread
        for pause in chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])):
            try:
                transactions = self._transactions or self._connect()
                if self._is_probing and not transactions.is_probed:
                    self._probe(transactions)
                self._check_file(transactions)
                result = work(Cursor(transactions.begin(), self._paramstyle))
                transactions.commit()
                self._check_file(transactions)
                return result
            except MegaflowError:
                self._undo()
                raise
            except Exception as error:
                if not (passes := may_pass(error)):
                    self._undo()
                self.close()
                until = time.monotonic() + self._patience_seconds if until is None else until
                if not passes or time.monotonic() + pause > until:
                    cause = None if isinstance(error, CannotConnect) else error  # the failure's text has all of it
                    if passes:
                        raise Outage(
                            f"{self.title} failed for {self._patience_seconds:g} s: {said(error)}; {REMEDY}"
                        ) from cause
                    raise self._failure(f"{self.title} failed: {said(error)}") from cause
                reason, attempt = shortened(said(error)), waits.attempt + 1
                news = reason != waits.trouble or attempt & (attempt - 1) == 0
                if news and (pause >= 1.0 or not isinstance(error, TryAgain)):  # megaflow's own reason passes soon
                    _log.warning("%s failed; attempt %d follows: %s", self._shown, attempt, reason)
                waits = Waits(self._shown, attempt, reason)
            time.sleep(pause)
        raise AssertionError("there is always another pause")

    def begin_probing(self) -> None:
        """Probe this connection and each new one before its next transaction. The table of marks must exist."""
        self._is_probing = True

    def close(self) -> None:
        """Close the connection, if there is one; what it has not committed is undone."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            with suppress(Exception):  # it is lost, or was opened by another thread
                transactions.close()

    def _check_file(self, transactions: Transactions) -> None:
        """Raise TryAgain for a connection to a file that was replaced."""
        if transactions.is_replaced():
            _log.warning("%s: its file was replaced by another one, or removed; connecting anew", self._shown)
            raise TryAgain("its file was replaced")

    def _undo(self) -> None:
        """Undo what is not committed, at once: an error that is being handled may keep a cursor of the connection.

        SQLite would hold the lock as long as that cursor exists. Do not call this for a lost
        server: it might not answer.
        """
        if self._transactions is not None:
            with suppress(Exception):
                self._transactions.roll_back()
        self.close()

    def _probe(self, transactions: Transactions) -> None:
        """Raise the failure for a connection whose rollback keeps a row."""
        if kept_probe(transactions, lambda cursor: Cursor(cursor, self._paramstyle)):
            recipe = RECIPES.get(transactions.driver, "return a connection whose autocommit is off")
            raise self._failure(
                f"{self.title} keeps a row of the table megaflow_marks that was rolled back, so a crash could leave "
                f"half of a transaction: {recipe}"
            )

    def _connect(self) -> Transactions:
        path, was, connection = "", None, None
        if callable(self._place):
            connection = self._place()
        else:
            text = self._text(self._place)
            path = sqlite_path(text)
            was = file_at(path)
            connection = self._connected(self._place, text)
        paramstyle = paramstyle_of(type(connection))
        if paramstyle is None:
            kind = type(connection).__name__
            raise self._failure(
                f"{self.title} returned a {kind}, which is not a connection of a DB-API 2 driver: return such a "
                "connection"
            )
        self._paramstyle = paramstyle
        self._transactions = Transactions(connection, self._writes)
        self._transactions.watch(lambda cursor: Cursor(cursor, paramstyle), path, was)
        self._may_create = False
        return self._transactions

    def _connected(self, place: str, text: str) -> Any:
        if text != place and (address := addresses.shown_address(text)):
            self._shown = f"{self.title} at {address}"
        try:
            return connected(text, self._may_create)
        except MegaflowError:
            raise
        except Exception as error:
            failed = CannotConnect(addresses.without_secrets(said(error), addresses.secret_of(text)), may_pass(error))
        raise failed  # outside the handler: inside, the driver's error, which may have secrets, would be its context

    def _text(self, place: str) -> str:
        """Return what is to be connected to, with its password."""
        kind, _, name = place.partition(":")
        if kind == "env":
            text = os.environ.get(name)
            if text is None:
                raise self._failure(f"{self.title}: the environment variable {name} is not set on this worker")
        elif kind == "file":
            try:
                with open(name, encoding="utf-8") as file:
                    if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                        raise self._failure(f"{self.title}: other users can read this file: chmod 600 {name}")
                    text = file.readline()
            except (OSError, UnicodeError) as error:
                raise self._failure(f"{self.title}: cannot read the file: {type(error).__name__}") from None
        else:
            text = place
        text = text.strip()
        if not text.startswith(("sqlite:", *addresses.POSTGRESQL)) and "=" not in text:  # psycopg also takes NAME=VALUE
            raise self._failure(
                f"{self.title}: its text is not an address: write sqlite:PATH or postgresql://USER@HOST/NAME"
            )
        return text


def shortened(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= TROUBLE_CHARACTERS else f"{text[: TROUBLE_CHARACTERS - 1]}…"


def sqlite_path(text: str) -> str:
    """Return the absolute path of an address's file of SQLite; "" if it is another address."""
    return os.path.abspath(os.path.expanduser(text[7:])) if text.startswith("sqlite:") else ""


def connected(text: str, may_create: bool) -> Any:
    """Return a new connection to SQLite or PostgreSQL. Raises what the driver raises; UsageError without a driver.

    `may_create`: create a missing file of SQLite.
    """
    if path := sqlite_path(text):
        if not may_create and not os.path.exists(path):
            raise FileNotFoundError(f"no file {path!r}, and nothing creates it: correct the path or create the tables")
        return sqlite3.connect(f"file:{quote(path)}?mode={'rwc' if may_create else 'rw'}", uri=True)
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError as error:
        raise UsageError("PostgreSQL needs psycopg: pip install 'megaflow[postgres]'") from error
    return psycopg.connect(text, connect_timeout=CONNECT_SECONDS, tcp_user_timeout=SILENCE_MS)


def paramstyle_of(kind: type) -> str | None:
    """Return how parameters are written for connections of this type, as its driver's module declares it.

    None: no module declares it.

    >>> paramstyle_of(sqlite3.Connection)
    'qmark'
    """
    for each in kind.__mro__:
        name = each.__module__
        while name:
            found = getattr(sys.modules.get(name), "paramstyle", None)
            if found in PARAMSTYLES:
                return "format" if found == "pyformat" and name in POSITIONAL else str(found)
            name = name.rpartition(".")[0]
    return None
