"""A module that starts a job when it is imported is refused. It never starts an endless series of processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.job import nested_start
from megaflow.job.nested_start import DEPTH, DEPTH_MAX, check_depth, check_start
from tests.results import check_equal

SECONDS = 120.0  # a job that starts others without end would last longer
FLOW = """
import sys
import megaflow
def dataflow(flow):
    return flow.lines()
"""
START = """
print("starts", file=sys.stderr)
print(megaflow.run(dataflow, lines=["a"]))
"""
SPAWNING = """
import concurrent.futures, multiprocessing
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(pool.submit(abs, -1).result())
"""


def python(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in the folder, and end all processes that it leaves behind."""
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.mark.cluster
@pytest.mark.parametrize(
    "words",
    [
        ("-m", "megaflow", "run", "shop.py", "--lines", "shop.py"),
        ("-c", "import shop"),
        ("-m", "megaflow", "graph", "shop.py"),
    ],
)
def test_a_module_that_starts_a_job_on_import_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "shop.py").write_text(FLOW + START)
    done = python(tmp_path, *words)
    assert done.returncode == 1 and done.stderr.count("starts\n") == 1 and not done.stdout, done.stderr
    line = (FLOW + START).splitlines().index('print(megaflow.run(dataflow, lines=["a"]))') + 1
    assert f"shop.py, line {line}: The module 'shop' starts a job when it is imported" in done.stderr
    assert 'Start the job under if __name__ == "__main__":, or move the dataflow function to' in done.stderr


@pytest.mark.cluster
def test_a_module_may_start_a_job_of_another_module(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOW)
    (tmp_path / "shop.py").write_text("from flows import dataflow\nimport megaflow, sys\n" + START)
    done = python(tmp_path, "-c", "import shop")
    assert done.returncode == 0, done.stderr
    check_equal(done.stdout, "['a']\n", done.stderr)


@pytest.mark.cluster
def test_a_module_that_a_worker_imports_later_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOW)
    (tmp_path / "shop.py").write_text("from flows import dataflow\nimport megaflow, sys\n" + START)
    code = "import megaflow\nmegaflow.run(lambda flow: flow.lines().map(__import__), lines=['shop'])"
    done = python(tmp_path, "-c", code)
    assert done.returncode == 1 and "The module 'shop' starts a job" in done.stderr, done.stderr


@pytest.mark.cluster
def test_a_child_of_multiprocessing_does_not_run_the_job_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FLOW + START + SPAWNING)
    done = python(tmp_path, "shop.py")
    assert "multiprocessing runs it again" in done.stderr, done.stderr
    check_equal(done.stdout, "['a']\n", done.stderr)


@pytest.mark.cluster
@pytest.mark.slow  # four jobs, one within the other
def test_jobs_within_jobs_end_at_a_depth(tmp_path: Path) -> None:
    start = (
        'import subprocess\nsubprocess.run([sys.executable, "-m", "megaflow", "run", __file__, "--lines", __file__])\n'
    )
    (tmp_path / "shop.py").write_text(FLOW + 'print("starts", file=sys.stderr)\n' + start)
    done = python(tmp_path, "-m", "megaflow", "run", "shop.py", "--lines", "shop.py")
    assert done.stderr.count("starts\n") == DEPTH_MAX and "Perhaps a module that workers import" in done.stderr


def test_a_job_within_too_many_others_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEPTH, str(DEPTH_MAX - 1))
    check_depth()
    nested_start.enter()
    with pytest.raises(UsageError, match="within 2 other jobs"):
        check_depth()


def test_a_call_outside_of_imports_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_start(__name__)
    monkeypatch.setenv(DEPTH, "1")
    check_start(__name__)
