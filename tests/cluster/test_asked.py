"""`megaflow control get` asks a running job for states of keys, during moves, joins and leaves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

APP = """
from dataclasses import dataclass


@dataclass
class Seen:
    last: str
    total: int


def count(word, line, seen):
    seen = seen or Seen("", 0)
    seen.last, seen.total = line, seen.total + 1
    return seen, []


def dataflow(flow):
    words = flow.lines().flat_map(lambda line: [(word, line) for word in line.split()])
    return words.stateful_state_machine(count, name="count")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_key_is_shown_as_its_owner_has_it(start: Callable[..., Run], tmp_path: Path, kept: bool) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    (tmp_path / "lines").write_text("a rose is a rose\n" + "some more to read\n" * 90_000)
    state = ["--state", str(tmp_path / "kept")] if kept else []
    output = ["--output", f"jsonl:{tmp_path / 'out'}"] if kept else ["--output", "none"]
    job = start(str(app), "--lines", f"{tmp_path / 'lines'}", "--processes", "2", "--rate", "100", *output, *state)

    def shown(*words: str) -> str:
        return job.control("get", "count", *words).stdout.strip()

    wait_until(lambda: shown("rose") == "Seen(last='a rose is a rose', total=2)", STATUS_SECONDS)
    found = json.loads(shown("rose", "--json"))
    check_equal((found["key"], found["state"]), ("rose", {"last": "a rose is a rose", "total": 2}))
    moved = job.control("move-bins", "--drain", str(found["worker"]))
    assert moved.returncode == 0, moved.stderr
    after = json.loads(shown("rose", "--json"))
    check_equal(after["state"], found["state"])
    assert after["worker"] != found["worker"] and after["epoch"] > found["epoch"]

    absent = job.control("get", "count", "tulip", "--json")
    assert absent.returncode == 1
    check_equal(json.loads(absent.stdout)["state"], None)
    assert "Operator 'count' has no key tulip at epoch " in absent.stderr
    assert job.control("stop").returncode == 0
    assert job.end()[0] == 0
