"""Stores and databases that were restored apart: real jobs find out before they write a row twice, or leave one out."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.durable.incarnation import read_commits
from megaflow.durable.local_folder import open_to_look
from megaflow.durable.store import Store
from tests.cluster.processes import Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

PROGRAM = """
from megaflow.connect import DatabaseSink

def add(word, n, count):
    count = (count or 0) + 1
    return count, [(word, count)]

def dataflow(flow):
    key = flow.args[1:]
    words = flow.lines()
    words.map(lambda word: (word, len(word))).write(DatabaseSink(flow.args[0], "words", ["word", "length"]), "words")
    counts = words.map(lambda word: (word, 1)).stateful_state_machine(add, name="count")
    return counts.write(DatabaseSink(flow.args[0], "counts", ["word", "n"], key="word"), "counts") if key else counts
"""


class Desk:
    """A program that writes words to a database, in several runs over more and more lines."""

    def __init__(self, folder: Path, start: Callable[..., Run], *more: str) -> None:
        """`more`: with an argument, the program also counts words in a table with a key."""
        self.folder, self.database, self._start, self._more = folder, folder / "words.db", start, more
        self.store, self.out = folder / "kept", folder / "out.jsonl"
        (folder / "app.py").write_text(PROGRAM)
        (folder / "in").mkdir()
        with self.open() as connection:
            connection.execute("CREATE TABLE words (word TEXT, length INTEGER)")
            connection.execute("CREATE TABLE counts (word TEXT PRIMARY KEY, n INTEGER)")

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.database)

    def run(self, *words: str, store: str = "kept", out: str = "out.jsonl", options: tuple[str, ...] = ()) -> str:
        """Run the job over these words too, if there are any; return what it says, which names its exit code."""
        if words:
            (self.folder / "in" / f"{len([*(self.folder / 'in').iterdir()]):02}").write_text("\n".join(words) + "\n")
        code, _, said = self._start(
            str(self.folder / "app.py"), "--lines", str(self.folder / "in"), "--state", str(self.folder / store),
            "--output", f"jsonl:{self.folder / out}", *options, "--", f"sqlite:{self.database}", *self._more,
        ).end()  # fmt: skip
        return "\n".join([f"exit code {code}", *said])

    def words(self) -> Counter[str]:
        with self.open() as connection:
            return Counter(word for (word,) in connection.execute("SELECT word FROM words"))

    def keep(self, name: str) -> None:
        """Copy the store, the output and the database."""
        shutil.copytree(self.store, self.folder / f"store-{name}")
        shutil.copy(self.out, self.folder / f"out-{name}")
        shutil.copy(self.database, self.folder / f"database-{name}")

    def restore_store(self, name: str) -> None:
        shutil.rmtree(self.store)
        shutil.copytree(self.folder / f"store-{name}", self.store)

    def restore_database(self, name: str) -> None:
        shutil.copy(self.folder / f"database-{name}", self.database)

    def content(self) -> tuple[object, ...]:
        """Return what a refused run must leave as it is."""
        folder = open_to_look(str(self.store))
        commits = read_commits(Store(folder))
        folder.close_folder()
        with self.open() as connection:
            return commits, self.out.read_bytes(), [*connection.iterdump()]


@pytest.fixture
def desk(start: Callable[..., Run], tmp_path: Path) -> Desk:
    return Desk(tmp_path, start)


def test_an_older_store_beside_a_newer_table_is_refused(desk: Desk) -> None:
    assert "exit code 0" in desk.run("a", "b")
    desk.keep("early")
    assert "exit code 0" in desk.run("c")
    desk.keep("late")
    desk.restore_store("early")
    before = desk.content()
    said = desk.run()
    assert "exit code 1" in said and "'words' has delivered rows of checkpoint" in said, said
    assert "Traceback" not in said and "--accept-rows words" in said, said
    assert desk.content() == before, "a refused run has changed something"
    desk.restore_store("late")
    assert "exit code 0" in desk.run("d")
    check_equal(desk.words(), Counter("abcd"))
    desk.restore_store("early")
    desk.restore_database("early")
    shutil.copy(desk.folder / "out-early", desk.out)
    assert "exit code 0" in desk.run(), "both are of one moment"
    check_equal(desk.words(), Counter("abcd"))


@pytest.mark.slow
def test_a_store_of_before_the_first_checkpoint_is_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start)
    (tmp_path / "in" / "1").write_text("a\n")
    words = [str(each) for each in (tmp_path / "app.py", "--lines", tmp_path / "in", "--state", desk.store)]
    words += ["--output", f"jsonl:{desk.out}"]
    run = start(*words, "--follow", "--checkpoint-every", "1000", "--", f"sqlite:{desk.database}")
    run.status_when(lambda record: any(each["lines"] for each in record["workers"]))
    desk.keep("early")
    assert run.control("stop").returncode == 0 and run.end()[0] == 0
    check_equal(desk.words(), Counter("a"))
    desk.restore_store("early")
    before = desk.content()
    code, _, said = start(*words, "--", f"sqlite:{desk.database}").end()
    assert code == 1 and any("The store is at checkpoint 0, but the sink 'words'" in line for line in said), said
    assert desk.content() == before, "a refused run has changed something"


@pytest.mark.slow
def test_an_older_table_beside_a_newer_store_is_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start, "counts")
    assert "exit code 0" in desk.run("a", "b")
    desk.keep("early")
    assert "exit code 0" in desk.run("c")
    desk.restore_database("early")
    before = desk.content()
    said = desk.run("d")
    assert "exit code 1" in said and said.count("the database is an older copy") == 2, said
    assert "the sink 'words'" in said and "the sink 'counts'" in said, "each is named"
    assert "give --accept-rows words --accept-rows counts." in said, "one command accepts both"
    assert desk.content() == before, "a refused run has changed something"
    assert "exit code 0" in desk.run(options=("--accept-rows", "words", "--accept-rows", "counts"))
    assert "exit code 0" in desk.run("e"), "the next run is not refused"
    check_equal(desk.words(), Counter("abde"))


@pytest.mark.slow
def test_an_emptied_table_is_named_and_the_job_goes_on(desk: Desk) -> None:
    assert "exit code 0" in desk.run("a")
    with desk.open() as connection:
        for table in ("words", "megaflow_marks", "megaflow_deliveries"):
            connection.execute(f"DELETE FROM {table}")
    said = desk.run("b")
    assert "exit code 0" in said and "The table was emptied, or this is another database" in said, said
    assert "another database" not in desk.run("c")
    check_equal(desk.words(), Counter("bc"))


@pytest.mark.slow
def test_an_emptied_table_is_named_also_if_another_sink_is_accepted(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start, "counts")
    assert "exit code 0" in desk.run("a")
    with desk.open() as connection:
        for table in ("words", "counts", "megaflow_marks", "megaflow_deliveries"):
            connection.execute(f"DELETE FROM {table}")
    said = desk.run("b", options=("--accept-rows", "counts"))
    assert "exit code 0" in said and said.count("sink 'words': the store has delivered rows up to") == 1, said
    assert "sink 'counts'" not in said, said
    check_equal(desk.words(), Counter("b"))


@pytest.mark.slow
def test_other_sinks_are_compared_after_one_was_accepted(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start, "counts")
    assert "exit code 0" in desk.run("a")
    desk.keep("early")
    assert "exit code 0" in desk.run("b")
    assert "exit code 0" in desk.run(options=("--accept-rows", "counts")), "there is nothing to read"
    desk.restore_database("early")
    said = desk.run("c")
    assert "exit code 1" in said and "to the sink 'words', but the newest there are" in said, said
    assert "exit code 0" in desk.run(options=("--accept-rows", "words"))


@pytest.mark.slow
def test_a_table_with_a_key_goes_on_beside_an_older_store(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start, "counts")
    assert "exit code 0" in desk.run("a", "b")
    desk.keep("early")
    assert "exit code 0" in desk.run("a", "c")
    desk.restore_store("early")
    with desk.open() as connection:
        connection.execute("DELETE FROM words")
        connection.execute("DELETE FROM megaflow_deliveries WHERE target LIKE '%words%'")
    said = desk.run()
    assert "exit code 0" in said and "'counts': the store is at checkpoint" in said, said
    said = desk.run("b")
    assert "exit code 0" in said and "the store is at checkpoint" not in said, "there is another lineage now"
    shutil.copy(desk.database, desk.folder / "database-late")
    desk.restore_database("early")
    said = desk.run("d")
    assert "exit code 1" in said and "the database is an older copy" in said, said
    desk.restore_database("late")
    with desk.open() as connection:
        check_equal(dict(connection.execute("SELECT word, n FROM counts")), {"a": 2, "b": 2, "c": 1})


@pytest.mark.slow
def test_a_fork_into_the_table_of_its_parent_is_refused(desk: Desk) -> None:
    assert "exit code 0" in desk.run("a", "b")
    newest = desk.content()[0][0].checkpoint  # type: ignore[index]
    fork = ("--from-checkpoint", f"{desk.store}:{newest}")
    before = desk.content()
    said = desk.run("c", store="fork", out="fork.jsonl", options=fork)
    assert "exit code 1" in said and "Both jobs would write the rows after the fork" in said, said
    assert desk.content() == before and not [*desk.folder.glob("fork*/*.commit")]
    accepted = (*fork, "--accept-rows", "words")
    assert "exit code 0" in desk.run(store="fork", out="fork.jsonl", options=accepted)
    assert "exit code 0" in desk.run("d", store="fork", out="fork.jsonl"), "it has rows of its own now"
    check_equal(desk.words(), Counter("abcd"))
    grandchild = ("--from-checkpoint", f"{desk.folder / 'fork'}:{newest}")
    said = desk.run("e", store="again", out="again.jsonl", options=grandchild)
    assert "exit code 1" in said and "Both jobs would write the rows after the fork" in said, said
    said = desk.run("f", options=("--accept-rows", "word"))
    assert "exit code 1" in said and "--accept-rows word: The program has no sink of this name" in said, said


@pytest.mark.slow
def test_two_jobs_on_copies_of_a_store_are_found_out(desk: Desk) -> None:
    assert "exit code 0" in desk.run("a")
    shutil.copytree(desk.store, desk.folder / "copy")
    shutil.copy(desk.out, desk.folder / "copy.jsonl")
    assert "exit code 0" in desk.run("b")
    said = desk.run(store="copy", options=("--relocate", f"{desk.out}={desk.folder / 'copy.jsonl'}"), out="copy.jsonl")
    assert "exit code 1" in said and "'words' has delivered rows of checkpoint" in said, said
    check_equal(desk.words(), Counter("ab"))


@pytest.mark.slow
def test_no_worker_hides_rows_that_another_has_lost(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start)
    (tmp_path / "app.py").write_text(PROGRAM.replace("flow.lines()", "flow.lines().exchange(lambda line: int(line))"))
    options = ("--follow", "--workers", "2", "--checkpoint-every", "0.2")
    words = [str(each) for each in (tmp_path / "app.py", "--lines", tmp_path / "in", "--state", desk.store)]
    outputs = "--output", f"jsonl:{desk.out}", *options, "--", f"sqlite:{desk.database}"

    def write(*lines: str) -> None:
        (tmp_path / "in" / "-".join(lines)).write_text("\n".join(lines) + "\n")

    write("0", "1")
    run = start(*words, *outputs)
    wait_until(lambda: desk.words() == Counter("01"))
    with sqlite3.connect(tmp_path / "copy.db") as copy, desk.open() as connection:
        connection.backup(copy)
        write("3")
        wait_until(lambda: "3" in desk.words())
        copy.backup(connection)
    write("2")  # for the worker that has lost nothing
    code, _, said = run.end()
    assert code == 1 and any("is not there any more" in line for line in said), said
    check_equal(desk.words(), Counter("01"))
    code, _, said = start(*words, *outputs).end()
    assert code == 1 and any("the database is an older copy" in line for line in said), said


@pytest.mark.slow
def test_sinks_of_one_table_are_compared_apart(start: Callable[..., Run], tmp_path: Path) -> None:
    desk = Desk(tmp_path, start)
    (tmp_path / "app.py").write_text("""
