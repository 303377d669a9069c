"""Queries of `QuerySource`: what the user wrote, and the statements for pages and ranges of its rows, as values.

1. A query is one SELECT statement. Comments and semicolons after it are cut off, because it is put in parentheses.
2. `:name` in a query is a bound parameter, for every driver, if the user gives `params`. Texts, quoted names, comments
   and PostgreSQL's `::` are left alone.
3. The database itself returns the values of the order columns again, after the columns of the query. So this module
   compares no names: it might treat upper and lower case differently from the database.
4. Rows are compared as SQL compares rows, column by column from the first one on: `(a, b) > (1, 2)`. Rows that have
   NULL in an order column are left out, because NULL is neither above nor below.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from megaflow.connect.sql_statements import NAME, PARAMETER, quoted
from megaflow.errors import UsageError

RowPlace: TypeAlias = tuple[Any, ...]
"""The values of a row's order columns."""
Statement: TypeAlias = tuple[str, *tuple[Any, ...]]
"""A statement and its values."""

TOKEN: Final = re.compile(
    r"""
      (?P<gap> \s+ | --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | (?P<text> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` )
    | (?P<dollars> \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<cast> :: )
    | (?P<parameter> :[A-Za-z_]\w* )
    | (?P<other> \w+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OrderedQuery:
    """A query whose parameters have values, and the columns of its order."""

    text: str  # with PARAMETERs
    values: tuple[Any, ...]  # of these
    order: tuple[str, ...]  # at least one

    @property
    def order_text(self) -> str:
        """Names of the order columns in errors, and in partitions."""
        return ", ".join(self.order)

    @property
    def _columns(self) -> list[str]:
        return [f"megaflow_rows.{quoted(name)}" for name in self.order]

    @property
    def _places(self) -> str:
        named = (f"{column} AS megaflow_place_{number}" for number, column in enumerate(self._columns))
        return ", ".join(named)

    @property
    def _from(self) -> str:
        return f"FROM (\n{self.text}\n) AS megaflow_rows"

    @property
    def _there(self) -> str:
        return " AND ".join(f"{column} IS NOT NULL" for column in self._columns)

    def next_rows(self, after: RowPlace | None, upto: RowPlace | None, rows: int) -> Statement:
        """Return the query for the next `rows` rows above `after` and up to `upto`, with its values; None: no limit.

        Its last columns are the rows' places.
        """
        limits = [(sign, place) for sign, place in ((">", after), ("<=", upto)) if place is not None]
        where = "".join(f" AND {_row(self._columns)} {sign} {_row(PARAMETER * len(place))}" for sign, place in limits)
        order = ", ".join(self._columns)
        text = f"SELECT megaflow_rows.*, {self._places} {self._from} WHERE {self._there}{where}"
        values = [value for _, place in limits for value in place]
        return f"{text} ORDER BY {order} LIMIT {rows:d}", *self.values, *values

    def rows_at(self, places: Sequence[RowPlace]) -> Statement:
        """Return the query for the places of the rows that the database finds at some places, and its values."""
        at = " AND ".join(f"{column} = {PARAMETER}" for column in self._columns)
        values = [value for place in places for value in place]
        text = f"SELECT {self._places} {self._from} WHERE {' OR '.join([f'({at})'] * len(places))}"
        return text, *self.values, *values

    def null_rows(self) -> Statement:
        """Return the query for one of the rows that are left out, if there are any."""
        null = " OR ".join(f"{column} IS NULL" for column in self._columns)
        return f"SELECT 1 {self._from} WHERE {null} LIMIT 1", *self.values

    def count(self) -> Statement:
        """Return the query for the number of rows."""
        return f"SELECT count(*) {self._from} WHERE {self._there}", *self.values

    def nth_rows(self, numbers: Iterable[int]) -> Statement:
        """Return the query for the places of rows by their numbers in the order, from 1 on."""
        order = ", ".join(self._columns)
        names = ", ".join(f"megaflow_place_{number}" for number in range(len(self.order)))
        numbered = (
            f"SELECT {self._places}, row_number() OVER (ORDER BY {order}) AS megaflow_number {self._from} "
            f"WHERE {self._there}"
        )
        wanted = ", ".join(f"{number:d}" for number in numbers)
        text = f"SELECT {names} FROM (\n{numbered}\n) AS megaflow_numbered WHERE megaflow_number IN ({wanted})"
        return f"{text} ORDER BY megaflow_number", *self.values


def _row(columns: Iterable[str]) -> str:
    """Return columns or values as SQL compares them.

    >>> _row(["a"]), _row("ab")
    ('a', '(a, b)')
    """
    listed = ", ".join(columns)
    return listed if listed.count(",") == 0 else f"({listed})"


def query_of(text: str, order_by: str | Sequence[str], params: Mapping[str, Any]) -> OrderedQuery:
    """Return the query in a text, which may also be the name of a table. Raises UsageError.

    >>> query_of("SELECT 'a;:b' AS x FROM t WHERE y > :least; -- ;", "x", {"least": 3})
    OrderedQuery(text="SELECT 'a;:b' AS x FROM t WHERE y > \\x00", values=(3,), order=('x',))
    >>> query_of("orders;", ["at", "id"], {}).text
    'SELECT * FROM orders'
    """
    if not isinstance(text, str) or PARAMETER in text or NAME in text:
        raise UsageError(f"{text!r:.200} cannot be a query: give a str without control characters")
    order = (order_by,) if isinstance(order_by, str) else (*order_by,)
    for name in order:
        quoted(name)
    if not order or len({*order}) < len(order):
        raise UsageError(f"order_by={order_by!r}: give at least one column, each once")
    parts: list[str] = []  # from the first word on
    end, is_over, is_table = 0, False, True  # `end`: number of parts up to the last word
    used, values = set[str](), list[Any]()
    for token in TOKEN.finditer(text):
        kind, part = "text" if token["tag"] is not None else token.lastgroup, token[0]
        if kind in ("gap", "end"):
            is_over = is_over or (kind == "end" and bool(parts))
            parts += [part] if parts else []
            continue
        if is_over:
            raise UsageError(f"the query {text!r:.200} has several statements: give one SELECT")
        if kind == "parameter" and params:
            name = part[1:]
            if name not in params:
                raise UsageError(f"the query has the parameter {part!r}, but params= has no {name!r}")
            used.add(name)
            values.append(params[name])
            part = PARAMETER
        is_table = is_table and end == len(parts)
        parts.append(part)
        end = len(parts)
    if unused := sorted({*params} - used):
        raise UsageError(f"params= has {unused[0]!r}, but the query has no parameter ':{unused[0]}'")
    if not end:
        raise UsageError("the query is empty: give a SELECT statement or the name of a table")
    meant = "".join(parts[:end])
    return OrderedQuery(f"SELECT * FROM {meant}" if is_table else meant, tuple(values), order)
