"""Statements of SQL for `DatabaseSink` and `QuerySource`, as values: standard SQL, with `ON CONFLICT` for upserts.

A statement is written with PARAMETER where a value belongs; `written_for` puts there what the driver's paramstyle asks
for, and `arranged` gives it the values in that shape. Names of tables and columns are always quoted, so they mean what
they say, in upper and lower case.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from megaflow.errors import UsageError

PARAMETER: Final = "\0"  # which no name has
PARAMSTYLES: Final = {"qmark": "?", "numeric": ":{}", "named": ":p{}", "format": "%s", "pyformat": "%(p{})s"}

MARKS: Final = '"megaflow_marks"'
CREATE_MARKS: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} "
    "(token VARCHAR(64) PRIMARY KEY, sink VARCHAR(200), written_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
)
FIND_MARK: Final = f"SELECT token FROM {MARKS} WHERE token = {PARAMETER}"
ADD_MARK: Final = f"INSERT INTO {MARKS} (token, sink) VALUES ({PARAMETER}, {PARAMETER})"
DROP_MARK: Final = f"DELETE FROM {MARKS} WHERE token = {PARAMETER}"


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever is in it. Raises UsageError if no name can be that.

    >>> print(quoted('of "all" totals'))
    "of ""all"" totals"
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"{name!r} cannot be the name of a table or column: give a str that is not empty")
    return '"' + name.replace('"', '""') + '"'


def table_name(table: str | Sequence[str]) -> str:
    """Return the name of a table; a str is cut at its dots, a sequence is not.

    >>> table_name("sales.totals"), table_name(["sales", "a.b"])
    ('"sales"."totals"', '"sales"."a.b"')
    """
    return ".".join(map(quoted, table.split(".") if isinstance(table, str) else table))


def listed(columns: Iterable[str]) -> str:
    """Return the names of columns."""
    return ", ".join(map(quoted, columns))


def no_rows(table: str, columns: Sequence[str] = ()) -> str:
    """Return a query that finds out whether a table has some columns, and reads none of its rows."""
    what = ", ".join(f"megaflow_rows.{quoted(name)}" for name in columns) or "1"  # else SQLite takes them for texts
    return f"SELECT {what} FROM {table} AS megaflow_rows WHERE 1 = 0"


def insert(table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts a row, of so many parameters."""
    return f"INSERT INTO {table} ({listed(columns)}) VALUES ({', '.join(PARAMETER * len(columns))})"


def upsert(table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Return the statement that inserts a row, of so many parameters, or overwrites the one with its key."""
    others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key]
    newer = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
    return f"{insert(table, columns)} ON CONFLICT ({listed(key)}) DO {newer}"


def delete(table: str, key: Sequence[str]) -> str:
    """Return the statement that deletes the row of a key, of so many parameters."""
    return f"DELETE FROM {table} WHERE {' AND '.join(f'{quoted(name)} = {PARAMETER}' for name in key)}"


def next_rows(query: str, order_by: str, rows: int, *, first: bool) -> str:
    """Return the query for the next so many rows of another one: its `first` ones, or those above a parameter."""
    column = f"megaflow_rows.{quoted(order_by)}"
    after = f"{column} IS NOT NULL" if first else f"{column} > {PARAMETER}"
    query = query.strip().rstrip(";")
    return f"SELECT * FROM (\n{query}\n) AS megaflow_rows WHERE {after} ORDER BY {column} LIMIT {rows:d}"


def written_for(paramstyle: str, statement: str) -> str:
    """Return a statement as a driver with this paramstyle takes it.

    >>> written_for("pyformat", f"SELECT '5 %' WHERE a = {PARAMETER} AND b = {PARAMETER}")
    "SELECT '5 %%' WHERE a = %(p1)s AND b = %(p2)s"
    """
    sign = PARAMSTYLES[paramstyle]
    if "%" in sign:
        statement = statement.replace("%", "%%")
    first, *rest = statement.split(PARAMETER)
    return first + "".join(sign.format(number) + text for number, text in enumerate(rest, 1))


def arranged(paramstyle: str, values: Sequence[Any]) -> Any:
    """Return the values of a statement's parameters in the shape that the driver takes.

    >>> arranged("qmark", ["a", 1]), arranged("named", ["a", 1])
    (('a', 1), {'p1': 'a', 'p2': 1})
    """
    if "{" in PARAMSTYLES[paramstyle] and paramstyle != "numeric":
        return {f"p{number}": value for number, value in enumerate(values, 1)}
    return tuple(values)
