"""`megaflow control explain` on real jobs names the holder of a time, or reports that there is none."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import WORDCOUNT, Run, wait_until

pytestmark = pytest.mark.cluster

HOARDER = """
from megaflow.timely import Pipeline

def hoard(worker):
    def build(capability, info):
        capability.release()
        kept = []

        def logic(input, output):
            for time, lines in input:
                with output.session(time) as session:
                    session.give_iterator(lines)
                if worker.index == 1 and not kept:
                    kept.append(time.retain())    # and never released

        return logic
    return build

def dataflow(flow):
    lines = flow.lines()
    return lines.unary(Pipeline(), "Hoarder", hoard(flow.worker))
"""
LINE = HOARDER.splitlines().index('    return lines.unary(Pipeline(), "Hoarder", hoard(flow.worker))') + 1

SLEEPER = """
import time

def dataflow(flow):
    def sleep(line):
        if line == "sleep":
            time.sleep(3600)
        return line
    return flow.lines().exchange(lambda line: 1 if line == "sleep" else 0).map(sleep)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def starting(*words: str, **more: Any) -> Run:
        runs.append(Run(tmp_path, *words, **more))
        return runs[-1]

    yield starting
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.process.send_signal(signal.SIGTERM)
            run.process.wait()
        run.process.finish()


def explanation_when(run: Run, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask until the explanation is as wanted; only the test's time limit ends this."""
    while True:
        done = run.control("explain", "--json")
        assert done.returncode == 0, done.stderr
        record: dict[str, Any] = json.loads(done.stdout)
        if wanted(record):
            return record


def test_a_forgotten_capability_is_named_with_operator_line_worker_and_epoch(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """Engine case of `explain`: one operator on one of two workers never releases a capability."""
    app = tmp_path / "hoarder.py"
    app.write_text(HOARDER)
    for number in range(2):
        (tmp_path / f"{number}.txt").write_text("a line\n" * 50)
    run = start(str(app), "--lines", str(tmp_path / "*.txt"), "--processes", "2", "--rate", "20")
    run.reading()
    record = explanation_when(run, lambda record: not record["settled"])
    [hold] = [each for each in record["held_by"] if each["operator"] == "Hoarder"]
    assert hold == {
        "operator": "Hoarder", "where": f"{app}:{LINE}", "port": "output 0", "worker": 1,
        "epoch": record["frontier"], "count": 1, "kind": "capability",
    }  # fmt: skip
    assert record["job"] == "hoarder" and record["silent"] == []
    assert record["epoch"] > record["frontier"]
    shown = run.control("explain")
    assert shown.returncode == 0, shown.stderr
    head, table, *rows = shown.stdout.splitlines()
    assert f"epoch {record['frontier']} is held by:" in head
    assert table.split()[:5] == ["operator", "port", "worker", "epoch", "count"]
    [row] = [row.split() for row in rows if "Hoarder" in row]
    assert row == ["Hoarder", "output", "0", "1", str(record["frontier"]), "1", "capability", f"{app}:{LINE}"]


@pytest.mark.slow
def test_a_job_that_keeps_up_says_that_nothing_holds_it_back(start: Callable[..., Run]) -> None:
    reading, writing = os.pipe()
    try:
        run = start(WORDCOUNT, "--lines", "-", "--processes", "2", stdin=reading)
        run.status_when(lambda record: record["epoch"] > 5)
        record = explanation_when(run, lambda record: record["settled"])
        assert record["held_by"] == [] and record["silent"] == []
        sentence = "no output is held back: output is complete before epoch"
        while not (shown := run.control("explain")).stdout.startswith(sentence):
            assert shown.returncode == 0, shown.stderr
    finally:
        os.close(writing)
        os.close(reading)


def test_a_worker_in_a_long_step_is_named_as_silent(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "sleeper.py"
    app.write_text(SLEEPER)
    (tmp_path / "lines.txt").write_text("sleep\n")
    run = start(str(app), "--lines", str(tmp_path / "lines.txt"), "--processes", "2")
    wait_until(lambda: any(run.files()))
    record = explanation_when(run, lambda record: record["silent"])
    assert record["silent"] == [1] and not record["settled"]
    shown = run.control("explain")
    assert "worker 1 did not answer" in shown.stdout and shown.returncode == 0, shown
