"""A job whose PostgreSQL server is suspended or gone: `status`, `explain` and the log name the database."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.processes import Run, wait_until
from tests.connect.postgres_server import PostgresServer, binaries

pytest.importorskip("psycopg", reason="needs psycopg: pip install 'megaflow[postgres]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(binaries() is None, reason="needs PostgreSQL: apt install postgresql"),
]

PROGRAM = """
from megaflow.connect import DatabaseSink, QuerySource

def sink(flow):
    words = DatabaseSink("env:SHOP", "words", ["word"], create="CREATE TABLE IF NOT EXISTS words (word TEXT)")
    return flow.lines().map(lambda line: (line,)).write(words, "words")

def source(flow):
    numbers = "SELECT * FROM generate_series(1, 3) AS number"
    return flow.read(QuerySource("env:SHOP", numbers, order_by="number", poll_seconds=0.2), "numbers")
"""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    running = PostgresServer()
    try:
        yield running
    finally:
        running.remove()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    with ExitStack() as stack:

        def starting(*words: str) -> Run:
            run = Run(tmp_path, *words)
            stack.callback(run.process.finish)
            return run

        yield starting


@pytest.mark.parametrize("end", ["sink", "source"])
@pytest.mark.parametrize("outage", ["suspended", "gone"])
def test_an_outage_is_named_by_status_explain_and_log(
    server: PostgresServer, start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    end: str, outage: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("SHOP", server.url)
    app, lines = tmp_path / "app.py", tmp_path / "lines.txt"
    app.write_text(PROGRAM)
    lines.write_text("a\n")
    reads = ("--lines", str(lines), "--follow") if end == "sink" else ()
    run = start(f"{app}:{end}", *reads, "--output", "none", "--state", str(tmp_path / "store"))
    if end == "sink":
        run.status_when(lambda record: bool(record["workers"][0]["sinks"][0]["committed"]))
    else:
        run.status_when(lambda record: record["workers"][0]["lines"] == 3)
    server.suspend() if outage == "suspended" else server.kill()
    try:
        with lines.open("a") as more:
            more.write("b\n")
        attempt = "attempt 1" if outage == "suspended" else "Connection refused"
        where = f"the database env:SHOP at {server.folder}/postgres, attempt "
        wait_until(lambda: where in (said := run.control("status").stdout) and attempt in said)
        assert where in run.control("explain").stdout
        wait_until(lambda: any(where in line and "worker 0 has been waiting for 1" in line for line in run.said))
    finally:
        server.resume() if outage == "suspended" else server.start()
    run.status_when(lambda record: record["state"] == "running")
    run.process.send_signal(signal.SIGTERM)
    code, _, said = run.end()
    assert code == 0 and "stopped at checkpoint" in said[-1], said
    assert not any("closed a connection" in line for line in said), said
    assert server.password not in "\n".join(said) and os.environ["SHOP"] not in "\n".join(said)