from megaflow.connect import DatabaseSink

def dataflow(flow):
    rows = flow.lines().map(lambda word: (word, len(word)))
    for name in "one", "two":
        own = rows.filter(lambda row, name=name: row[0].startswith(name))
        own.write(DatabaseSink(flow.args[0], "words", ["word", "length"]), name)
    return rows
""")
    assert "exit code 0" in desk.run("one 1", "two 1")
    desk.keep("early")
    for word in "one 2", "none", "one 3", "two 4", "none 2":
        said = desk.run(word)
        assert "exit code 0" in said, said
    desk.restore_store("early")
    said = desk.run("one 5")
    assert "exit code 1" in said and "give --accept-rows one --accept-rows two." in said, said
    said = desk.run(options=("--accept-rows", "one"))
    assert "exit code 1" in said and "the sink 'two' has delivered rows" in said, said
    accepted = ("--accept-rows", "one", "--accept-rows", "two")
    assert "exit code 0" in desk.run(options=accepted)
    for word in "one 6", "none 3", "two 7", "none 4", "one 8":
        said = desk.run(word)
        assert "exit code 0" in said, said


@pytest.mark.slow
def test_a_copy_without_its_log_of_writes_is_refused(desk: Desk) -> None:
    with desk.open() as connection:  # it stays open, so the log stays
        connection.execute("PRAGMA journal_mode=WAL")
        assert "exit code 0" in desk.run("a")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert "exit code 0" in desk.run("b")
        desk.keep("late")  # copies no -wal file
    connection.close()
    for suffix in "", "-wal", "-shm":
        desk.database.with_name(f"words.db{suffix}").unlink(missing_ok=True)
    desk.restore_database("late")
    check_equal(desk.words(), Counter("a"))
    said = desk.run("c")
    assert "exit code 1" in said and "the database is an older copy" in said, said
