"""What a job says when it cannot go on: one line with the name and the remedy, or the user's own traceback."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import WORDCOUNT, Run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

# What a line says is raised: by the operator, or by the repr of what comes out.
RAISING = """
import sys

class Shown:
    def __init__(self, line):
        self.line = line

    def __repr__(self):
        return obey(self.line)

class Own(BaseException):
    pass

def obey(line):
    match line:
        case "exit":
            sys.exit()
        case "own":
            raise Own("\\N{GRINNING FACE}" * 9000)
    return line

def dataflow(flow):
    if flow.args:
        return flow.lines().map(Shown)
    return flow.lines().map(obey)
"""


def ended(run: Run, *lines: str) -> tuple[int, list[str]]:
    """Send the last lines; return exit code and what was said, but for how to steer it."""
    for line in lines:
        run.process.write_line(line)
    assert run.process.stdin is not None
    run.process.stdin.close()
    code, _, said = run.end()
    return code, [each for each in said if "steer it" not in each]


def no_internals(said: list[str]) -> bool:
    text = "\n".join(said)
    return "Traceback" not in text and "Error:" not in text and "megaflow/" not in text


@pytest.mark.parametrize("word", ["exit", "own"])
def test_what_is_no_exception_names_operator_worker_time_and_record(
    start: Callable[..., Run], tmp_path: Path, word: str
) -> None:
    app = tmp_path / "raising.py"
    app.write_text(RAISING)
    code, said = ended(start(str(app), "--lines", "-", stdin=subprocess.PIPE), "first", word)
    assert code == 1 and any(line.startswith(("SystemExit", "raising.Own: \N{GRINNING FACE}")) for line in said), said
    assert said[-1].startswith(f"in operator 'Map' ({app}:{len(RAISING.splitlines())}), worker 0, time "), said
    assert said[-1].endswith(f", record {word!r}")


def test_what_fails_while_output_is_shown_names_the_line_of_the_output(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app = tmp_path / "raising.py"
    app.write_text(RAISING)
    code, said = ended(start(str(app), "--lines", "-", "--", "shown", stdin=subprocess.PIPE), "exit")
    line = len(RAISING.splitlines()) - 1
    assert code == 1 and said[-1].startswith(f"in operator 'Output' (the output of 'Map', {app}:{line}), worker "), said
    assert said[-1].endswith(", record <Shown whose repr raises SystemExit>")


def test_an_interrupted_worker_is_named(start: Callable[..., Run]) -> None:
    run = start(WORDCOUNT, "--lines", "-", "--processes", "2", stdin=subprocess.PIPE)
    worker = run.status_when(lambda record: len(record["workers"]) == 2)["workers"][1]
    os.kill(worker["pid"], signal.SIGINT)
    code, _, said = run.end()
    named = f"worker 1 ({worker['address']}, pid {worker['pid']}) was killed by SIGINT"
    lost = "the state of 128 of 256 bins of 'count' (1,3,5,7,9,11,13,…,255)"
    assert code == 1 and said[-1].startswith(f"megaflow: {named}, and with it {lost}; all other"), said
    assert no_internals(said)
