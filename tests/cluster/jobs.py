"""Jobs in real processes: started with `megaflow run`, steered with `megaflow control`, their output checked."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megaflow.job.job_file import process_start
from megaflow.job.splits import plan_splits

ROOT = Path(__file__).resolve().parent.parent.parent
WORDCOUNT = str(ROOT / "apps" / "wordcount.py")
STATUS_SECONDS = 100.0  # for a job to come to where a test wants it, on a busy machine, too
STOP_SECONDS = 5.0  # promised: after this, nothing of a failed job runs any more

# Touches the file that a line names, and is busy for a minute.
ASLEEP = """
import pathlib, time

def slow(line):
    pathlib.Path(line).touch()
    time.sleep(60)
    return line

def dataflow(flow):
    return flow.lines().map(slow)
"""


class Run:
    """A `megaflow run` in its own process, its standard error read by a thread."""

    def __init__(self, folder: Path, *words: str, stdin: Any = subprocess.DEVNULL) -> None:
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.folder = folder / "megaflow"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "megaflow", "run", *words],
            cwd=ROOT, env=self.environment, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.said: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said += iter(self.process.stderr.readline, "")

    def end(self) -> tuple[int, str, list[str]]:
        """Wait for its end; return exit code, output and what it said."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        code = self.process.wait(30)
        self.reader.join(10)
        self.process.stdout.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        return code, output, [line.rstrip("\n") for line in self.said]

    def control(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "megaflow", "control", *words]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    def status(self) -> dict[str, Any]:
        done = self.control("status", "--json")
        assert done.returncode == 0, done.stderr
        record: dict[str, Any] = json.loads(done.stdout)
        return record

    def status_when(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask until the status is as wanted."""
        wait_until(lambda: any(self.folder.glob("*.json")))
        found: list[dict[str, Any]] = []

        def as_wanted() -> bool:
            found[:] = [self.status()]
            return wanted(found[0])

        wait_until(as_wanted, STATUS_SECONDS)
        return found[0]

    def reading(self) -> dict[str, Any]:
        """Return the status once all workers have read something."""
        return self.status_when(lambda record: all(worker["lines"] for worker in record["workers"]))

    def files(self) -> list[Path]:
        return list(self.folder.glob("*.json"))


def fall_asleep(start: Callable[..., Run], folder: Path, *options: str) -> Run:
    """Start a job of two processes, one of which is in a step of a minute."""
    app, asleep = folder / "slow.py", folder / "asleep"
    app.write_text(ASLEEP)
    run = start(str(app), "--lines", "-", "--processes", "2", *options, stdin=subprocess.PIPE)
    assert run.process.stdin is not None
    run.process.stdin.write(f"{asleep}\n")
    run.process.stdin.flush()
    wait_until(asleep.exists)
    return run


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def lives(pid: int, start: str | None) -> bool:
    return process_start(pid) == start and not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")


def words_of(path: Path) -> Counter[str]:
    return Counter(path.read_text().split())


def write_numbered(path: Path, lines: int) -> Path:
    """Write a text whose every line has its number for a first word, `line7`, and seven others."""
    rng = random.Random(11)
    words = [f"word{n}" for n in range(300)]
    with path.open("w") as file:
        for number in range(lines):
            file.write(f"line{number} {' '.join(rng.choices(words, k=7))}\n")
    return path


def check_numbered(out: Path, text: Path, workers: int, said: list[str]) -> None:
    """Of a numbered text the job, which had so many workers at first, has read a part and counted that exactly.

    Of each split it was a part from the start on: no line was left out or read twice, whoever has read it.
    """
    counted = Counter(json.loads(line)["record"][0] for line in out.read_text().splitlines())
    content = text.read_bytes()
    expected: Counter[str] = Counter()
    read = 0
    for split in plan_splits([str(text)], workers):
        start = 0 if split.start == 0 else content.index(b"\n", split.start - 1) + 1
        end = content.index(b"\n", split.end - 1) + 1
        lines = [line.split() for line in content[start:end].decode().splitlines()]
        part = next((index for index, words in enumerate(lines) if words[0] not in counted), len(lines))
        assert not any(words[0] in counted for words in lines[part:]), split
        expected.update(word for words in lines[:part] for word in words)
        read += part
    check_counts(out, expected)
    assert said[-1].startswith(f"megaflow: {read} lines, {read * 8} records, "), said


def check_counts(path: Path, expected: Counter[str]) -> None:
    """Every count 1..n of every word appears once, in epochs that do not decrease."""
    seen: dict[str, list[tuple[int, int]]] = {}
    times = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        word, count = record["record"]
        times.append(record["time"])
        seen.setdefault(word, []).append((count, record["time"]))
    assert times == sorted(times)
    assert {word: len(counts) for word, counts in seen.items()} == expected
    for counts in seen.values():
        assert [count for count, _ in counts] == list(range(1, len(counts) + 1))
