"""Durable jobs fed by Spark, on real processes: each line that arrives counts once, whatever is killed.

By hand, with another seed: MEGAFLOW_SEED=7 pytest -m spark tests/spark/test_spark_crashes.py.
"""

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from megaflow.durable.incarnation import read_commits
from megaflow.durable.local_folder import open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.job.kept_states import read_state
from tests.cluster.processes import STATUS_SECONDS, WORDCOUNT, Run, children_of, signal_all, wait_until
from tests.results import check_equal, comparing

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 2 * STATUS_SECONDS  # for Spark to restart, on a busy machine
LINES_PER_FILE = 150
FILES_PER_BATCH = 3  # at most
AHEAD_MAX = 20  # files
WORDS = [f"w{number}" for number in range(50)]


class Fed:
    """Count words of files that keep arriving."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.store, self.out, self.input = folder / "store", folder / "out.jsonl", folder / "in"
        self.input.mkdir()
        self.wanted: Counter[str] = Counter()

    def run(self, *more: str) -> Run:
        lines = f"spark:text:{self.input}?maxFilesPerTrigger={FILES_PER_BATCH}&trigger=0.05"
        return Run(
            self.folder, WORDCOUNT, "--lines", lines, "--output", f"jsonl:{self.out}", "--state", str(self.store),
            "--processes", "2", "--checkpoint-every", "0.3", "--rate", "5000", *more,
        )  # fmt: skip

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Let files arrive during the block, each atomically."""
        ending, dice = threading.Event(), Random(self.random.random())

        def write() -> None:
            for number in count(len(os.listdir(self.input))):
                words = dice.choices(WORDS, k=LINES_PER_FILE)
                hidden = self.input / f".{number}"
                hidden.write_text("".join(f"{word}\n" for word in words))
                hidden.rename(self.input / f"{number}.txt")
                self.wanted.update(words)
                while True:  # not far ahead, even on a slow machine
                    if ending.wait(0.2 + 0.4 * dice.random()):
                        return
                    if number < FILES_PER_BATCH * self.newest() + AHEAD_MAX:
                        break

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            ending.set()
            writer.join()

    def newest(self) -> int:
        """Return the newest durable batch, or -1."""
        try:
            folder = open_to_look(self.store)
        except StoreError:
            return -1
        try:
            return max((batch for _, batch in read_commits(Store(folder))[0].spark), default=-1)
        finally:
            folder.close_folder()

    def await_more(self, run: Run) -> None:
        """Wait until more batches are durable than now, and a moment longer."""
        before = self.newest()
        wait_until(lambda: self.newest() > before + 1 or run.process.poll() is not None, WAIT_SECONDS)
        assert run.process.poll() is None, run.end()
        time.sleep(self.random.random() * 0.3)

    def finish(self, run: Run, before: int = 0) -> None:
        """Stop the job once there is an output for each word that has arrived, except the last few."""
        words = sum(self.wanted.values()) - before

        def written() -> bool:
            with self.out.open("rb") as lines:
                return sum(1 for _ in lines) >= words

        wait_until(lambda: written() or run.process.poll() is not None, WAIT_SECONDS)
        run.process.send_signal(signal.SIGINT)
        code, _, said = run.end()
        assert code == 128 + signal.SIGINT and "stopped at checkpoint" in said[-1], said

    def check(self, before: Mapping[str, int] = {}) -> None:
        """Compare with a plain count: each word counts up one by one, starting from its earlier count."""
        got: dict[str, list[int]] = defaultdict(list)
        with self.out.open(encoding="utf-8") as lines:
            for line in lines:
                word, total = json.loads(line)["record"]
                got[word].append(total)
        wanted = {word: list(range(before.get(word, 0) + 1, total + 1)) for word, total in self.wanted.items()}
        check_equal(got, {word: numbers for word, numbers in wanted.items() if numbers})


