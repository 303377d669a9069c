"""The migration benchmark with tiny sizes: it runs to its end, and its counts are right."""

import json
import os
import subprocess
import sys
from array import array
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from apps.bench.migration_bins import goals as bins_goals
from apps.bench.migration_load import MOVABLE, PINNED, Packed
from apps.bench.migration_moves import STRATEGIES
from apps.bench.migration_moves import goals as moves_goals
from tests.results import comparing

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = ROOT / "apps" / "bench" / "migration.py"


def bench(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    command = [sys.executable, str(BENCH), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    with comparing():
        assert "counts were wrong" not in done.stderr, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.cluster
def test_all_strategies_move_the_same_bins_there_and_back_and_count_exactly(tmp_path: Path) -> None:
    done = bench(tmp_path, "all", "--quick", "--json", "--plots", str(tmp_path / "plots"))
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert list(record) == ["moves", "bins"]
    with comparing():
        assert record["moves"]["exact"] and record["bins"]["exact"]
    counts, values = record["moves"]["parts"].values()
    for part in (counts, values):
        assert [(move["strategy"], move["to"]) for move in part["moves"]] == [
            (strategy, to) for strategy in STRATEGIES for to in (1, 0)
        ]
        moved = {(move["account"]["bins"], move["account"]["keys"]) for move in part["moves"]}
        assert len(moved) == 1 and moved.pop()[0] == record["moves"]["sizes"]["bins"] // 2
        steps = {move["strategy"]: move["account"]["steps"] for move in part["moves"]}
        assert steps == {"fluid": 4, "optimized": 4, "batched": 2, "all-at-once": 1}
    assert values["moves"][0]["account"]["bytes"] > 50 * 2_000
    [job] = record["bins"]["jobs"]
    assert job["bins"] == 16 and len(job["movable"]) == len(job["pinned"]) == 1
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["migration-bins.png", "migration-moves.png"]


@pytest.mark.slow
@pytest.mark.cluster
def test_without_a_rate_one_is_found_and_shown_beside_the_plain_loop(tmp_path: Path) -> None:
    done = bench(tmp_path, "bins", "--keys", "500", "--log2-bins", "3", "--turn", "0.4", "--turns", "1")
    assert done.returncode == 0, done.stderr
    assert "the plain Python loop does" in done.stdout
    with comparing():
        assert "counts equal to Counters" in done.stdout


def packed(*batches: tuple[int, list[tuple[int, int]]]) -> Packed:
    outputs = Packed(keys=1)
    outputs.write(0, [(side, array("Q", chain.from_iterable(batch)).tobytes()) for side, batch in batches])
    return outputs


def test_counts_are_exact_if_each_line_is_counted_once_on_its_side() -> None:
    assert packed((MOVABLE, [(0, 1), (3, 2)]), (PINNED, [(1, 1)]), (MOVABLE, [(2, 3)])).is_exact(lines=4)


@pytest.mark.parametrize(
    "batch",
    [[(0, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 3)], [(0, 2), (1, 1)], [(0, 1), (0, 2)], [(0, 1), (1, 2), (1, 3)]],
    ids=["a line lost", "a state lost", "a count skipped", "out of order", "another line twice", "a line twice"],
)
def test_counts_are_wrong_if_anything_is(batch: list[tuple[int, int]]) -> None:
    assert not packed((MOVABLE, batch)).is_exact(lines=2)


def test_fluid_is_compared_with_all_at_once_only_where_that_stalls() -> None:
    def said(fluid: float, all_at_once: float) -> list[str]:
        found = {name: {"max": fluid, "per_key": 0.5} for name in ("fluid", "optimized", "batched")}
        return moves_goals({**found, "all-at-once": {"max": all_at_once, "per_key": 0.5}}, value_bytes=0)

    assert any("1/10.0" in line and line.endswith("pass") for line in said(30.0, 300.0))
    assert any("1/6.0" in line and line.endswith("FAIL") for line in said(50.0, 300.0))
    assert not any("FAIL" in line for line in said(50.0, 199.0))
    assert any("allowed" in line and line.endswith("FAIL") for line in said(51.0, 1000.0))


def test_many_bins_are_compared_with_fewer_and_those_with_none() -> None:
    def said(*ratios: tuple[int, float]) -> list[str]:
        turns = [{"p99": 10.0}]
        return bins_goals({
            "jobs": [{"bins": bins, "movable": [{"p99": 10.0 * ratio}], "pinned": turns} for bins, ratio in ratios]
        })  # fmt: skip

    assert [line.rpartition(" ")[2] for line in said((4096, 1.4), (65536, 1.5))] == ["pass", "pass"]
    assert [line.rpartition(" ")[2] for line in said((4096, 1.6), (65536, 2.0))] == ["FAIL", "FAIL"]
    assert said((256, 9.0)) == []
