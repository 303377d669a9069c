"""The database sink and source on a real MariaDB server, with PyMySQL."""

import threading
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest

from megaflow.connect.database_sink import DatabaseSink
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.connect.source_protocol import Exhausted
from megaflow.connect.table_rows import Delete
from megaflow.connect.transient_errors import may_pass
from megaflow.errors import OutputError, RecordRefused
from tests.connect.mariadb_server import USER, MariadbServer, binary

pymysql = pytest.importorskip("pymysql", reason="needs PyMySQL: pip install pymysql")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(binary() is None, reason="needs MariaDB: apt install mariadb-server"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    running = MariadbServer()
    yield running
    running.remove()


class Shop:
    """Return the URL of the empty database, and the function that connects to it."""

    def __init__(self, server: MariadbServer) -> None:
        self._server = server
        self.query("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")

    def connect(self, **options: Any) -> Any:
        server = self._server
        named = {"database": "shop", "charset": "utf8mb4", **options}
        return pymysql.connect(user=USER, password=server.password, unix_socket=str(server.socket), **named)

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = self.connect(database="mysql" if statements[0].startswith("DROP DATABASE") else "shop")
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                found = [*cursor.fetchall()]
            connection.commit()
            return found
        finally:
            connection.close()


@pytest.fixture
def shop(server: MariadbServer) -> Shop:
    return Shop(server)


def opened(sink: DatabaseSink, worker: int = 0) -> DatabaseSink:
    own = copy(sink)
    own.open(SinkPlace("orders", worker, "job", True, "of tests"))
    return own


def test_the_last_row_of_each_key_is_kept_whatever_the_names(shop: Shop) -> None:
    create = 'CREATE TABLE IF NOT EXISTS `odd ``%s` (`key` VARCHAR(9) PRIMARY KEY, `a "b" %` INT DEFAULT "7")'
    for autocommit in (False, True):
        shop.query("DROP TABLE IF EXISTS `odd ``%s`, megaflow_marks")
        sink = opened(
            DatabaseSink(
                lambda on=autocommit: shop.connect(autocommit=on), ["shop", "odd `%s"], ["key", 'a "b" %'], "key",
                create=create,
            )
        )  # fmt: skip
        sink.deliver(1, "a", [("x", 1), ("y%s", 2), ("x", 3), ("z", 4)])
        sink.deliver(1, "a", [("x", 9)])
        sink.deliver(2, "b", [("é\\'", 5), Delete("z"), ("y%s", 6)])
        assert shop.query("SELECT * FROM `odd ``%s` ORDER BY 2") == [("x", 3), ("é\\'", 5), ("y%s", 6)]
        assert shop.query("SELECT token FROM megaflow_marks ORDER BY 1") == [("a",), ("b",)]
        assert sink.delivered("of tests") == (2, ["b"])


def test_tables_whose_names_differ_in_case_are_two(shop: Shop) -> None:
    create = "CREATE TABLE IF NOT EXISTS `%s` (name VARCHAR(9))"
    one, other = (opened(DatabaseSink(shop.connect, name, ["name"], create=create % name)) for name in ("Day", "day"))
    one.deliver(1, "a", [("x",)])
    assert (one.delivered("of tests"), other.delivered("of tests")) == ((1, ["a"]), None)
    other.deliver(2, "b", [("y",)])
    assert (one.delivered("of tests"), other.delivered("of tests")) == ((1, ["a"]), (2, ["b"]))


def test_rows_without_a_key_and_keys_without_other_columns(shop: Shop) -> None:
    create = "CREATE TABLE IF NOT EXISTS seen (name VARCHAR(9), day INT, UNIQUE (day, name))"
    sink = opened(DatabaseSink(shop.connect, "seen", ["name", "day"], ["name", "day"], create=create))
    sink.deliver(1, "a", [("x", 1), ("x", 1), ("x", 2)])
    opened(DatabaseSink(shop.connect, "seen", ["day"])).deliver(1, "b", [(7,), (7,)])
    assert shop.query("SELECT name, day FROM seen ORDER BY 2, 1") == [("x", 1), ("x", 2), (None, 7), (None, 7)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id INT, name VARCHAR(9)", "has no unique index of exactly id"),
        ("id INT, name VARCHAR(9), UNIQUE (id, name)", "has no unique index of exactly id"),
        ("id INT PRIMARY KEY, name VARCHAR(9) UNIQUE", "has the unique index 'name' besides"),
    ],
    ids=range(3),
)
def test_a_table_whose_upserts_would_hit_other_rows_is_refused(shop: Shop, columns: str, said: str) -> None:
    shop.query(f"CREATE TABLE people ({columns})")
    with pytest.raises(OutputError, match=said):
        opened(DatabaseSink(shop.connect, "people", ["id", "name"], "id"))
    shop.query("DROP TABLE people", "CREATE TABLE people (n INT AUTO_INCREMENT PRIMARY KEY, id INT UNIQUE, name TEXT)")
    opened(DatabaseSink(shop.connect, "people", ["id", "name"], "id")).deliver(1, "a", [(5, "a"), (5, "b"), (6, "c")])
    assert shop.query("SELECT id, name FROM people ORDER BY 1") == [(5, "b"), (6, "c")]


def test_a_session_that_changes_values_is_refused(shop: Shop) -> None:
    shop.query("CREATE TABLE short (name VARCHAR(2))")
    with pytest.raises(OutputError, match="strict mode"):
        opened(DatabaseSink(lambda: shop.connect(sql_mode="ANSI_QUOTES"), "short", ["name"]))
    with pytest.raises(RecordRefused, match=r"refuses the row \('abc',\).*Data too long"):
        opened(DatabaseSink(shop.connect, "short", ["name"])).deliver(1, "a", [("ab",), ("abc",)])


