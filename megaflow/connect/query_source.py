"""`QuerySource`: the rows of a query in a database, in the order of columns, resumed after the last row that was read.

The position is the row's values of these columns. Each row is read once under three conditions:
 1. No two rows have equal values there, because the position cannot distinguish them. If two rows do, the job ends with
    an error. Rows with NULL there are not read, and the log says so if there are any.
 2. Rows that come later have higher values. A row whose value is below one that was read is never read. Sequence
    numbers and times break this rule if a slow transaction commits after faster ones. Let the query leave out rows that
    are too new (`WHERE written_at < now() - interval '1 minute'`).
 3. Rows that were read do not change: rows before the position are not read again.

A position must mean the same row to the database as to Python. Python has no 4-byte floats and no nanoseconds, and a
collation may make equal what Python tells apart; then a row would be read again, or lost. So before any rows are handed
out, the database is asked for the rows at the positions that they can be left at, by its own comparison. It must find
exactly one row for each, with the same values. Integers need no such question. Rows may be changed between the page and
the question, so a page that fails is read again a few times before that is an error.

With several partitions, the first run cuts the rows into ranges of about equal size. The ranges are the partitions, so
they are fixed as soon as a checkpoint has them: `recall` brings them back, and the last one takes all later rows.

A partition names the order columns. A position means nothing in another order: rows would be lost or read again.
"""

import logging
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from operator import eq
from types import MappingProxyType
from typing import Any, Final

from megaflow.connect.database import Cursor, Database
from megaflow.connect.database_address import Place
from megaflow.connect.source_protocol import Exhausted, Found, Idle, Read
from megaflow.connect.sql_query import OrderedQuery, RowPlace, query_of
from megaflow.errors import CannotTravel, SourceError, UsageError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

_log = logging.getLogger("megaflow.connect")

PAGE_ROWS: Final = 5000  # of one query; the worker waits meanwhile
LIST_ROWS: Final = 250  # that are handed out together, at most if fewer are wanted
ASKED_MAX: Final = 100  # places of one question
SAMPLES: Final = 50  # other places of the first page, so that a wrong order is found early
PAGE_TRIES: Final = 4  # of a page whose rows the database does not find again
PARTITIONS_MAX: Final = 1000
PARTITION: Final = "query by "  # if there is only one, and the order
OLD_PARTITION: Final = "query"  # in stores of earlier versions
NUMBERED: Final = re.compile(r"(.+):\d+")
NAMES: Final = "give each its own name, by AS"
EXACT: Final = (
    "order by a column that is unique to the database and exact in Python, or cast it in the query: 4-byte floats to "
    "DOUBLE PRECISION, times with nanoseconds to an integer"
)


