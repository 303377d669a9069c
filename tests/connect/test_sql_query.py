"""Users' queries: one statement with bound parameters, on SQLite and as text."""

import sqlite3
from typing import Any

import pytest

from megaflow.connect.sql_query import OrderedQuery, Statement, query_of
from megaflow.connect.sql_statements import written_for
from megaflow.errors import UsageError


def run(statement: Statement) -> list[tuple[Any, ...]]:
    """Run a statement on a table of a few rows."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE items (at INTEGER, id INTEGER, name TEXT)")
    rows = [(at, number, f"{at}:{number};") for at in range(3) for number in range(3)]
    database.executemany("INSERT INTO items VALUES (?, ?, ?)", [*rows, (None, 7, "none"), (7, None, "none")])
    text, *values = statement
    return database.execute(written_for("qmark", text), values).fetchall()


def read(query: OrderedQuery, after: Any = None, upto: Any = None, rows: int = 99) -> list[tuple[Any, ...]]:
    return run(query.next_rows(after, upto, rows))


@pytest.mark.parametrize(
    "text",
    [
        "items", " items ; -- all;", "/* a; b */ items", '"items";', "SELECT * FROM items;;\n",
        "SELECT * FROM items -- the end; of it", "SELECT * FROM items /* ; */ ; /* :name */",
        "-- first\nSELECT * FROM items",
    ],
)  # fmt: skip
def test_comments_and_semicolons_behind_a_query_are_cut_off(text: str) -> None:
    assert len(read(query_of(text, ["at", "id"], {}))) == 9


def test_parameters_are_bound_outside_of_texts_and_comments() -> None:
    text = "SELECT * FROM items WHERE name <> ':at' /* :at */ AND at >= :at AND id = :id AND at <= :at + 1"
    query = query_of(text, ["at", "id"], {"at": 0, "id": 2})
    assert query.values == (0, 2, 0) and [row[:2] for row in read(query)] == [(0, 2), (1, 2)]
    assert read(query, (0, 2)) == [(1, 2, "1:2;", 1, 2)]
    assert (
        run(query.count()) == [(2,)]
        and run(query.nth_rows([2])) == [(1, 2)]
        and run(query.rows_at([(1, 2)])) == [(1, 2)]
    )
    assert query_of("SELECT a::text FROM t WHERE b[1:c]", "a", {}).text == "SELECT a::text FROM t WHERE b[1:c]"


@pytest.mark.parametrize(
    ("text", "order", "params", "said"),
    [
        ("SELECT 1; DELETE FROM items", "a", {}, "several statements"),
        (" ; -- nothing", "a", {}, "the query is empty"),
        ("SELECT :a AS a", "a", {"b": 1}, "params= has no 'a'"),
        ("SELECT ':b' AS a", "a", {"b": 1}, "no parameter ':b'"),
        ("items", [], {}, "at least one column"),
        ("items", ["a", "a"], {}, "each once"),
        ("items", "", {}, "cannot be the name"),
        (7, "a", {}, "cannot be a query"),
    ],
)  # fmt: skip
def test_faulty_query_is_refused(text: Any, order: Any, params: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        query_of(text, order, params)


def test_rows_are_compared_column_by_column_and_have_no_null() -> None:
    query = query_of("items", ("at", "id"), {})
    wanted = [(at, number) for at in range(3) for number in range(3)]
    assert [row[-2:] for row in read(query)] == wanted
    for index, place in enumerate(wanted, 1):
        assert [row[-2:] for row in read(query, place)] == wanted[index:]
        assert [row[-2:] for row in read(query, None, place)] == wanted[:index]
    assert [row[-2:] for row in read(query, (0, 1), (2, 0), 3)] == wanted[2:5]


def test_mysql_has_its_own_quotes_and_queries_keep_theirs() -> None:
    query, *_ = query_of('SELECT "a" FROM t', 'of `all` "b"', {}).next_rows(None, None, 9)
    text = written_for("qmark", query, backquotes=True)
    assert '(\nSELECT "a" FROM t\n)' in text and 'ORDER BY megaflow_rows.`of ``all`` "b"` LIMIT' in text
