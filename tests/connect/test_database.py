"""A database by DB-API 2: where it is, what is tried again, and that no error, repr or address has a password."""

import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from megaflow.connect.database import Cursor, Database, may_pass, paramstyle_of, without_secrets
from megaflow.connect.database_sink import DatabaseSink
from megaflow.errors import OutputError, UsageError

SECRET = "hunter2_Zq"


def one(cursor: Cursor) -> Any:
    cursor.execute("SELECT 1")
    return cursor.rows()


def test_a_file_of_sqlite_is_read_and_written_in_transactions(tmp_path: Path) -> None:
    database = Database(f"sqlite:{tmp_path / 'a.db'}", OutputError, 0)
    database.transaction(lambda cursor: cursor.execute("CREATE TABLE t (a)"))

    def fail(cursor: Cursor) -> None:
        cursor.execute("INSERT INTO t VALUES (1)")
        raise ValueError("not this one")

    with pytest.raises(OutputError, match="ValueError: not this one"):
        database.transaction(fail)
    database.transaction(lambda cursor: cursor.execute_each("INSERT INTO t VALUES (\0)", [[2], [3]]))

    def read(cursor: Cursor) -> Any:
        cursor.execute("SELECT a AS found FROM t ORDER BY a")
        return cursor.columns(), cursor.rows()

    assert database.transaction(read) == (["found"], [(2,), (3,)])
    database.close()
    database.close()


def test_rows_are_tuples_whatever_the_connection_makes_of_them(tmp_path: Path) -> None:
    def as_dicts() -> sqlite3.Connection:
        connection = sqlite3.connect(tmp_path / "a.db")
        connection.row_factory = lambda cursor, row: dict(zip([column[0] for column in cursor.description], row))
        return connection

    assert Database(as_dicts, OutputError, 0).transaction(one) == [(1,)]


@pytest.mark.parametrize(
    "place",
    [
        7, "", "shop.db", f"oracle://ann:{SECRET}@host/shop", f"password={SECRET}", f"postgresql://ann:{SECRET}@host/shop",
        f"postgres://host/shop?user=ann&password={SECRET}", f"postgresql://ann:{SECRET}@[host/shop", "env:", "sqlite:",
    ],
)  # fmt: skip
def test_an_address_with_a_password_or_of_nothing_is_refused_without_its_words(place: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Database(place, OutputError, 0)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


class Refused(ConnectionError):
    """What a driver raises that says all it knows."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands in for psycopg, and shows in its error what it was given."""
    module = ModuleType("psycopg")

    def connect(text: str, **_: Any) -> None:
        raise Refused(f'connection to "{text}" failed: {SECRET} is not the password, nor is "p@ss w"')

    module.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg", module)
    return module


def kept_in(kind: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where the text of a database is: in the environment, or in a file."""
    if kind == "env":
        monkeypatch.setenv("SHOP", text)
        return "env:SHOP"
    path = folder / "shop.secret"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return f"file:{path}"


@pytest.mark.parametrize("kind", ["env", "file"])
@pytest.mark.parametrize(
    "text", [f"postgresql://ann:{SECRET}@host:5/shop?x=p%40ss+w", f"host=db user=ann password='{SECRET} p@ss w'"]
)
def test_a_password_is_in_no_error_nor_repr_nor_in_what_the_sink_holds(
    kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: ModuleType
) -> None:
    place = kept_in(kind, text, tmp_path, monkeypatch)
    sink = DatabaseSink(place, "t", ["a"], patience_seconds=0)
    database = Database(place, OutputError, 0)
    with pytest.raises(OutputError, match=r"SHOP|shop\.secret") as caught:
        database.transaction(one)
    error: BaseException | None = caught.value
    while error is not None:  # what a log shows is the first of these two, a debugger both
        said = "".join(traceback.format_exception(error))
        assert "hunter2" not in said and "p@ss" not in said and "Refused: connection to" in said, said
        error = error.__context__
    assert "hunter2" not in f"{sink!r}{vars(sink)}{database!r}{vars(database)}"


def test_what_an_address_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.secret"
    path.write_text(f"sqlite:{tmp_path / 'a.db'}")
    path.chmod(0o644)
    with pytest.raises(OutputError, match="other users can read this file: chmod 600"):
        Database(f"file:{path}", OutputError, 0).transaction(one)
    path.chmod(0o600)
    assert Database(f"file:{path}", OutputError, 0).transaction(one) == [(1,)]
    with pytest.raises(OutputError, match="cannot read the file: FileNotFoundError"):
        Database(f"file:{path}2", OutputError, 0).transaction(one)
    monkeypatch.delenv("SHOP", raising=False)
    with pytest.raises(OutputError, match="environment variable SHOP is not set"):
        Database("env:SHOP", OutputError, 0).transaction(one)
    monkeypatch.setenv("SHOP", "sqlit:hunter2.db")
    with pytest.raises(OutputError, match=r"env:SHOP: .* not an address: write sqlite:PATH or postgres") as refusal:
        Database("env:SHOP", OutputError, 0).transaction(one)
    assert "hunter2" not in str(refusal.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"pip install 'megaflow\[postgres\]'"):
        Database("postgresql://host/shop", OutputError, 0).transaction(one)


def test_words_of_a_secret_are_left_out_and_no_others() -> None:
    assert without_secrets("no host db1 for user ann", "host=db1 user=ann") == "no host … for user …"


class Lost(Exception):
    """A driver's error."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words)
        vars(self).update(more)


class OperationalError(Lost):
    """The name that DB-API 2 gives it."""


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OperationalError("server closed the connection"), True),
        (OperationalError("deadlock", sqlstate="40P01"), True),
        (OperationalError("too many connections", sqlstate="53300"), True),
        (OperationalError("wrong password", sqlstate="28P01"), False),
        (Lost("could not serialize", pgcode="40001"), True),
        (Lost("no such table", pgcode="42P01"), False),
        (Lost({"C": "57P01", "M": "shut down"}), True),
        (Lost({"C": "23505"}), False),
        (ConnectionResetError(), True),
        (FileNotFoundError(), False),
        (OperationalError("busy", sqlite_errorcode=sqlite3.SQLITE_BUSY_SNAPSHOT), True),
        (OperationalError("no such table", sqlite_errorcode=sqlite3.SQLITE_ERROR), False),
    ],
)
def test_what_may_pass_is_told_by_code_or_by_name(error: Exception, passes: bool) -> None:
    assert may_pass(error) == passes


