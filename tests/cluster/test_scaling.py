"""Real jobs for which `recommend` computes a size, and `autoscale` sets it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.counts import check_numbered, write_numbered
from tests.cluster.processes import Run, wait_until

RATE = "250"  # more than one worker can do: it would need 1.25 s a second

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# A line costs five milliseconds until there is a file `cheap`. They are slept, so that any machine has enough of them.
COUNT = """
import pathlib, time

gate = pathlib.Path(__file__).with_name("cheap")

def count(word, n, total):
    if word.startswith("line") and not gate.exists():
        time.sleep(0.005)
    total = (total or 0) + n
    return total, [(word, total)]

def dataflow(flow):
    words = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return words.stateful_state_machine(count, bins=32)
"""


class Autoscale:
    """A `megaflow control autoscale` in its own process, and its decisions."""

    def __init__(self, run: Run, *words: str) -> None:
        self.process = run.megaflow("control", "autoscale", "--json", *words)

    @property
    def news(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.process.output]

    def end(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and its messages."""
        ended = self.process.end()
        return ended.code, ended.errors

    def actions(self) -> list[str]:
        return [each["action"] for each in self.news if each.get("action") in ("grow", "shrink")]


@pytest.fixture
def steer() -> Iterator[Callable[..., Autoscale]]:
    made: list[Autoscale] = []

    def steering(run: Run, *words: str) -> Autoscale:
        made.append(Autoscale(run, *words))
        return made[-1]

    yield steering
    for each in made:
        each.process.finish()


@pytest.fixture
def count(tmp_path: Path) -> Path:
    app = tmp_path / "count.py"
    app.write_text(COUNT)
    text = write_numbered(tmp_path / "text.txt", 100_000)
    text.write_text(text.read_text().replace("\n", " " * 600 + "\n"))  # few lines a batch, so it gets commands soon
    return app


def words_for(app: Path, rate: str) -> list[str]:
    folder = app.parent
    return [str(app), "--lines", str(folder / "text.txt"), "--rate", rate, "--output", f"jsonl:{folder / 'out.jsonl'}"]


def test_recommend_finds_from_an_overloaded_job_how_large_it_should_be(start: Callable[..., Run], count: Path) -> None:
    run = start(*words_for(count, RATE))
    run.reading()
    done = run.control("recommend", "--over", "8", "--json")
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    [fold, rest] = advice["operators"]
    assert fold["name"] == "count" and fold["true_rate"] <= 1600, "eight records sleep 5 ms at least"
    assert fold["utilization"] > rest["utilization"]
    assert advice["lines"]["offered"] == pytest.approx(float(RATE), rel=0.1) and advice["lines"]["waiting"] > 0
    assert advice["processes"]["now"] == 1 and advice["processes"]["recommended"] >= 2
    wanted = run.control("recommend", "--over", "1", "--target-rate", "10")
    assert wanted.returncode == 0, wanted.stderr
    assert "The target is 10 lines per second" in wanted.stdout and "recommended: 1 process, as now" in wanted.stdout
    assert len(run.status()["workers"]) == 1, "it has changed nothing"
    count.with_name("cheap").touch()
    assert run.control("stop").returncode == 0
    assert run.end()[0] == 0


def test_autoscale_grows_a_job_that_cannot_keep_up_and_shrinks_it_when_it_has_less_to_do(
    start: Callable[..., Run], steer: Callable[..., Autoscale], count: Path
) -> None:
    run = start(*words_for(count, RATE))
    run.reading()
    scaler = steer(run, "--min", "1", "--max", "2", "--every", "2", "--cool-down", "1")

    def settled(after: str) -> bool:
        return after in scaler.actions() and scaler.news[-1].get("action") == "stay"

    wait_until(lambda: settled("grow"), seconds=360)
    assert scaler.actions()[0] == "grow" and len(run.status()["workers"]) == 2, scaler.news
    del scaler.news[:]
    count.with_name("cheap").touch()
    wait_until(lambda: settled("shrink"), seconds=360)
    left = [each["id"] for each in run.status()["workers"]]
    assert left == [0], scaler.news
    assert not any(each.get("failed") for each in scaler.news)
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    assert scaler.end() == (0, "megaflow: the job has ended\n")
    check_numbered(count.with_name("out.jsonl"), count.with_name("text.txt"), said)
