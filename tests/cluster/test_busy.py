"""Real jobs with a worker in a long step: control still answers, and names the worker, the place and the time.

The test decides when each long step ends.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.spec import AppFile, JobSpec
from tests.cluster.processes import Process, Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

# A line names a worker, what to do there, and the FIFO whose end the worker awaits.
APP = """
import ctypes, os

def hold(path):
    with open(path, "rb") as fifo:
        fifo.read()

def lock(path):
    # a call that keeps the interpreter's lock
    file = os.open(path, os.O_RDONLY)
    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)

def act(line):
    _, what, *rest = line.split()
    if what in ("hold", "lock"):
        {"hold": hold, "lock": lock}[what](*rest)
    return what, 1

def count(key, value, state):
    return (state or 0) + value, []

def dataflow(flow):
    return flow.lines().exchange(lambda line: int(line.split()[0])).map(act).stateful_state_machine(count)
"""
LINE = APP.splitlines().index("        fifo.read()") + 1


class Busy:
    """Job of two processes that the test can make busy."""

    def __init__(self, start: Callable[..., Run], folder: Path) -> None:
        self.app = folder / "app.py"
        self.app.write_text(APP)
        self.run = start(str(self.app), "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
        wait_until(lambda: any(self.run.files()))
        for worker in (0, 1):
            self.run.process.write_line(f"{worker} nothing")
        self.run.status_when(lambda record: sum(each["records"] for each in record["workers"]) == 2)
        self._fifo = folder / "fifo"
        os.mkfifo(self._fifo)

    @contextmanager
    def at(self, worker: int, what: str = "hold") -> Iterator[str]:
        """Keep a worker in a long step during the block; yield the line that requests it."""
        line = f"{worker} {what} {self._fifo}"
        self.run.process.write_line(line)
        file = os.open(self._fifo, os.O_WRONLY)  # waits until the worker has opened it
        try:
            yield line
        finally:
            os.close(file)

    def asked_when(self, command: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the answer is as wanted. A worker counts as busy after a second."""
        found: list[dict[str, Any]] = []

        def asked() -> bool:
            done = self.run.control(command, "--json")
            assert done.returncode == 0, done.stderr
            found[:] = [json.loads(done.stdout)]
            return wanted(found[0])

        wait_until(asked)
        return found[0]

    def control(self, *words: str) -> Process:
        return self.run.megaflow("control", *words)

    def end(self) -> None:
        done = self.run.control("stop")
        assert done.returncode == 0, done.stderr
        assert self.run.end()[0] == 0


@pytest.fixture
def job(start: Callable[..., Run], tmp_path: Path) -> Busy:
    return Busy(start, tmp_path)


def named(process: Process, text: str) -> None:
    """Wait until the process prints a text on standard error."""
    wait_until(lambda: any(text in line for line in process.errors) or process.poll() is not None)
    assert any(text in line for line in process.errors), process.errors


@pytest.mark.slow
def test_control_answers_while_the_coordinator_is_in_a_long_step(job: Busy) -> None:
    with job.at(0) as line:
        record = job.asked_when("status", lambda record: record["state"] == "busy")
        assert record["job"].startswith("test_control") and record["epoch"] is None and record["silent"] == [0]
        [busy] = record["busy"]
        assert (busy["workers"], busy["state"], busy["function"]) == ([0], "busy", "hold")
        assert busy["where"] == f"app.py:{LINE}" and busy["record"] == repr(line)[:99] + "…" * (len(repr(line)) > 99)
        assert busy["seconds"] >= 1 and busy["operator"] is not None
        shown = job.run.control("status")
        assert f"worker 0 did not answer: it has been in 'hold' (app.py:{LINE}) for " in shown.stdout, shown
        explained = job.run.control("explain")
        assert explained.returncode == 0 and f"'hold' (app.py:{LINE})" in explained.stdout, explained
        stopping = job.control("stop")
        named(stopping, f"worker 0 has been in 'hold' (app.py:{LINE}) for ")
        named(stopping, "megaflow control stop --force")
        named(stopping, "The request is sent when it answers")
    assert stopping.end().output == "the job has stopped\n"
    assert job.run.end()[0] == 0


@pytest.mark.slow
def test_control_shows_the_rest_while_another_worker_is_in_a_long_step(job: Busy) -> None:
    with job.at(1):
        record = job.asked_when("status", lambda record: bool(record["busy"]))
        assert [each["id"] for each in record["workers"]] == [0] and record["silent"] == [1]
        assert record["busy"][0]["where"] == f"app.py:{LINE}"
        shown = job.run.control("status")
        assert f"worker 1 did not answer: it has been in 'hold' (app.py:{LINE}) for " in shown.stdout, shown
        explained = job.asked_when("explain", lambda record: bool(record["silent"]))
        assert explained["silent"] == [1] and explained["busy"][0]["function"] == "hold"
        moving = job.control("move-bins", "--bins", "0", "--to", "1")
        named(moving, "The request has been sent and waits there")
    moved = moving.end()
    assert moved.code == 0 and moved.output.startswith("moved 1 bin"), moved
    job.end()


@pytest.mark.slow
def test_code_that_keeps_the_interpreter_s_lock_is_silent(job: Busy) -> None:
    with job.at(0, "lock"):
        record = job.asked_when("status", lambda record: record["state"] == "busy")
        assert [(each["workers"], each["state"]) for each in record["busy"]] == [([0], "silent")]
        assert "worker 0 did not answer: it has been silent for " in job.run.control("status").stdout
        named(job.run.process, "worker 0 has been silent for 1")  # after ten seconds
    job.end()


@pytest.mark.slow
def test_a_suspended_process_is_told_and_how_it_goes_on(job: Busy) -> None:
    pid = job.run.status()["workers"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        record = job.asked_when("status", lambda record: bool(record["busy"]))
        assert record["silent"] == [1] and record["busy"][0]["state"] == "suspended"
        assert f"kill -CONT {pid}" in job.run.control("explain").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    job.end()


@pytest.mark.slow
def test_the_launcher_says_once_where_a_worker_hangs(job: Busy) -> None:
    with job.at(1):
        named(job.run.process, f"worker 1 has been in 'hold' (app.py:{LINE}) for 1")  # after ten seconds
    job.end()
    assert sum("worker 1 has been in 'hold'" in line for line in job.run.said) == 1


@pytest.mark.slow
def test_a_program_that_takes_longer_to_build_than_a_launcher_waits_for_one_that_is_silent_begins_then(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    seconds = JobSpec(AppFile("app.py", "dataflow")).connect_timeout_seconds
    app, lines = tmp_path / "app.py", tmp_path / "lines"
    app.write_text(
        "import time\n\ndef dataflow(flow):\n"
        f"    if flow.worker.index:\n        time.sleep({seconds + 2})\n"
        "    return flow.lines()"
    )
    lines.write_text("a\n")
    code, out, said = start(str(app), "--lines", str(lines), "--processes", "2").end()
    assert code == 0, said
    check_equal(out, "a\n", said)
    assert any("worker 1 has been in 'dataflow' (app.py:5)" in line for line in said)
    assert not any("closed a connection" in line for line in said)
