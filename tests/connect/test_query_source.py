"""The rows of a query, page by page: each once, in order, from any position."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from megaflow.connect import query_source
from megaflow.connect.query_source import QuerySource
from megaflow.connect.source_protocol import Exhausted, Found, Idle
from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.run.python_function import run
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.results import check_equal

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
    """Return all rows, each with the position after it, or None within a list."""
    [partition] = source.discover()
    reader, found = source.open(partition, position), []
    while isinstance(got := reader.read(limit), tuple):
        rows, behind = got
        assert 0 < len(rows) <= limit
        found += [*((row, None) for row in rows[:-1]), (rows[-1], behind)]
    assert got == Exhausted(resumable=True)
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


def test_order_of_several_columns_is_read_from_any_position_on(database: sqlite3.Connection, tmp_path: Path) -> None:
    query = "SELECT id / 20 AS at, id FROM items"
    wanted = [(number // 20, number) for number, _ in ROWS]
    for limit in (1, 4, 100):
        found = read(source(tmp_path, query, order_by=("at", "id")), limit=limit)
        assert [row for row, _ in found] == wanted
        for index, (_, position) in enumerate(found, 1):
            if position is not None:
                assert position == wanted[index - 1]
                assert [row for row, _ in read(source(tmp_path, query, order_by=["at", "id"]), position)] == wanted[
                    index:
                ]
    with pytest.raises(SourceError, match="the store has a position in another order than 'at, id'"):
        source(tmp_path, query, order_by=["at", "id"]).open("query", 7)


@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_null_leaves_out_are_reported_once(
    database: sqlite3.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture, partitions: int
) -> None:
    made = source(tmp_path, partitions=partitions, order_by=["name", "id"])
    found = [rows_of(made, each) for each in made.discover()]
    assert not caplog.records
    add(database, [(None, "left out"), (99, None)])
    assert [rows_of(made, each) for each in made.discover()] == found
    [said] = [record.getMessage() for record in caplog.records]
    assert said.endswith("shop.db: the query has rows whose name, id is NULL; they are not read")


def test_parameters_of_a_query_are_bound(database: sqlite3.Connection, tmp_path: Path) -> None:
    query = "SELECT id, name FROM items WHERE id >= :least AND name <> :name"
    found = read(source(tmp_path, query, params={"least": 60, "name": "name 21"}))
    assert [row for row, _ in found] == [row for row in ROWS if row[0] >= 60 and row[0] != 63]


def test_columns_that_sqlite_cannot_tell_apart_are_refused(database: sqlite3.Connection, tmp_path: Path) -> None:
    """`test_columns_are_matched_as_the_database_quotes` covers PostgreSQL."""
    query = 'SELECT name AS "ID", id FROM items'
    for options in ({}, {"as_": dict}, {"order_by": "ID"}, {"order_by": "ID", "as_": dict}):
        with pytest.raises(SourceError, match="two columns of the query have the name 'ID'; give each its own name"):
            read(source(tmp_path, query, **options))


def test_equal_names_of_columns_are_refused_in_dicts(database: sqlite3.Connection, tmp_path: Path) -> None:
    query = "SELECT a.id, b.name, a.name FROM items AS a JOIN items AS b ON a.id = b.id"
    assert [row for row, _ in read(source(tmp_path, query))][1] == (3, "name 1", "name 1")
    with pytest.raises(
        SourceError, match="two columns of the query have the name 'name'; give each its own name, by AS"
    ):
        read(source(tmp_path, query, as_=dict))


def rounded(folder: Path, digits: int) -> Any:
    """Return a function that connects to a database whose column `at` has more digits than Python receives.

    PostgreSQL's 4-byte floats behave like this.
    """

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(folder / "shop.db", detect_types=sqlite3.PARSE_DECLTYPES)

    sqlite3.register_converter("few_digits", lambda text: round(float(text), digits))
    with sqlite3.connect(folder / "shop.db") as connection:
        connection.execute("CREATE TABLE points (at FEW_DIGITS REAL, id INTEGER)")
        connection.executemany("INSERT INTO points VALUES (?, ?)", [(number / 7, number) for number in range(25)])
    return connect


@pytest.mark.parametrize("order", ["at", ("at", "id")])
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_order_that_python_has_not_exactly_is_refused(tmp_path: Path, order: Any, limit: int) -> None:
    with pytest.raises(
        SourceError, match=r"finds equal to \d\.\d+.*order by a column that is unique to the database and ex"
    ):
        read(QuerySource(rounded(tmp_path, 4), "points", order), limit=limit)


def test_order_that_a_collation_makes_equal_is_refused(database: sqlite3.Connection, tmp_path: Path) -> None:
    database.execute("CREATE TABLE words (word TEXT COLLATE NOCASE)")
    database.executemany(
        "INSERT INTO words VALUES (?)", [(f"{letter}{number}",) for number in range(20) for letter in "Xx"]
    )
    database.commit()
    with pytest.raises(SourceError, match="or several, whose word the database finds equal to 'X0"):
        read(source(tmp_path, "words", order_by="word"), limit=1)
    assert len(read(source(tmp_path, "SELECT CAST(word AS BLOB) AS word FROM words", order_by="word"), limit=1)) == 40


def test_rows_that_change_while_they_are_read_are_no_fault(database: sqlite3.Connection, tmp_path: Path) -> None:
    """A row that moves up between the page and the next query is read at its new place."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "shop.db")
        moved = iter([False, True])

        def touch(at: float) -> float:
            if next(moved, False):
                database.execute("UPDATE times SET at = 99.5 WHERE at = 3.5")
                database.commit()
            return at

        connection.create_function("touch", 1, touch)
        return connection

    database.execute("CREATE TABLE times (at REAL)")
    database.executemany("INSERT INTO times VALUES (?)", [(number + 0.5,) for number in range(4)])
    database.commit()
    reader = QuerySource(connect, "SELECT at FROM times", "at").open("query", None)
    found = reader.read(100)
    assert found == ([(0.5,), (1.5,), (2.5,), (3.5,)], 3.5)


