"""Plans on real processes: a killed command, one that resumes, two at a time, and placement by load."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.counts import check_numbered, write_numbered
from tests.cluster.processes import ROOT, WORDCOUNT, Run

pytestmark = pytest.mark.cluster


def left_of(record: dict[str, Any]) -> int:
    """Return how many bins of the plan in a status are left; 0 without a plan."""
    return record["plan"]["left"] if record["plan"] else 0


@pytest.mark.slow
def test_a_plan_whose_runner_is_killed_leaves_a_consistent_table_and_is_resumed(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    text, out = write_numbered(tmp_path / "text.txt", 100_000), tmp_path / "out.jsonl"
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "400", "--processes", "2", "--output", f"jsonl:{out}")
    run.reading()
    words = ["--drain", "0", "--strategy", "batched", "--batch", "16", "--gap", "600"]
    runner = subprocess.Popen(
        [sys.executable, "-m", "megaflow", "control", "move-bins", *words], cwd=ROOT, env=run.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        plan = run.status_when(lambda record: 0 < left_of(record) < 128)["plan"]
        assert plan["running"] and plan["bins"] == 128 and f"pid {runner.pid} " in plan["runner"]
        for other in (["move-bins", "--bins", "1", "--to", "0"], ["resume"]):
            refused = run.control(*other)
            assert refused.returncode == 1 and f"pid {runner.pid} " in refused.stderr, refused.stderr
            assert "is being carried out" in refused.stderr
    finally:
        runner.kill()
        runner.wait()
    record = run.status_when(lambda record: record["plan"] is not None and not record["plan"]["running"])
    table = record["operators"][0]["table"]
    assert table.count(0) == left_of(record) == 112
    assert "112 of 128 bins left" in run.control("status").stdout
    resumed = run.control("resume", "--gap", "0", "--json")
    assert resumed.returncode == 0, resumed.stderr
    account = json.loads(resumed.stdout)
    assert (account["bins"], account["steps"]) == (112, 7)
    record = run.status()
    assert record["operators"][0]["table"] == [1] * 256 and record["plan"] is None and len(record["ledger"]) == 128
    assert run.control("resume").returncode == 1
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    check_numbered(out, text, said)


@pytest.mark.slow
def test_a_new_plan_takes_the_place_of_one_whose_runner_was_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    text = write_numbered(tmp_path / "text.txt", 50_000)
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "400", "--processes", "2", "--output", "none")
    run.reading()
    runner = subprocess.Popen(
        [sys.executable, "-m", "megaflow", "control", "move-bins", "--drain", "1", "--gap", "600"], cwd=ROOT,
        env=run.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        run.status_when(lambda record: 0 < left_of(record) < 128)
    finally:
        runner.kill()
        runner.wait()
    run.status_when(lambda record: record["plan"] is not None and not record["plan"]["running"])
    balanced = run.control("move-bins", "--balance", "--strategy", "all-at-once")
    assert balanced.returncode == 0, balanced.stderr
    record = run.status()
    assert record["plan"] is None and sorted(record["operators"][0]["table"]) == [0] * 128 + [1] * 128
    assert run.control("stop").returncode == 0 and run.end()[0] == 0


@pytest.mark.slow
def test_loads_are_shown_and_bins_are_placed_by_them(start: Callable[..., Run], tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.jsonl"
    write_numbered(text, 200_000)
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "800", "--processes", "2", "--output", f"jsonl:{out}")
    run.status_when(lambda record: sum(worker["lines"] for worker in record["workers"]) > 4000)  # no bin is empty
    drained = run.control("move-bins", "--drain", "1", "--strategy", "all-at-once")
    assert drained.returncode == 0, drained.stderr
    shown = run.control("status", "--bins")
    assert shown.returncode == 0 and "busiest bins of 256" in shown.stdout and "most frequent keys" in shown.stdout
    operator = json.loads(run.control("status", "--bins", "--json").stdout)["operators"][0]
    assert {row["bin"] for row in operator["loads"]} == set(range(256)) and set(operator["table"]) == {0}
    assert all(row["owner"] == 0 and row["bytes"] > 0 and row["keys"] > 0 for row in operator["loads"])
    assert all(row["key"][:5] in ("'word", "'line") and 0 <= row["bin"] < 256 for row in operator["hot_keys"])
    assert operator["hot_keys"] and "loads" not in run.status()["operators"][0]
    words = ["move-bins", "--balance", "--by", "load", "--json", "--strategy"]
    planned = json.loads(run.control(*words, "hottest-first", "--dry-run").stdout)
    assert 0 < len(planned["moves"]) < 256 and planned["bytes"] > 0 and planned["keys"] > 0
    assert all(len(step) == 1 for step in planned["steps"])
    moved = run.control(*words, "all-at-once")
    assert moved.returncode == 0, moved.stderr
    assert 0 < json.loads(moved.stdout)["bins"] < 256 and set(run.status()["operators"][0]["table"]) == {0, 1}
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    check_numbered(out, text, said)
