"""The sink and the source of a database on a real PostgreSQL server, which is killed meanwhile."""

import threading
from collections import Counter
from collections.abc import Iterator
from copy import copy
from decimal import Decimal
from typing import Any

import pytest

from megaflow.connect.database_sink import DatabaseSink
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.connect.source_protocol import Exhausted
from megaflow.errors import OutputError, ProgramError, RecordRefused
from tests.connect.postgres_server import PostgresServer, binaries

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'megaflow[postgres]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(binaries() is None, reason="needs PostgreSQL: apt install postgresql"),
    pytest.mark.xdist_group("postgres"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    running = PostgresServer()
    yield running
    running.remove()


@pytest.fixture
def place(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the database is; it has no tables."""
    monkeypatch.setenv("SHOP", server.url)
    query(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return "env:SHOP"


def query(server: PostgresServer, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return what the last one gives."""
    with psycopg.connect(server.url) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def opened(sink: DatabaseSink, worker: int = 0) -> DatabaseSink:
    own = copy(sink)
    own.open(SinkPlace("orders", worker, "job", True))
    return own


def in_parallel(calls: list[Any]) -> None:
    """Call these at once; raise what one raises."""
    raised: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def run(call: Any) -> None:
        gate.wait()
        try:
            call()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_values_arrive_as_columns_want_them_in_a_table_with_an_odd_name(server: PostgresServer, place: str) -> None:
    create = 'CREATE TABLE IF NOT EXISTS "A b%" (id INT PRIMARY KEY, "The ""text"" %s" TEXT, cents NUMERIC, raw BYTEA)'
    sink = opened(DatabaseSink(place, "A b%", ["id", 'The "text" %s', "cents", "raw"], "id", create=create))
    sink.deliver(1, "a", [(1, "x\\'", Decimal("1.10"), b"\0"), (1, "y", Decimal("2.20"), b"\1"), (2, None, 3, None)])
    assert query(server, 'SELECT * FROM "A b%" ORDER BY 1') == [(1, "y", Decimal("2.20"), b"\1"), (2, None, 3, None)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ((1, "a\0b", 1), "column 'name': it contains the character NUL"),
        ((1 << 31, "a", 1), "column 'id': 2147483648 is not in the range from -2147483648"),
        ((1, "a", 1 << 15), "column 'small': 32768 is not in the range from"),
        ((1, {"a": 1}, 1), "column 'name': ProgrammingError: cannot adapt type 'dict'"),
        ((1, "\udfff", 1), "column 'name': it cannot be encoded as UTF-8"),
        ((1, "a"), "is not a row of"),
    ],
    ids=range(6),
)
def test_what_postgresql_cannot_take_is_refused_when_written(
    server: PostgresServer, place: str, record: Any, said: str
) -> None:
    create = "CREATE TABLE IF NOT EXISTS rows (id INT, name TEXT, small SMALLINT)"
    sink = opened(DatabaseSink(place, "rows", ["id", "name", "small"], create=create))
    good = [((1 << 31) - 1, "é", -(1 << 15)), (None, None, None), [1, "x", 1]]
    sink.check(good)
    sink.deliver(1, "a", good)
    with pytest.raises(ProgramError, match=said):
        sink.check([*good, record])


def test_a_row_that_the_server_refuses_is_found(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS rows (id INT PRIMARY KEY, name TEXT NOT NULL)"
    for key in ((), "id"):
        sink = opened(DatabaseSink(place, "rows", ["id", "name"], key, create=create))
        with pytest.raises(RecordRefused, match=r"refuses the row \(1, None\) .*NotNullViolation") as refused:
            sink.deliver(1, "a", [(2, "b"), (1, None), (3, None)])
        assert refused.value.position == 1 and query(server, "SELECT * FROM rows") == []


def test_workers_open_and_deliver_at_once_and_a_killed_server_keeps_them_waiting(
    server: PostgresServer, place: str
) -> None:
    """Half of the tokens are delivered by two workers at once, as if a connection was lost behind a commit."""
    made = DatabaseSink(place, "rows", ["worker", "n"], create="CREATE TABLE IF NOT EXISTS rows (worker INT, n INT)")
    sinks = dict.fromkeys(range(4), made)
    in_parallel([lambda worker=worker: sinks.update({worker: opened(made, worker)}) for worker in sinks])
    came = threading.Semaphore(0)

    def deliver(worker: int) -> None:
        for n in range(40):
            token = f"{n}-{worker}" if n % 2 else f"{n}-{worker // 2}"
            sinks[worker].deliver(n, token, [(token[-1], n)] * 20)
            came.release()

    def kill() -> None:
        for _ in range(2):
            for _ in range(30):
                assert came.acquire(timeout=120)
            server.kill()
            server.start()

    in_parallel([kill, *(lambda worker=worker: deliver(worker) for worker in sinks)])
    wanted = Counter({(worker, n): 20 for n in range(40) for worker in range(4 if n % 2 else 2)})
    assert Counter(query(server, "SELECT worker, n FROM rows")) == wanted
    assert query(server, "SELECT count(*) FROM megaflow_marks") == [(20 * 4 + 20 * 2,)]


def test_two_jobs_that_upsert_the_same_keys_do_not_lock_each_other_out(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, total INT)"
    sinks = [opened(DatabaseSink(place, "totals", ["name", "total"], "name", create=create), job) for job in range(2)]
    names = [f"name {number}" for number in range(50)]

    def deliver(job: int) -> None:
        for n in range(30):
            ordered = names if (n + job) % 2 else names[::-1]
            sinks[job].deliver(n, f"{job}-{n}", [(name, n) for name in ordered])

    in_parallel([lambda job=job: deliver(job) for job in range(2)])
    assert {*query(server, "SELECT name, total FROM totals")} == {(name, 29) for name in names}


def test_a_wrong_password_and_a_server_that_is_gone_are_errors_without_the_password(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in (server.url.replace("ann:", "ann:hunter2"), server.url.replace(f"{server.folder}", "/nowhere/hunter2")):
        monkeypatch.setenv("SHOP", url)
        with pytest.raises(OutputError, match=r"the database env:SHOP failed for 0 s: OperationalError:") as caught:
            opened(DatabaseSink(place, "t", ["a"], patience_seconds=0))
        assert "hunter2" not in str(caught.value) and server.url.split(":")[2].split("@")[0] not in str(caught.value)


def test_a_query_is_read_in_pages_through_a_restart_of_the_server(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megaflow.connect.query_source.PAGE_ROWS", 100)
    query(server, "CREATE TABLE items AS SELECT n AS id, n % 7 AS rest FROM generate_series(1, 1000) n")
    source = QuerySource(place, "SELECT id, rest FROM items WHERE rest <> 3", order_by="id", as_=dict)
    reader, found = source.open("query", None), []
    while not isinstance(got := reader.read(70), Exhausted):
        assert isinstance(got, tuple)
        found += got[0]
        if len(found) == 70:
            server.kill()
            server.start()
    reader.close()
    assert found == [{"id": n, "rest": n % 7} for n in range(1, 1001) if n % 7 != 3]
