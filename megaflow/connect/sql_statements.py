"""Statements of SQL for `DatabaseSink`, as values: standard SQL, with `ON CONFLICT` for upserts.

A statement is written with PARAMETER where a value belongs; `written_for` puts there what the driver's paramstyle asks
for, and `arranged` gives it the values in that shape. Names of tables and columns are always quoted, so they mean what
they say, in upper and lower case. NAME stands before each quoted name; `written_for` removes it, or gives the name the
quotes of MySQL.

MySQL and MariaDB know no ON CONFLICT. `mysql_fault` checks that a table is such that `mysql_upsert` is right:
1. ON DUPLICATE KEY UPDATE names no key. It overwrites a row that is equal in any unique index. So the table must have a
   unique index of exactly the key's columns; otherwise a row could be added beside the one that it should replace.
   It must have no other unique index of columns that the sink writes; otherwise a row could overwrite one with another
   key, instead of being refused.
2. Outside strict mode, the server shortens texts and changes numbers that do not fit. So the mode must be strict.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

from megaflow.errors import UsageError

PARAMETER: Final = "\0"  # which no name has
NAME: Final = "\1"  # which no name has either
QUOTED: Final = re.compile(NAME + '"((?:[^"]|"")*)"')
PARAMSTYLES: Final = {"qmark": "?", "numeric": ":{}", "named": ":p{}", "format": "%s", "pyformat": "%(p{})s"}
BY_NAME: Final = frozenset({"named", "pyformat"})  # the styles whose values are in a dict

MARKS: Final = f'{NAME}"megaflow_marks"'
CREATE_MARKS: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} "
    "(token VARCHAR(64) PRIMARY KEY, sink VARCHAR(200), written_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP)"
)
FIND_MARK: Final = f"SELECT token FROM {MARKS} WHERE token = {PARAMETER}"
ADD_MARK: Final = f"INSERT INTO {MARKS} (token, sink) VALUES ({PARAMETER}, {PARAMETER})"
DROP_MARK: Final = f"DELETE FROM {MARKS} WHERE token = {PARAMETER}"
DELIVERIES: Final = f'{NAME}"megaflow_deliveries"'
CREATE_DELIVERIES: Final = (
    f"CREATE TABLE IF NOT EXISTS {DELIVERIES} "
    "(token VARCHAR(64) PRIMARY KEY, lineage VARCHAR(32), target VARCHAR(200), n BIGINT)"
)
SCHEMA_OF: Final = {  # driver -> query for the schema of a table that is named without one
    "sqlite3": "SELECT 'main'",
    **dict.fromkeys(("psycopg", "psycopg2", "pg8000", "duckdb"), "SELECT current_schema()"),
    **dict.fromkeys(("pymysql", "MySQLdb", "mysql", "mariadb"), "SELECT DATABASE()"),
}
IGNORING_CASE: Final = frozenset({"sqlite3", "duckdb"})  # drivers of databases that ignore the case of quoted names
NAME_CASE: Final = "SELECT @@lower_case_table_names"  # 0: MySQL distinguishes tables by the case of their names
NEWEST_DELIVERIES: Final = (
    f"SELECT n, token FROM {DELIVERIES} WHERE lineage = {PARAMETER} AND target = {PARAMETER} "
    f"AND n = (SELECT MAX(n) FROM {DELIVERIES} WHERE lineage = {PARAMETER} AND target = {PARAMETER})"
)
_OF_TARGET_AND_SINK: Final = (
    f"FROM {DELIVERIES} d JOIN {MARKS} m ON m.token = d.token "
    f"WHERE d.lineage = {PARAMETER} AND d.target = {PARAMETER} AND m.sink = {PARAMETER}"
)
NEWEST_OF_SINK: Final = (
    f"SELECT d.n, d.token {_OF_TARGET_AND_SINK} AND d.n = (SELECT MAX(d.n) {_OF_TARGET_AND_SINK})"
)
DELIVERIES_OF_SINK: Final = (
    f"SELECT d.n, d.token, d.target FROM {DELIVERIES} d JOIN {MARKS} m ON m.token = d.token "
    f"WHERE d.lineage = {PARAMETER} AND m.sink = {PARAMETER}"
)
FIND_DELIVERIES: Final = f"SELECT token FROM {DELIVERIES} WHERE token IN "
ADD_DELIVERY: Final = (
    f"INSERT INTO {DELIVERIES} (token, lineage, target, n) VALUES ({', '.join(PARAMETER * 4)})"
)
DROP_DELIVERY: Final = f"DELETE FROM {DELIVERIES} WHERE token = {PARAMETER}"

LACKING_ENGINE: Final = (
    "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine "
    f"WHERE e.transactions <> 'YES' AND t.table_name = {PARAMETER} "
    f"AND t.table_schema = COALESCE({PARAMETER}, DATABASE())"
)
UNIQUE_INDEXES: Final = (
    "SELECT index_name, column_name, sub_part FROM information_schema.statistics WHERE non_unique = 0 "
    f"AND table_name = {PARAMETER} AND table_schema = COALESCE({PARAMETER}, DATABASE()) "
    "ORDER BY index_name, seq_in_index"
)
MODE: Final = "SELECT @@SESSION.sql_mode"


def find_deliveries(count: int) -> str:
    """Return the query for the deliveries of so many tokens."""
    return f"{FIND_DELIVERIES}({', '.join(PARAMETER * count)})"


def exact_case(query: str) -> str:
    """Return a query of deliveries that distinguishes targets by case: a text of MySQL is often compared without it."""
    return re.sub(r"((?:d\.)?target|m\.sink) =", r"CAST(\1 AS BINARY) =", query)


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever is in it. Raises UsageError if no name can be that.

    >>> print(shown(quoted('of "all" totals')))
    "of ""all"" totals"
    """
    if not isinstance(name, str) or not name or PARAMETER in name or NAME in name:
        raise UsageError(f"{name!r} cannot be the name of a table or column: give a str that is not empty")
    return NAME + '"' + name.replace('"', '""') + '"'


