"""A PostgreSQL server for the tests of one module. Each test gets its database without tables."""

from collections.abc import Iterator

import pytest

from tests.connect.postgres_server import PostgresServer, query


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    running = PostgresServer()
    yield running
    running.remove()


@pytest.fixture
def place(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the database's URL. The database has no tables."""
    monkeypatch.setenv("SHOP", server.url)
    query(server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return "env:SHOP"