@pytest.mark.parametrize("order", ["id", ("name", "id")])
def test_ranges_have_each_row_once_and_stay_as_they_are(
    database: sqlite3.Connection, tmp_path: Path, order: Any
) -> None:
    made = source(tmp_path, order_by=order, partitions=4)
    partitions = [*made.discover()]
    assert len(partitions) == 4 and partitions[0][1] is None and partitions[-1][2] is None
    sizes = [len(rows_of(made, each)) for each in partitions]
    assert sum(sizes) == len(ROWS) and max(sizes) - min(sizes) <= 1
    assert sorted(row for each in partitions for row in rows_of(made, each)) == ROWS
    add(database, [(1000 + number, f"z {number}") for number in range(9)])
    again = source(tmp_path, order_by=order, partitions=7)
    again.recall([decode(encode(each)) for each in partitions])
    assert [*again.discover()] == partitions
    assert [len(rows_of(again, each)) for each in partitions] == [*sizes[:-1], sizes[-1] + 9], "the last one has no end"
    with pytest.raises(SourceError, match="in another order than 'rest'"):
        source(tmp_path, order_by="rest").open(partitions[1], None)


def test_ranges_of_great_and_uneven_numbers_have_each_row(database: sqlite3.Connection, tmp_path: Path) -> None:
    numbers = [2260418954055131340 + 3**power for power in range(36)] + [3875220057236942850]
    database.execute("DELETE FROM items")
    add(database, [(number, "") for number in numbers])
    for partitions in (2, 5, 36, 37, 50):
        made = source(tmp_path, partitions=partitions)
        assert [number for each in made.discover() for number, _ in rows_of(made, each)] == numbers


def rows_of(source: QuerySource, partition: Any) -> list[Any]:
    reader, found = source.open(partition, None), []
    while isinstance(got := reader.read(3), tuple):
        found += got[0]
    return found


