"""Transactions of a connection: how they begin and end with each driver, and the probe that a rollback undoes rows.

1. megaflow begins each transaction with a statement where a driver may be in autocommit, and ends it with one, on the
   same cursor. So a connection in autocommit does no harm. DuckDB's is always; its cursors are connections of their
   own, which the methods of the connection do not commit.
2. A driver that begins by itself needs no statement. If an unknown driver does not, the probe shows it.
3. The probe writes a row, rolls back, and looks for the row. A connection that kept it could keep a mark without its
   rows, or rows without their mark. It does so in the second transaction, because the function that connects may have
   begun the first one. SQLite without a journal may undo that row and not many rows, so it counts as keeping them.
4. MySQL keeps the rows of tables without transactions (MyISAM, Aria) at a rollback. The probe finds that for the table
   of marks; `sql_statements.mysql_fault` finds it for the others.
5. A transaction that writes to SQLite takes the lock when it begins. If it read first, SQLite could refuse the lock at
   once instead of waiting for it.
6. A file that another one has replaced under its name (`mv copy.db shop.db`) stays open, and SQLite in WAL mode and
   DuckDB go on writing to it. So `is_replaced` compares the names of the connection's files with the open files. It
   looks before and after each transaction: what was written to a file without a name has to be written again.
"""

import os
from collections.abc import Callable
from typing import Any, Final
from uuid import uuid4

from megaflow.connect.sql_statements import ADD_MARK, DROP_MARK, FIND_MARK

MYSQL: Final = frozenset({"pymysql", "MySQLdb", "mysql", "mariadb"})
POSTGRESQL_DRIVERS: Final = frozenset({"psycopg", "psycopg2", "pg8000"})
BEGINS: Final = {"sqlite3": "BEGIN", "duckdb": "BEGIN", **dict.fromkeys(MYSQL, "BEGIN")}  # of drivers, whatever they do
BEGIN_WRITING: Final = {"sqlite3": "BEGIN IMMEDIATE"}
WITH_FILES: Final = frozenset({"sqlite3", "duckdb"})
FILES: Final = "PRAGMA database_list"  # rows of a number, a name and a path, which SQLite leaves empty in memory
PLANNERS: Final = POSTGRESQL_DRIVERS | {"sqlite3", "duckdb"}  # EXPLAIN also checks the table, its indexes and rights
RECIPES: Final = {
    "sqlite3": "return sqlite3.connect(PATH), of no subclass that commits, and not with journal_mode=OFF",
    "pyodbc": "return pyodbc.connect(…, autocommit=False)",
    "duckdb": "return duckdb.connect(PATH), of no subclass that commits",
    **dict.fromkeys(POSTGRESQL_DRIVERS, "connect to the server without a pooler in statement mode"),
    **dict.fromkeys(MYSQL, "make the table transactional: ALTER TABLE megaflow_marks ENGINE = InnoDB"),
}


def driver_of(kind: type) -> str:
    """Return the top package of the driver that connections of a type come from.

    >>> import sqlite3
    >>> driver_of(type("Own", (sqlite3.Connection,), {"__module__": "program"}))
    'sqlite3'
    """
    names = [each.__module__.partition(".")[0].lstrip("_") for each in kind.__mro__]
    return next((name for name in names if name in RECIPES), names[0])


def file_at(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file with this name; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Transactions:
    """A connection, and its transaction if one has begun. Used by one thread."""

    def __init__(self, connection: Any, writes: bool) -> None:
        """`writes`: whether its transactions write."""
        self.driver = driver_of(type(connection))
        self.is_probed = False  # and a rollback undoes rows
        self._connection = connection
        self._cursor: Any = None
        self._begin = BEGINS.get(self.driver, "")
        if writes:
            self._begin = BEGIN_WRITING.get(self.driver, self._begin)
        if self.driver in POSTGRESQL_DRIVERS and connection.autocommit is True:  # else they would begin twice
            self._begin = "BEGIN"
        self._files: dict[str, object] = {}  # path -> which file it was when it was opened

    def watch(self, executing: Callable[[Any], Any], path: str = "", was: object = None) -> None:
        """Learn which files the connection has open, if it has any. `executing` wraps a driver's cursor.

        `path`: the file to which it was connected, if it is known; `was` is `file_at(path)` from before that.
        """
        if self.driver in WITH_FILES:
            cursor = executing(self._connection.cursor())
            cursor.execute(FILES)
            self._files = {path: file_at(path) for path in (str(row[2] or "") for row in cursor.rows()) if path}
        if path:
            self._files[path] = was or file_at(path)  # the connection may have made it

    def is_replaced(self) -> bool:
        """Tell whether the name of an open file is now that of another file, or of none."""
        return any(file_at(path) != was for path, was in self._files.items())

    def begin(self) -> Any:
        """Begin a transaction, unless the driver does; return its cursor."""
        cursor = self._cursor = self._connection.cursor()
        if self._begin and getattr(self._connection, "in_transaction", False) is not True:
            cursor.execute(self._begin)
        return cursor

    def commit(self) -> None:
        """Commit it."""
        self._end("COMMIT", self._connection.commit)

    def roll_back(self) -> None:
        """Undo it, if there is one."""
        if self._cursor is not None:
            self._end("ROLLBACK", self._connection.rollback)

    def close(self) -> None:
        """Close the connection."""
        self._cursor = None
        self._connection.close()

    def _end(self, statement: str, method: Callable[[], object]) -> None:
        if self._begin:
            self._cursor.execute(statement)
        else:
            method()
        self._cursor = None


def kept_probe(transactions: Transactions, executing: Callable[[Any], Any]) -> bool:
    """Tell whether a rollback leaves a row in the table of marks; remove the row.

    `executing` wraps a driver's cursor. Raises what the driver raises.
    """
    token = f"probe {uuid4().hex}"

    def found() -> bool:
        cursor = executing(transactions.begin())
        cursor.execute(FIND_MARK, token)
        is_there = bool(cursor.rows())
        transactions.commit()
        return is_there

    found()  # in the first transaction
    if transactions.driver == "sqlite3":
        cursor = executing(transactions.begin())
        cursor.execute("PRAGMA journal_mode")
        mode = cursor.rows()[0][0]
        transactions.roll_back()
        if mode == "off":
            return True
    executing(transactions.begin()).execute(ADD_MARK, token, "probe of transactions")
    transactions.roll_back()
    if not found():
        transactions.is_probed = True
        return False
    executing(transactions.begin()).execute(DROP_MARK, token)
    transactions.commit()
    return True
