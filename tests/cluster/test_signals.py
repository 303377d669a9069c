"""Signals to a job that is starting, or recovering from a loss: how it ends, and with which exit code."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# While the file `slow` exists, a worker process's Python hangs at its start.
AT_START = """
import os, sys, time
from pathlib import Path

folder = Path(__file__).parent
if "-c" in sys.orig_argv and (folder / "slow").exists():
    (folder / f"starts-{os.getpid()}").touch()
    while (folder / "slow").exists():
        time.sleep(0.01)
"""

PROGRAM = """
def count(word, one, total):
    return (total or 0) + one, []

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
"""

CODES = [(signal.SIGTERM, 143, 0, "ended by SIGTERM"), (signal.SIGINT, 130, 130, "interrupted")]


@pytest.mark.parametrize(("number", "at_once", "later", "word"), CODES)
def test_a_signal_at_a_start_or_a_recovery_has_its_own_exit_code(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    number: int, at_once: int, later: int, word: str,
) -> None:  # fmt: skip
    app, store, text, slow = (tmp_path / name for name in ("app.py", "store", "words.txt", "slow"))
    app.write_text(PROGRAM)
    text.write_text("a\n")
    (tmp_path / "sitecustomize.py").write_text(AT_START)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = (str(app), "--lines", str(text), "--follow", "--processes", "2", "--output", "none", "--state", str(store))

    def await_starts(count: int) -> None:
        wait_until(lambda: len(list(tmp_path.glob("starts-*"))) == count)

    def interrupt(run: Run, code: int) -> list[str]:
        run.process.send_signal(number)
        ended, _, said = run.end()
        assert ended == code and run.files() == [], said
        return said

    slow.touch()
    run = start(*words)
    await_starts(2)
    assert interrupt(run, at_once)[-1] == f"megaflow: {word}"

    slow.unlink()
    run = start(*words)
    run.status_when(lambda record: record["state"] == "running")
    slow.touch()
    for worker in run.status()["workers"]:
        os.kill(worker["pid"], signal.SIGKILL)
    await_starts(4)
    said = interrupt(run, at_once)
    assert said[-1] == f"megaflow: {word}" and any("restart 1 of 3" in line for line in said), said

    slow.unlink()
    run = start(*words)
    run.status_when(lambda record: record["state"] == "running")
    assert "stopped at checkpoint" in interrupt(run, later)[-1]
