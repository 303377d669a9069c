"""SQL statements: any name is quoted correctly, and parameters have the style of each driver."""

import sqlite3

import pytest

from megaflow.connect.sql_statements import (
    PARAMETER,
    PARAMSTYLES,
    arranged,
    insert,
    no_rows,
    quoted,
    shown,
    table_name,
    upsert,
    written_for,
)
from megaflow.errors import UsageError

ODD = 'a "b".c; DROP TABLE x -- %s ? :p1'


def test_names_mean_what_they_say_whatever_is_in_them() -> None:
    database = sqlite3.connect(":memory:")
    table = table_name([ODD])
    database.execute(shown(f"CREATE TABLE {table} ({quoted(ODD)} TEXT, {quoted('select')} INTEGER)"))
    database.execute(written_for("qmark", insert(table, [ODD, "select"])), ("x", 1))
    assert database.execute(shown(f"SELECT * FROM {table}")).fetchall() == [("x", 1)]
    for none in ("", "a\0b", "a\1b", None, 7):
        with pytest.raises(UsageError, match="cannot be the name of a table or column"):
            quoted(none)  # type: ignore[arg-type]


@pytest.mark.parametrize("paramstyle", [style for style in PARAMSTYLES if "format" not in style])
def test_sqlite_takes_its_three_ways_to_write_parameters(paramstyle: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a, b)")
    database.execute(written_for(paramstyle, insert('"t"', ["b", "a"])), arranged(paramstyle, ["of b", "of a"]))
    assert database.execute("SELECT a, b FROM t").fetchall() == [("of a", "of b")]


def test_where_percent_signs_have_a_meaning_those_of_names_and_queries_have_none() -> None:
    for paramstyle in ("format", "pyformat"):
        statement = written_for(paramstyle, f"SELECT id FROM t WHERE a LIKE '5%' AND id > {PARAMETER}")
        assert statement % arranged(paramstyle, [7]) == "SELECT id FROM t WHERE a LIKE '5%' AND id > 7"


def test_a_column_that_is_not_there_is_no_text() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (a)")
    database.execute(shown(no_rows('"t"', ["a"])))
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        database.execute(shown(no_rows('"t"', ["b"])))


def test_a_table_that_is_all_key_is_upserted_too() -> None:
    assert shown(upsert('"t"', ["a", "b"], ["a", "b"])).endswith('ON CONFLICT ("a", "b") DO NOTHING')