def connecting(folder: Path, failures: list[Exception]) -> Callable[[], sqlite3.Connection]:
    """Return a function that connects, once it has raised all these."""

    def connect() -> sqlite3.Connection:
        if failures:
            raise failures.pop()
        return sqlite3.connect(folder / "a.db")

    return connect


def test_a_lost_connection_is_made_again_and_the_work_done_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def work(cursor: Cursor) -> Any:
        tries.append(len(tries))
        if len(tries) == 1:
            raise OperationalError("server closed the connection")
        return one(cursor)

    failures: list[Exception] = [ConnectionRefusedError("not yet")]
    database = Database(connecting(tmp_path, failures), OutputError, 60)
    assert database.transaction(work) == [(1,)] and tries == [0, 1] and not failures


def test_patience_has_an_end_and_what_cannot_pass_gets_none(tmp_path: Path) -> None:
    refused: list[Exception] = [ConnectionRefusedError("nobody listens")] * 3
    with pytest.raises(OutputError, match=r"database of connect\(\) failed for 0 s: ConnectionRefusedError: nobody"):
        Database(connecting(tmp_path, refused), OutputError, 0).transaction(one)
    wrong: list[Exception] = [KeyError("DSN")]
    with pytest.raises(OutputError, match="failed: KeyError: 'DSN'"):
        Database(connecting(tmp_path, wrong), OutputError, 60).transaction(one)


def test_a_connection_in_autocommit_or_of_no_driver_is_refused(tmp_path: Path) -> None:
    def autocommit() -> Any:
        return sqlite3.connect(tmp_path / "a.db", isolation_level=None)

    with pytest.raises(OutputError, match=r"database of autocommit\(\) returned a connection in autocommit"):
        Database(autocommit, OutputError, 60).transaction(one)
    with pytest.raises(OutputError, match="returned a object, which is not a connection"):
        Database(object, OutputError, 60).transaction(one)


def test_the_paramstyle_of_a_driver_is_found_at_the_packages_above_its_connections(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("driver")
    package.paramstyle = "format"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "driver", package)
    kind = type("Connection", (), {"__module__": "driver.inner.connections"})
    assert paramstyle_of(type("Own", (kind,), {})) == "format" and paramstyle_of(int) is None
