"""A database that is reached by DB-API 2: connections, retries, and one transaction at a time.

The database is one of
    sqlite:PATH                     a file of SQLite
    postgresql://USER@HOST/NAME     PostgreSQL, by psycopg; its password is in ~/.pgpass or in PGPASSWORD
    env:NAME, file:PATH             one of these, or another form that psycopg accepts, in an environment variable of
                                    the workers or the first line of a file that only its owner can read; it may
                                    contain a password there
    a function without arguments    returns a new connection of any driver, which is not in autocommit

1. This module never keeps, shows or raises a password. It reads the password when it connects, and removes from the
   driver's messages all words that stand where the password does. Errors of a function are shown as they are.
2. A transaction is done as a whole or not at all. If its connection is lost, it is unknown whether it was committed, so
   it is tried again. Each transaction must therefore be safe to repeat.
3. Transient failures are retried for `patience_seconds`: lost and refused connections, locks, deadlocks, transactions
   that cannot be serialized, a server that starts. Each try has its own connection, because the state of a failed
   connection is unknown.
"""

import importlib
import os
import re
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from megaflow.connect.row_check import RowCheck, row_check
from megaflow.connect.sql_statements import PARAMSTYLES, arranged, written_for
from megaflow.errors import MegaflowError, UsageError

R = TypeVar("R")

Place: TypeAlias = str | Callable[[], Any]
"""Where a database is: see the module."""

PLACES: Final = "sqlite:PATH, postgresql://USER@HOST/NAME, env:NAME, file:PATH, or a function that returns a connection"
POSTGRESQL: Final = ("postgresql://", "postgres://")
CONNECT_SECONDS: Final = 10  # for one attempt
SILENCE_MS: Final = 30_000  # until a server is given up that does not acknowledge what it is sent
PAUSES_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)  # between tries; the last one from then on
PASSING_STATES: Final = ("08", "40", "53", "55P03", "57")  # SQLSTATE: connection, rollback, room, lock, operator
PASSING_SQLITE: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
PASSING_NAMES: Final = {"OperationalError", "InterfaceError"}  # that drivers must give to such errors
PUBLIC_WORDS: Final = {"postgres", "postgresql", "host", "hostaddr", "port", "user", "dbname", "password", "localhost"}


class TryAgain(Exception):
    """Raised in a transaction that is to be tried again."""


class CannotConnect(Exception):
    """A driver's error, without what is secret; `passes`: whether it may succeed later."""

    def __init__(self, text: str, passes: bool) -> None:
        super().__init__(text)
        self.passes = passes


class Cursor:
    """A cursor that takes the statements of `sql_statements`."""

    def __init__(self, cursor: Any, paramstyle: str) -> None:
        self._cursor = cursor
        self._paramstyle = paramstyle

    def execute(self, statement: str, *values: Any) -> None:
        """Run a statement with the values of its parameters."""
        text = written_for(self._paramstyle, statement)
        if values:
            self._cursor.execute(text, arranged(self._paramstyle, values))
        else:
            self._cursor.execute(written_for("qmark", statement))

    def execute_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of these rows of values."""
        text = written_for(self._paramstyle, statement)
        self._cursor.executemany(text, [arranged(self._paramstyle, row) for row in rows])

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows of the query that was run."""
        rows = self._cursor.fetchall()
        return [tuple(row.values()) if isinstance(row, Mapping) else tuple(row) for row in rows]

    def row_check(self, columns: int) -> RowCheck | None:
        """Return the check for rows of the columns of the query that was run."""
        return row_check(self._cursor, columns)

    def columns(self) -> list[str]:
        """Return the names of its columns."""
        return [column[0] for column in self._cursor.description]


class Database:
    """A place, and the connection to it that is open, if one is. Used by one thread."""

    def __init__(self, place: Place, failure: type[MegaflowError], patience_seconds: float) -> None:
        """`failure`: what is raised when something cannot be done. Raises UsageError for what is no place."""
        check_place(place)
        self._place = absolute(place)
        self._failure = failure
        self._patience_seconds = patience_seconds
        self._connection: Any = None
        self._paramstyle = ""

    def __repr__(self) -> str:
        return f"Database({self.title})"

    @property
    def title(self) -> str:
        """Name of the database in errors, without secrets."""
        if not isinstance(self._place, str):
            return f"the database of {getattr(self._place, '__name__', type(self._place).__name__)}()"
        return f"the database {self._place}"

    def transaction(self, work: Callable[[Cursor], R]) -> R:
        """Do some work and commit it; return what it returns. It may be done several times: see rules 2 and 3.

        Blocks until then. Raises the failure if it cannot be done, or not in time.
        """
        until: float | None = None
        for pause in _pauses():
            try:
                if self._connection is None:
                    self._connect()
                result = work(Cursor(self._connection.cursor(), self._paramstyle))
                self._connection.commit()
                return result
            except MegaflowError:
                self._undo()
                raise
            except Exception as error:
                if not (passes := may_pass(error)):
                    self._undo()
                self.close()
                until = time.monotonic() + self._patience_seconds if until is None else until
                if not passes:
                    raise self._failed(error, "") from _told_by(error)
                if time.monotonic() + pause > until:
                    raise self._failed(error, f" for {self._patience_seconds:g} s") from _told_by(error)
            time.sleep(pause)
        raise AssertionError("there is always another pause")

    def close(self) -> None:
        """Close the connection, if there is one; what it has not committed is undone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is lost, or was opened by another thread
                connection.close()

    def _undo(self) -> None:
        """Undo what is not committed, at once: an error that is being handled may keep a cursor of the connection.

        SQLite would hold the lock as long as that cursor is there. Not for a lost server, which might not answer.
        """
        if self._connection is not None:
            with suppress(Exception):
                self._connection.rollback()
        self.close()

    def _connect(self) -> None:
        connection = self._connection = self._place() if callable(self._place) else self._connected(self._place)
        paramstyle = paramstyle_of(type(connection))
        if paramstyle is None:
            kind = type(connection).__name__
            raise self._failure(
                f"{self.title} returned a {kind}, which is not a connection of a DB-API 2 driver: return such a "
                "connection"
            )
        if is_autocommit(connection):
            raise self._failure(
                f"{self.title} returned a connection in autocommit mode, which could leave half of a transaction: "
                "turn autocommit off"
            )
        self._paramstyle = paramstyle

    def _connected(self, place: str) -> Any:
        text = self._text(place)
        try:
            return connected(text)
        except MegaflowError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            failed = CannotConnect(without_secrets(said, text) if text != place else said, may_pass(error))
        raise failed  # out of the handler, or the error would have the driver's as its context

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
        if not text.startswith(("sqlite:", *POSTGRESQL)) and "=" not in text:  # psycopg takes NAME=VALUE, too
            raise self._failure(
                f"{self.title}: its text is not an address: write sqlite:PATH or postgresql://USER@HOST/NAME"
            )
        return text

    def _failed(self, error: Exception, how_long: str) -> MegaflowError:
        said = " ".join(str(error).split())
        kind = "" if isinstance(error, CannotConnect) else f"{type(error).__name__}: "
        return self._failure(f"{self.title} failed{how_long}: {kind}{said}")


def _told_by(error: Exception) -> Exception | None:
    """Return what is to be shown as the cause of a failure that has an error's words."""
    return None if isinstance(error, CannotConnect) else error


