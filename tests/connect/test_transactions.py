"""Transactions on autocommit connections of each driver, and connections that cannot roll rows back."""

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from megaflow.connect.database_sink import DatabaseSink
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.errors import OutputError, RecordRefused

CREATE = "CREATE TABLE IF NOT EXISTS totals (name VARCHAR(9) PRIMARY KEY, total INTEGER CHECK (total < 9))"


def duckdb_default(path: Path) -> Any:
    return pytest.importorskip("duckdb").connect(str(path))


def sqlite_none(path: Path) -> Any:
    return sqlite3.connect(path, isolation_level=None)


def sqlite_begun(path: Path) -> Any:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    return connection


def sqlite_autocommit(path: Path) -> Any:
    if sys.version_info < (3, 12):
        pytest.skip("needs Python 3.12")
    return sqlite3.connect(path, autocommit=True)


def sqlite_no_autocommit(path: Path) -> Any:
    if sys.version_info < (3, 12):
        pytest.skip("needs Python 3.12")
    return sqlite3.connect(path, autocommit=False)


CONNECTIONS = [duckdb_default, sqlite_none, sqlite_begun, sqlite_autocommit, sqlite_no_autocommit, sqlite3.connect]


def opened(connect: Callable[[], Any], key: str) -> DatabaseSink:
    sink = copy(DatabaseSink(connect, "totals", ["name", "total"], key or (), create=CREATE, patience_seconds=0))
    sink.open(SinkPlace("totals", 0, "job", True, "of tests"))
    return sink


@pytest.mark.parametrize("key", ["", "name"])
@pytest.mark.parametrize("connecting", CONNECTIONS)
def test_mark_and_rows_are_undone_whatever_the_autocommit(
    tmp_path: Path, connecting: Callable[[Path], Any], key: str
) -> None:
    connect = lambda: connecting(tmp_path / "a.db")  # noqa: E731
    sink = opened(connect, key)
    sink.deliver(1, "a", [("x", 1)])
    with pytest.raises(RecordRefused, match=r"refuses the row \('z', 9\)"):
        sink.deliver(2, "b", [("y", 2), ("z", 9)])

    def query(text: str) -> Any:
        with closing(connect()) as connection:
            return connection.execute(text).fetchall()

    assert query("SELECT * FROM totals") == [("x", 1)] and query("SELECT token FROM megaflow_marks") == [("a",)]
    sink.deliver(2, "b", [("y", 2), ("z", 3)])
    sink.close()
    assert query("SELECT count(*) FROM totals") == [(3,)] and query("SELECT count(*) FROM megaflow_marks") == [(2,)]


class Committing(sqlite3.Cursor):
    """A connection that keeps each row, like a table without transactions."""

    def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
        super().execute(text, *values)
        if text.startswith("INSERT"):
            super().execute("COMMIT")
            super().execute("BEGIN")
        return self


class Keeping(sqlite3.Connection):
    def cursor(self, *_: Any) -> Any:
        return super().cursor(Committing)


class KeepingLater(sqlite3.Connection):
    """A connection that keeps rows from the second transaction on."""

    cursors = 0

    def cursor(self, *_: Any) -> Any:
        self.cursors += 1
        return super().cursor(Committing if self.cursors > 1 else sqlite3.Cursor)


class WithoutJournal(sqlite3.Connection):
    """A connection that rolls back few rows, but damages the table if there are many."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.execute("PRAGMA journal_mode=OFF")


@pytest.mark.parametrize("kind", [Keeping, KeepingLater, WithoutJournal])
def test_a_connection_that_keeps_what_is_undone_is_refused(tmp_path: Path, kind: type[sqlite3.Connection]) -> None:
    kinds: list[type[sqlite3.Connection]] = [sqlite3.Connection]

    def connect() -> sqlite3.Connection:
        return kinds[-1](tmp_path / "a.db")

    sqlite3.connect(tmp_path / "a.db").execute(CREATE)
    sink = opened(connect, "")
    sink.close()
    kinds.append(kind)
    with pytest.raises(OutputError, match=r"keeps a row of the table megaflow_marks that was rolled back.*: return sq"):
        sink.deliver(1, "a", [("x", 1)])
    found = sqlite3.connect(tmp_path / "a.db")
    assert found.execute("SELECT * FROM totals").fetchall() == found.execute("SELECT * FROM megaflow_marks").fetchall()


def test_a_source_reads_a_connection_in_autocommit(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "a.db").executescript("CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1), (2)")
    reader = QuerySource(lambda: sqlite_none(tmp_path / "a.db"), "t", order_by="n").open("query", None)
    assert reader.read(10) == ([(1,), (2,)], 2)
    reader.close()
