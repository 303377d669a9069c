"""`megaflow run --profile` with real processes finds the slow operator, through joins, leaves and kills."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.launcher.run.python_function import run as run_here
from tests.cluster.counts import words_of, write_numbered
from tests.cluster.processes import WORDCOUNT, Run, fall_asleep, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

SPINNING = """
def count(word, n, total):
    for _ in range(2000):                       # whatever else an operator does for a record is little beside this
        pass
    return (total or 0) + n, [(word, n)]

def dataflow(flow):
    words = flow.lines().flat_map(lambda line: [(word, 1) for word in line.split()])
    return words.map(lambda pair: pair).stateful_state_machine(count)
"""


def profile_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "operators.json").read_text())
    for part in (content, *content["workers"]):
        assert sum(row["seconds"] for row in part["rows"]) == pytest.approx(part["seconds"])
    return content


def operators(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in content["rows"] if row["kind"] == "operator"]


@pytest.mark.parametrize("shape", [("2", "1"), pytest.param(("1", "2"), marks=pytest.mark.slow)])
def test_the_slow_operator_is_on_top(
    start: Callable[..., Run], tmp_path: Path, text: Path, shape: tuple[str, str]
) -> None:
    app, folder = tmp_path / "app.py", tmp_path / "profile"
    app.write_text(SPINNING)
    cluster = ("--processes", shape[0], "--workers", shape[1])
    code, _, said = start(str(app), "--lines", str(text), "--output", "none", *cluster, "--profile", str(folder)).end()
    assert code == 0, said
    words = sum(words_of(text).values())
    content = profile_of(folder)
    slowest = operators(content)[0]
    assert (slowest["name"], slowest["where"]) == ("count", f"{app}:9")
    check_equal((slowest["records_in"], slowest["records_out"]), (words, words))
    assert [worker["worker"] for worker in content["workers"]] == [0, 1]
    for worker in content["workers"]:
        runs = {row["name"]: row["activations"] for row in worker["rows"] if row["kind"] == "engine"}
        assert worker["ended"] and runs["building"] == 1 and runs["transport"] > 1 and runs["steering"] > 1
    at = said.index(next(line for line in said if "profile of 2 workers" in line))
    assert str(folder / "operators.txt") in said[at] and f"count ({app}:9)" in said[at + 1] and len(said) == at + 5
    assert not list(folder.glob("*.pstats"))


@pytest.mark.slow
def test_functions_are_told_apart_by_operator(start: Callable[..., Run], tmp_path: Path, text: Path) -> None:
    app, folder = tmp_path / "app.py", tmp_path / "profile"
    app.write_text(SPINNING)
    words = ("--lines", str(text), "--output", "none", "--processes", "2", "--profile", str(folder), "--profile-calls")
    code, _, said = start(str(app), *words).end()
    assert code == 0, said
    slowest = operators(profile_of(folder))[0]
    function, where, calls, _, _ = slowest["calls"][0]
    assert (function, where) == ("count", f"{app}:2")
    check_equal(calls, sum(words_of(text).values()))
    shown = subprocess.run(
        [sys.executable, "-m", "pstats", str(folder / "worker-1.pstats")],
        input="sort tottime\nstats 5\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "app.py:2(count)" in shown.stdout


@pytest.mark.slow
def test_those_who_come_and_leave_have_their_part(start: Callable[..., Run], tmp_path: Path) -> None:
    text, folder = write_numbered(tmp_path / "text.txt", 100_000), tmp_path / "profile"
    more = ("--rate", "800", "--output", "none", "--profile", str(folder))
    run = start(WORDCOUNT, "--lines", str(text), "--processes", "2", *more)
    run.reading()
    for command in (("add-workers", "1", "--balance"), ("remove-workers", "--id", "1"), ("stop",)):
        done = run.control(*command)
        assert done.returncode == 0, done.stderr
    code, _, said = run.end()
    assert code == 0, said
    content = profile_of(folder)
    assert [(worker["worker"], worker["ended"]) for worker in content["workers"]] == [(0, True), (1, True), (2, True)]
    assert len({worker["pid"] for worker in content["workers"]}) == 3


@pytest.mark.slow
def test_what_killed_workers_have_written_is_shown(start: Callable[..., Run], tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    run = fall_asleep(start, tmp_path, "--profile", str(folder))
    run.process.send_signal(signal.SIGINT)
    wait_until(lambda: any("stopping" in line for line in run.said))
    run.process.send_signal(signal.SIGINT)
    code, _, said = run.end()
    assert code == 130, said
    content = profile_of(folder)
    assert (0, False) in [(worker["worker"], worker["ended"]) for worker in content["workers"]]
    assert "it was killed" in (folder / "operators.txt").read_text()


def test_nothing_starts_for_a_folder_that_holds_something_else(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    out = tmp_path / "out.jsonl"
    out.write_text("precious, too")
    words = ("--lines", WORDCOUNT, "--output", f"jsonl:{out}", "--profile", str(tmp_path))
    code, output, said = start(WORDCOUNT, *words).end()
    assert (code, output) == (2, "") and len(said) == 1 and "has other files" in said[0], said
    check_equal(out.read_text(), "precious, too")
    assert (tmp_path / "precious.txt").exists()


def test_a_run_from_python_writes_its_profile_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "profile"
    records = run_here(lambda flow: flow.lines().map(str.upper), lines=["a", "b"], profile=folder)
    check_equal(sorted(records), ["A", "B"])
    [mapped] = [row for row in operators(profile_of(folder)) if row["name"] == "Map"]
    check_equal((mapped["records_in"], mapped["records_out"]), (2, 2))
