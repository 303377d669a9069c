"""`--log-level` and `--log-format` with real workers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import END_SECONDS, ROOT, Run

pytestmark = pytest.mark.cluster

LOGGING = """
import logging, os, warnings
log = logging.getLogger("shop.orders")

def count(word, n, total):
    log.info("saw %s", word)
    print("printed", word)
    if word == "warn":
        warnings.warn("beware")
        os.write(1, b"raw \\xff\\n")
    if word == "fault":
        try:
            raise KeyError(word)
        except KeyError:
            log.exception("a fault")
    if word == "die":
        log.warning("last words")
        os.kill(os.getpid(), 9)
    if word == "raise":
        raise ValueError(word)
    return (total or 0) + n, [(word, (total or 0) + n)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
"""
FIELDS = {"time", "level", "logger", "message", "job", "worker", "attempt", "epoch", "exception"}


@pytest.fixture
def words(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that returns the arguments of `run` for some words."""
    (tmp_path / "words.py").write_text(LOGGING)

    def given(*words: str) -> list[str]:
        (tmp_path / "in.txt").write_text("".join(f"{word}\n" for word in words))
        return [str(tmp_path / "words.py"), "--lines", str(tmp_path / "in.txt"), "--output", f"jsonl:{tmp_path}/out"]

    return given


def records(said: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in said]
    assert all(each.keys() == FIELDS for each in found)
    return found


@pytest.mark.parametrize("shape", [("1", "1"), ("2", "2")])
def test_everything_is_one_object_per_line(
    start: Callable[..., Run], words: Callable[..., list[str]], shape: tuple[str, str]
) -> None:
    options = ("--log-format", "json", "--log-level", "info", "--processes", shape[0], "--workers", shape[1])
    code, _, said = start(*words("a", "warn", "fault"), *options).end()
    found = records(said)
    assert code == 0 and all(each["job"] == "words" for each in found)
    by_message = {each["message"].partition("\n")[0]: each for each in found}
    for word in ("a", "warn", "fault"):
        logged, printed = by_message[f"saw {word}"], by_message[f"printed {word}"]
        assert (logged["logger"], logged["level"]) == ("shop.orders", "INFO") and printed["logger"] == "print"
        assert logged["worker"] == printed["worker"] in range(4) and logged["epoch"] >= 0 and logged["attempt"] == 0
    assert by_message["a fault"]["exception"].endswith("KeyError: 'fault'")
    assert by_message["raw \\xff"]["logger"] == "print"
    assert any(each["logger"] == "py.warnings" and "beware" in each["message"] for each in found)
    assert found[0]["worker"] is None and "steer it with" in found[0]["message"] and "3 records" in found[-1]["message"]


AWKWARD = """
import logging
log = logging.getLogger("shop")

def f(word):
    print("begun", end=" ")
    log.warning("beside")
    print("ended")
    for percent in (10, 60, 100):
        print(f"{percent}%", end="\\r", flush=True)
    print()
    log.error("x" * 200_000)
    log.error("%d of them", "many")
    print("y" * 50_000)
    return word

def dataflow(flow):
    return flow.lines().map(f)
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_awkward_prints_and_records_keep_their_level_and_text(
    start: Callable[..., Run], words: Callable[..., list[str]], tmp_path: Path, processes: str
) -> None:
    arguments = words("a")
    (tmp_path / "words.py").write_text(AWKWARD)
    code, _, said = start(*arguments, "--log-format", "json", "--processes", processes).end()
    found = [(each["logger"], each["level"], each["message"]) for each in records(said) if each["worker"] is not None]
    assert code == 0 and found == [
        ("shop", "WARNING", "beside"), ("print", "INFO", "begun ended"), ("print", "INFO", "100%"),
        ("shop", "ERROR", "x" * 200_000), ("shop", "ERROR", "%d of them"),
        ("print", "INFO", "y" * 40_000), ("print", "INFO", "y" * 10_000),
    ]  # fmt: skip


def test_attempts_are_counted_after_a_kill(
    start: Callable[..., Run], words: Callable[..., list[str]], tmp_path: Path
) -> None:
    options = ("--log-format", "json", "--state", str(tmp_path / "kept"), "--restarts", "1")
    code, _, said = start(*words("die"), *options).end()
    found = records(said)
    last = [each for each in found if each["message"] == "last words"]
    assert code == 75 and [each["attempt"] for each in last] == [1, 2] and {each["worker"] for each in last} == {0}
    notes = [each["message"] for each in found if "the last lines that worker 0" in each["message"]]
    assert len(notes) == 2 and all("  | printed die\n  | last words" in note for note in notes)
    assert found[-1]["level"] == "ERROR" and "was killed by SIGKILL" in found[-1]["message"]


def test_a_failure_is_the_last_record(start: Callable[..., Run], words: Callable[..., list[str]]) -> None:
    code, _, said = start(*words("raise"), "--log-format", "json").end()
    last = records(said)[-1]
    assert code == 1 and last["level"] == "ERROR" and last["message"] == "the program has failed: ValueError"
    text = last["exception"]
    assert text.startswith("Traceback (most recent call last):") and "in operator 'count'" in text


@pytest.mark.parametrize(
    ("level", "wanted"),
    [((), ["printed fault", "a fault"]), (("--log-level", "info"), ["INFO shop.orders: saw fault", "printed fault"]),
     (("--log-level", "ERROR"), ["printed fault", "ERROR shop.orders: a fault"])],
)  # fmt: skip
def test_levels_choose_what_is_logged(
    start: Callable[..., Run], words: Callable[..., list[str]], level: tuple[str, ...], wanted: list[str]
) -> None:
    code, _, said = start(*words("fault"), *level).end()
    shown = [line for line in said if not line.startswith("megaflow: ")]
    assert code == 0 and shown[:2] == wanted
    assert len(said) - len(shown) == (0 if level[1:] == ("ERROR",) else 2)


def test_variables_set_the_options(tmp_path: Path) -> None:
    environment = {**os.environ, "MEGAFLOW_LOG_FORMAT": "json", "MEGAFLOW_LINS": "a"}
    command = [sys.executable, "-m", "megaflow", "run", str(tmp_path / "none.py")]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=END_SECONDS, check=False
    )
    complaint, error = records(done.stderr.splitlines())
    assert done.returncode == 2 and "MEGAFLOW_LINS has no effect" in complaint["message"]
    assert (complaint["level"], error["level"]) == ("WARNING", "ERROR") and "none.py" in error["message"]
