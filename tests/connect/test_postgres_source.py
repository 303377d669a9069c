"""Queries of a PostgreSQL server: each row once for any exact order, unchanged values, refused logins."""

from datetime import timedelta
from typing import Any

import pytest

from megaflow.connect.database_sink import DatabaseSink
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.connect.source_protocol import Exhausted
from megaflow.errors import OutputError, SourceError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.connect.postgres_server import PostgresServer, binaries, query

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'megaflow[postgres]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(binaries() is None, reason="needs PostgreSQL: apt install postgresql"),
]


def rows(source: QuerySource, partition: Any = "query", limit: int = 3) -> list[Any]:
    """Return all records of a source, as lists; a new reader reads each list."""
    found, position = [], None
    while True:
        reader = source.open(partition, position)
        got = reader.read(limit)
        reader.close()
        if isinstance(got, Exhausted):
            return found
        assert isinstance(got, tuple)
        found += got[0]
        position = decode(encode(got[1]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("ann:{password}", "ann:wrong"), 'password authentication failed for user "ann"'),
        (("/postgres?", "/shp?"), 'database "shp" does not exist'),
        (("ann:{password}", "bob:x"), 'permission denied for database "postgres"'),
        (("ann:{password}", "eve:x"), "authentication failed"),
    ],
)
def test_refused_login_fails_at_once_with_the_sentence_of_the_server(
    server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], said: str
) -> None:
    query(server, "DROP ROLE IF EXISTS bob", "CREATE ROLE bob LOGIN PASSWORD 'x'")
    query(server, "REVOKE CONNECT ON DATABASE postgres FROM public")
    monkeypatch.setenv("SHOP", server.url.replace(change[0].format(password=server.password), change[1]))
    monkeypatch.setattr("megaflow.connect.database.time.sleep", pytest.fail)
    for opening in (
        lambda: rows(QuerySource(place, "items", "id")),
        lambda: DatabaseSink(place, "items", ["id"]).open(SinkPlace("items", 0, "job", True)),
    ):
        with pytest.raises((SourceError, OutputError), match=said):
            opening()


def test_missing_right_fails_at_once(server: PostgresServer, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    query(server, "DROP ROLE IF EXISTS bob", "CREATE ROLE bob LOGIN PASSWORD 'x'", "CREATE TABLE items (id INT)")
    query(server, "GRANT CONNECT ON DATABASE postgres TO public", "GRANT USAGE ON SCHEMA public TO public")
    monkeypatch.setenv("SHOP", server.url.replace(f"ann:{server.password}", "bob:x"))
    monkeypatch.setattr("megaflow.connect.database.time.sleep", pytest.fail)
    with pytest.raises(SourceError, match="permission denied for"):
        rows(QuerySource(place, "items", "id"))


def test_columns_are_matched_as_the_database_quotes(server: PostgresServer, place: str) -> None:
    query(server, 'CREATE TABLE items AS SELECT 100 - n AS "ID", n AS id FROM generate_series(1, 50) n')
    by_id = [{"ID": 100 - n, "id": n} for n in range(1, 51)]
    assert rows(QuerySource(place, "items", "id", as_=dict)) == by_id
    assert rows(QuerySource(place, "items", "ID", as_=dict)) == by_id[::-1]
    twice = "SELECT id, id + 1 AS n, id + 2 AS n FROM items"
    assert rows(QuerySource(place, twice, "id"))[0] == (1, 2, 3)
    with pytest.raises(SourceError, match="two columns of the query have the name 'n'"):
        rows(QuerySource(place, twice, "id", as_=dict))
    with pytest.raises(SourceError, match="ambiguous"):
        rows(QuerySource(place, twice, "n"))


def test_four_byte_floats_are_refused_as_an_order(server: PostgresServer, place: str) -> None:
    query(server, "CREATE TABLE items AS SELECT (n / 10.0)::real AS at FROM generate_series(1, 50) n")
    for limit in (1, 3, 300):
        with pytest.raises(SourceError, match="4-byte floats to DOUBLE PRECISION"):
            rows(QuerySource(place, "items", "at"), limit=limit)
    assert len(rows(QuerySource(place, "SELECT at::double precision AS at FROM items", "at"))) == 50


@pytest.mark.parametrize(
    "column",
    [
        "timestamptz '2024-10-27 00:30+02' + n * interval '20 minutes 1 microsecond'", "'a' || chr(64 + n)",
        "decode(lpad(n::text, 4, '0'), 'hex')", "('00000000-0000-4000-8000-0000000000' || (n + 10))::uuid",
        "date '2024-01-01' + n", "n * interval '1 day'", "n::double precision / 7", "(n % 2)::text || n",
        "n::numeric / 8",
    ],
)  # fmt: skip
def test_order_of_any_exact_type_is_read_from_any_position_on(server: PostgresServer, place: str, column: str) -> None:
    query(server, "ALTER ROLE ann SET timezone = 'Europe/Berlin'")  # where the hour from 2 to 3 comes twice on that day
    query(server, f"CREATE TABLE items AS SELECT {column} AS at, n FROM generate_series(1, 20) n")
    wanted = [row for row, in query(server, "SELECT n FROM items ORDER BY at")]
    for limit in (1, 3, 300):
        assert [row[1] for row in rows(QuerySource(place, "items", "at"), limit=limit)] == wanted


def test_rows_of_equal_times_are_read_in_a_compound_order_and_in_ranges(server: PostgresServer, place: str) -> None:
    query(server, "CREATE TABLE items AS SELECT n / 7 AS at, n AS id FROM generate_series(1, 100) n")
    text = "SELECT at, id FROM items WHERE id % :divisor <> 0 -- some; of them\n;"
    wanted = [(n // 7, n) for n in range(1, 101) if n % 5]
    made = QuerySource(place, text, order_by=("at", "id"), params={"divisor": 5}, partitions=4)
    assert rows(made) == wanted
    found = [rows(made, partition) for partition in made.discover()]
    assert [row for some in found for row in some] == wanted and {*map(len, found)} == {20}


def test_interval_of_months_is_refused_and_json_numbers_stay_exact(server: PostgresServer, place: str) -> None:
    def of(value: str, as_text: str = "") -> Any:
        return rows(QuerySource(place, f"SELECT 1 AS id, {value}{as_text} AS value", "id"))[0][1]

    for value in ("interval '1 month'", "interval '-1 year'", "array[interval '1 day', interval '1 mon 2 days']"):
        with pytest.raises(SourceError, match="has months, whose lengths differ, so no timedelta equals it; cast it"):
            of(value)
    assert of("interval '1 month'", "::text") == "1 mon"
    assert of("interval '1 day 2 hours'") == timedelta(days=1, hours=2)
    for kind in ("json", "jsonb"):
        found = of(f"'{{\"price\": 1.10, \"n\": 3, \"big\": 0.1234567890123456789}}'::{kind}")
        assert {name: str(value) for name, value in found.items()} == {
            "price": "1.10", "n": "3", "big": "0.1234567890123456789",
        }  # fmt: skip


def test_loaders_of_the_program_stay(server: PostgresServer, place: str) -> None:
    def connect() -> Any:
        connection = psycopg.connect(server.url)
        connection.adapters.register_loader("interval", psycopg.types.string.TextLoader)
        psycopg.types.json.set_json_loads(lambda text: ["own", text], connection)
        return connection

    values = "SELECT 1 AS id, interval '1 month' AS a, '1.10'::jsonb AS b"
    assert rows(QuerySource(connect, values, "id")) == [(1, "1 mon", ["own", b"1.10"])]
