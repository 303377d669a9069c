"""A program whose executable is no Python starts nothing without end, and MEGAFLOW_PYTHON names a Python for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.python_executable import STARTED, VARIABLE, VERSION, python_path
from tests.results import check_equal

STARTS_MAX = 9  # of a program that would start itself without end
PROGRAM = """
import os, subprocess, sys
with open(__file__ + ".starts", "a") as starts:
    print("start", file=starts)
    if starts.tell() > 6 * {most}:
        sys.exit("starts without end")
{change}
import megaflow
def dataflow(flow):
    return flow.lines().map({of_line})
if __name__ == "__main__":
    print(megaflow.run(dataflow, lines=["a"]))
"""
FROZEN = "sys.frozen = True"
BUNDLED = """
import cloudpickle, msgpack, sortedcontainers, megaflow.job.launcher.run.python_function
sys.frozen, sys.path[:] = True, [folder for folder in sys.path if "site-packages" not in folder]
"""
NESTED = """lambda line: subprocess.run(
    [sys.executable, "-c", f"import megaflow; print(megaflow.run(lambda flow: flow.lines(), lines=[{line!r}]))"],
    capture_output=True, text=True).stdout"""


def run(
    folder: Path, change: str, of_line: str = "str.upper", **environment: str
) -> "tuple[subprocess.CompletedProcess[str], int]":
    """Run the program after a change of `sys`; return how it ended, and how often it was started."""
    file = folder / "shop.py"
    file.write_text(PROGRAM.format(change=change, of_line=of_line, most=STARTS_MAX))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=600,
        check=False,
    )  # fmt: skip
    return done, (folder / "shop.py.starts").read_text().count("start")


def script(path: Path, *lines: str) -> Path:
    """Write a program of the shell."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (FROZEN, "This program is frozen"),
        ("sys.executable = None", "does not know its own executable"),
        ("sys.executable = ''", "does not know its own executable"),
        ("sys.executable = '/nowhere/python3'", "'/nowhere/python3' does not exist"),
        ("sys.executable = '/bin/false'", "'/bin/false', is no Python (it does not tell its version)"),
    ],
)
def test_an_executable_that_is_no_python_is_refused(tmp_path: Path, change: str, said: str) -> None:
    done, starts = run(tmp_path, change)
    assert done.returncode == 1 and said in done.stderr and starts == 1, done.stderr
    assert "Set MEGAFLOW_PYTHON=/path/to/python" in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["server", "python3.11"])
def test_an_executable_that_runs_its_own_program_ends(tmp_path: Path, name: str) -> None:
    itself = script(tmp_path / name, f"exec {sys.executable} {tmp_path / 'shop.py'}")
    done, starts = run(tmp_path, f"sys.executable = {str(itself)!r}")
    assert done.returncode == 1 and starts == 2, done.stderr
    said = "as a worker process, but it is no Python" if name == "python3.11" else "is no Python (it does not tell"
    assert said in done.stderr and "Set MEGAFLOW_PYTHON=/path/to/python" in done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("change", [FROZEN, BUNDLED, "sys.executable = None"])
def test_megaflow_python_runs_the_workers(tmp_path: Path, change: str) -> None:
    python = script(tmp_path / "mine", f"echo mine >> {tmp_path / 'used'}", f'exec {sys.executable} "$@"')
    done, _ = run(tmp_path, change, MEGAFLOW_PYTHON=str(python))
    check_equal(done.stdout, "['A']\n", done.stderr)
    assert (tmp_path / "used").read_text().count("mine") == 2, "asked once, and one worker"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["exit 3"], "This is no Python (it does not tell its version)"),
        (["echo a Python: cpython-27 True"], f"This is cpython-27, but the program runs {VERSION}"),
        ([f"echo a Python: {VERSION} False"], "This Python has no megaflow"),
    ],
)
def test_an_unfit_megaflow_python_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], said: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(script(tmp_path / "other", *lines)))
    with pytest.raises(UsageError) as refused:
        python_path()
    assert said in str(refused.value) and VARIABLE in str(refused.value)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match=r"This is no Python \(Permission denied"):
        python_path()


@pytest.mark.cluster
def test_a_worker_has_no_mark_and_may_start_jobs(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "", f"lambda line: os.environ.get({STARTED!r}, 'none')")
    check_equal(done.stdout, "['none']\n", done.stderr)
    done, _ = run(tmp_path, "", NESTED)
    check_equal(done.stdout, "[\"['a']\\n\"]\n", done.stderr)


def test_a_usual_executable_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(subprocess, "run", None)
    assert python_path() == sys.executable
