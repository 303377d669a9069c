"""Rows as PostgreSQL takes them: dicts and lists as JSON, and many rows by COPY if that means the same as INSERT.

COPY hands a text to the type of the column. INSERT sends a value with a type of its own, which the server converts: an
integer column rounds 2.5, and a TIMESTAMP column moves an aware datetime into the zone of the session. COPY would
refuse the first value and drop the zone of the second. Some properties of tables also apply to only one of the two. So:
 1. COPY writes rows only if COPIED names the type of each value for its column. INSERT writes all others, in the order
    of the rows.
 2. COPY is for tables, partitioned or not, without rules and without row security, which it ignores or refuses. None of
    its columns is GENERATED ALWAYS AS IDENTITY, which INSERT refuses and COPY writes.
 3. psycopg 3 must adapt the values with its own adapters. A program's adapters may give other texts.
 4. Rows are written by INSERT from then on if the server refuses COPY and accepts each row by itself.
"""

import importlib
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain, groupby, product
from typing import Any, Final
from uuid import UUID

from megaflow.connect.database import Cursor
from megaflow.connect.json_text import json_text
from megaflow.connect.sql_statements import PARAMETER, listed
from megaflow.connect.transactions import POSTGRESQL_DRIVERS, driver_of
from megaflow.connect.transient_errors import may_pass

JSONB: Final = 3802  # PostgreSQL's numbers of types
JSON: Final = frozenset({114, JSONB})
TIMESTAMP: Final = 1114
COPIED: Final[dict[int, frozenset[type]]] = {
    16: frozenset({bool}),
    17: frozenset({bytes}),
    20: frozenset({int}),
    21: frozenset({int}),
    23: frozenset({int}),
    701: frozenset({float, int}),
    1082: frozenset({date}),
    TIMESTAMP: frozenset({datetime}),
    1184: frozenset({datetime}),
    1186: frozenset({timedelta}),
    1700: frozenset({Decimal, int}),
    2950: frozenset({UUID}),
}
"""PostgreSQL's number of a type -> the types of values that are the same by COPY and INSERT."""
ANYWHERE: Final = frozenset({str, type(None)})  # INSERT also sends a str without a type
ADAPTED: Final = frozenset({str, *chain.from_iterable(COPIED.values())})
LOCK_SECONDS: Final = 10
PART_ROWS: Final = 1000  # whose types are looked at together
IS_COPIED: Final = (
    "SELECT relkind IN ('r', 'p') AND NOT relhasrules AND NOT relrowsecurity FROM pg_class "
    f"WHERE oid = to_regclass({PARAMETER}) AND NOT EXISTS (SELECT FROM pg_attribute "
    f"WHERE attrelid = pg_class.oid AND attidentity = 'a' AND attname::text = ANY({PARAMETER}))"
)
COPY_VERSION: Final = 100000  # from this version on, IS_COPIED can be asked

Row = tuple[Any, ...]


class PostgresRows:
    """Writes rows to one table of PostgreSQL."""

    def __init__(self, codes: Sequence[int], copy: str = "") -> None:
        """`codes`: of the columns' types; `copy`: the statement that copies into them, "" if none may."""
        self._json = frozenset(place for place, code in enumerate(codes) if code in JSON)
        self._kinds = [ANYWHERE | COPIED.get(code, frozenset()) for code in codes]
        self._naive = [place for place, code in enumerate(codes) if code == TIMESTAMP]
        self.copy = copy

    def write(self, cursor: Cursor, statement: str, chunks: Iterable[Sequence[Row]]) -> None:
        """Write chunks of rows, in their order, by COPY as far as it means the same as this INSERT statement."""
        if not self.copy:
            for rows in chunks:
                cursor.execute_each(statement, self.bound(rows))
            return
        parts = (
            self.bound(rows[start : start + PART_ROWS]) for rows in chunks for start in range(0, len(rows), PART_ROWS)
        )
        for is_copied, some in groupby(parts, self._is_copied):
            if is_copied:
                cursor.copy_each(self.copy, chain.from_iterable(some))
            else:
                for part in some:  # drivers need a list of the rows
                    cursor.execute_each(statement, part)

    def bound(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows with JSON for dicts and lists, in the columns of that type."""
        if not self._json:
            return rows
        return [
            tuple(
                [
                    json_text(value) if place in self._json and isinstance(value, dict | list) else value
                    for place, value in enumerate(row)
                ]
            )
            for row in rows
        ]

    def _is_copied(self, rows: Sequence[Row]) -> bool:
        columns = [*zip(*rows)]
        if not all({*map(type, column)} <= kinds for column, kinds in zip(columns, self._kinds, strict=True)):
            return False
        return not any(
            isinstance(value, datetime) and value.tzinfo is not None
            for place in self._naive
            for value in columns[place]
        )


def lock_alone(cursor: Cursor, table: str) -> None:
    """Lock a table against other writers, before the transaction locks anything else. Nothing happens if it may not.

    It waits for other writers for LOCK_SECONDS. Then the server's error passes, and the next try needs no lock.
    """
    cursor.execute("SAVEPOINT megaflow_alone")
    try:
        cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        cursor.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
    except Exception as error:
        if may_pass(error):
            raise
        cursor.execute("ROLLBACK TO SAVEPOINT megaflow_alone")


def has_own_adapters(connection: Any, kinds: Iterable[type]) -> bool:
    """Tell whether psycopg 3 adapts values of these types for this connection, and not the program."""
    formats = importlib.import_module("psycopg.adapt").PyFormat
    dumpers = [connection.adapters.get_dumper(*each) for each in product(kinds, (formats.AUTO, formats.TEXT))]
    return all(dumper.__module__.startswith("psycopg") for dumper in dumpers)


def copy_statement(connection: Any, table: str, columns: Sequence[str]) -> str:
    """Return the statement that copies into a table if this connection of psycopg 3 and its server can; "" if not."""
    if connection.info.server_version < COPY_VERSION or not has_own_adapters(connection, ADAPTED):
        return ""
    return f"COPY {table} ({listed(columns)}) FROM STDIN"


def postgres_rows(cursor: Cursor, table: str, columns: Sequence[str], *, copies: bool) -> PostgresRows | None:
    """Return what writes to the columns of the query that a cursor has run, or None if it is not PostgreSQL's.

    `copies`: also by COPY, if the driver, the server and the table allow it.
    """
    if (driver := driver_of(type(cursor.raw))) not in POSTGRESQL_DRIVERS:
        return None
    rows = PostgresRows([column[1] for column in cursor.raw.description])
    can_copy = copies and driver == "psycopg"
    if can_copy and (statement := copy_statement(cursor.raw.connection, table, columns)):
        cursor.execute(IS_COPIED, table, [*columns])
        rows.copy = statement if cursor.rows() == [(True,)] else ""
    return rows
