"""The database sink, driven by hand as a job drives it: each token's rows once; for each key, the last row."""

import sqlite3
import tracemalloc
from collections import namedtuple
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.connect import database_sink, table_rows
from megaflow.connect.database_sink import DatabaseSink, Delete
from megaflow.connect.sink import SinkPlace
from megaflow.errors import OutputError, ProgramError, RecordRefused, UsageError

CREATE = "CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, total INTEGER)"


def opened(sink: DatabaseSink, worker: int = 0) -> DatabaseSink:
    """Return the sink as a worker opens it."""
    own = copy(sink)
    own.open(SinkPlace("to totals", worker, "job", True))
    return own


class Totals:
    """An SQLite file with a table."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "totals.db"
        self.connection = sqlite3.connect(self.path)

    def sink(self, key: str = "", **options: Any) -> DatabaseSink:
        return DatabaseSink(f"sqlite:{self.path}", "totals", ["name", "total"], key or (), create=CREATE, **options)

    def query(self, text: str = "SELECT name, total FROM totals ORDER BY 1, 2") -> list[tuple[Any, ...]]:
        return self.connection.execute(text).fetchall()


@pytest.fixture
def totals(tmp_path: Path) -> Totals:
    return Totals(tmp_path)


def test_what_a_token_stands_for_is_written_once_whoever_delivers_it_again(totals: Totals) -> None:
    sink = opened(totals.sink())
    sink.deliver(1, "a", iter([("x", 1), ["y", 2]]))
    sink.deliver(1, "a", iter([("x", 1), ["y", 2]]))
    sink.close()
    other = opened(totals.sink(), worker=1)
    other.deliver(2, "a", iter([("x", 1), ["y", 2]]))
    other.deliver(2, "b", iter([("z", 3)]))
    other.deliver(3, "c", iter([]))
    assert totals.query() == [("x", 1), ("y", 2), ("z", 3)]
    assert totals.query("SELECT token, sink FROM megaflow_marks") == [(each, "to totals") for each in "abc"]
    assert totals.query("SELECT written_at IS NOT NULL FROM megaflow_marks") == [(1,)] * 3


def test_a_sink_tells_what_it_has_delivered_of_each_lineage(totals: Totals) -> None:
    place = SinkPlace("to totals", 0, "job", True, "first")
    sink = totals.sink()
    sink.open(place)
    assert sink.delivered("first") is None
    sink.deliver(3, "a", [("x", 1)])
    sink.deliver(12, "b", [("y", 2)])
    assert (sink.delivered("first"), sink.delivered("second")) == ((12, ["b"]), None)
    other = totals.sink()
    other.open(replace(place, lineage="second"))
    other.deliver(4, "b", [("y", 2)])
    found = sink.delivered("first"), other.delivered("second")
    assert found == ((3, ["a"]), (4, ["b"])), "a job of another lineage goes on with b"
    create = CREATE.replace("totals", "sums")
    elsewhere = DatabaseSink(f"sqlite:{totals.path}", "sums", ["name", "total"], create=create)
    elsewhere.open(place)
    assert elsewhere.delivered("first") is None, "of another table"
    same = DatabaseSink(f"sqlite:{totals.path}", "main.totals", ["name", "total"])
    same.open(place)
    assert same.delivered("first") == (3, ["a"])
    same.deliver(3, "c", [("z", 3)])
    same.deliver(3, "c", [("z", 3)])
    upper = DatabaseSink(f"sqlite:{totals.path}", "TOTALS", ["name", "total"])
    upper.open(place)
    n, tokens = upper.delivered("first") or (0, [])
    assert (n, sorted(tokens)) == (3, ["a", "c"]), "of two workers, to a table whose names SQLite takes for one"
    assert totals.query() == [("x", 1), ("y", 2), ("z", 3)]
    assert totals.query("SELECT count(*) FROM megaflow_deliveries") == [(3,)], "probes are removed"
    totals.connection.execute("UPDATE megaflow_deliveries SET target = REPLACE(target, 'main', 'shop')")
    totals.connection.commit()
    assert upper.delivered("first") == (n, tokens), "a dump was restored as another database"
    assert (same.delivered("first"), elsewhere.delivered("first")) == (None, None)


def test_sinks_of_one_table_tell_their_own_deliveries(totals: Totals) -> None:
    first, second, renamed = totals.sink(), totals.sink(), totals.sink()
    for sink, name in ((first, "first"), (second, "second"), (renamed, "renamed")):
        sink.open(SinkPlace(name, 0, "job", True, "lineage"))
    first.deliver(7, "a", [("x", 1)])
    second.deliver(9, "b", [("y", 2)])
    second.deliver(9, "c", [("z", 3)])
    assert (first.delivered("lineage"), second.delivered("lineage")) == ((7, ["a"]), (9, ["b", "c"]))
    assert renamed.delivered("lineage") == (9, ["b", "c"]), "it has none of its own"


def test_a_database_that_is_restored_while_the_job_runs_gets_no_more_rows(totals: Totals, tmp_path: Path) -> None:
    place = SinkPlace("to totals", 0, "job", True, "first")
    one, other = totals.sink(), totals.sink()
    one.open(place)
    other.open(replace(place, worker=1))
    one.deliver(1, "a", [("x", 1)])
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        totals.connection.backup(copy)
        other.deliver(1, "b", [("y", 2)])
        copy.backup(totals.connection)
    for sink, token in ((other, "c"), (one, "d")):
        sink.expect(["a", "b"] if sink is one else [])  # the other worker finds out by itself
        with pytest.raises(OutputError, match="'to totals' wrote to \"totals\" last is not there any more"):
            sink.deliver(2, token, [("z", 3)])
    one.expect(["a"])
    one.deliver(2, "e", [("z", 3)])
    assert totals.query() == [("x", 1), ("z", 3)]
    assert totals.query("SELECT token FROM megaflow_marks ORDER BY 1") == [("a",), ("e",)]


def test_a_worker_that_joins_makes_no_file_and_no_table(totals: Totals, tmp_path: Path) -> None:
    joined = SinkPlace("to totals", 1, "job", False, joined=True)
    missing = tmp_path / "elsewhere.db"
    with pytest.raises(OutputError, match=f"no file '{missing}'"):
        DatabaseSink(f"sqlite:{missing}", "totals", ["name", "total"], create=CREATE).open(joined)
    assert not missing.exists()
    with pytest.raises(OutputError, match="this process sees another database under the same address"):
        totals.sink().open(joined)
    assert totals.query("SELECT count(*) FROM sqlite_master") == [(0,)]
    totals.sink().open(replace(joined, worker=0, joined=False))
    totals.sink().open(joined)


def test_a_probe_is_seen_where_the_same_database_is(totals: Totals, tmp_path: Path) -> None:
    place = SinkPlace("to totals", 0, "job", False)
    one, other = totals.sink(), totals.sink()
    elsewhere = DatabaseSink(f"sqlite:{tmp_path / 'elsewhere.db'}", "totals", ["name", "total"], create=CREATE)
    for sink in (one, other, elsewhere):
        sink.open(place)
    token = one.probe()
    assert other.sees(token) and not elsewhere.sees(token)
    one.forget(token)
    assert not other.sees(token)


def test_old_rows_of_deliveries_go_with_their_marks(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_sink, "MARKS_KEPT", 2)
    sink = totals.sink()
    sink.open(SinkPlace("to totals", 0, "job", True, "first"))
    for n in range(1, 6):
        sink.deliver(n, f"token {n}", [(f"x{n}", n)])
    for table in ("megaflow_marks", "megaflow_deliveries"):
        assert totals.query(f"SELECT token FROM {table} ORDER BY 1") == [("token 4",), ("token 5",)]
    sink.expect(["token 4", "token 5"])
    for token in "abc":
        sink.deliver(6, token, [(f"x{token}", 6)])
    kept = [(token,) for token in ("a", "b", "c", "token 4", "token 5")]
    for table in ("megaflow_marks", "megaflow_deliveries"):
        assert totals.query(f"SELECT token FROM {table} ORDER BY 1") == kept, "of this checkpoint and of the last one"
    sink.expect(["a", "b", "c"])
    sink.deliver(7, "d", [("xd", 7)])
    assert totals.query("SELECT token FROM megaflow_marks ORDER BY 1") == [("a",), ("b",), ("c",), ("d",)]


def test_with_a_key_the_last_row_of_each_counts(totals: Totals) -> None:
    sink = opened(totals.sink(key="name"))
    assert (sink.parallel, sink.ordered) == (False, True) and totals.sink().parallel and not totals.sink().ordered
    sink.deliver(1, "a", [("x", 1), ("y", 5), ("x", 2)])
    assert totals.query() == [("x", 2), ("y", 5)]
    sink.deliver(2, "b", [("x", 1)])
    assert totals.query() == [("x", 1), ("y", 5)]


def test_a_row_is_deleted_if_that_is_the_last_that_is_said_of_its_key(totals: Totals) -> None:
    sink = opened(totals.sink(key="name"))
    sink.deliver(1, "a", [(name, 1) for name in "uvwxyz"])
    sink.deliver(2, "b", [Delete("x"), ("x", 2), ("v", 3), Delete("v"), Delete("none"), Delete("z"), ("y", 4)])
    assert totals.query() == [("u", 1), ("w", 1), ("x", 2), ("y", 4)]
    sink.deliver(2, "b", [Delete("u")])
    assert len(totals.query()) == 4, "it was delivered"
    sink.deliver(3, "c", map(Delete, "uwxy"))
    assert totals.query() == []


def test_the_database_decides_which_keys_are_equal(totals: Totals) -> None:
    totals.connection.execute("CREATE TABLE totals (name TEXT PRIMARY KEY COLLATE NOCASE, total INTEGER)")
    sink = opened(totals.sink(key="name"))
    sink.deliver(1, "a", [("b", 1), ("B", 2), ("A", 3), ("a", 4)])
    assert [total for _, total in totals.query()] == [4, 2], "the last ones"
    sink.deliver(2, "b", [("B", 5), Delete("b"), Delete("A"), ("a", 6)])
    assert totals.query() == [("a", 6)]
    sink.deliver(3, "c", [Delete("A"), (1, 1), (1.0, 2), ("1", 3)])
    assert totals.query() == [("1", 3), ("1.0", 2)], "keys that are equal to Python, and not to the column"


def test_a_second_try_reads_the_records_again_in_chunks(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "CHUNK_ROWS", 3)
    reads: list[int] = []

    class Records(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            reads.append(0)
            for record in super().__iter__():
                reads[-1] += 1
                if len(reads) == 1 and reads[0] == 8:
                    raise ConnectionResetError("the server is gone")
                yield record

    for key in ("", "name"):
        reads.clear()
        opened(totals.sink(key=key)).deliver(1, key or "none", Records([(f"{key}{n:02}", n) for n in range(20)]))
        assert reads == [8, 20]
    assert len(totals.query()) == 40 and len(totals.query("SELECT * FROM megaflow_marks")) == 2


@pytest.mark.parametrize("key", ["", "name"])
def test_a_delivery_needs_memory_for_a_chunk(totals: Totals, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(table_rows, "CHUNK_ROWS", 500)

    class Records:
        def __iter__(self) -> Iterator[Any]:
            return ((f"{n} {'x' * 1000}", n) for n in range(10_000))

    sink = opened(totals.sink(key=key))
    tracemalloc.start()
    try:
        sink.deliver(1, "a", Records())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert totals.query("SELECT count(*) FROM totals") == [(10_000,)]
    assert peak < 3_000_000, f"{peak} bytes, of 10,000,000 that the rows have"


def test_the_row_of_a_key_of_several_columns_is_deleted(totals: Totals) -> None:
    create = "CREATE TABLE daily (total INTEGER, day INTEGER, name TEXT, PRIMARY KEY (name, day))"
    columns, key = ["total", "day", "name"], ["name", "day"]
    sink = opened(DatabaseSink(f"sqlite:{totals.path}", "daily", columns, key, create=create))
    sink.deliver(1, "a", [(1, 1, "x"), (2, 2, "x"), (3, 1, "y")])
    sink.deliver(2, "b", [Delete(("x", 1))])
    assert totals.query("SELECT total FROM daily ORDER BY 1") == [(2,), (3,)]
    for wrong in ("x", ("x",), ("x", 1, 2), ["x", 1]):
        with pytest.raises(ProgramError, match=r'Delete\(key=.*\): the key of "daily" is name, day: give a tuple of'):
            sink.check([Delete(wrong)])
    with pytest.raises(ProgramError, match=r'Delete\(.*\): no key is given for the rows of "totals": name its'):
        opened(totals.sink()).check([Delete("x")])


def test_records_are_rows_by_order_or_by_name(totals: Totals) -> None:
    sink = opened(totals.sink())
    sink.deliver(1, "a", [("a", 1), {"total": 2, "name": "b"}, namedtuple("Total", "total name")(3, "c")])
    assert totals.query() == [("a", 1), ("b", 2), ("c", 3)]
    named = namedtuple("Sum", "name sum")("a", 1)
    for wrong in (("a",), ("a", 1, 2), {"name": "a"}, {"name": "a", "sum": 1}, named, "ab"):
        with pytest.raises(ProgramError, match=r'is not a row of "totals" with the columns name, total: give a tuple'):
            sink.check([wrong])
    assert len(totals.query()) == 3


@pytest.mark.parametrize("name", ["IntegrityError", "DuplicateObject", "DuplicateTable"])
def test_a_table_that_another_worker_makes_at_the_same_moment_is_found_by_the_next_try(
    name: str, totals: Totals
) -> None:
    refused: list[str] = []

    class Cursor(sqlite3.Cursor):
        def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
            if text.startswith("CREATE") and text not in refused:
                refused.append(text)
                raise type(name, (Exception,), {})("it already exists")
            return super().execute(text, *values)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

    def sink(create: str) -> DatabaseSink:
        connect = lambda: sqlite3.connect(totals.path, factory=Connection)  # noqa: E731
        return opened(DatabaseSink(connect, "totals", ["name", "total"], create=create))

    sink(CREATE).deliver(1, "a", [("x", 1)])
    assert len(refused) == 2 and totals.query() == [("x", 1)], "the table, and that of the marks"
    sink("CREATE TABLE totals (name TEXT, total INT)").deliver(1, "b", [("y", 2)])
    totals.connection.execute("DROP TABLE totals")
    with pytest.raises(OutputError, match=f"no such table.*create= did not create it.*{name}: it already exists"):
        sink("CREATE TABLE totals (name TEXT, total INT)")


def test_marks_are_created_if_errors_have_no_kind_and_forbid_to_commit(totals: Totals) -> None:
    """Connections like those of pg8000."""

    class Cursor(sqlite3.Cursor):
        def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
            if self.connection.failed and text == "COMMIT":
                raise sqlite3.InterfaceError("in failed transaction block")
            try:
                return super().execute(text, *values)
            except sqlite3.OperationalError as error:
                self.connection.failed = True
                raise sqlite3.DatabaseError({"C": "42P01", "M": str(error)}) from None

    class Connection(sqlite3.Connection):
        failed = False

        def cursor(self, *_: Any) -> Any:
            return super().cursor(Cursor)

    connect = lambda: sqlite3.connect(totals.path, factory=Connection)  # noqa: E731
    columns = ["name", "total"]
    opened(DatabaseSink(connect, "totals", columns, create=CREATE, patience_seconds=0)).deliver(1, "a", [("x", 1)])
    assert totals.query() == [("x", 1)]


def test_what_fails_leaves_neither_rows_nor_mark(totals: Totals) -> None:
    sink = opened(totals.sink())
    sink.deliver(1, "a", [("x", 1)])
    with pytest.raises(
        RecordRefused, match=r"refuses the row \('x', 3\) for \"totals\": IntegrityError: UNIQUE constraint failed"
    ) as refused:
        sink.deliver(2, "b", [("y", 2), ("x", 3)])
    assert refused.value.position == 1
    assert totals.query() == [("x", 1)] and totals.query("SELECT token FROM megaflow_marks") == [("a",)]
    sink.deliver(2, "b", [("y", 2)])
    assert totals.query() == [("x", 1), ("y", 2)]


def test_of_two_that_deliver_at_once_one_writes(totals: Totals) -> None:
    late: list[str] = []

    class Late(sqlite3.Cursor):
        """Sees the mark of another connection only when it writes the mark itself."""

        def execute(self, text: str, *values: Any) -> sqlite3.Cursor:
            if text.startswith("SELECT token") and values == (("a",),) and not late:
                late.append("a")
                values = (("none",),)
            return super().execute(text, *values)

    class Connection(sqlite3.Connection):
        def cursor(self, *_: Any) -> Any:
            return super().cursor(Late)

    opened(totals.sink()).deliver(1, "a", [("x", 1)])
    connect = lambda: sqlite3.connect(totals.path, factory=Connection)  # noqa: E731
    opened(DatabaseSink(connect, "totals", ["name", "total"])).deliver(1, "a", [("x", 1)])
    assert totals.query() == [("x", 1)] and late


def test_a_locked_file_is_waited_for_and_not_forever(totals: Totals) -> None:
    opened(totals.sink()).close()

    def impatient() -> sqlite3.Connection:
        return sqlite3.connect(totals.path, timeout=0)

    sink = opened(DatabaseSink(impatient, "totals", ["name", "total"], patience_seconds=0))
    totals.connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(OutputError, match=r"of impatient\(\) failed for 0 s: OperationalError: database is locked"):
        sink.deliver(1, "a", [("x", 1)])
    totals.connection.rollback()
    sink.deliver(1, "a", [("x", 1)])
    assert totals.query() == [("x", 1)]


def test_marks_are_kept_for_long_and_then_removed(totals: Totals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_sink, "MARKS_KEPT", 3)
    sink = opened(totals.sink())
    other = opened(totals.sink())  # of another job whose sink has the same name
    other.deliver(0, "another", [("other", 0)])
    for n in range(6):
        sink.deliver(n, f"token {n}", [(f"row {n}", n)])
    marks = totals.query("SELECT token FROM megaflow_marks ORDER BY token")
    assert marks == [("another",), ("token 3",), ("token 4",), ("token 5",)]


def test_a_table_or_column_that_is_not_there_is_found_as_the_sink_is_opened(totals: Totals) -> None:
    for table, column, said in (("none", "name", "no such table"), ("totals", "none", "no such column")):
        what = f'{said}.*; the table "{table}" with the columns {column} must exist, unless create= creates it'
        with pytest.raises(OutputError, match=what):
            opened(DatabaseSink(f"sqlite:{totals.path}", table, [column], create=CREATE))
    with pytest.raises(OutputError, match=r'no such table: denied; the table "denied" .* unless create= creates it'):
        opened(DatabaseSink(f"sqlite:{totals.path}", "denied", ["name"]))


def test_arguments_that_cannot_be_are_refused() -> None:
    for columns, key, said in (
        ([], (), "give at least one name"),
        (["a", "a"], (), "give at least one name"),
        (["a"], "b", r"key of \"t\": \['b'\] must be among the columns \['a'\]"),
    ):
        with pytest.raises(UsageError, match=said):
            DatabaseSink("sqlite:a.db", "t", columns, key)
    assert repr(DatabaseSink("env:SHOP", "a.t", ["a"])) == 'DatabaseSink(the database env:SHOP, "a"."t")'


# Rows that cannot be written --------------------------------------------------------------------


class Money:
    """An object that SQLite cannot bind."""


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (("a",), "is not a row of"),
        ({"name": "a", "sum": 1}, "is not a row of"),
        ("ab", "is not a row of"),
        (("a", Money()), "column 'total': ProgrammingError|column 'total': InterfaceError"),
        (("a", {"x": 1}), "column 'total': "),
        (("a", [1]), "column 'total': "),
        (("a", 1 << 63), "column 'total': 9223372036854775808 is not in the range from"),
        (("a", -(1 << 63) - 1), "is not in the range from"),
        (("\ud800", 1), "column 'name': it cannot be encoded as UTF-8"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("key", ["", "name"])
def test_a_row_that_cannot_be_bound_is_refused_when_written(totals: Totals, key: str, record: Any, said: str) -> None:
    sink = opened(totals.sink(key=key))
    good: list[Any] = [("a", 1), ("b", None), ["c", 1.5], {"name": b"d", "total": True}, ("e", (1 << 63) - 1)]
    sink.check(good)
    with pytest.raises(ProgramError, match=said) as refused:
        sink.check([*good, record])
    assert repr(record) in str(refused.value)


@pytest.mark.parametrize("record", [Delete([1]), Delete(Money()), Delete(1 << 63), Delete(("a", "b"))], ids=range(4))
def test_a_key_that_cannot_be_bound_is_refused_when_written(totals: Totals, record: Any) -> None:
    sink = opened(totals.sink(key="name"))
    sink.check([Delete("a"), Delete(None)])
    with pytest.raises(ProgramError):
        sink.check([record])


def test_a_row_without_a_key_is_refused(totals: Totals) -> None:
    opened(totals.sink()).check([(None, 1)])
    sink = opened(totals.sink(key="name"))
    for record in ((None, 1), {"name": None, "total": 1}, (float("nan"), 1)):
        with pytest.raises(ProgramError, match=r"cannot be written to \"totals\": its key column 'name' is (None|nan)"):
            sink.check([record])
    with pytest.raises(RecordRefused, match="is None") as refused:
        sink.deliver(1, "a", [("a", 1), (None, 2)])
    assert refused.value.position == 1 and totals.query() == []
    sink.check([Delete(None)])


@pytest.mark.parametrize("key", ["", "name"])
def test_the_row_that_the_database_refuses_is_found(totals: Totals, key: str) -> None:
    totals.connection.execute("CREATE TABLE totals (name TEXT PRIMARY KEY, total INTEGER CHECK (total < 9))")
    sink = opened(totals.sink(key=key))
    rows = [("x", 1), ("c", 8), ("b", 9), ("a", 9)]
    with pytest.raises(RecordRefused, match="CHECK constraint failed") as refused:
        sink.deliver(1, "a", iter(rows))
    assert refused.value.position == 2 and repr(rows[2]) in str(refused.value)
    assert totals.query() == [] and totals.query("SELECT * FROM megaflow_marks") == []
    sink.deliver(1, "a", iter(rows[:2]))
    assert totals.query() == [("c", 8), ("x", 1)], "nothing is locked"


def test_no_row_is_blamed_for_a_missing_table_or_index(totals: Totals) -> None:
    sink = opened(totals.sink(key="name"))
    totals.connection.execute("DROP TABLE totals")
    with pytest.raises(OutputError, match="no such table: totals; the table") as refused:
        sink.deliver(1, "a", iter([("x", 1)]))
    assert not isinstance(refused.value, RecordRefused)
    totals.connection.execute("CREATE TABLE totals (name TEXT, total INTEGER)")
    with pytest.raises(OutputError, match="a primary key or unique index of exactly name"):
        opened(totals.sink(key="name"))
    totals.connection.execute("CREATE UNIQUE INDEX by_name ON totals (name)")
    sink.deliver(1, "a", iter([("x", 1)]))
    assert totals.query() == [("x", 1)]


def test_a_row_kept_by_another_program_is_refused_with_its_position(totals: Totals) -> None:
    sink = opened(totals.sink())
    with pytest.raises(RecordRefused, match="is not a row of") as refused:
        sink.deliver(1, "a", iter([("x", 1), ("y",)]))
    assert refused.value.position == 1
    with pytest.raises(RecordRefused, match=r"refuses the row .*OverflowError") as refused:
        sink.deliver(1, "a", iter([("x", 1), ("y", 1 << 63)]))
    assert refused.value.position == 1


def test_no_row_is_at_fault_in_a_damaged_file(totals: Totals) -> None:
    opened(totals.sink()).close()
    [(page,)] = totals.query("SELECT rootpage FROM sqlite_master WHERE name = 'totals'")
    [(size,)] = totals.query("PRAGMA page_size")
    totals.connection.close()
    with open(totals.path, "r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(OutputError, match="malformed; the file is damaged: restore it from a backup") as refused:
        opened(totals.sink()).deliver(1, "a", [("x", 1)])
    assert not isinstance(refused.value, RecordRefused)


def test_what_the_database_refuses_as_a_whole_has_no_row(totals: Totals) -> None:
    totals.connection.execute("CREATE TABLE parents (name TEXT PRIMARY KEY)")
    totals.connection.execute(
        "CREATE TABLE totals (name TEXT REFERENCES parents DEFERRABLE INITIALLY DEFERRED, total INTEGER)"
    )

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(totals.path)
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    sink = opened(DatabaseSink(connect, "totals", ["name", "total"], create=CREATE))
    with pytest.raises(OutputError, match="FOREIGN KEY constraint failed") as refused:
        sink.deliver(1, "a", [("x", 1)])
    assert not isinstance(refused.value, RecordRefused)
