"""Prints of the program on real workers: named whole lines, beside the records, and known after a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import END_SECONDS, ROOT, Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

# Prints each word in a way that the word names.
PRINTING = """
import os, subprocess, sys, time, warnings

def tell(word):
    print("saw", word)
    if word == "long":
        print("x" * 100_000)
    elif word == "garbage":
        sys.stdout.flush()
        os.write(1, b"\\xff\\x00\\x1e9\\x1b[0m\\n")
    elif word == "child":
        sys.stdout.flush()
        subprocess.run([sys.executable, "-c", "import sys; print('a child', flush=True); print('!', file=sys.stderr)"])
    elif word == "half":
        print("no line end", end="")
    elif word == "warn":
        warnings.warn("beware")
    elif word == "die":
        sys.stdout.flush()
        os.write(2, b"last words")
        os.kill(os.getpid(), 9)
    elif word == "raise":
        raise ValueError(word)

def count(word, n, total):
    tell(word)
    return (total or 0) + n, [(word, (total or 0) + n)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(PRINTING)
    return tmp_path / "app.py"


def words(folder: Path, *given: str) -> str:
    (folder / "in.txt").write_text("".join(f"{word}\n" for word in given))
    return str(folder / "in.txt")


def printed(said: list[str]) -> list[str]:
    """Return the lines without those of the launcher."""
    return [line for line in said if not line.startswith("megaflow: ")]


@pytest.mark.parametrize("shape", [("2", "1"), ("1", "2"), ("2", "2")])
def test_each_line_has_the_name_of_its_worker(
    start: Callable[..., Run], tmp_path: Path, app: Path, shape: tuple[str, str]
) -> None:
    given = [f"word{n}" for n in range(200)]
    options = ("--processes", shape[0], "--workers", shape[1])
    code, output, said = start(str(app), "--lines", words(tmp_path, *given), *options).end()
    lines = printed(said)
    workers = {line.partition(":")[0] for line in lines}
    assert code == 0
    check_equal(len(output.splitlines()), 200)
    assert workers == {f"worker {n}" for n in range(int(shape[0]) * int(shape[1]))}
    assert sorted(line.partition(": ")[2] for line in lines) == sorted(f"saw {word}" for word in given)


def test_the_only_worker_prints_as_it_does_without_a_job(start: Callable[..., Run], tmp_path: Path, app: Path) -> None:
    code, output, said = start(str(app), "--lines", words(tmp_path, "a", "child", "b", "warn", "half")).end()
    assert code == 0
    check_equal(output.splitlines(), [f"('{word}', 1)" for word in ("a", "child", "b", "warn", "half")])
    lines = printed(said)
    assert lines[:6] == ["saw a", "saw child", "a child", "!", "saw b", "saw warn"]
    assert "UserWarning: beware" in lines[6] and lines[-2:] == ["saw half", "no line end"]


@pytest.mark.slow
def test_long_lines_and_garbage_are_named(start: Callable[..., Run], tmp_path: Path, app: Path) -> None:
    run = start(str(app), "--lines", words(tmp_path, "long", "half"), "--processes", "2")
    code, _, said = run.end()
    lines = printed(said)
    assert code == 0 and all(line.startswith("worker ") for line in lines)
    assert sum(line.count("x") for line in lines) == 100_000 and any(line.endswith("no line end") for line in lines)
    command = [sys.executable, "-m", "megaflow", "run", str(app), "--processes", "2", "--output", "none"]
    done = subprocess.run(
        [*command, "--lines", words(tmp_path, "garbage", "child")], cwd=ROOT, env=run.environment, capture_output=True,
        timeout=END_SECONDS, check=True,
    )  # fmt: skip
    lines_of_bytes = [line.partition(b": ")[2] for line in done.stderr.split(b"\n") if line.startswith(b"worker ")]
    assert {b"\xff\x00\x1e9\x1b[0m", b"a child", b"!"} <= set(lines_of_bytes)


@pytest.mark.parametrize("options", [(), ("--processes", "2"), ("--processes", "2", "--workers", "2")])
def test_the_error_about_a_killed_worker_has_its_last_lines(
    start: Callable[..., Run], tmp_path: Path, app: Path, options: tuple[str, ...]
) -> None:
    code, _, said = start(str(app), "--lines", words(tmp_path, "die"), *options).end()
    at = next(number for number, line in enumerate(said) if " printed:" in line)
    assert code == 1 and said[at].startswith("megaflow: the last lines that worker"), said
    assert said[at + 1 : at + 3] == ["  | saw die", "  | last words"] and "was killed by SIGKILL" in said[at + 3]
    assert len(said) == at + 4


def test_a_restart_reports_the_last_lines_too(start: Callable[..., Run], tmp_path: Path, app: Path) -> None:
    words_of = ("--lines", words(tmp_path, "die"), "--state", str(tmp_path / "kept"), "--restarts", "1")
    code, _, said = start(str(app), *words_of, "--output", f"jsonl:{tmp_path}/out").end()
    assert code == 75 and [line for line in said if line.startswith("  | ")] == ["  | saw die", "  | last words"] * 2
    assert sum("restart 1 of 1" in line for line in said) == 2, said


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_traceback_comes_last_and_alone(
    start: Callable[..., Run], tmp_path: Path, app: Path, options: tuple[str, ...]
) -> None:
    code, _, said = start(str(app), "--lines", words(tmp_path, "raise"), *options).end()
    at = said.index("Traceback (most recent call last):")
    assert code == 1 and said[at - 1].endswith("saw raise") and said[-1].startswith("in operator 'count'")
    assert all(not line.startswith("worker ") for line in said[at:])


SUSPENDING = """
import os, pathlib, signal

def flood(path):
    os.kill(os.getppid(), signal.SIGSTOP)
    for number in range(50_000):
        print("line", number)
    pathlib.Path(path).touch()
    while True:
        pass

def dataflow(flow):
    return flow.lines().map(flood)
"""


@pytest.mark.slow
def test_a_suspended_launcher_knows_the_last_lines_of_a_killed_worker(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(SUSPENDING)
    flooded = tmp_path / "flooded"
    run = start(str(tmp_path / "app.py"), "--lines", words(tmp_path, str(flooded)))
    try:
        wait_until(flooded.exists)  # though the launcher reads nothing
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
    code, _, said = run.end()
    assert code == 1 and "  | line 49999" in said, said[-30:]
    whole = [line for line in said if line.startswith("line ")]
    gaps = [line for line in said if line.endswith(" left out")]
    counted = int(gaps[0].split()[-5].replace(",", ""))
    assert len(gaps) == 1 and whole[0] == "line 0" and whole[-1] == "line 49999"
    assert abs(len(whole) + counted - 50_000) <= 2  # lines that were cut at an edge
