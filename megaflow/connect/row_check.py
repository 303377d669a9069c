"""Checks of rows before a checkpoint keeps them: can the driver bind each value, and can the column take it?

If a checkpoint has a row that the database refuses, every run from that checkpoint stops there. So each value is
checked when it is written to the sink, without asking the server:
 1. SQLite: the driver itself binds what is not of a plain type, in a database in memory. So adapters of the program
    count. An integer must fit into 64 bits, and UTF-8 must be able to encode a text.
 2. PostgreSQL: a text must have no NUL, and UTF-8 must be able to encode it. An integer must fit into the column's
    type, which the server has reported. psycopg adapts what is not of a plain type, with the connection's adapters.
 3. PostgreSQL: a dict or list in a column of JSON must have a form as JSON.
 4. Nothing is known of other drivers, so nothing is checked.
Only the server can check constraints, such as NOT NULL or UNIQUE.
"""

import importlib
import sqlite3
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, Final, TypeAlias
from uuid import UUID

from megaflow.connect.json_text import no_json
from megaflow.connect.postgres_rows import JSON, JSONB, has_own_adapters
from megaflow.connect.transactions import POSTGRESQL_DRIVERS, driver_of
from megaflow.connect.transient_errors import said

Reason: TypeAlias = Callable[[Any], str | None]
"""Returns why a value cannot be bound; None if it can."""

INTEGERS: Final = {21: (-(1 << 15), (1 << 15) - 1), 23: (-(1 << 31), (1 << 31) - 1), 20: (-(1 << 63), (1 << 63) - 1)}
"""PostgreSQL's number of an integer type -> its bounds."""
PLAIN: Final[frozenset[type]] = frozenset({float, bool, bytes, type(None)})
CHECKED: Final[frozenset[type]] = frozenset({int, str})
ADAPTED: Final[frozenset[type]] = frozenset({date, datetime, time, timedelta, Decimal, UUID})  # psycopg binds them all
NUL: Final = "it contains the character NUL, which PostgreSQL cannot store in a text"


class RowCheck:
    """The check of one table's values. Used by the thread that has made it."""

    def __init__(
        self, others: Sequence[Reason], bounds: Sequence[tuple[int, int] | None], plain: frozenset[type], nul: bool
    ) -> None:
        """`others` and `bounds`: one for each column. `bounds` are those of its integers, `others` checks all values
        except integers and texts. `nul`: a text may have NUL.

        `plain`: the types whose values can all be bound, apart from integers and texts.
        """
        self._others, self._bounds, self._plain, self._nul = others, bounds, plain, nul

    def accepts(self, columns: Sequence[Sequence[Any]]) -> bool:
        """Tell whether the table can take these columns of values. If False, call the check for each value."""
        for values, bounds in zip(columns, self._bounds, strict=True):
            kinds = {*map(type, values)}
            if not kinds - self._plain <= CHECKED:
                return False
            if int in kinds and bounds is not None:
                numbers = values if kinds == {int} else [value for value in values if type(value) is int]
                if min(numbers) < bounds[0] or max(numbers) > bounds[1]:
                    return False
            if str in kinds:
                text = "".join(values if kinds == {str} else [value for value in values if type(value) is str])
                if (not self._nul and "\0" in text) or _not_utf_8(text):
                    return False
        return True

    def __call__(self, column: int, value: Any) -> str | None:
        """Return why the column with this number cannot have a value; None if it can."""
        kind = type(value)
        if kind in PLAIN:
            return None
        if kind is str:
            return NUL if not self._nul and "\0" in value else _not_utf_8(value)
        if kind is int:
            return None if (bounds := self._bounds[column]) is None else _out_of_range(value, *bounds)
        return self._others[column](value)


def row_check(cursor: Any, columns: int) -> RowCheck | None:
    """Return the check for the columns of the query that a cursor has run, or None for an unknown driver.

    >>> check = row_check(sqlite3.connect(":memory:").execute("SELECT 1, 2"), 2)
    >>> check(0, "a"), check(1, 1 << 63)
    (None, '9223372036854775808 is not in the range from -9223372036854775808 to 9223372036854775807')
    """
    driver = driver_of(type(cursor))
    if isinstance(cursor, sqlite3.Cursor):
        probe = sqlite3.connect(":memory:")
        bound = _bound_by(lambda value: probe.execute("SELECT ?", (value,)))
        return RowCheck([bound] * columns, [INTEGERS[20]] * columns, PLAIN, nul=True)
    if driver in POSTGRESQL_DRIVERS:
        is_psycopg = driver == "psycopg"
        plain = PLAIN | ADAPTED if is_psycopg and has_own_adapters(cursor.connection, ADAPTED) else PLAIN
        bound = _of_psycopg(cursor) if is_psycopg else lambda value: None
        codes = [column[1] for column in cursor.description]
        bounds = [INTEGERS.get(code) for code in codes]
        return RowCheck([_of_json(code, bound) if code in JSON else bound for code in codes], bounds, plain, nul=False)
    return None


def _bound_by(bind: Callable[[Any], object]) -> Reason:
    """Return the check by a function that raises an error for a value that the driver cannot bind."""

    def reason(value: Any) -> str | None:
        try:
            bind(value)
        except Exception as error:  # also of an adapter
            return said(error)
        return None

    return reason


def _of_json(code: int, bound: Reason) -> Reason:
    """Return the check of a column of JSON; `code`: of its type; `bound`: the check of values that JSON does not have.
    """
    return lambda value: no_json(value, nul=code != JSONB) if isinstance(value, dict | list) else bound(value)


def _of_psycopg(cursor: Any) -> Reason:
    adapt = importlib.import_module("psycopg.adapt")
    context = SimpleNamespace(adapters=cursor.connection.adapters, connection=None)
    return _bound_by(lambda value: adapt.Transformer(context).dump_sequence([value], [adapt.PyFormat.AUTO]))


def _out_of_range(value: int, least: int, greatest: int) -> str | None:
    return None if least <= value <= greatest else f"{value} is not in the range from {least} to {greatest}"


def _not_utf_8(value: str) -> str | None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"it cannot be encoded as UTF-8 ({error.reason})"
    return None
