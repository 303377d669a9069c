"""The rows of a query, page by page: each once, in order, from any position on."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from megaflow.connect import query_source
from megaflow.connect.query_source import QuerySource
from megaflow.connect.source_protocol import Exhausted, Idle
from megaflow.errors import SourceError, UsageError

ROWS = [(number * 3, f"name {number}") for number in range(25)]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    monkeypatch.setattr(query_source, "PAGE_ROWS", 7)
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE items (id INTEGER, name TEXT)")
    add(connection, reversed(ROWS))
    return connection


def add(connection: sqlite3.Connection, rows: Any) -> None:
    connection.executemany("INSERT INTO items VALUES (?, ?)", rows)
    connection.commit()


def source(folder: Path, query: str = "items", **options: Any) -> QuerySource:
    return QuerySource(f"sqlite:{folder / 'shop.db'}", query, **{"order_by": "id", **options})


def read(source: QuerySource, position: Any = None, limit: int = 4) -> list[tuple[Any, Any]]:
    """Return all rows, each with the position behind it or None where a list went on."""
    [partition] = source.discover()
    reader, found = source.open(partition, position), []
    while isinstance(got := reader.read(limit), tuple):
        rows, behind = got
        assert 0 < len(rows) <= limit
        found += [*((row, None) for row in rows[:-1]), (rows[-1], behind)]
    assert got == Exhausted()
    reader.close()
    return found


def test_each_row_is_read_once_in_order_from_any_position_on(database: sqlite3.Connection, tmp_path: Path) -> None:
    for limit in (1, 4, 100):
        found = read(source(tmp_path), limit=limit)
        assert [row for row, _ in found] == ROWS
        for index, (_, position) in enumerate(found, 1):
            if position is not None:
                assert [row for row, _ in read(source(tmp_path), position)] == ROWS[index:]


def test_a_query_is_read_by_its_columns_names(database: sqlite3.Connection, tmp_path: Path) -> None:
    query = "SELECT name AS \"the name\", id + 1 AS place FROM items WHERE id < 6 OR name LIKE '%2_';"
    found = read(source(tmp_path, query, order_by="Place", as_=dict))
    assert [row for row, _ in found] == [
        {"the name": name, "place": number + 1} for number, name in ROWS if number < 6 or number >= 60
    ]


def test_new_rows_are_found_when_the_reader_is_woken(database: sqlite3.Connection, tmp_path: Path) -> None:
    reader = source(tmp_path, poll_seconds=2.5).open("query", 66)
    assert reader.read(9) == ([(69, "name 23"), (72, "name 24")], 72)
    assert reader.read(9) == Idle(after_seconds=2.5)
    add(database, [(75, "new")])
    assert reader.read(9) == ([(75, "new")], 75) and reader.read(9) == Idle(after_seconds=2.5)


def test_rows_that_share_their_place_are_an_error_also_where_a_page_ends(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    add(database, [(None, "left out"), (ROWS[6][0], "twice")])
    with pytest.raises(SourceError, match="two rows of the query have the same id, 18: order by a unique column"):
        read(source(tmp_path))


def test_what_cannot_be_read_is_said(database: sqlite3.Connection, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"shop.db failed: OperationalError: no such column: megaflow_rows.none"):
        read(source(tmp_path, order_by="none"))
    for wrong in ({"as_": list}, {"poll_seconds": 0}, {"order_by": ""}):
        with pytest.raises(UsageError):
            source(tmp_path, **wrong)
