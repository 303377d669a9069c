"""A database by DB-API 2: its place, retries after errors, and no password in an error, repr or address."""

import sqlite3
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from megaflow.connect.database import Cursor, Database, paramstyle_of
from megaflow.connect.database_address import secret_of, shown_address, without_secrets
from megaflow.connect.database_sink import DatabaseSink
from megaflow.connect.query_source import QuerySource
from megaflow.connect.sink import SinkPlace
from megaflow.connect.transient_errors import TryAgain, is_denied, may_pass
from megaflow.errors import MegaflowError, OutputError, UsageError
from megaflow.timely.dataflow.running_place import RunningPlace, place_of

SECRET = "hunter2_Zq"


def one(cursor: Cursor) -> Any:
    cursor.execute("SELECT 1")
    return cursor.rows()


def test_a_file_of_sqlite_is_read_and_written_in_transactions(tmp_path: Path) -> None:
    database = Database(f"sqlite:{tmp_path / 'a.db'}", OutputError, 0, may_create=True)
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


def test_a_path_that_sqlite_cannot_take_is_refused() -> None:
    with pytest.raises(UsageError, match="takes only paths in UTF-8"):
        Database("sqlite:shop\udcff.db", OutputError, 0)


class Refused(ConnectionError):
    """An error of a driver that reveals all it knows."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for psycopg whose error shows its arguments."""
    module = ModuleType("psycopg")

    def connect(text: str, **_: Any) -> None:
        raise Refused(f'connection to "{text}" failed: {SECRET} is not the password, nor is "p@ss w"')

    module.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg", module)
    return module


def kept_in(kind: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the place of a database's text: in the environment, or in a file."""
    if kind == "env":
        monkeypatch.setenv("SHOP", text)
        return "env:SHOP"
    path = folder / "shop.secret"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return f"file:{path}"


@pytest.mark.parametrize("kind", ["env", "file"])
@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@host:5/shop?x=p%40ss+w",
        f"host=db user=ann password='{SECRET} p@ss w'",
        f"mysql://ann:{SECRET}@host:5/shop?x=p@ss&y=w",
        f"ann:{SECRET}@host/p@ss?x=w",
    ],
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
    while error is not None:  # a log shows the first of these two, a debugger both
        said = "".join(traceback.format_exception(error))
        assert "hunter2" not in said and "p@ss" not in said and "Refused: connection to" in said, said
        error = error.__context__
    assert "hunter2" not in f"{sink!r}{vars(sink)}{database!r}{vars(database)}"


def test_what_an_address_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.secret"
    path.write_text(f"sqlite:{tmp_path / 'a.db'}")
    (tmp_path / "a.db").touch()
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


@pytest.mark.parametrize("kind", ["env", "file"])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann@db.shop.example:5/shop", 'connection to "postgresql://ann@db.shop.example:5/shop" failed'),
        (f"postgresql://ann:{SECRET}@db.shop.example/shop", 'to "postgresql://ann:…@db.shop.example/shop" failed'),
        (f"postgresql://db.shop.example/shop?user=ann&password={SECRET}", "://db.shop.example/shop?user=ann&password=…"),
        ("host=db.shop.example user=ann", 'connection to "host=db.shop.example user=ann" failed'),
        (f"postgresql://ann:{SECRET}/x@db.shop.example/shop", 'to "postgresql://…:…/…@…'),
        (f"postgresql://ann:x@{SECRET}@db.shop.example/shop", 'to "postgresql://…:…@…@…'),
    ],
)
def test_errors_show_all_of_an_address_but_its_password(
    kind: str, text: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("psycopg")

    def connect(text: str, **_: Any) -> None:
        raise Refused(f'connection to "{text}" failed')

    module.connect = connect  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg", module)
    with pytest.raises(OutputError) as caught:
        Database(kept_in(kind, text, tmp_path, monkeypatch), OutputError, 0).transaction(one)
    assert shown in str(caught.value) and "hunter2" not in str(caught.value), str(caught.value)


def test_what_a_transaction_waits_for_is_seen_by_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[RunningPlace | None] = []

    class Connection:
        autocommit = False

        def cursor(self) -> Any:
            raise ConnectionError("the server does not answer")

        def close(self) -> None:
            places.append(place_of(sys._getframe()))
            if len(places) == 3:
                raise KeyboardInterrupt

    module = ModuleType("psycopg")
    module.paramstyle = "qmark"  # type: ignore[attr-defined]
    module.connect = lambda *_, **__: Connection()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "psycopg", module)
    monkeypatch.setattr(Connection, "__module__", "psycopg")
    place = kept_in("env", f"postgresql://ann:{SECRET}@db:5/shop", tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        Database(place, OutputError, 60).transaction(one)
    said = [place.waits for place in places if place is not None]
    trouble = "ConnectionError: the server does not answer"
    assert said == [
        "the database env:SHOP, attempt 1",
        f"the database env:SHOP at db:5/shop, attempt 2 ({trouble})",
        f"the database env:SHOP at db:5/shop, attempt 3 ({trouble})",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann@db-1.example/passport?sslmode=verify-full&sslrootcert=/etc/db/example/ca.pem",
        "postgresql://ann@db-1.example/passport?options=-csearch_path%3Dexample&target_session_attrs=any",
        "postgresql://ann@[fe80::1%25eth0]:5432/example",
        "host=db-1.example user=ann dbname=passport",
        "host=db-1.example user = 'ann example' passfile=/home/example/.pgpass",
    ],
)
def test_no_host_is_hidden_if_the_address_has_no_secret(text: str) -> None:
    said = 'connection to server at "db-1.example" (fe80::1), port 5432 failed for ann'
    assert without_secrets(said, secret_of(text)) == said
    assert shown_address(text).startswith(("db-1.example", "[fe80"))