def test_a_locked_row_is_waited_for_and_a_missing_column_is_not(shop: Shop) -> None:
    shop.query("CREATE TABLE totals (name VARCHAR(9) PRIMARY KEY, total INT)", "INSERT INTO totals VALUES ('x', 1)")

    def impatient() -> Any:
        return shop.connect(init_command="SET innodb_lock_wait_timeout = 1")

    sink = opened(DatabaseSink(impatient, "totals", ["name", "total"], "name", patience_seconds=0))
    patient = opened(DatabaseSink(impatient, "totals", ["name", "total"], "name"))
    other = shop.connect()
    with other.cursor() as cursor:
        cursor.execute("UPDATE totals SET total = 5 WHERE name = 'x'")
    with pytest.raises(OutputError, match=r"failed for 0 s: OperationalError: \(1205, 'Lock wait timeout"):
        sink.deliver(1, "a", [("x", 2)])
    thread = threading.Thread(target=patient.deliver, args=(1, "b", [("x", 3)]))
    thread.start()
    other.rollback()
    thread.join()
    assert shop.query("SELECT * FROM totals") == [("x", 3)]
    for table, column, said in (("totals", "none", "1054"), ("none", "name", "1146")):
        with pytest.raises(OutputError, match=rf"\({said}, .* must exist, unless create= creates it"):
            opened(DatabaseSink(shop.connect, table, [column]))


@pytest.mark.parametrize("autocommit", [False, True])
def test_mark_and_rows_of_a_refused_delivery_are_undone(shop: Shop, autocommit: bool) -> None:
    shop.query("CREATE TABLE totals (name VARCHAR(9) PRIMARY KEY, total INT CHECK (total < 9))")
    sink = opened(DatabaseSink(lambda: shop.connect(autocommit=autocommit), "totals", ["name", "total"]))
    sink.deliver(1, "a", [("x", 1)])
    with pytest.raises(RecordRefused, match=r"refuses the row \('z', 9\)"):
        sink.deliver(2, "b", [("y", 2), ("z", 9)])
    assert shop.query("SELECT * FROM totals") == [("x", 1)]
    assert shop.query("SELECT token FROM megaflow_marks") == [("a",)]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_tables_that_cannot_undo_rows_are_refused(shop: Shop, engine: str) -> None:
    shop.query(f"CREATE TABLE totals (name VARCHAR(9) PRIMARY KEY) ENGINE = {engine}")
    for table in ("totals", "shop.totals"):
        with pytest.raises(OutputError, match=f"has the engine {engine}, which cannot undo rows.*ENGINE = InnoDB"):
            opened(DatabaseSink(shop.connect, table, ["name"]))
    shop.query("ALTER TABLE totals ENGINE = InnoDB", f"ALTER TABLE megaflow_marks ENGINE = {engine}")
    with pytest.raises(OutputError, match=r"keeps a row of the table megaflow_marks.*ALTER TABLE megaflow_marks"):
        opened(DatabaseSink(shop.connect, "totals", ["name"]))
    assert shop.query("SELECT * FROM megaflow_marks") == [], "the probe is removed"
    shop.query("ALTER TABLE megaflow_marks ENGINE = InnoDB")
    opened(DatabaseSink(shop.connect, "totals", ["name"]))


def test_two_jobs_that_lock_each_other_out_both_write(shop: Shop) -> None:
    """The server ends one of two transactions with error 1213. A retry succeeds."""
    shop.query("CREATE TABLE totals (name VARCHAR(9) PRIMARY KEY, total INT)")
    sinks = [opened(DatabaseSink(shop.connect, "totals", ["name", "total"], "name"), job) for job in range(2)]
    names = [f"n{number}" for number in range(50)]
    raised: list[BaseException] = []

    def deliver(job: int) -> None:
        try:
            for n in range(15):
                ordered = names if (n + job) % 2 else names[::-1]
                sinks[job].deliver(n, f"{job}-{n}", [(name, n) for name in ordered])
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=deliver, args=(job,)) for job in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == [] and {*shop.query("SELECT * FROM totals")} == {(name, 14) for name in names}


def test_a_query_is_read_in_pages_by_a_column_with_an_odd_name(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megaflow.connect.query_source.PAGE_ROWS", 3)
    shop.query("CREATE TABLE items (`a ``b` INT PRIMARY KEY, name TEXT)")
    shop.query("INSERT INTO items VALUES (1, 'a'), (2, 'b'), (5, 'c'), (7, 'a'), (9, 'a')")
    reader = QuerySource(shop.connect, 'SELECT * FROM items WHERE name <> "b"', order_by="a `b").open("query", None)
    found: list[Any] = []
    while not isinstance(got := reader.read(2), Exhausted):
        assert isinstance(got, tuple)
        found += got[0]
    reader.close()
    assert found == [(1, "a"), (5, "c"), (7, "a"), (9, "a")]


def test_errors_pass_by_their_numbers() -> None:
    error = pymysql.err.OperationalError
    assert all(may_pass(error(number, "said")) for number in (1205, 1213, 2003, 2006, 2013, 1040, 1021, 1114))
    assert not any(may_pass(error(number, "said")) for number in (1045, 1049, 1054, 1142))
    assert may_pass(pymysql.err.InterfaceError(0, ""))