def shown(statement: str) -> str:
    """Return a statement, or the name of a table, for messages."""
    return statement.replace(NAME, "")


def table_name(table: str | Sequence[str]) -> str:
    """Return the name of a table; a str is cut at its dots, a sequence is not.

    >>> shown(table_name("sales.totals")), shown(table_name(["sales", "a.b"]))
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


def written_for(paramstyle: str, statement: str, *, backquotes: bool = False) -> str:
    """Return a statement as a driver with this paramstyle takes it; `backquotes`: with the quotes of MySQL.

    >>> written_for("pyformat", f"SELECT '5 %' WHERE a = {PARAMETER} AND b = {PARAMETER}")
    "SELECT '5 %%' WHERE a = %(p1)s AND b = %(p2)s"
    >>> print(written_for("qmark", f"SELECT {quoted('a`b')} FROM {table_name('t')}", backquotes=True))
    SELECT `a``b` FROM `t`
    """
    if backquotes:
        statement = QUOTED.sub(lambda name: "`" + name[1].replace('""', '"').replace("`", "``") + "`", statement)
    statement = statement.replace(NAME, "")
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
    if paramstyle in BY_NAME:
        return {f"p{number}": value for number, value in enumerate(values, 1)}
    return tuple(values)


def mysql_upsert(table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Return the statement that inserts a row, of so many parameters, or overwrites the one with its key."""
    names = [quoted(name) for name in columns if name not in key]
    same = quoted(key[0])
    newer = ", ".join(f"{name} = VALUES({name})" for name in names) or f"{same} = {same}"
    return f"{insert(table, columns)} ON DUPLICATE KEY UPDATE {newer}"


def mysql_fault(cursor: Any, table: Sequence[str], columns: Sequence[str], key: Sequence[str]) -> str | None:
    """Return what is wrong with a table, by its names, or its session; None if nothing is."""
    named = table[-1], table[-2] if len(table) > 1 else None
    cursor.execute(LACKING_ENGINE, *named)
    if engines := cursor.rows():
        return (
            f"has the engine {engines[0][0]}, which cannot undo rows, so a crash could leave half of a transaction: "
            "change the table by ALTER TABLE … ENGINE = InnoDB"
        )
    cursor.execute(MODE)
    fault = mode_fault(cursor.rows()[0][0])
    if fault is not None or not key:
        return fault
    cursor.execute(UNIQUE_INDEXES, *named)
    return index_fault(cursor.rows(), columns, key)


def mode_fault(mode: str) -> str | None:
    """Return what is wrong with the session's mode, and the remedy; None if nothing is.

    >>> mode_fault("STRICT_TRANS_TABLES,NO_ZERO_DATE"), mode_fault("NO_ZERO_DATE")[:35]
    (None, 'is on a server without strict mode,')
    """
    if "STRICT_" in mode.upper():
        return None
    return (
        "is on a server without strict mode, which would change values that do not fit: connect with "
        "sql_mode='STRICT_TRANS_TABLES'"
    )


def index_fault(indexes: Iterable[tuple[Any, ...]], columns: Sequence[str], key: Sequence[str]) -> str | None:
    """Return what is wrong with a table's unique indexes, and the remedy; None if nothing is.

    `indexes`: the rows of UNIQUE_INDEXES.

    >>> index_fault([("PRIMARY", "id", None)], ["id", "name"], ["id"])
    >>> index_fault([("PRIMARY", "id", None), ("mail", "name", None)], ["id", "name"], ["id"])[:25]
    "has the unique index 'mai"
    """
    wanted, written = {name.casefold() for name in key}, {name.casefold() for name in columns}
    found, others = False, []
    for name, parts in groupby(indexes, key=lambda part: part[0]):
        of = [(None if column is None else column.casefold(), length) for _, column, length in parts]
        if {column for column, _ in of} == wanted and all(length is None for _, length in of):
            found = True
        elif any(column is None or column in written for column, _ in of):
            others.append(name)
    if not found:
        return f"has no unique index of exactly {', '.join(key)}, which key= names: add a PRIMARY KEY or UNIQUE index"
    if others:
        return (
            f"has the unique index {others[0]!r} besides that of the key, so the server could overwrite a row with "
            "another key: remove the index, or do not write its columns"
        )
    return None
