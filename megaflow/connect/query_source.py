"""`QuerySource`: the rows of a query in a database, in the order of a column, resumed after its last value.

The position is the value of that column in the last row that was read. Each row is read once under three conditions:
 1. The column is unique and not NULL, because the position cannot distinguish rows that share a value. Two successive
    rows with equal values end the job; rows where it is NULL are not read.
 2. Rows that come later have higher values. A row whose value is below one that was read is never read. Sequence
    numbers and times break this rule if a slow transaction commits after faster ones. Let the query leave out rows that
    are too new (`WHERE written_at < now() - interval '1 minute'`).
 3. Rows that were read do not change: rows before the position are not read again.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from megaflow.connect.database import Cursor, Database, Place
from megaflow.connect.source_protocol import Exhausted, Idle, Read
from megaflow.connect.sql_statements import next_rows
from megaflow.errors import SourceError, UsageError

PAGE_ROWS: Final = 5000  # of one query; the worker waits meanwhile
PARTITION: Final = "query"


class QuerySource:
    """Source that reads the rows of a query on one worker, in the order of a column.

        QuerySource("env:SHOP", "SELECT id, customer, cents FROM orders WHERE paid", order_by="id")

    connect             where the database is, as for `DatabaseSink`
    query               SQL, or the name of a table if it is one word
    order_by            a column of the rows: unique, never NULL, and higher in rows that come later
    as_                 tuple: each record is a tuple of the columns; dict: a dict by their names
    poll_seconds        how often to look for new rows; None: the source ends when all are read
    patience_seconds    how long to retry a lost or locked database before the job ends with an error

    Rows are fetched in pages of some thousand. The database orders them, so an index on the column helps. Raises
    UsageError for invalid arguments. `megaflow.connect.query_source` has the details.
    """

    def __init__(
        self, connect: Place, query: str, order_by: str, *,
        as_: type = tuple, poll_seconds: float | None = None, patience_seconds: float = 60.0,
    ) -> None:  # fmt: skip
        if as_ not in (tuple, dict):
            raise UsageError(f"as_={as_!r}: must be tuple or dict")
        if poll_seconds is not None and not poll_seconds > 0:
            raise UsageError(f"poll_seconds={poll_seconds!r}: must be more than 0, or None")
        query = query.strip()
        self._query = f"SELECT * FROM {query}" if len(query.split()) == 1 else query
        next_rows(self._query, order_by, PAGE_ROWS, first=True)
        self._order_by, self._as, self._poll_seconds = order_by, as_, poll_seconds
        self._connect, self._patience_seconds = connect, patience_seconds
        self._title = Database(connect, SourceError, patience_seconds).title

    def __repr__(self) -> str:
        return f"QuerySource({self._title}, {self._query!r:.200}, order_by={self._order_by!r})"

    def discover(self) -> Iterable[str]:
        """Return the only partition."""
        return [PARTITION]

    def open(self, partition: str, position: Any) -> "QueryReader":
        """Return a reader of the rows above a value of the column; None: of all rows."""
        database = Database(self._connect, SourceError, self._patience_seconds)
        return QueryReader(database, self._query, self._order_by, position, self._as is dict, self._poll_seconds)


class QueryReader:
    """Reads the rows of a query from a position on."""

    def __init__(
        self, database: Database, query: str, order_by: str, position: Any, as_dicts: bool, poll_seconds: float | None
    ) -> None:
        self._database = database
        self._query = query
        self._order_by = order_by
        self._position = position  # behind the page
        self._as_dicts = as_dicts
        self._poll_seconds = poll_seconds
        self._page: list[tuple[Any, Any]] = []  # (row, its position), the next one last

    def read(self, limit: int) -> Read[Any]:
        """Return the next rows; blocks while a page is fetched. Raises SourceError."""
        if not self._page:
            self._page = self._database.transaction(self._fetch)[::-1]
        if not self._page:
            return Exhausted() if self._poll_seconds is None else Idle(after_seconds=self._poll_seconds)
        taken = [self._page.pop() for _ in range(min(limit, len(self._page)))]
        self._position = taken[-1][1]
        return [row for row, _ in taken], self._position

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _fetch(self, cursor: Cursor) -> list[tuple[Any, Any]]:
        first = self._position is None
        statement = next_rows(self._query, self._order_by, PAGE_ROWS + 1, first=first)
        cursor.execute(statement, *(() if first else (self._position,)))
        columns = cursor.columns()
        place = [name.casefold() for name in columns].index(self._order_by.casefold())
        rows = cursor.rows()
        for row, following in pairwise(rows):
            if row[place] == following[place]:
                raise SourceError(
                    f"{self._database.title}: two rows of the query have the same {self._order_by}, "
                    f"{row[place]!r:.100}: order by a unique column"
                )
        positions = [row[place] for row in rows[:PAGE_ROWS]]
        records: list[Any] = [dict(zip(columns, row)) for row in rows] if self._as_dicts else rows
        return list(zip(records, positions))
