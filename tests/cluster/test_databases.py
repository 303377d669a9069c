"""Jobs that write to databases, on real processes: tables equal those of a plain loop, through all kills."""

import json
import os
import re
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megaflow.cli.main import cli
from megaflow.job.job_file import process_start
from tests.apps.ordered import ALL_ORDERS, ALL_TOTALS, Ordered
from tests.cluster.processes import ROOT, STATUS_SECONDS, Run, lives, wait_until
from tests.connect.postgres_server import PostgresServer, binaries
from tests.results import check_equal, comparing
from tests.test_programs_of_the_docs import code_with

pytestmark = pytest.mark.cluster

APP = str(ROOT / "apps" / "orders_to_table.py")
ENVIRONMENT = "TEST_MEGAFLOW_SHOP"
COUNT = "SELECT count(*) FROM orders"
MOVE = "move-bins --bins 0-99 --to 1"


class File:
    """An SQLite database."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.place = f"sqlite:{self.path}"

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if its table does not exist yet."""
        connection = sqlite3.connect(self.path, timeout=180)
        try:
            return connection.execute(text).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error), error
            return []
        finally:
            connection.close()

    def make(self, *tables: str) -> None:
        """Create tables."""
        connection = sqlite3.connect(self.path)
        for table in tables:
            connection.execute(f"CREATE TABLE {table}")
        connection.close()

    def fill(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows."""
        connection = sqlite3.connect(self.path)
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.commit()
        connection.close()

    def forget(self, table: str) -> None:
        """Delete the rows of a table."""
        connection = sqlite3.connect(self.path)
        assert connection.execute(f"DELETE FROM {table}").rowcount > 0
        connection.commit()
        connection.close()

    def lose(self) -> None:
        """Let it fail for a moment, if it can."""


class Server:
    """A PostgreSQL server; its address with the password is in the environment."""

    place = f"env:{ENVIRONMENT}"

    def __init__(self) -> None:
        self.server = PostgresServer()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.server.url) as connection:
            try:
                return connection.execute(text).fetchall()
            except psycopg.errors.UndefinedTable:
                return []

    def run(self, statements: str) -> None:
        """Run statements that return no rows."""
        import psycopg

        with psycopg.connect(self.server.url) as connection:
            connection.execute(statements)

    def lose(self) -> None:
        """Kill it, and start it again."""
        self.server.kill()
        self.server.start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    if binaries() is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL (apt install postgresql) and psycopg (pip install 'megaflow[postgres]')")
    running = Server()
    monkeypatch.setenv(ENVIRONMENT, running.server.url)
    yield running
    running.server.remove()


def check(database: File | Server, ordered: Ordered) -> None:
    check_equal(database.query(ALL_ORDERS), ordered.orders)
    check_equal(database.query(ALL_TOTALS), ordered.totals)


def test_what_the_readme_shows_becomes_rows_of_two_processes_and_they_are_read(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered, database, app = Ordered(tmp_path / "orders.csv", 3000), File(tmp_path), tmp_path / "to_shop.py"
    monkeypatch.setenv("SHOP", database.place)
    app.write_text(code_with("# to_shop.py"))
    code, _, said = start(str(app), "--lines", str(ordered.path), "--output", "none", "--processes", "2").end()
    assert code == 0, said
    check_equal(Counter(database.query("SELECT number, customer, cents FROM orders")), Counter(ordered.orders))
    totals = database.query("SELECT customer, cents FROM totals ORDER BY customer")
    check_equal(totals, [(customer, cents) for customer, _, cents in ordered.totals])
    app, out = tmp_path / "from_shop.py", tmp_path / "out.jsonl"
    app.write_text(code_with("QuerySource"))
    code, _, said = start(str(app), "--output", f"jsonl:{out}").end()
    assert code == 0, said
    check_equal(sorted(dict(json.loads(line)["record"] for line in out.read_text().splitlines()).items()), totals)


STOCK = """
from megaflow.connect import DatabaseSink, Delete

def take(item, count, stock):
    stock = (stock or 0) + count
    return stock or None, [(item, stock) if stock else Delete(item)]

def dataflow(flow):
    changes = flow.lines().map(str.split).map(lambda words: (words[0], int(words[1])))
    stock = changes.stateful_state_machine(take, name="stock")
    return stock.write(DatabaseSink("env:SHOP", "stock", ["item", "count"], key="item"), "stock")
"""


@pytest.mark.slow
def test_what_is_deleted_goes_through_the_store_and_is_gone(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, app, lines = File(tmp_path), tmp_path / "stock.py", tmp_path / "lines.txt"
    monkeypatch.setenv("SHOP", database.place)
    app.write_text(STOCK)
    database.make("stock (item TEXT PRIMARY KEY, count INTEGER)")
    words = [str(app), "--lines", str(lines), "--state", str(tmp_path / "state"), "--output", "none"]
    for changes, wanted in (
        (["tea 2", "salt 1", "rice 5", "tea -2"], [("rice", 5), ("salt", 1)]),
        (["salt -1", "tea 1", "rice -5", "rice 4"], [("rice", 4), ("tea", 1)]),
    ):
        with lines.open("a") as file:
            file.writelines(f"{each}\n" for each in changes)
        code, _, said = start(*words, "--processes", "2").end()
        assert code == 0, said
        check_equal(database.query("SELECT item, count FROM stock ORDER BY item"), wanted)


def remove_marks(database: File | Server) -> None:
    """Run the statements of the page that remove old marks."""
    page = (ROOT / "docs" / "databases.md").read_text(encoding="utf-8")
    [statements] = [each for each in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if "needed" in each]
    if isinstance(database, File):
        connection = sqlite3.connect(database.path, timeout=180)
        connection.executescript(statements)
        connection.close()
    else:
        database.run(statements)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_old_marks_can_be_removed_between_runs(
    start: Callable[..., Run], tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database: File | Server = File(tmp_path) if kind == "sqlite" else request.getfixturevalue("server")
    ordered = Ordered(tmp_path / "orders.csv", 1200)
    words = [APP, "--lines", str(ordered.path), "--output", "none", "--state", str(tmp_path / "state")]
    words += ["--processes", "2", "--checkpoint-every", "0.1"]
    for _ in range(3):
        written = len(database.query("SELECT number FROM orders"))
        run = start(*words, "--rate", "200", "--", database.place)
        wait_until(lambda: len(database.query("SELECT number FROM orders")) > written + 100, STATUS_SECONDS)  # noqa: B023
        workers = [(each["pid"], process_start(each["pid"])) for each in run.status()["workers"]]
        run.process.kill()
        run.end()
        wait_until(lambda: not any(lives(*each) for each in workers))  # noqa: B023
        remove_marks(database)
        assert len(database.query("SELECT token FROM megaflow_marks")) <= 8, "two deliveries of two workers and sinks"
    code, _, said = start(*words, "--", database.place).end()
    assert code == 0, said
    check(database, ordered)


LENGTHS = """
from megaflow.connect import DatabaseSink

def dataflow(flow):
    rows = flow.lines().map(lambda line: (line, len(line)))
    return rows.write(DatabaseSink("env:SHOP", "lengths", ["line", "length"]), "lengths")
"""


@pytest.mark.slow
def test_a_job_that_ended_or_was_stopped_needs_no_marks(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, app, lines = File(tmp_path), tmp_path / "lengths.py", tmp_path / "lines.txt"
    monkeypatch.setenv("SHOP", database.place)
    app.write_text(LENGTHS)
    database.make("lengths (line TEXT, length INTEGER)")
    words = [str(app), "--lines", str(lines), "--state", str(tmp_path / "state"), "--output", "none"]
    found = "SELECT length, count(*) FROM lengths GROUP BY 1 ORDER BY 1"
    lines.write_text("a\n" * 20)
    code, _, said = start(*words).end()
    assert code == 0, said
    check_equal(database.query(found), [(1, 20)], said)
    database.forget("megaflow_marks")
    with lines.open("a") as file:
        file.write("bb\n" * 200)
    run = start(*words, "--rate", "50")
    wait_until(lambda: len(database.query(found)) == 2, STATUS_SECONDS)
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0 and "stopped at checkpoint" in said[-1], said
    check_equal(database.query(found)[:1], [(1, 20)], said)
    database.forget("megaflow_marks")
    for _ in range(2):
        code, _, said = start(*words).end()
        assert code == 0, said
        check_equal(database.query(found), [(1, 20), (2, 200)], said)
    assert "No record waits" in CliRunner().invoke(cli, ["state", "outbox", str(tmp_path / "state")]).output


REFUSED = """
from megaflow.connect import DatabaseSink

def dataflow(flow):
    rows = flow.lines().map(lambda line: (line, None if line == "bad" else len(line)))
    return rows.write(DatabaseSink("env:SHOP", "lengths", ["line", "length"]), "lengths")
"""


@pytest.mark.slow
def test_a_job_goes_on_past_a_row_that_the_database_refuses(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, app, lines = File(tmp_path), tmp_path / "lengths.py", tmp_path / "lines.txt"
    monkeypatch.setenv("SHOP", database.place)
    app.write_text(REFUSED)
    lines.write_text("tea\nbad\nrice\nworse\n")
    database.make("lengths (line TEXT, length INTEGER NOT NULL CHECK (length < 5))")
    words = [str(app), "--lines", str(lines), "--state", str(tmp_path / "state"), "--output", "none"]
    for bad, change in (("bad", ["--drop"]), ("worse", ["--rewrite", '["better", 0]'])):
        for _ in range(2):  # a second attempt ends like the first
            code, _, lines_said = start(*words).end()
            said = "\n".join(lines_said)
            assert code == 1 and f"refuses the row ('{bad}', " in said, said
            assert f"megaflow state outbox {tmp_path / 'state'} --drop " in said
        record = said.rpartition("--rewrite ")[2].split()[0]
        option, *more = change
        done = CliRunner().invoke(cli, ["state", "outbox", str(tmp_path / "state"), option, record, *more])
        assert done.exit_code == 0, done.output
    code, _, lines_said = start(*words).end()
    assert code == 0, lines_said
    check_equal(database.query("SELECT * FROM lengths ORDER BY 1"), [("better", 0), ("rice", 4), ("tea", 3)])


@pytest.mark.slow
def test_rows_that_are_read_count_once_though_reader_and_launcher_are_killed(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered, database, app = Ordered(tmp_path / "orders.csv", 3000), File(tmp_path), tmp_path / "from_shop.py"
    monkeypatch.setenv("SHOP", database.place)
    app.write_text(code_with("QuerySource"))
    database.make("orders (number INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
    database.fill("orders", ordered.orders)
    out = tmp_path / "out.jsonl"
    words = [str(app), "--output", f"jsonl:{out}", "--state", str(tmp_path / "store"), "--checkpoint-every", "0.1"]

    def await_more() -> None:
        before = out.stat().st_size if out.exists() else 0
        wait_until(lambda: out.exists() and out.stat().st_size > before, STATUS_SECONDS)

    run = start(*words, "--processes", "2", "--rate", "50")  # it would take a minute to the end
    await_more()
    os.kill(run.status()["workers"][0]["pid"], signal.SIGKILL)
    await_more()
    run.process.kill()
    run.end()
    code, _, said = start(*words).end()
    assert code == 0, said
    found = Counter(tuple(json.loads(line)["record"]) for line in out.read_text().splitlines())
    totals: Counter[str] = Counter()
    for _, customer, cents in ordered.orders:
        totals[customer] += cents
        found[customer, totals[customer]] -= 1
    with comparing():
        assert not +found and not -found
    assert "resumes from checkpoint" in "".join(said), said


def kill_again_and_again(
    start: Callable[..., Run], folder: Path, database: File | Server, *commands: str
) -> list[str]:
    """Run a job and steer it; kill a worker, the database and the launcher. Check the result; return the job's
    messages.
    """
    ordered = Ordered(folder / "orders.csv", 6000)
    words = [APP, "--lines", str(ordered.path), "--output", "none", "--state", str(folder / "store")]
    words += ["--checkpoint-every", "0.1"]
    tail = ["--", database.place]

    def await_more() -> None:
        before = database.query(COUNT) or [(0,)]
        wait_until(lambda: database.query(COUNT) > before, STATUS_SECONDS)

    run = start(*words, "--processes", "2", "--rate", "100", *tail)  # it would take a minute to the end
    await_more()
    for command in commands:
        done = run.control(*command.split())
        assert done.returncode == 0, (command, done.stderr, run.said)
    await_more()
    os.kill(run.status()["workers"][-1]["pid"], signal.SIGKILL)
    database.lose()
    await_more()
    database.lose()
    run.process.kill()
    run.end()
    last = start(*words, "--processes", "1", *tail)
    code, _, said = last.end()
    assert code == 0, said
    check(database, ordered)
    assert "resumes from checkpoint" in "".join(said), said
    return [*run.said, *said]


@pytest.mark.slow
def test_each_row_is_in_a_file_once_whatever_is_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    kill_again_and_again(start, tmp_path, File(tmp_path), MOVE)


@pytest.mark.slow
def test_each_row_is_on_a_server_once_though_it_is_killed_too_and_nobody_says_its_password(
    start: Callable[..., Run], tmp_path: Path, server: Server
) -> None:
    said = kill_again_and_again(start, tmp_path, server, MOVE, "remove-workers --id 0")
    password = server.server.url.split(":")[2].split("@")[0]
    assert password not in "".join(said)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if password.encode() in path.read_bytes()], "store, job file"