def command_of(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def victims(run: Run, what: str) -> list[int]:
    """Return the processes of a job of this kind."""
    launcher = run.process.pid
    java = [pid for pid in children_of(launcher) if "java" in command_of(pid).partition(" ")[0]]
    match what:
        case "launcher":
            return [launcher]
        case "java":
            return java
        case "worker":
            return [pid for pid in children_of(launcher) if "megaflow" in command_of(pid) and pid not in java]
        case _:  # a Python process of an executor: below Java and its daemon
            daemons = [pid for each in java for pid in children_of(each) if "pyspark" in command_of(pid)]
            return [worker for daemon in daemons for worker in children_of(daemon)] or daemons


def kill_one(run: Run, what: str, random: Random) -> None:
    wait_until(lambda: bool(victims(run, what)), WAIT_SECONDS)
    with suppress(ProcessLookupError, IndexError):  # an executor's process has ended by itself
        os.kill(random.choice(victims(run, what)), signal.SIGKILL)


@pytest.mark.parametrize("killed", [("executor", "launcher"), ("worker", "java")], ids="-".join)
def test_whatever_is_killed_each_line_that_arrives_counts_once(tmp_path: Path, killed: tuple[str, ...]) -> None:
    random = Random(f"{killed} {os.environ.get('MEGAFLOW_SEED', 1)}")
    fed = Fed(tmp_path, random)
    run = fed.run()
    try:
        with fed.arriving():
            for what in random.sample(killed, len(killed)):
                fed.await_more(run)
                kill_one(run, what, random)
                if what == "launcher":
                    run.end()
                    run = fed.run()
            fed.await_more(run)
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()


@pytest.mark.parametrize(("on", "code"), [("", 0), ("spark:local[4]", 75)], ids=["fed", "on executors"])
def test_signal_to_all_processes_of_a_job_and_java(tmp_path: Path, on: str, code: int) -> None:
    fed = Fed(tmp_path, Random(f"all {os.environ.get('MEGAFLOW_SEED', 1)}"))
    words = ["--on", on] if on else []
    run = fed.run(*words)
    try:
        with fed.arriving():
            fed.await_more(run)
            signal_all(run.process.pid, signal.SIGTERM)
            ended, _, said = run.end()
            assert ended == code, said
            assert ("stopped at checkpoint" if code == 0 else "its state is kept in") in said[-1], said
            run = fed.run(*words)
            fed.await_more(run)
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()


def test_a_folder_is_read_while_bins_move_and_a_process_joins_and_nothing_is_read_twice_after_a_stop(
    tmp_path: Path,
) -> None:
    fed = Fed(tmp_path, Random(f"folder {os.environ.get('MEGAFLOW_SEED', 1)}"))
    run = fed.run()
    try:
        with fed.arriving():
            fed.await_more(run)
            for steer in (["move-bins", "--drain", "0"], ["add-workers", "1", "--balance"]):
                done = run.control(*steer)
                assert done.returncode == 0, done.stderr
                fed.await_more(run)
            run.process.send_signal(signal.SIGINT)
            code, _, said = run.end()
            assert code == 128 + signal.SIGINT and "stopped at checkpoint" in said[-1], said
            run = fed.run()
            fed.await_more(run)
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()


def test_a_job_of_its_own_reads_on_where_the_checkpoint_was_that_has_a_name(tmp_path: Path) -> None:
    random = Random(f"fork {os.environ.get('MEGAFLOW_SEED', 1)}")
    fed = Fed(tmp_path, random)
    run = fed.run()
    try:
        with fed.arriving():
            fed.await_more(run)
            named = run.control("checkpoint", "--name", "nightly")
            assert named.returncode == 0, named.stderr
            fed.await_more(run)
        fed.finish(run)
    finally:
        run.process.finish()
    fed.check()
    kept, before = fed.store, dict(read_state(fed.store, "count", "nightly"))
    with comparing():
        assert 0 < sum(before.values()) < sum(fed.wanted.values())

    fed.store, fed.out = tmp_path / "own", tmp_path / "own.jsonl"
    run = fed.run("--from-checkpoint", f"{kept}:nightly")
    try:
        with fed.arriving():
            fed.await_more(run)
        fed.finish(run, sum(before.values()))
    finally:
        run.process.finish()
    fed.check(before)