class QuerySource:
    """Source that reads the rows of a query in the order of columns.

        QuerySource("env:SHOP", "SELECT id, customer, cents FROM orders WHERE paid", order_by="id")
        QuerySource("env:SHOP", "SELECT * FROM orders WHERE shop = :shop", ["at", "id"], params={"shop": 7})

    connect             where the database is, as for `DatabaseSink`
    query               SQL, or the name of a table if it is one word
    order_by            a column, or several: together unique, never NULL, and higher in rows that come later
    params              the values of parameters, which the query has as :name
    as_                 tuple: each record is a tuple of the columns; dict: a dict by their names
    partitions          into how many ranges the first run cuts the rows; workers read them in parallel
    poll_seconds        how often to look for new rows; None: the source ends when all are read
    patience_seconds    how long to retry a lost or locked database before the job ends with an error

    Rows are fetched in pages of some thousand. The database orders them, so an index on the columns helps. With
    `--state`, the next run reads the rows that have come since. Raises UsageError for invalid arguments.
    `megaflow.connect.query_source` has the details.
    """

    ends_resumably: Final = True  # all partitions, since they keep where they end

    def __init__(
        self, connect: Place, query: str, order_by: str | Sequence[str], *,
        params: Mapping[str, Any] = MappingProxyType({}), as_: type = tuple, partitions: int = 1,
        poll_seconds: float | None = None, patience_seconds: float = 60.0,
    ) -> None:  # fmt: skip
        if as_ not in (tuple, dict):
            raise UsageError(f"as_={as_!r}: must be tuple or dict")
        if poll_seconds is not None and not poll_seconds > 0:
            raise UsageError(f"poll_seconds={poll_seconds!r}: must be more than 0, or None")
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(f"partitions={partitions!r}: must be an int from 1 to {PARTITIONS_MAX}")
        if not isinstance(params, Mapping):
            raise UsageError(f"params={params!r:.100}: must be a dict, of the parameters that the query has as :name")
        self._query = query_of(query, order_by, params)
        self._as, self._partitions, self._poll_seconds = as_, partitions, poll_seconds
        self._connect, self._patience_seconds = connect, patience_seconds
        self._title = self._database().title
        self._recalled: list[Any] = []

    def __repr__(self) -> str:
        query = self._query.text.replace("\0", ":…")
        return f"QuerySource({self._title}, {query!r:.200}, order_by={self._query.order_text!r})"

    def recall(self, partitions: Collection[Any]) -> None:
        """Take in the partitions that a checkpoint has: they stay as they are."""
        self._recalled = [*partitions]

    def discover(self) -> Iterable[Any] | Found:
        """Return the partitions; reads the places between them in the first run. Raises SourceError."""
        if self._recalled:
            return self._recalled
        if self._partitions == 1:
            return [f"{PARTITION}{self._query.order_text}"]
        database = self._database()
        try:
            places = database.transaction(partial(_grid, self._query, self._partitions, database.title))
        finally:
            database.close()
        if not places:
            return [] if self._poll_seconds is None else Found([], again_seconds=self._poll_seconds)
        single = len(self._query.order) == 1
        ends = [None, *(place[0] if single else place for place in places[:-1]), None]  # the last one has no end
        return [(self._query.order_text, low, high) for low, high in pairwise(ends)]

    def open(self, partition: Any, position: Any) -> "QueryReader":
        """Return a reader of the rows above a position; None: of all rows of the partition. Raises SourceError."""
        if partition == OLD_PARTITION:
            partition = f"{PARTITION}{self._query.order_text}"
        order, low, high = (partition[len(PARTITION) :], None, None) if isinstance(partition, str) else partition
        columns, after = len(self._query.order), low if position is None else position
        is_place = columns == 1 or after is None or (type(after) is tuple and len(after) == columns)
        if order != self._query.order_text or not is_place:
            before = "the same columns" if order == self._query.order_text else repr(order)
            raise SourceError(
                f"{self._title}: the store has a position in another order than {self._query.order_text!r}: order by "
                f"{before} as before, or start over with a new --state folder"
            )
        begins = low is None  # with the rows that come first
        return QueryReader(self._database(), self._query, after, high, self._as is dict, self._poll_seconds, begins)

    def _database(self) -> Database:
        return Database(self._connect, SourceError, self._patience_seconds)


