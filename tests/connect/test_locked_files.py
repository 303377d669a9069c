"""A job whose SQLite file is locked or full for longer than its patience ends as one that the same command resumes."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal

pytestmark = pytest.mark.cluster

PROGRAM = """
import os, sqlite3
from megaflow.connect import DatabaseSink, QuerySource

def shop():
    connection = sqlite3.connect("file:{path}?mode=rw", uri=True, timeout=0.05)
    if os.path.exists("{path}.full"):
        connection.execute("PRAGMA max_page_count=20")  # enough for the tables
    return connection

def sink(flow):
    words = DatabaseSink(shop, "words", ["word"], patience_seconds=0.2)
    return flow.lines().map(lambda line: (line,)).write(words, "words")

def source(flow):
    query = "SELECT number FROM numbers"
    return flow.read(QuerySource(shop, query, order_by="number", poll_seconds=0.05, patience_seconds=0.2), "numbers")
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE words (word TEXT)")
    connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO numbers VALUES (1)")
    yield connection
    connection.close()


@pytest.fixture
def start(database: sqlite3.Connection, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    app = tmp_path / "app.py"
    app.write_text(PROGRAM.replace("{path}", str(tmp_path / "shop.db")))
    (tmp_path / "lines.txt").write_text("a\n")
    with ExitStack() as stack:

        def starting(end: str, *words: str) -> Run:
            reads = ("--lines", str(tmp_path / "lines.txt")) if end == "sink" else ()
            run = Run(tmp_path, f"{app}:{end}", *reads, "--output", "none", *words)
            stack.callback(run.process.finish)
            return run

        yield starting


@pytest.mark.parametrize("end", ["sink", "source"])
@pytest.mark.parametrize("when", [pytest.param("at start", marks=pytest.mark.slow), "in the middle"])
def test_a_long_outage_keeps_the_state(
    start: Callable[..., Run], database: sqlite3.Connection, tmp_path: Path, end: str, when: str
) -> None:
    store = str(tmp_path / "kept")
    if when == "at start":
        database.execute("BEGIN EXCLUSIVE")
    follows = ("--follow",) if end == "sink" else ()
    run = start(end, "--state", store, *follows)
    if when == "in the middle":
        if end == "sink":
            run.status_when(lambda record: bool(record["workers"][0]["sinks"][0]["committed"]))
        else:
            run.status_when(lambda record: record["workers"][0]["lines"] == 1)
        database.execute("BEGIN EXCLUSIVE")
        if end == "sink":
            with (tmp_path / "lines.txt").open("a") as more:
                more.write("b\n")
    code, _, said = run.end()
    assert code == 75, said
    last = said[-1]
    assert "the database of shop() failed for 0.2 s: OperationalError: database is locked; " in last
    assert ("operator 'write words'" if end == "sink" else "source 'numbers'") in last
    assert "longer patience_seconds=; the job's state is kept in" in last and "then run the same command again" in last
    assert not any("job has failed" in line or "Traceback" in line for line in said), said

    database.execute("COMMIT")
    again = start(end, "--state", store, *follows)
    if end == "sink":
        again.status_when(lambda record: bool(record["workers"][0]["sinks"][0]["committed"]))
        words = [word for (word,) in database.execute("SELECT word FROM words ORDER BY word")]
        check_equal(words, ["a", "b"] if when == "in the middle" else ["a"])
    else:
        again.status_when(lambda record: record["state"] == "running")


def test_without_state_an_outage_does_not_blame_the_program(
    start: Callable[..., Run], database: sqlite3.Connection
) -> None:
    database.execute("BEGIN EXCLUSIVE")
    code, _, said = start("sink").end()
    assert code == 1 and "database is locked; wait until" in said[-1] and "kept" not in said[-1], said
    assert not any("the program" in line for line in said), said


@pytest.mark.parametrize("state", [(), ("--state",)])
def test_a_full_file_is_an_outage(
    start: Callable[..., Run], database: sqlite3.Connection, tmp_path: Path, state: tuple[str, ...]
) -> None:
    kept = (*state, str(tmp_path / "kept")) if state else ()
    full = tmp_path / "shop.db.full"
    full.touch()
    (tmp_path / "lines.txt").write_text("a" * 100_000)
    code, _, said = start("sink", *kept).end()
    assert code == (75 if state else 1) and "failed for 0.2 s: OperationalError: database or disk is full" in said[-1]
    assert "refused" not in said[-1], said
    assert not any("job has failed" in line or "Traceback" in line for line in said), said
    full.unlink()
    code, _, said = start("sink", *kept).end()
    assert code == 0, said
    check_equal([len(word) for (word,) in database.execute("SELECT word FROM words")], [100_000])


def test_a_missing_table_is_no_outage(start: Callable[..., Run], database: sqlite3.Connection, tmp_path: Path) -> None:
    database.execute("DROP TABLE words")
    code, _, said = start("sink", "--state", str(tmp_path / "kept")).end()
    assert code == 1 and any("the job has failed" in line for line in said), said
