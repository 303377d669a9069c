"""The rescaling benchmarks with tiny sizes: they run to their end, and their counts are right."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.results import comparing

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = ROOT / "apps" / "bench" / "rescaling.py"
EXPERIMENTS = ["overhead", "latency", "joins", "progress", "workers", "traffic", "bootstrap", "restart"]

pytestmark = pytest.mark.cluster


def bench(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, str(BENCH), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    with comparing():
        assert "counts were wrong" not in done.stderr, done.stderr
    return done


def figures(folder: Path, *words: str) -> dict[str, Any]:
    done = bench(folder, *words, "--json")
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.slow
def test_all_experiments_run_count_exactly_and_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = figures(tmp_path, "all", "--quick", "--plots", str(tmp_path / "plots"))
    assert list(record) == EXPERIMENTS
    with comparing():
        assert all(record[name]["exact"] for name in ("latency", "joins", "bootstrap", "restart"))
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == sorted(f"rescaling-{name}.png" for name in EXPERIMENTS)


def test_the_progress_state_does_not_grow_with_the_past(tmp_path: Path) -> None:
    record = figures(tmp_path, "progress", "--first", "500", "--epochs", "2000")["progress"]
    sizes = {point["epochs"]: point["pointstamps"] for point in record["points"]}
    assert sizes[2000] <= sizes[500] + 3, "one an epoch would be 1,500; a busy machine has more under way at once"


@pytest.mark.slow
def test_two_processes_join_two_and_all_counts_are_exact(tmp_path: Path) -> None:
    words = ("--words", "20", "--vocabulary", "50", "--bins", "8", "--rest", "0.1")
    record = figures(tmp_path, "joins", *words)["joins"]
    with comparing():
        assert record["exact"]
    assert len(record["joins"]) == 2
    phases = [phase["phase"] for phase in record["phases"]]
    assert phases[0::3] == ["2 processes", "3 processes", "4 processes"] and phases[2::3] == ["its moves"] * 2


def test_what_real_processes_tell_of_their_progress_is_counted(tmp_path: Path) -> None:
    [point] = figures(tmp_path, "traffic", "--processes", "2", "--rates", "50", "--seconds", "0.4")["traffic"]["points"]
    assert point["messages"] > 0 and point["bytes"] > 20 * point["messages"], "a head and an address are 21 bytes"


@pytest.mark.slow
def test_a_table_says_what_a_join_took_phase_by_phase(tmp_path: Path) -> None:
    done = bench(tmp_path, "bootstrap", "--repeat", "1", "--bins", "16", "--rate", "500", "--rest", "0.1")
    assert done.returncode == 0, done.stderr
    phases = [line.split()[0] for line in done.stdout.splitlines()[2:12]]
    protocol = ["back-fill", "snapshot", "ranges", "mint", "settle", "routing"]
    assert phases == ["asking", "start", "connect", *protocol, "moves"]
    with comparing():
        assert "counts exact" in done.stdout
