"""Missing input and unread output keep the launcher from nothing else."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, STOP_SECONDS, WORDCOUNT, Process, Run, wait_until
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

# Runs a job whose lines stop after the first three; commands from elsewhere steer it by its name.
BLOCKING = """
import sys, threading, megaflow

def dataflow(flow):
    return flow.lines().map(lambda line: (line, 1)).stateful_state_machine(lambda key, n, total: (n, [key]))

def lines():
    yield from ["a", "b", "c"]
    threading.Event().wait()

try:
    megaflow.run(dataflow, lines=lines(), processes=2, name="blocked")
except megaflow.errors.ClusterError as error:
    sys.exit(f"lost: {error}")
"""


def blocked(folder: Path) -> Run:
    """Start a job from Python whose lines stop coming."""
    script = folder / "blocking.py"
    script.write_text(BLOCKING)
    run = object.__new__(Run)
    run.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    run.folder = folder / "megaflow"
    run.process = Process([sys.executable, str(script)], env=run.environment)
    run.said = run.process.errors
    return run


def lines_read(run: Run) -> int:
    return sum(worker["lines"] for worker in run.status()["workers"])


def test_processes_join_and_a_lost_one_is_noticed_though_no_line_comes(tmp_path: Path) -> None:
    run = blocked(tmp_path)
    try:
        wait_until(lambda: run.files() != [])
        wait_until(lambda: lines_read(run) == 3)
        added = run.control("add-workers", "1")
        assert added.returncode == 0, added.stderr
        worker = run.status()["workers"][2]
        os.kill(worker["pid"], signal.SIGKILL)
        code, _, said = run.end()
        assert code == 1 and said[-1].startswith(f"lost: worker 2 ({worker['address']}, pid {worker['pid']})")
    finally:
        run.process.finish()


# Makes more of each line.
MORE = """
def dataflow(flow):
    return flow.lines().map(lambda line: line + " " + 2000 * "x")
"""
LINES = 200_000


@contextmanager
def unread(start: Callable[..., Run], folder: Path) -> Iterator[tuple[Run, int]]:
    """Yield a job with more output than its buffers hold, once it waits for a reader, and the pipe to read it from."""
    app, lines = folder / "more.py", folder / "lines.txt"
    app.write_text(MORE)
    lines.write_text("\n".join(map(str, range(LINES))) + "\n")
    reading, writing = os.pipe()
    run = start(str(app), "--lines", str(lines), "--processes", "2", stdout=writing)
    os.close(writing)
    try:
        seen: list[int] = []

        def rests() -> bool:
            """Return whether three times in a row nothing more was read, of much more input than fits all buffers."""
            seen.append(lines_read(run))
            return seen[-1] > 0 and seen[-3:] == [seen[-1]] * 3

        wait_until(lambda: run.files() != [])
        wait_until(rests)
        assert seen[-1] < LINES / 2, "whoever does not read holds the job back"
        yield run, reading
    finally:
        os.close(reading)


@pytest.mark.slow
def test_output_that_is_read_late_is_whole_and_a_first_signal_drains(start: Callable[..., Run], tmp_path: Path) -> None:
    with unread(start, tmp_path) as (run, reading):
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: any("stopping: " in line for line in run.said))
        with open(reading, closefd=False) as pipe:
            found = [int(line.split()[0]) for line in pipe]
        code, _, said = run.end()
        assert code == 130, said
        check_equal(found, list(range(len(found))))
        with comparing():
            assert said[-1].startswith(f"megaflow: {len(found)} lines, {len(found)} records, "), said


def test_a_second_signal_ends_a_job_whose_output_nobody_reads(start: Callable[..., Run], tmp_path: Path) -> None:
    with unread(start, tmp_path) as (run, _):
        run.process.send_signal(signal.SIGTERM)
        wait_until(lambda: any("stopping: " in line for line in run.said))
        run.process.send_signal(signal.SIGTERM)
        code, _, said = run.end()
        assert code == 143 and said[-1] == "megaflow: ended by SIGTERM", said


@pytest.mark.slow
def test_a_lost_worker_is_noticed_though_nobody_reads_the_output(start: Callable[..., Run], tmp_path: Path) -> None:
    with unread(start, tmp_path) as (run, _):
        worker = run.status()["workers"][1]
        os.kill(worker["pid"], signal.SIGKILL)
        killed = time.monotonic()
        code, _, said = run.end()
        assert time.monotonic() - killed < 4 * STOP_SECONDS
        assert code == 1 and said[-1].startswith(f"megaflow: worker 1 ({worker['address']}, pid "), said
        assert said[-2].startswith("megaflow: the output has no reader, so ") and run.files() == []


# Is busy with each line, on the worker that the line names.
BUSY = """
import pathlib, time

