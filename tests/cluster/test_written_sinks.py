"""User-defined sinks in real processes, which are killed."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APP = '''
import json, os, uuid
from megaflow.connect import OutboxSink, Sink

class Folder(Sink):
    def __init__(self, path):
        self.path = path

    def open(self, place):
        self.lines = []

    def write(self, epoch, records):
        self.lines += [json.dumps(record) + "\\n" for record in records]

    def prepare(self, n):
        if not self.lines:
            return None
        token = uuid.uuid4().hex
        with open(f"{self.path}/.{token}", "w") as file:
            file.writelines(self.lines)
            os.fsync(file.flush() or file.fileno())
        self.lines = []
        return token

    def commit(self, n, token):
        if os.path.exists(f"{self.path}/.{token}"):
            os.rename(f"{self.path}/.{token}", f"{self.path}/{token}.jsonl")

class Box(OutboxSink):
    def __init__(self, path):
        self.path = path

    def deliver(self, n, token, records):
        with open(f"{self.path}/{token}.tmp", "w") as file:
            file.writelines(json.dumps(record) + "\\n" for record in records)
        os.rename(f"{self.path}/{token}.tmp", f"{self.path}/{token}.jsonl")

def count(word, one, total):
    total = (total or 0) + one
    return total, [(word, total)]

def dataflow(flow):
    words = flow.lines().flat_map(str.split).map(lambda word: (word, 1))
    counts = words.stateful_state_machine(count, name="count")
    return counts.write(Folder(flow.args[0]), "files").write(Box(flow.args[1]), "box")
'''
WORDS = ["a", "rose", "is", "a", "rose"]
LINES = 600


def rows(folder: Path) -> list[tuple[str, int]]:
    """Return the visible rows of a folder."""
    found = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [(word, total) for word, total in map(json.loads, found)]


def test_rows_are_written_once_though_processes_are_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    for name in "uvw":
        (tmp_path / f"{name}.txt").write_text("".join(f"{' '.join(WORDS)}\n" for _ in range(LINES)))
    files, box = tmp_path / "files", tmp_path / "box"
    files.mkdir()
    box.mkdir()
    words = [
        str(app), "--lines", str(tmp_path / "*.txt"), "--output", "none", "--state", str(tmp_path / "store"),
        "--checkpoint-every", "0.1", "--processes", "2",
    ]  # fmt: skip
    rest = ["--", str(files), str(box)]

    run = start(*words, "--rate", "30", *rest)
    wait_until(lambda: bool(rows(files) and rows(box)), STATUS_SECONDS)
    status = run.status_when(lambda record: all(each.get("sinks") for each in record["workers"]))
    assert {each["sink"] for each in status["workers"][0]["sinks"]} == {"box", "files"}
    os.kill(status["workers"][1]["pid"], signal.SIGKILL)
    wait_until(lambda: any("restart 1 of 3" in line for line in run.said), STATUS_SECONDS)
    before = len(rows(box))
    wait_until(lambda: len(rows(box)) > before, STATUS_SECONDS)
    run.process.kill()
    run.end()

    code, _, said = start(*words, *rest).end()
    assert code == 0, said
    counts = Counter(WORDS * LINES * 3)
    wanted = Counter((word, total) for word in counts for total in range(1, counts[word] + 1))
    check_equal(Counter(rows(files)), wanted)
    check_equal(Counter(rows(box)), wanted)
