"""The database sink and source on a real PostgreSQL server, which tests kill."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from time import monotonic, process_time
from typing import Any
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest

from megaflow.connect import postgres_rows
from megaflow.connect.database import Cursor, Database
from megaflow.connect.database_sink import DatabaseSink, Delete
from megaflow.connect.postgres_rows import lock_alone
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.connect.source_protocol import Exhausted
from megaflow.errors import OutputError, ProgramError, RecordRefused
from tests.connect.postgres_server import USER, PostgresServer, binaries, query

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'megaflow[postgres]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(binaries() is None, reason="needs PostgreSQL: apt install postgresql"),
]


def opened(sink: DatabaseSink, worker: int = 0) -> DatabaseSink:
    own = copy(sink)
    own.open(SinkPlace("orders", worker, "job", True, "of tests"))
    return own


def in_parallel(calls: list[Any]) -> None:
    """Call the functions at once, in threads; raise the error of one that fails."""
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


COPIES_AND_INSERTS = {
    "INT": (1, "7", None, 2.5, Decimal("3.5")),
    "SMALLINT": (-5, True),
    "BIGINT": (1 << 40, 1e5),
    "TEXT": ("tab\t, line\n, \\\\., \\\\N, é", "", 5, True, 1e15, b"ab", Decimal("1.10")),
    "VARCHAR(3)": ("abc", "abc  ", "abcd", 1234),
    "CHAR(3)": ("a", "a   ", "abcd"),
    "BYTEA": (b"\0\\\\\n", "\\\\x0a"),
    "BOOL": (True, "off", 1),
    "FLOAT8": (0.1, 1e300, float("nan"), float("-inf"), -0.0, 7, 2**53 + 1, Decimal("0.1")),
    "FLOAT4": (0.1, 16777217, 1e39),
    "NUMERIC": (Decimal("1.10"), 0.1 + 0.2, 10**30, Decimal("NaN")),
    "NUMERIC(6, 2)": (Decimal("1.005"), 12345, Decimal("12345")),
    "DATE": (date(2024, 2, 29), datetime(2024, 2, 29, 23, 59), datetime(2024, 2, 29, 23, 59, tzinfo=UTC), "2024-1-1"),
    "TIMESTAMP": (datetime(2024, 1, 1, 1, 2, 3, 4), datetime(2024, 1, 1, tzinfo=UTC), date(2024, 1, 1)),
    "TIMESTAMPTZ": (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5.5))), date.max),
    "INTERVAL": (timedelta(days=40, microseconds=1), timedelta(days=-1, hours=3), "1 month"),
    "TIME": (time(1, 2, 3), time(1, 2, tzinfo=UTC), timedelta(hours=1)),
    "UUID": (UUID(int=7), str(UUID(int=8))),
    "JSON": ({"a": [1, "é"]}, "1.10", [1]),
    "JSONB": ({"a": Decimal("1.10")}, "1.10", 5),
    "INT[]": ([1, 2], "{3,4}", [[1], [2]]),
}


@pytest.mark.parametrize("kind", COPIES_AND_INSERTS)
def test_a_row_is_the_same_by_copy_and_by_insert(server: PostgresServer, place: str, kind: str) -> None:
    """The server's time zone is not UTC. A table with a rule does not allow COPY."""
    query(server, "ALTER DATABASE postgres SET timezone = 'Asia/Kolkata'")
    create = f"CREATE TABLE IF NOT EXISTS %s (a {kind})"
    sinks = {name: opened(DatabaseSink(place, name, ["a"], create=create % name)) for name in ("copied", "inserted")}
    query(server, "CREATE RULE never AS ON UPDATE TO inserted DO INSTEAD NOTHING")
    sinks["inserted"] = opened(DatabaseSink(place, "inserted", ["a"]))
    for number, value in enumerate(COPIES_AND_INSERTS[kind]):
        said = {}
        for name, sink in sinks.items():
            try:
                sink.deliver(number, f"{name} {number}", [(value,)])
                said[name] = ""
            except RecordRefused as refused:
                said[name] = str(refused).partition("LINE")[0].replace(name, "table")
        assert said["copied"] == said["inserted"], value
    found = [query(server, f"SELECT a::text, pg_column_size(a) FROM {name}") for name in sinks]
    assert found[0] == found[1] and found[0]