def test_ranges_are_cut_when_there_are_rows(database: sqlite3.Connection, tmp_path: Path) -> None:
    database.execute("DELETE FROM items")
    database.commit()
    assert source(tmp_path, partitions=3).discover() == []
    polling = source(tmp_path, partitions=3, poll_seconds=7.0)
    assert polling.discover() == Found([], again_seconds=7.0)
    add(database, ROWS[:2])
    assert polling.discover() == [("id", None, 0), ("id", 0, None)]
    reader = polling.open(("id", None, 0), None)
    assert reader.read(9) == ([ROWS[0]], 0) and reader.read(9) == Exhausted(resumable=True)
    reader = polling.open(("id", 0, None), None)
    assert reader.read(9) == ([ROWS[1]], 3) and reader.read(9) == Idle(after_seconds=7.0)


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
    for wrong in ({"as_": list}, {"poll_seconds": 0}, {"order_by": ""}, {"partitions": 0}, {"params": [1]}):
        with pytest.raises(UsageError):
            source(tmp_path, **wrong)


def loaded(folder: Path, caplog: pytest.LogCaptureFixture, source: QuerySource, **options: Any) -> list[Any]:
    """Return the records that a run of a job with a store reads."""
    caplog.clear()
    return [*run(lambda flow: flow.read(source, "items"), state=folder / "state", **options)]


@pytest.mark.slow
@pytest.mark.cluster
def test_next_run_reads_rows_that_came_after_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE items (id INTEGER, name TEXT)")
    batches = [[], [(3, "a"), (7, "b")], [], [(8, "c"), (9, "d")]]
    for batch in batches:
        add(connection, batch)
        check_equal(sorted(loaded(tmp_path, caplog, source(tmp_path))), batch)


@pytest.mark.slow
@pytest.mark.cluster
def test_position_in_another_column_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE items (id INTEGER, version INTEGER)")
    add(connection, [(3, 30), (7, 70)])
    check_equal(loaded(tmp_path, caplog, source(tmp_path)), [(3, 30), (7, 70)])
    add(connection, [(8, 1)])
    with pytest.raises(SourceError, match="in another order than 'version': order by 'id' as before"):
        loaded(tmp_path, caplog, source(tmp_path, order_by="version"))
    check_equal(loaded(tmp_path, caplog, source(tmp_path)), [(8, 1)])


@pytest.mark.cluster
def test_ranges_are_read_in_parallel_and_read_on_in_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE items (id INTEGER, name TEXT)")
    first, later = [(number, "old") for number in range(1000)], [(number, "new") for number in range(1000, 1100)]
    add(connection, first)
    check_equal(sorted(loaded(tmp_path, caplog, source(tmp_path, partitions=6), processes=2)), first)
    add(connection, later)
    check_equal(sorted(loaded(tmp_path, caplog, source(tmp_path, partitions=2), processes=3)), later)


class FinalSource(QuerySource):
    """The source of earlier versions. Their stores have no position of partitions that have ended."""

    ends_resumably = False  # type: ignore[misc]

    def discover(self) -> Any:
        return ["query"]

    def open(self, partition: str, position: Any) -> Any:
        reader = super().open(partition, position)

        class FinalReader:
            close = reader.close

            def read(self, limit: int) -> Any:
                got = reader.read(limit)
                return Exhausted() if isinstance(got, Exhausted) else got

        return FinalReader()


@pytest.mark.cluster
def test_partition_that_ended_in_an_old_store_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("CREATE TABLE items (id INTEGER, name TEXT)")
    add(connection, [(3, "a")])
    place = f"sqlite:{tmp_path / 'shop.db'}"
    check_equal(loaded(tmp_path, caplog, FinalSource(place, "items", order_by="id")), [(3, "a")])
    add(connection, [(4, "b")])
    check_equal(loaded(tmp_path, caplog, source(tmp_path)), [])
    assert "source 'items': an earlier version of megaflow read 'query' to its end" in caplog.text
