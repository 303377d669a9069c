"""Another program copies and truncates the output of a job that runs, as logrotate does with `copytruncate`."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run, records_of, wait_until
from tests.results import check_equal
from tests.words import says

pytestmark = pytest.mark.cluster

ECHO = "def dataflow(flow):\n    return flow.lines()\n"
SELDOM = ("--checkpoint-every", "1000")  # only when the test asks for one


class Rotated:
    """A job that follows lines, and its output, which is rotated."""

    def __init__(self, start: Callable[..., Run], folder: Path) -> None:
        (folder / "echo.py").write_text(ECHO)
        self._start, self._folder = start, folder
        self._lines, self.output = folder / "lines.txt", folder / "out.jsonl"
        self._lines.touch()
        self.run: Run

    def begin(self, *words: str) -> Run:
        program, lines = str(self._folder / "echo.py"), str(self._lines)
        self.run = self._start(program, "--lines", lines, "--follow", "--output", f"jsonl:{self.output}", *words)
        return self.run

    def read(self, *lines: str) -> None:
        """Give the job these lines; wait for them in its output."""
        with self._lines.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        wait_until(lambda: records_of(self.output)[-1:] == [lines[-1]])

    def rotate(self) -> list[object]:
        """Copy and truncate the output; return the records of the copy."""
        copy = self.output.with_suffix(".1")
        shutil.copy(self.output, copy)
        os.truncate(self.output, 0)
        return records_of(copy)

    def command(self, *words: str) -> None:
        done = self.run.control(*words)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def rotated(start: Callable[..., Run], tmp_path: Path) -> Rotated:
    return Rotated(start, tmp_path)


def test_truncated_output_has_later_records_without_nuls(rotated: Rotated) -> None:
    run = rotated.begin()
    rotated.read("a", "b")
    check_equal(rotated.rotate(), ["a", "b"])
    rotated.read("c")
    rotated.command("stop")
    assert run.end()[0] == 0
    check_equal(records_of(rotated.output), ["c"])


def test_checkpoint_reports_truncation_and_job_resumes_from_it(rotated: Rotated, tmp_path: Path) -> None:
    words = ("--state", str(tmp_path / "store"), *SELDOM)
    run = rotated.begin(*words)
    rotated.read("a", "b")
    rotated.command("checkpoint")
    rotated.rotate()
    rotated.read("c")
    rotated.command("checkpoint")
    rotated.read("d")
    run.process.send_signal(signal.SIGKILL)
    _, _, said = run.end()
    assert sum(says(line, "out.jsonl was truncated by another program") for line in said) == 1, said
    run = rotated.begin(*words)
    rotated.read("e")
    rotated.command("stop")
    code, _, said = run.end()
    assert code == 0 and not any("truncated" in line for line in said), said
    check_equal(records_of(rotated.output), ["c", "d", "e"])


@pytest.mark.parametrize("grown", [False, True])
def test_crash_before_that_checkpoint_is_refused_at_resume(rotated: Rotated, tmp_path: Path, grown: bool) -> None:
    words = ("--state", str(tmp_path / "store"), *SELDOM)
    run = rotated.begin(*words)
    rotated.read("a", "b")
    rotated.command("checkpoint")
    rotated.rotate()
    rotated.read("c" * 500 if grown else "c")
    run.process.send_signal(signal.SIGKILL)
    run.end()
    before = rotated.output.read_bytes()
    code, _, said = rotated.begin(*words).end()
    wrong = "does not have the bytes that this job wrote" if grown else "bytes at the last checkpoint"
    assert code == 1 and says(said[-1], "out.jsonl", wrong, "Put back the file that this job wrote"), said
    assert rotated.output.read_bytes() == before


def test_lost_worker_before_that_checkpoint_ends_job(rotated: Rotated, tmp_path: Path) -> None:
    run = rotated.begin("--state", str(tmp_path / "store"), *SELDOM, "--processes", "2")
    rotated.read("a", "b")
    rotated.command("checkpoint")
    rotated.rotate()
    rotated.read("c")
    before = rotated.output.read_bytes()
    children = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(int(children.split()[-1]), signal.SIGKILL)
    code, _, said = run.end()
    assert code == 75 and says(said[-1], "out.jsonl has", "last checkpoint", "folder; its state is kept"), said
    assert rotated.output.read_bytes() == before