def keep_busy(line):
    pathlib.Path(f"{__file__}.{line}").touch()
    time.sleep(600)

def dataflow(flow):
    return flow.lines().exchange(int).map(keep_busy)
"""

# Sets a timer whenever one is due.
FOREVER = """
def tick(key, time, records, state, timers):
    timers.at(time + 1, key)
    return key, []

def dataflow(flow):
    return flow.lines().map(lambda line: (line, None)).stateful_unary(tick)
"""


def test_a_drain_that_does_not_end_is_ended_and_says_what_is_left(start: Callable[..., Run], tmp_path: Path) -> None:
    app, lines = tmp_path / "forever.py", tmp_path / "lines.txt"
    app.write_text(FOREVER)
    lines.write_text("a\nb\nc\n")
    run = start(str(app), "--lines", str(lines), "--processes", "2", "--drain-timeout", "1")
    run.status_when(lambda status: sum(worker["done"] for worker in status["workers"]) == 3)
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    told = "within 1 s of the request to stop (--drain-timeout 1), so it was ended; unfinished"
    assert code == 1 and told in said[-1] and sum(map(int, re.findall(r"(\d+) timer", said[-1]))) == 3, said
    assert run.files() == []


@pytest.mark.slow
def test_a_drain_that_a_signal_begins_is_ended_too(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "forever.py"
    app.write_text(FOREVER)
    run = start(str(app), "--lines", "-", "--drain-timeout", "1", stdin=subprocess.PIPE)
    run.process.write_line("a")
    run.reading()
    run.process.send_signal(signal.SIGTERM)
    code, _, said = run.end()
    assert code == 1 and said[-1].endswith("; unfinished: worker 0: 1 timer"), said


@pytest.mark.parametrize("line", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_force_ends_a_job_whatever_it_is_busy_with(start: Callable[..., Run], tmp_path: Path, line: str) -> None:
    app = tmp_path / "busy.py"
    app.write_text(BUSY)
    run = start(str(app), "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
    run.process.write_line(line)
    wait_until((tmp_path / f"busy.py.{line}").exists)
    ended = run.control("stop", "--force")
    assert (ended.returncode, ended.stdout) == (0, "the job was ended\n"), ended.stderr
    assert run.files() == []
    code, _, said = run.end()
    assert code == 1 and said[-1].startswith("megaflow: the job was ended by force, as requested "), said
    again = run.control("stop", "--force")
    assert again.returncode == 1 and "no job is running" in again.stderr, again.stderr


def test_what_force_cannot_end_it_says_how_to(start: Callable[..., Run]) -> None:
    run = start(WORDCOUNT, "--lines", "-", stdin=subprocess.PIPE)
    run.status_when(lambda status: True)
    [door] = run.folder.glob("*.sock")
    door.unlink()
    refused = run.control("stop", "--force")
    assert refused.returncode == 1 and f", kill -KILL {run.process.pid} ends the launcher " in refused.stderr
    afar = run.control("stop", "--force", "--connect", "127.0.0.1:1")
    assert afar.returncode == 2 and "--force and --connect do not go together. Use --job" in afar.stderr