@pytest.mark.parametrize(
    "text",
    [
        "host=db password='p\\'w blue42' user=ann",
        "host=db pasword=blue42",
        "host=db password=w blue42",
        "postgresql://ann@db/shop?sslpassword=blue42",
        "postgresql://ann@db/shop?scram_client_key=blue42",
        "postgresql://ann:blue42@[fe80::1%25eth0]/shop",
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text: str) -> None:
    assert "blue42" not in without_secrets(f"cannot use {text}: blue42", secret_of(text))


def test_words_of_a_secret_are_left_out_and_no_others() -> None:
    assert without_secrets("no host db1 for user ann", "host=db1 user=ann") == "no host … for user …"


class Lost(Exception):
    """A driver's error."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words)
        vars(self).update(more)


class OperationalError(Lost):
    """The class with the name that DB-API 2 prescribes."""


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
    """Return a function that first raises each of these errors, then connects."""

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


def test_a_connection_of_no_driver_is_refused() -> None:
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


@pytest.mark.parametrize("made", ["source", None, False])
def test_mistyped_path_of_sqlite_makes_no_file(tmp_path: Path, made: Any) -> None:
    place = f"sqlite:{tmp_path / 'shp%20#?.db'}"
    with pytest.raises(MegaflowError, match=r"no file '.*shp%20#[?].db', and nothing creates it"):
        if made == "source":
            QuerySource(place, "items", "id").open("query", None).read(5)
        else:
            DatabaseSink(place, "items", ["id"], create=made).open(SinkPlace("items", 0, "job", True))
    assert [*tmp_path.iterdir()] == []
    sink = DatabaseSink(place, "items", ["id"], create="CREATE TABLE IF NOT EXISTS items (id INTEGER)")
    sink.open(SinkPlace("items", 0, "job", True))
    assert [path.name for path in tmp_path.iterdir()] == ["shp%20#?.db"]


def of_driver(module: str, *args: Any) -> Exception:
    """Return an OperationalError as a driver raises it."""
    kind = type("OperationalError", (Exception,), {"__module__": module})
    return cast(Exception, kind(*args))


SERVER = 'connection failed: connection to server at "db", port 5432 failed: FATAL:  '


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (of_driver("psycopg", f'{SERVER}password authentication failed for user "ann"'), False),
        (of_driver("psycopg2", f'{SERVER}database "shop" does not exist'), False),
        (of_driver("psycopg", f'{SERVER}permission denied for database "shop"\nDETAIL:  No CONNECT.'), False),
        (of_driver("psycopg", f"{SERVER}the database system is starting up"), True),
        (of_driver("psycopg", f"{SERVER}sorry, too many clients already"), True),
        (of_driver("psycopg", "connection to server at x failed: Connection refused\n\tIs the server running"), True),
        (of_driver("psycopg", f'{SERVER}role "eve" does not exist\nAll failures:\n- host: a: x failed: Connection '
                              f'refused\n- host: b: {SERVER}role "eve" does not exist'), True),
        (of_driver("pymysql.err", 1045, "Access denied for user 'ann'@'db' (using password: YES)"), False),
        (of_driver("pymysql.err", 1049, "Unknown database 'shop'"), False),
        (of_driver("pymysql.err", 2003, "Can't connect to MySQL server on 'db'"), True),
    ],
)  # fmt: skip
def test_refused_user_or_database_fails_at_once(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


@pytest.mark.parametrize(
    ("error", "denied"),
    [
        (of_driver("pymysql.err", 1142, "SELECT command denied to user 'ann'@'db' for table 'orders'"), True),
        (of_driver("pymysql.err", 1146, "Table 'shop.denied' doesn't exist"), False),
        (of_driver("pg8000", {"C": "42501", "M": "keine Berechtigung für Tabelle orders"}), True),
        (of_driver("pg8000", {"C": "42P01", "M": 'relation "denied" does not exist'}), False),
        (OperationalError("no such table: denied"), False),
    ],
)
def test_a_missing_right_is_told_by_its_code(error: Exception, denied: bool) -> None:
    assert is_denied(error) is denied


def test_a_reason_that_repeats_is_logged_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    errors = [ConnectionError("down")] * 4

    def work(cursor: Cursor) -> None:
        if errors:
            raise errors.pop()

    Database(lambda: sqlite3.connect(":memory:"), OutputError, 9.0).transaction(work)
    attempts = [record.getMessage().partition("attempt ")[2].partition(" ")[0] for record in caplog.records]
    assert attempts == ["2", "4"]


def test_each_retry_logs_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    errors = [ConnectionError("first"), TryAgain("another worker is making it"), ConnectionError("second")]

    def work(cursor: Cursor) -> None:
        if errors:
            raise errors.pop(0)

    Database(lambda: sqlite3.connect(":memory:"), OutputError, 9.0).transaction(work)
    assert [record.getMessage().partition("failed; ")[2] for record in caplog.records] == [
        "attempt 2 follows: ConnectionError: first", "attempt 4 follows: ConnectionError: second",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["wal", "delete"])
@pytest.mark.parametrize("is_function", [False, True])
def test_rows_go_to_the_file_that_has_the_name(tmp_path: Path, mode: str, is_function: bool) -> None:
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute(f"PRAGMA journal_mode={mode}")
        made.execute("CREATE TABLE t (a PRIMARY KEY)")
    place: Any = (lambda: sqlite3.connect(path)) if is_function else f"sqlite:{path}"
    database = Database(place, OutputError, 5.0, writes=True)

    def write(cursor: Cursor, number: int) -> None:
        cursor.execute("INSERT OR IGNORE INTO t VALUES (\0)", number)

    def rows() -> list[Any]:
        with closing(sqlite3.connect(path)) as found:
            return found.execute("SELECT a FROM t ORDER BY a").fetchall()

    def exchange() -> None:
        with closing(sqlite3.connect(path)) as found, closing(sqlite3.connect(copy)) as other:
            found.backup(other)
        copy.replace(path)

    for number in range(2):
        database.transaction(partial(write, number=number))
        exchange()
    tries: list[int] = []

    def write_and_exchange(cursor: Cursor) -> None:
        write(cursor, 2)
        tries.append(1)
        if len(tries) == 1:  # the new file lacks what this transaction commits to the old one
            exchange()

    database.transaction(write_and_exchange)
    assert rows() == [(0,), (1,), (2,)] and len(tries) == 2
    path.unlink()
    if not is_function:
        with pytest.raises(OutputError, match=r"no file '.*a\.db'"):
            database.transaction(partial(write, number=3))
        assert not path.exists()


def test_link_to_another_file_of_sqlite_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "now.db"
    for each in ("a.db", "b.db"):
        with closing(sqlite3.connect(tmp_path / each)) as made:
            made.execute(f"CREATE TABLE t AS SELECT '{each}' AS a")
    link.symlink_to("a.db")
    database = Database(f"sqlite:{link}", OutputError, 5.0)

    def read(cursor: Cursor) -> Any:
        cursor.execute("SELECT a FROM t")
        return cursor.rows()

    assert database.transaction(read) == [("a.db",)]
    link.unlink()
    link.symlink_to("b.db")
    assert database.transaction(read) == [("b.db",)]
