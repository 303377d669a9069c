"""Checks of rows, made before a checkpoint keeps them: can the driver bind each value, and the column take it?

After the checkpoint, a row that the database refuses stops every run from there. So each value is checked when it is
written to the sink, without asking the server:
 1. SQLite: the driver itself binds what is not of a plain type, in a database in memory. So adapters of the program
    count. Integers have 64 bits, and a text is one that UTF-8 has.
 2. PostgreSQL: a text has no NUL, and an integer fits into the column, by the type that the server has told of it.
    psycopg adapts what is not of a plain type, with the adapters of the connection.
 3. Of other drivers nothing is known, and nothing is checked.
Only the server can check constraints, such as NOT NULL or UNIQUE.
"""

import importlib
import sqlite3
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

Reason: TypeAlias = Callable[[Any], str | None]
"""Says of a value why it cannot be bound, or None."""

INTEGERS: Final = {21: (-(1 << 15), (1 << 15) - 1), 23: (-(1 << 31), (1 << 31) - 1), 20: (-(1 << 63), (1 << 63) - 1)}
"""PostgreSQL's number of an integer type -> its bounds."""
PLAIN: Final = frozenset({float, bool, bytes, type(None)})
NUL: Final = "it contains the character NUL, which PostgreSQL cannot store in a text"


class RowCheck:
    """The check of one table's values. Used by the thread that has made it."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        """`reasons`: one for each column."""
        self._reasons = reasons

    def __call__(self, column: int, value: Any) -> str | None:
        """Return why a column, by its place, cannot have a value; None if it can."""
        return None if type(value) in PLAIN else self._reasons[column](value)


def row_check(cursor: Any, columns: int) -> RowCheck | None:
    """Return the check for the columns of the query that a cursor has run, or None for an unknown driver.

    >>> check = row_check(sqlite3.connect(":memory:").execute("SELECT 1, 2"), 2)
    >>> check(0, "a"), check(1, 1 << 63)
    (None, '9223372036854775808 is not in the range from -9223372036854775808 to 9223372036854775807')
    """
    driver = type(cursor).__module__.partition(".")[0]
    if isinstance(cursor, sqlite3.Cursor):
        return RowCheck([_of_sqlite(sqlite3.connect(":memory:"))] * columns)
    if driver in ("psycopg", "psycopg_binary", "psycopg2", "pg8000"):
        bind = _of_psycopg(cursor) if driver.startswith("psycopg") and driver != "psycopg2" else None
        codes = [column[1] for column in cursor.description]
        return RowCheck([_of_postgresql(INTEGERS.get(code), bind) for code in codes])
    return None


def _of_sqlite(probe: sqlite3.Connection) -> Reason:
    least, greatest = INTEGERS[20]

    def reason(value: Any) -> str | None:
        kind = type(value)
        if kind is str:
            return _not_utf_8(value)
        if kind is int:
            return _out_of_range(value, least, greatest)
        try:
            probe.execute("SELECT ?", (value,))
        except Exception as error:  # also of an adapter
            return _said(error)
        return None

    return reason


def _of_postgresql(bounds: tuple[int, int] | None, bind: Reason | None) -> Reason:
    """Return the check of a column; `bounds`: of an integer one; `bind`: what the driver says of other types."""

    def reason(value: Any) -> str | None:
        kind = type(value)
        if kind is str:
            return NUL if "\0" in value else _not_utf_8(value)
        if kind is int:
            return None if bounds is None else _out_of_range(value, *bounds)
        return None if bind is None else bind(value)

    return reason


def _of_psycopg(cursor: Any) -> Reason:
    adapt = importlib.import_module("psycopg.adapt")
    context = SimpleNamespace(adapters=cursor.connection.adapters, connection=None)

    def bind(value: Any) -> str | None:
        try:
            adapt.Transformer(context).dump_sequence([value], [adapt.PyFormat.AUTO])
        except Exception as error:
            return _said(error)
        return None

    return bind


def _out_of_range(value: int, least: int, greatest: int) -> str | None:
    return None if least <= value <= greatest else f"{value} is not in the range from {least} to {greatest}"


def _not_utf_8(value: str) -> str | None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"it cannot be encoded as UTF-8 ({error.reason})"
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
