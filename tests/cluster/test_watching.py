"""Watching a real job: its events arrive once, in order, through a change of the coordinator and through a restart."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.counts import write_numbered
from tests.cluster.processes import ROOT, Run
from tests.cluster.test_rescaling import COUNT

pytestmark = pytest.mark.cluster


def begin(start: Callable[..., Run], folder: Path, *words: str) -> Run:
    text, app = write_numbered(folder / "text.txt", 300_000), folder / "app.py"
    app.write_text(COUNT)
    run = start(
        str(app), "--lines", str(text), "--rate", "800", "--processes", "2", "--name", "watched",
        "--output", f"jsonl:{folder / 'out.jsonl'}", *words,
    )  # fmt: skip
    run.reading()
    return run


class Watch(subprocess.Popen[str]):
    """`megaflow control watch --json`."""

    def __init__(self, run: Run, *words: str) -> None:
        command = [sys.executable, "-m", "megaflow", "control", "watch", "--json", "--job", "watched", *words]
        super().__init__(command, cwd=ROOT, env=run.environment, stdout=subprocess.PIPE, text=True)
        self.events: list[dict[str, Any]] = []

    def until(self, name: str, **fields: Any) -> dict[str, Any]:
        """Read up to an event with these fields, and return it."""
        assert self.stdout is not None
        for line in self.stdout:
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            if event["event"] == name and fields.items() <= event.items():
                return event
        raise AssertionError(f"no {name} {fields} in {self.events}")

    def numbers(self, attempt: int) -> list[int]:
        return [each["number"] for each in self.events if each.get("number") and each["attempt"] == attempt]


def test_a_watcher_sees_moves_joins_and_leaves_and_follows_the_coordinator(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = begin(start, tmp_path)
    with Watch(run) as watch:
        assert watch.until("coordinator-started")["workers"] == [0, 1]
        for words in (
            ("move-bins", "--bins", "0-2", "--to", "1"), ("add-workers", "1"), ("remove-workers", "--id", "0"),
        ):  # fmt: skip
            assert run.control(*words).returncode == 0
        assert watch.until("step-done")["report"]["bins"] == 1
        assert watch.until("workers-joined")["workers"] == [2]
        assert watch.until("plan-begun")["removes"] == 0
        assert watch.until("coordinator-started")["taken_over"]
        assert watch.until("workers-left")["workers"] == [0]
        assert run.control("checkpoint").returncode == 1
        assert watch.until("request-refused", command="checkpoint")["reason"]
        assert run.control("stop").returncode == 0
        watch.until("stop-requested")
        assert watch.stdout is not None
        watch.events += map(json.loads, watch.stdout)
        assert watch.wait(180) == 0
    assert watch.numbers(0) == [*range(1, len(watch.numbers(0)) + 1)], watch.events
    begun = {each["epoch"]: each["moves"] for each in watch.events if each["event"] == "step-begun"}
    arrived = [(each["epoch"], bin) for each in watch.events if each["event"] == "bins-arrived" for bin in each["bins"]]
    assert sorted(arrived) == sorted((epoch, move[0]) for epoch, moves in begun.items() for move in moves)
    assert run.end()[0] == 0


@pytest.mark.slow
def test_a_watcher_follows_a_job_through_a_restart(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--state", str(tmp_path / "state"), "--restarts", "3")
    with Watch(run, "--gauges") as watch:
        first = watch.until("checkpoint-committed")
        status = watch.until("status", state="running")
        os.kill(status["workers"][1]["pid"], signal.SIGKILL)
        why = watch.until("recovering")["text"]
        assert why.startswith("restart 1 of 3: worker 1 (") and why.endswith(") was killed by SIGKILL"), why
        again = watch.until("coordinator-started")
        assert again["attempt"] > first["attempt"] and again["number"] == 1 and not again["taken_over"]
        later = watch.until("checkpoint-committed")
        assert later["checkpoint"] > first["checkpoint"]
        assert watch.until("status", state="running")["workers"][1]["pid"] != status["workers"][1]["pid"]
        assert run.control("stop").returncode == 0
        watch.until("stop-requested")
        for _ in watch.stdout or ():
            pass
        assert watch.wait(180) == 0
    for attempt in (first["attempt"], again["attempt"]):
        assert watch.numbers(attempt) == [*range(1, len(watch.numbers(attempt)) + 1)]
    assert run.end()[0] == 0