def test_json_takes_dicts_and_lists_and_keeps_digits(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS docs (id INT PRIMARY KEY, a JSON, b JSONB)"
    for key in ((), "id"):
        query(server, "DROP TABLE IF EXISTS docs, megaflow_marks")
        sink = opened(DatabaseSink(place, "docs", ["id", "a", "b"], key, create=create))
        value = {"price": Decimal("1.10"), "tags": ["a", None]}
        good = [(1, value, value), (2, [1], [2.5]), (3, "1.10", "1.10"), (4, None, None)]
        sink.check(good)
        sink.deliver(1, "a", good)
        assert query(server, "SELECT a::text, b::text FROM docs ORDER BY id") == [
            ('{"price": 1.10, "tags": ["a", null]}', '{"tags": ["a", null], "price": 1.10}'),
            ("[1]", "[2.5]"),
            ("1.10", "1.10"),
            (None, None),
        ]
        for wrong in ({1: 2}, [float("nan")], {"a": object()}, {"a": "\0"}):
            with pytest.raises(ProgramError, match="column 'b'"):
                sink.check([(5, {}, wrong)])


def test_months_of_an_interval_arrive_as_months(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS spans (span INTERVAL)"
    opened(DatabaseSink(place, "spans", ["span"], create=create)).deliver(1, "a", [("1 month",), ("1 mon -3 days",)])
    assert query(server, "SELECT span::text FROM spans") == [("1 mon",), ("1 mon -3 days",)]


def test_tables_that_copy_would_treat_otherwise_are_inserted_into(server: PostgresServer, place: str) -> None:
    """A rule, row security, a view and an identity column affect INSERT only."""
    query(
        server,
        "CREATE TABLE kept (a INT)",
        "CREATE VIEW seen AS SELECT a FROM kept",
        "CREATE TABLE ruled (a INT)",
        "CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO kept VALUES (NEW.a + 100)",
        "CREATE TABLE own (a INT GENERATED ALWAYS AS IDENTITY)",
        "CREATE TABLE parts (a INT) PARTITION BY RANGE (a)",
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE SCHEMA sales",
        'CREATE TABLE sales."Odd ""name""" (a INT)',
    )
    for table in ("seen", "ruled", "parts", ["sales", 'Odd "name"']):
        opened(DatabaseSink(place, table, ["a"])).deliver(1, f"of {table}", [(1,)])
    assert query(server, "SELECT a FROM kept UNION ALL TABLE parts") == [(1,), (101,), (1,)]
    assert query(server, 'SELECT a FROM sales."Odd ""name"""') == [(1,)]
    with pytest.raises(OutputError, match="non-DEFAULT value"):
        opened(DatabaseSink(place, "own", ["a"])).deliver(1, "own", [(1,)])


def test_rows_are_inserted_if_the_program_adapts_values(server: PostgresServer, place: str) -> None:
    class Loud(psycopg.adapt.Dumper):
        def dump(self, obj: str) -> bytes:
            return obj.upper().encode()

    def connect() -> Any:
        connection = psycopg.connect(server.url)
        connection.adapters.register_dumper(str, Loud)
        return connection

    create = "CREATE TABLE IF NOT EXISTS names (name TEXT)"
    opened(DatabaseSink(connect, "names", ["name"], create=create)).deliver(1, "a", [("ann",)])
    assert query(server, "SELECT name FROM names") == [("ANN",)]


def test_rows_are_inserted_if_the_server_refuses_copy(server: PostgresServer, place: str) -> None:
    """The server behaves like a pooler or a relative of PostgreSQL."""

    class NoCopy(psycopg.Cursor[Any]):
        def copy(self, *_: Any, **__: Any) -> Any:
            raise psycopg.errors.FeatureNotSupported("COPY is not supported")

    create = "CREATE TABLE IF NOT EXISTS names (name TEXT NOT NULL)"
    sink = opened(
        DatabaseSink(lambda: psycopg.connect(server.url, cursor_factory=NoCopy), "names", ["name"], create=create)
    )
    for token in "ab":
        sink.deliver(1, token, [("ann",), ("bob",)])
    with pytest.raises(RecordRefused, match="NotNullViolation"):
        sink.deliver(2, "c", [("cid",), (None,)])
    assert query(server, "SELECT name FROM names") == [("ann",), ("bob",)] * 2


def test_a_user_who_cannot_create_tables_writes_to_those_there(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = "CREATE TABLE IF NOT EXISTS rows (a INT)"
    opened(DatabaseSink(place, "rows", ["a"], create=create)).close()
    query(
        server,
        "DROP ROLE IF EXISTS bob",
        "CREATE ROLE bob LOGIN PASSWORD 'b_42'",
        "GRANT USAGE ON SCHEMA public TO bob",
        "GRANT SELECT, INSERT, DELETE ON rows, megaflow_marks TO bob",
    )
    monkeypatch.setenv("SHOP", f"postgresql://bob:b_42@/postgres?host={server.folder}")
    sink = opened(DatabaseSink(place, "rows", ["a"], create=create))
    sink.deliver(1, "a", [(1,)])
    assert query(server, "SELECT a FROM rows") == [(1,)]
    [said] = [each.getMessage() for each in caplog.records if "is not compared with the store" in each.getMessage()]
    assert "denied for table megaflow_deliveries" in said and "an administrator can make the table" in said
    assert sink.delivered is None, "so nobody asks it"
    since = monotonic()
    for table, column, said in (
        ("rows", "none", r'UndefinedColumn: column megaflow_rows\.none does not exist.* must exist, unless create='),
        ("none", "a", 'UndefinedTable: relation "none" does not exist.* must exist, unless create= creates it'),
    ):
        with pytest.raises(OutputError, match=said):
            opened(DatabaseSink(place, table, [column]))
    missing = 'relation "none" does not exist.*create= did not create it.*permission denied for schema public'
    with pytest.raises(OutputError, match=missing):
        opened(DatabaseSink(place, "none", ["a"], create="CREATE TABLE none (a INT)"))
    query(server, "CREATE TABLE secret (a INT)")
    with pytest.raises(OutputError, match=r"permission denied for table secret$"):
        opened(DatabaseSink(place, "secret", ["a"]))
    for right in ("INSERT", "DELETE", "ALL"):
        query(server, "GRANT ALL ON megaflow_marks TO bob", f"REVOKE {right} ON megaflow_marks FROM bob")
        with pytest.raises(OutputError, match="permission denied for table megaflow_marks; sinks select, insert and"):
            opened(DatabaseSink(place, "rows", ["a"]))
    query(server, "ALTER TABLE megaflow_marks RENAME TO hidden_marks")
    with pytest.raises(OutputError, match=r"denied for schema public.*CREATE TABLE IF NOT EXISTS .megaflow_"):
        opened(DatabaseSink(place, "rows", ["a"]))
    query(server, "ALTER TABLE hidden_marks RENAME TO megaflow_marks")
    assert monotonic() - since < 60, "nothing was tried again"


def test_no_row_is_blamed_for_a_missing_right_or_table(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = 'CREATE TABLE IF NOT EXISTS "Sums" (id INT PRIMARY KEY, n DOMAIN_N, CHECK (id <> n))'
    query(server, "CREATE DOMAIN DOMAIN_N AS INT NOT NULL", "SELECT 1")
    opened(DatabaseSink(place, "Sums", ["id", "n"], "id", create=create)).close()
    query(
        server,
        "DROP ROLE IF EXISTS cleo",
        "CREATE ROLE cleo LOGIN PASSWORD 'c_42'",
        "GRANT USAGE ON SCHEMA public TO cleo",
        'GRANT SELECT ON megaflow_marks, "Sums" TO cleo',
        "GRANT INSERT, DELETE ON megaflow_marks TO cleo",
    )
    monkeypatch.setenv("SHOP", f"postgresql://cleo:c_42@/postgres?host={server.folder}")
    sink = DatabaseSink(place, "Sums", ["id", "n"], "id")
    for right in ("INSERT", "UPDATE"):
        with pytest.raises(OutputError, match=r"permission denied for table Sums; the table.* let this user change"):
            opened(sink)
        query(server, f'GRANT {right} ON "Sums" TO cleo')
    sink = opened(sink)
    sink.deliver(1, "a", [(1, 2)])
    with pytest.raises(RecordRefused, match="check constraint"):
        sink.deliver(2, "b", [(1, 1)])
    with pytest.raises(OutputError, match="permission denied for table Sums") as refused:
        sink.deliver(2, "b", [(1, 3), Delete(1)])
    assert not isinstance(refused.value, RecordRefused)
    query(server, 'GRANT DELETE ON "Sums" TO cleo', 'ALTER TABLE "Sums" RENAME TO "Old"')
    with pytest.raises(OutputError, match='relation "Sums" does not exist') as refused:
        sink.deliver(2, "b", [(1, 3), Delete(1)])
    assert not isinstance(refused.value, RecordRefused)
    query(server, 'ALTER TABLE "Old" RENAME TO "Sums"')
    sink.deliver(2, "b", [(1, 3), Delete(1)])
    assert query(server, 'TABLE "Sums"') == []
    with pytest.raises(OutputError, match=r"no unique or exclusion.* and a primary key or unique index of exactly n"):
        opened(DatabaseSink(place, "Sums", ["id", "n"], "n"))


def test_rows_cost_less_than_twice_a_bare_copy_and_upserts_a_bare_one(server: PostgresServer, place: str) -> None:
    """Compares CPU time of this process, since the machine may be busy. The cost of the checks is included."""
    query(server, "CREATE TABLE totals (id INT PRIMARY KEY, name TEXT, at TIMESTAMPTZ, share FLOAT8)", "SELECT 1")
    query(server, "CREATE TABLE rows (LIKE totals)")
    columns, now = ["id", "name", "at", "share"], datetime(2024, 1, 1, tzinfo=UTC)
    rows = [(n, f"name {n}", now, n / 7) for n in range(20_000)]

    def sink(table: str, key: str) -> None:
        own = opened(DatabaseSink(place, table, columns, key or ()))
        for start in range(0, len(rows), 500):
            own.check(rows[start : start + 500])
        own.deliver(1, uuid4().hex, iter(rows))
        own.close()

    def bare_copy() -> None:
        with psycopg.connect(server.url) as connection, connection.cursor().copy("COPY rows FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def bare_upsert() -> None:
        newer = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
        with psycopg.connect(server.url) as connection:
            connection.cursor().executemany(
                f"INSERT INTO totals VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET {newer}", rows
            )

    def best(work: Callable[[], None]) -> float:
        seconds = []
        for _ in range(5):
            since = process_time()
            work()
            seconds.append(process_time() - since)
        return min(seconds)

    ratios = best(bare_copy) / best(lambda: sink("rows", "")), best(bare_upsert) / best(lambda: sink("totals", "id"))
    assert ratios[0] > 0.5 and ratios[1] > 0.5, ratios


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
    """Two workers deliver half of the tokens at once, as if a connection was lost after a commit."""
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
                assert came.acquire(timeout=360)
            server.kill()
            server.start()

    in_parallel([kill, *(lambda worker=worker: deliver(worker) for worker in sinks)])
    wanted = Counter({(worker, n): 20 for n in range(40) for worker in range(4 if n % 2 else 2)})
    assert Counter(query(server, "SELECT worker, n FROM rows")) == wanted
    assert query(server, "SELECT count(*) FROM megaflow_marks") == [(20 * 4 + 20 * 2,)]


def test_deadlocks_of_two_jobs_on_one_table_are_retried(
    server: PostgresServer, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    query(server, f"ALTER ROLE {USER} SET deadlock_timeout = '20ms'")
    create = "CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, job INT, total INT)"
    columns = ["name", "job", "total"]
    sinks = [opened(DatabaseSink(place, "totals", columns, "name", create=create), job) for job in range(2)]
    names = [f"name {number}" for number in range(300)]

    def deliver(job: int) -> None:
        for n in range(20):
            changes = [(name, job, n) if n % 3 else Delete(name) for name in (names if job else names[::-1])]
            sinks[job].deliver(n, f"{job}-{n}", changes)

    in_parallel([lambda job=job: deliver(job) for job in range(2)])
    found = query(server, "SELECT name, job, total FROM totals")
    assert sorted(name for name, _, _ in found) == sorted(names) and len({(job, total) for _, job, total in found}) == 1
    assert {total for _, _, total in found} == {19} and query(server, "SELECT count(*) FROM megaflow_marks") == [(40,)]
    assert "deadlock detected" in (server.folder / "log").read_text() and "attempt 3" not in caplog.text


def test_a_transaction_that_was_ended_is_tried_again_alone(server: PostgresServer, place: str) -> None:
    """No job can lose a race twice. A user without the right to lock the table proceeds without a lock."""
    query(server, "DROP ROLE IF EXISTS clerk", "CREATE TABLE t (n INT)", "CREATE ROLE clerk")
    query(server, "GRANT USAGE ON SCHEMA public TO clerk", "GRANT INSERT ON t TO clerk")
    locks = "SELECT count(*) FROM pg_locks WHERE mode = 'ShareRowExclusiveLock'"

    def write(cursor: Cursor) -> Any:
        lock_alone(cursor, '"t"')
        cursor.execute("INSERT INTO t VALUES (1)")
        return query(server, locks)

    def as_clerk() -> Any:
        connection = psycopg.connect(server.url)
        connection.execute("SET ROLE clerk")
        return connection

    assert Database(place, OutputError, 0).transaction(write) == [(1,)]
    assert Database(as_clerk, OutputError, 0).transaction(write) == [(0,)]
    assert query(server, "SELECT * FROM t") == [(1,), (1,)]


def test_a_try_after_a_lock_in_vain_needs_no_lock(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection keeps writing to the table, but to no row of the sink."""
    monkeypatch.setattr(postgres_rows, "LOCK_SECONDS", 1)
    query(server, "CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    sink = opened(DatabaseSink(place, "t", ["id", "n"], "id", patience_seconds=60))
    tries: list[str] = []

    class Records(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            tries.append("")
            if len(tries) == 1:
                raise psycopg.errors.DeadlockDetected("deadlock detected")
            return super().__iter__()

    with psycopg.connect(server.url) as connection:
        connection.execute("INSERT INTO t VALUES (2, 2)")
        sink.deliver(1, "a", Records([(1, 1)]))
        assert len(tries) == 2 and query(server, "SELECT * FROM t") == [(1, 1)]


def test_the_server_decides_which_keys_are_equal(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS spans (id UUID, began TIMESTAMPTZ, n INT, PRIMARY KEY (id, began))"
    sink = opened(DatabaseSink(place, "spans", ["id", "began", "n"], ["id", "began"], create=create))
    upper, lower = "C2A5F0D4-0000-4000-8000-00000000000A", "c2a5f0d4-0000-4000-8000-00000000000a"
    summer = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    winter = summer.replace(fold=1)
    sink.deliver(1, "a", [(upper, summer, 1), (lower, summer, 2), (lower, winter, 3), (UUID(lower), winter, 4)])
    assert query(server, "SELECT n FROM spans ORDER BY began") == [(2,), (4,)], "an hour apart"
    sink.deliver(2, "b", [(lower, summer, 5), Delete((upper, summer)), Delete((lower, winter)), (upper, winter, 6)])
    assert query(server, "SELECT n FROM spans") == [(6,)]


def test_a_wrong_password_and_a_server_that_is_gone_are_errors_without_the_password(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = "/nowhere/at_all"
    wrong, elsewhere = server.url.replace("ann:", "ann:hunter2"), server.url.replace(f"{server.folder}", gone)
    for url, shown, how_long in ((wrong, "", ""), (elsewhere, gone, " for 0 s")):
        monkeypatch.setenv("SHOP", url)
        with pytest.raises(OutputError, match=f"the database env:SHOP failed{how_long}: OperationalError:") as caught:
            opened(DatabaseSink(place, "t", ["a"], patience_seconds=0))
        assert "hunter2" not in str(caught.value) and server.password not in str(caught.value)
        assert shown in str(caught.value)


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


def test_a_connection_in_autocommit_keeps_no_row_of_a_failed_delivery(server: PostgresServer, place: str) -> None:
    create = "CREATE TABLE IF NOT EXISTS rows (id INT PRIMARY KEY, name TEXT NOT NULL)"
    connect = lambda: psycopg.connect(server.url, autocommit=True)  # noqa: E731
    sink = opened(DatabaseSink(connect, "rows", ["id", "name"], create=create))
    sink.deliver(1, "a", [(1, "a")])
    with pytest.raises(RecordRefused, match=r"refuses the row \(3, None\)"):
        sink.deliver(2, "b", [(2, "b"), (3, None)])
    assert query(server, "SELECT id FROM rows") == [(1,)]
    assert query(server, "SELECT token FROM megaflow_marks") == [("a",)]
    sink.deliver(2, "b", [(2, "b")])
    assert query(server, "SELECT id FROM rows ORDER BY 1") == [(1,), (2,)]
    assert "already a transaction in progress" not in (server.folder / "log").read_text()