def absolute(place: Place) -> Place:
    """Return a place whose file, if it has one, does not depend on the folder in which a process is."""
    if not isinstance(place, str) or not place.startswith(("sqlite:", "file:")):
        return place
    kind, _, path = place.partition(":")
    return f"{kind}:{os.path.abspath(os.path.expanduser(path))}"


def check_place(place: Place) -> None:
    """Raise UsageError unless this can be a place; without a word of it that may be secret."""
    if callable(place):
        return
    if not isinstance(place, str):
        raise UsageError(f"a database must be one of {PLACES}, not {type(place).__name__}")
    kind, colon, name = place.partition(":")
    if not colon or not name or not (kind in ("sqlite", "env", "file") or place.startswith(POSTGRESQL)):
        raise UsageError(f"a database must be one of {PLACES}")
    if place.startswith(POSTGRESQL):
        try:
            url = urlsplit(place)
            has_password = url.password is not None or "password" in parse_qs(url.query)
        except ValueError:
            has_password = True
        if has_password:
            raise UsageError(
                "the address of a database must not contain its password, because programs, logs and process lists "
                "would show it: keep the password in ~/.pgpass or PGPASSWORD, or the address in env:NAME or file:PATH"
            )


def connected(text: str) -> Any:
    """Return a new connection to SQLite or PostgreSQL. Raises what the driver raises; UsageError if there is none."""
    if text.startswith("sqlite:"):
        return sqlite3.connect(os.path.expanduser(text[7:]))
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError as error:
        raise UsageError("PostgreSQL needs psycopg: pip install 'megaflow[postgres]'") from error
    return psycopg.connect(text, connect_timeout=CONNECT_SECONDS, tcp_user_timeout=SILENCE_MS)


def paramstyle_of(kind: type) -> str | None:
    """Return how parameters are written for connections of this type, as its driver's module says; None: nowhere.

    >>> paramstyle_of(sqlite3.Connection)
    'qmark'
    """
    for each in kind.__mro__:
        name = each.__module__
        while name:
            found = getattr(sys.modules.get(name), "paramstyle", None)
            if found in PARAMSTYLES:
                return str(found)
            name = name.rpartition(".")[0]
    return None


def is_autocommit(connection: Any) -> bool:
    """Tell whether each statement is a transaction of its own, as far as the connection says."""
    if getattr(connection, "autocommit", False) is True:
        return True
    return (
        isinstance(connection, sqlite3.Connection)
        and connection.isolation_level is None
        and getattr(connection, "autocommit", -1) == -1  # from Python 3.12 on: isolation_level counts
    )


def may_pass(error: Exception) -> bool:
    """Tell whether what has failed may succeed later, by what drivers say: SQLite's code, SQLSTATE, names of errors."""
    if isinstance(error, CannotConnect):
        return error.passes
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in PASSING_SQLITE
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):  # pg8000's
        state = error.args[0].get("C")
    if isinstance(state, str) and state:
        return state.startswith(PASSING_STATES)
    return isinstance(error, TryAgain | ConnectionError | TimeoutError) or is_called(error, PASSING_NAMES)


def is_called(error: Exception, names: set[str]) -> bool:
    """Tell whether an error is of one of the kinds that DB-API 2 gives these names."""
    return not names.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def without_secrets(text: str, secret: str) -> str:
    """Return a text without the words of another one, but for a few that tell nothing.

    >>> without_secrets("user ann has not the password blue_42", "postgresql://ann:blue_42@db/shop")
    'user … has not the password …'
    """
    words = {*re.findall(r"\w+", secret), *re.findall(r"\w+", unquote(secret))} - PUBLIC_WORDS
    return re.sub(r"\w+", lambda found: "…" if found[0] in words else found[0], text)


def _pauses() -> Iterator[float]:
    """Yield how long to wait between tries, without end."""
    yield from PAUSES_SECONDS
    while True:
        yield PAUSES_SECONDS[-1]
