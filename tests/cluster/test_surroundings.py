"""The surroundings of a job and of its code: files in the current directory, subprocesses, forks."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, STOP_SECONDS, Run, wait_until
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

NEIGHBOUR = """
def words_of(line):
    return line.split()
"""
NEIGHBOURLY = """
from words import words_of

def dataflow(flow):
    return flow.lines().flat_map(words_of).map(lambda word: (word, 1)).stateful_state_machine(count)

def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]
"""
LOADED_BEFORE = "import runpy, sys, megaflow.cli.main; print(*(sys.modules.keys() & sys.stdlib_module_names))"


def foreign(folder: Path, names: frozenset[str]) -> Path:
    """Return a folder with a module of each name, which leaves a mark if it is run."""
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("open(__file__ + '.ran', 'w').close()\nraise RuntimeError('foreign code')\n")
    return folder


@pytest.mark.parametrize("safe", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_process_of_a_job_runs_files_of_the_current_directory(
    start: Callable[..., Run], tmp_path: Path, safe: bool
) -> None:
    names = sys.stdlib_module_names
    more: dict[str, dict[str, str]] = {}
    if not safe:  # Python's own imports before megaflow starts come from there, as two settings demand
        loaded = subprocess.run([sys.executable, "-c", LOADED_BEFORE], capture_output=True, text=True, check=True)
        names -= set(loaded.stdout.split())
        more = {"env": {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}"}}
        assert {"random", "socket", "selectors", "hmac"} <= names
    here = foreign(tmp_path / "here", names)
    app = tmp_path / "app"
    app.mkdir()
    (app / "words.py").write_text(NEIGHBOUR)
    (app / "app.py").write_text(NEIGHBOURLY)
    words = ("../app/app.py", "--lines", "-", "--processes", "2")
    run = start(*words, stdin=subprocess.PIPE, cwd=here, python=("-P",) if safe else (), **more)
    run.process.write_line("a b a")
    answers = sorted(run.process.read_line() for _ in range(3))
    assert all(answers), run.said
    check_equal(answers, ["('a', 1)\n", "('a', 2)\n", "('b', 1)\n"])
    added = run.control("add-workers", "1", "--balance")
    assert added.returncode == 0, added.stderr
    run.process.write_line("a b")
    assert run.process.stdin is not None
    run.process.stdin.close()
    code, output, said = run.end()
    assert code == 0, (output, said)
    check_equal(sorted(output.splitlines())[2::2], ["('a', 3)", "('b', 2)"], (output, said))
    assert [each.name for each in here.glob("*.ran")] == []


# A line says what to do with it.
BUSY = """
import multiprocessing, os, signal, subprocess, sys, time
from pathlib import Path

def obey(line):
    if line == "cat":
        return subprocess.run(["cat"], capture_output=True, text=True).stdout
    if line == "stdin":
        return sys.stdin.read()
    if line == "descriptors":
        return subprocess.run("ls /proc/self/fd", shell=True, close_fds=False, capture_output=True, text=True).stdout
    if line == "pool":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(len, ["a", "bb"])
    if line == "exit" or line == "return":
        child = os.fork()
        if child == 0 and line == "exit":
            raise SystemExit(0)
        if child == 0:
            return "a fork speaks"
        return os.waitpid(child, 0)[1]
    if line.startswith("leave "):
        if os.fork() == 0:
            time.sleep(600)
        Path(line.removeprefix("leave ")).write_text(str(os.getpid()))
    return line

def dataflow(flow):
    obey("cat")
    return flow.lines().map(lambda line: (line, obey(line))).exchange(lambda pair: len(pair[0]))
"""


@pytest.fixture
def busy(tmp_path: Path) -> str:
    path = tmp_path / "busy.py"
    path.write_text(BUSY)
    return str(path)


def test_a_subprocess_reads_nothing_and_a_fork_says_nothing(
    start: Callable[..., Run], tmp_path: Path, busy: str
) -> None:
    lines = tmp_path / "lines.txt"
    told = ["cat", "stdin", "descriptors", "pool", "exit", "return"]
    lines.write_text("\n".join([*told, *("x" * (n % 7) for n in range(5000))]))
    run = start(busy, "--lines", "-", "--processes", "2", stdin=lines.open())
    code, output, said = run.end()
    assert code == 0, said
    records = Counter(output.splitlines())
    with comparing():
        assert records.pop(str(("descriptors", "0\n1\n2\n3\n")), 0)  # 3 is the folder that `ls` reads
        pools, exits = records.pop(str(("pool", [1, 2])), 0), records.pop(str(("exit", 256)), 0)
        assert 0 < pools == exits == records.pop(str(("return", 256)), 0)
        assert records.pop(str(("cat", "")), 0) == records.pop(str(("stdin", "")), 0) == 1
    check_equal(records, Counter(str(("x" * (n % 7),) * 2) for n in range(5000)))
    assert sum("fork" in line for line in said) == 2, said
    assert any(line.endswith(": it raised SystemExit: 0") for line in said), said


def test_a_killed_worker_is_missed_at_once_though_a_fork_of_it_lives(
    start: Callable[..., Run], tmp_path: Path, busy: str
) -> None:
    run = start(busy, "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
    where = tmp_path / "pid"
    run.process.write_line(f"leave {where}")
    wait_until(lambda: where.exists() and where.read_text() != "")
    worker = int(where.read_text())
    try:
        os.kill(worker, signal.SIGKILL)
        assert run.process.wait(STOP_SECONDS) == 1
    finally:
        os.killpg(worker, signal.SIGKILL)  # the fork
    _, _, said = run.end()
    assert f"pid {worker}) was killed by SIGKILL" in said[-1]


def test_a_process_that_joins_by_hand_leaves_its_standard_input_alone(
    start: Callable[..., Run], tmp_path: Path, busy: str
) -> None:
    run = start(busy, "--lines", "-", "--name", "busy", stdin=subprocess.PIPE)
    run.status_when(lambda record: record["state"] == "running")
    other = run.megaflow("run", busy, "--join", "busy", stdin=subprocess.PIPE)
    try:
        wait_until(lambda: any("worker 1 of job" in line for line in other.errors))
        assert run.process.stdin is not None
        run.process.stdin.close()
        assert run.end()[0] == 0 and other.end().code == 0
    finally:
        other.finish()