class QueryReader:
    """Reads the rows of a query above a place, up to another one; None: to the last."""

    def __init__(
        self, database: Database, query: OrderedQuery, after: Any, upto: Any, as_dicts: bool,
        poll_seconds: float | None, reports_null: bool = False,
    ) -> None:  # fmt: skip
        self._database = database
        self._query = query
        self._after = after  # the position behind what was handed out
        self._upto = upto
        self._as_dicts = as_dicts
        self._poll_seconds = poll_seconds
        self._is_first = True  # no page was fetched
        self._reports_null = reports_null  # once
        self._lists: deque[tuple[list[Any], list[Any]]] = deque()  # rows and their positions, the last one checked

    def read(self, limit: int) -> Read[Any]:
        """Return the next rows; blocks while a page is fetched. Raises SourceError."""
        for _ in range(PAGE_TRIES):
            if not self._lists:
                self._lists.extend(self._database.transaction(partial(self._fetch, limit)))
            if not self._lists:
                is_over = self._poll_seconds is None or self._upto is not None
                return Exhausted(resumable=True) if is_over else Idle(after_seconds=self._poll_seconds)
            if not (lost := self._cut(limit)):
                break
        else:
            raise _inexact(self._database.title, self._query, lost[0])
        rows, positions = self._lists.popleft()
        self._after = positions[-1]
        return rows, self._after

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _cut(self, limit: int) -> list[RowPlace]:
        """Make the next list shorter if it is too long; if its new end is not found, return that, and drop the page."""
        rows, positions = self._lists[0]
        if len(rows) <= limit:
            return []
        end = self._place(positions[limit - 1])
        lost = self._database.transaction(lambda cursor: _not_found(cursor, self._query, [end]))
        if lost:
            self._lists.clear()
        else:
            self._lists.popleft()
            self._lists.extendleft([(rows[limit:], positions[limit:]), (rows[:limit], positions[:limit])])
        return lost

    def _place(self, position: Any) -> RowPlace:
        return (position,) if len(self._query.order) == 1 else tuple(position)

    def _fetch(self, limit: int, cursor: Cursor) -> list[tuple[list[Any], list[Any]]]:
        """Return the next page in lists of so many rows."""
        size = max(limit, LIST_ROWS)
        for _ in range(PAGE_TRIES):
            rows, positions = self._page(cursor)
            starts = range(0, len(rows), size)
            asked = {min(start + size, len(rows)) - 1 for start in starts}
            if self._is_first:
                asked.update(range(0, len(rows), len(rows) // SAMPLES + 1))
            places = [self._place(positions[index]) for index in sorted(asked)]
            if not (lost := _not_found(cursor, self._query, places)):
                self._report_null(cursor)
                self._is_first = False
                return [(rows[start : start + size], positions[start : start + size]) for start in starts]
        raise _inexact(self._database.title, self._query, lost[0])

    def _report_null(self, cursor: Cursor) -> None:
        """Log that rows are not read, if there are any, because an order column is NULL."""
        if self._reports_null:
            cursor.execute_exactly(*self._query.null_rows())
            self._reports_null = False
            if cursor.rows():
                order = self._query.order_text
                _log.warning("%s: the query has rows whose %s is NULL; they are not read", self._database.title, order)

    def _page(self, cursor: Cursor) -> tuple[list[Any], list[Any]]:
        """Return the next rows and their positions."""
        after, upto = (None if each is None else self._place(each) for each in (self._after, self._upto))
        cursor.execute_exactly(*self._query.next_rows(after, upto, PAGE_ROWS + 1))
        rows = cursor.rows()
        columns = cursor.columns()[: -len(self._query.order)]
        if rows and len(rows[0]) != len(columns) + len(self._query.order):
            raise SourceError(f"{self._database.title}: the driver drops columns of equal names; {NAMES}")
        ordered = {*map(str.casefold, self._query.order)}
        repeated = (name for name in _repeated(columns) if self._as_dicts or name.casefold() in ordered)
        if wrong := next(repeated, None):
            raise SourceError(f"{self._database.title}: two columns of the query have the name {wrong!r}; {NAMES}")
        width = len(columns)
        positions = [row[width] for row in rows] if len(self._query.order) == 1 else [row[width:] for row in rows]
        before = [] if self._after is None else [self._after]
        if any(map(eq, [*before, *positions], positions[1 - len(before) :])):
            twice = next(each for each, other in pairwise([*before, *positions]) if each == other)
            raise SourceError(
                f"{self._database.title}: two rows of the query have the same {self._query.order_text}, "
                f"{twice!r:.200}: order by a unique column, or by several that are unique together, such as "
                'order_by=("at", "id")'
            )
        rows, positions = rows[:PAGE_ROWS], positions[:PAGE_ROWS]
        return [dict(zip(columns, row)) for row in rows] if self._as_dicts else [row[:width] for row in rows], positions


def _repeated(columns: Sequence[str]) -> set[str]:
    """Return the names that several columns have, also those that SQLite has numbered, whatever their case.

    >>> sorted(_repeated(["id", "name", "ID:1", "at", "at"]))
    ['at', 'id']
    """
    exact = {name for name in columns if columns.count(name) > 1}
    alike = {name.casefold(): name for name in columns}
    numbered = (found[1].casefold() for name in columns if (found := NUMBERED.fullmatch(name)))
    return exact | {alike[name] for name in numbered if name in alike}


def _grid(query: OrderedQuery, partitions: int, title: str, cursor: Cursor) -> list[RowPlace]:
    """Return the places of the last rows of so many parts of about equal size; fewer if there are fewer rows."""
    for _ in range(PAGE_TRIES):
        cursor.execute_exactly(*query.count())
        [(count,)] = cursor.rows()
        numbers = sorted({count * part // partitions for part in range(1, partitions + 1)} - {0})
        if not numbers:
            return []
        cursor.execute_exactly(*query.nth_rows(numbers))
        places = cursor.rows()
        if not (lost := _not_found(cursor, query, places)):
            return places
    raise _inexact(title, query, lost[0])


def _not_found(cursor: Cursor, query: OrderedQuery, places: Sequence[RowPlace]) -> list[RowPlace]:
    """Return some of the places at which the database does not find exactly one row, of the same values."""
    asked = [place for place in places if not all(type(value) is int for value in place)]
    for start in range(0, len(asked), ASKED_MAX):
        some = asked[start : start + ASKED_MAX]
        cursor.execute_exactly(*query.rows_at([*map(_kept, some)]))
        found = cursor.rows()
        if lost := [place for place in some if found.count(place) != 1] or some[: len(found) - len(some)]:
            return lost
    return []


def _kept(place: RowPlace) -> RowPlace:
    """Return a place as a checkpoint gives it back; as it is if none can have it."""
    try:
        kept: RowPlace = decode(encode(place))
    except CannotTravel:
        return place
    return kept


def _inexact(title: str, query: OrderedQuery, place: RowPlace) -> SourceError:
    shown = ", ".join(f"{value!r:.100}" for value in place)
    return SourceError(
        f"{title}: the query has no row, or several, whose {query.order_text} the database finds equal to {shown}, "
        f"which it has just returned, so rows would be lost or read twice: {EXACT}"
    )
