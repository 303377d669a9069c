"""Jobs with a store on real processes: after any kill, the same command ends with the output of an undisturbed job."""

import argparse
import contextlib
import gzip
import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megaflow.cli.main import cli
from megaflow.durable.incarnation import read_commits
from megaflow.durable.local_folder import LOCK, open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from megaflow.job.job_file import process_start
from megaflow.job.kept_states import read_state
from tests.cluster.processes import STATUS_SECONDS, STOP_SECONDS, WORDCOUNT, Run, lives, wait_until
from tests.results import check_equal, comparing
from tests.words import says

pytestmark = pytest.mark.cluster

TEXT = Path(argparse.__file__)  # some thousand lines of a real text
LINES = TEXT.read_text(encoding="utf-8").count("\n")


class Counted:
    """Word counts of a real text with a store; the same command runs again and again."""

    def __init__(self, folder: Path, start: Callable[..., Run]) -> None:
        self.folder = folder
        self._start = start
        self.store, self.out, self.text = folder / "store", folder / "out.jsonl", TEXT

    def run(
        self, *words: str, app: str = WORDCOUNT, rate: int | None = None, every: float = 0.1,
        store: Path | None = None, output: str | None = None,
    ) -> Run:  # fmt: skip
        """Start the command; with a `rate`, slow enough to be killed in the middle."""
        return self._start(
            app, "--lines", str(self.text), "--output", f"jsonl:{output or self.out}",
            "--state", str(store or self.store), "--checkpoint-every", str(every),
            *([] if rate is None else ["--rate", str(rate)]), *words,
        )  # fmt: skip

    def checkpoint(self) -> tuple[int, int]:
        """Return the number of the last checkpoint, and the length of the output in it."""
        try:
            folder = open_to_look(self.store)
        except StoreError:
            return 0, 0
        try:
            newest = read_commits(Store(folder))[0]
        finally:
            folder.close_folder()
        return newest.checkpoint, newest.outputs[0].length

    def await_more(self) -> None:
        """Wait for a checkpoint with more output than the present last one."""
        before = self.checkpoint()[1]
        wait_until(lambda: self.checkpoint()[1] > before, STATUS_SECONDS)

    def check(self) -> None:
        """Compare the output with a plain count: each word counts up to its total, one by one."""
        with TEXT.open(encoding="utf-8") as lines:
            wanted = Counter(word for line in lines for word in line.split())
        got: dict[str, list[int]] = defaultdict(list)
        with self.out.open(encoding="utf-8") as lines:
            for line in lines:
                word, total = json.loads(line)["record"]
                got[word].append(total)
        check_equal(got, {word: list(range(1, total + 1)) for word, total in wanted.items()})


@pytest.fixture
def counted(tmp_path: Path, start: Callable[..., Run]) -> Counted:
    return Counted(tmp_path, start)


PROGRAM = """
def count(word, one, total):
    total = total or 0
    total += one
    return total, [(word, total)]

def dataflow(flow):
    words = flow.lines().flat_map(str.split).map(lambda word: (word, 1))
    return words.stateful_state_machine(count, name="count")
"""


def counts(said: str) -> tuple[int, int]:
    """Return the lines and records of a job's summary."""
    found = re.search(r"^megaflow: ([\d,]+) lines?, ([\d,]+) records?,", said, re.MULTILINE)
    assert found is not None, said
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def end(run: Run, code: int) -> str:
    """Wait for its end; return its messages."""
    found, _, said = run.end()
    assert found == code, said
    return "\n".join(said)


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_puts_out_what_one_that_lives_does(counted: Counted) -> None:
    run = counted.run("--processes", "2", "--restarts", "0", rate=40)
    counted.await_more()
    worker = run.status()["workers"][1]["pid"]
    os.kill(worker, signal.SIGKILL)
    said = end(run, 75)
    assert f"pid {worker}) was killed by SIGKILL" in said and "its state is kept in" in said
    assert said.endswith("run the same command again")

    run = counted.run("--processes", "3", rate=40)
    counted.await_more()
    workers = [(each["pid"], process_start(each["pid"])) for each in run.status()["workers"]]
    run.process.kill()
    end(run, -signal.SIGKILL)
    wait_until(lambda: not any(lives(*worker) for worker in workers), STOP_SECONDS)

    run = counted.run(rate=40)
    counted.await_more()
    assert "resumes from checkpoint" in "".join(run.said)
    run.process.send_signal(signal.SIGINT)
    assert "stopped at checkpoint" in end(run, 130)
    check_equal(counted.out.stat().st_size, counted.checkpoint()[1], "nothing but what is kept")

    run = counted.run("--processes", "2")
    end(run, 0)
    counted.check()
    said = end(counted.run(), 0)
    counted.check()
    assert "all lines were read before and there are no new ones" in said


@pytest.mark.slow
def test_a_job_that_was_killed_within_a_compressed_file_goes_on_there(counted: Counted, tmp_path: Path) -> None:
    counted.text = tmp_path / "text.gz"
    counted.text.write_bytes(gzip.compress(TEXT.read_bytes()))
    run = counted.run("--restarts", "0", rate=40)
    counted.await_more()
    os.kill(run.status()["workers"][0]["pid"], signal.SIGKILL)
    end(run, 75)
    said = end(counted.run(), 0)
    assert re.search(r"MB of text in 1 compressed file were already read and are decompressed again", said), said
    counted.check()


@pytest.mark.slow
def test_finished_input_may_be_archived_and_unfinished_may_not(counted: Counted, tmp_path: Path) -> None:
    def run(*words: str, code: int) -> str:
        return end(counted.run(*words), code)

    def words() -> list[str]:
        return [json.loads(line)["record"][0] for line in counted.out.read_text().splitlines()]

    folder = tmp_path / "in"
    folder.mkdir()
    counted.text = folder
    (folder / "1").write_text("a\n")
    run(code=0)
    (folder / "1").rename(tmp_path / "1")  # between two runs
    (folder / "2").write_text("b\n")
    (folder / "3").write_text("c\n" * 60)
    slow = counted.run(rate=10)
    wait_until(lambda: "b" in words(), STATUS_SECONDS)
    (folder / "2").unlink()  # while the job runs
    counted.await_more()
    os.kill(slow.status()["workers"][0]["pid"], signal.SIGKILL)
    await_restart(slow, 1)
    slow.status_when(lambda status: status["state"] == "running")
    assert slow.control("stop").returncode == 0
    end(slow, 0)
    (folder / "4").write_text("d\n")
    (folder / "3").rename(tmp_path / "3")
    before = counted.out.read_bytes()
    assert re.search("/3' was read up to byte .* of 120 .* is gone. Put the file back", run(code=1))
    check_equal(counted.out.read_bytes(), before)
    (tmp_path / "3").rename(folder / "3")
    run(code=0)
    (tmp_path / "1").rename(folder / "1")
    said = run(code=0)
    check_equal(sorted(words()), ["a", "b", *["c"] * 60, "d"])
    assert "there is nothing to do" in said, "a file that is back is not read again"


@pytest.mark.slow
def test_checkpoints_go_on_when_the_file_being_read_is_removed(counted: Counted, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    counted.text = folder
    (folder / "1").write_text("a\n" * 200)
    job = counted.run(rate=40)
    counted.await_more()
    os.link(folder / "1", tmp_path / "kept")
    (folder / "1").unlink()
    counted.await_more()
    counted.await_more()
    job.process.kill()
    job.end()
    (folder / "2").write_text("c\n")
    assert "--forget-missing" in end(counted.run(), 1)
    (tmp_path / "kept").rename(folder / "3")
    os.link(folder / "3", folder / "4")
    (folder / "5").symlink_to(folder / "3")
    said = end(counted.run(), 0)
    records = [json.loads(line)["record"] for line in counted.out.read_text().splitlines()]
    check_equal(Counter(word for word, _ in records), {"a": 200, "c": 1})
    with comparing():
        assert ["a", 200] in records
    assert "continues" in said


@pytest.mark.slow
def test_checkpoints_are_taken_beside_moves_joins_and_leaves_and_at_a_stop(counted: Counted) -> None:
    run = counted.run("--processes", "2", rate=40)
    counted.await_more()
    for words in (["add-workers", "1", "--balance"], ["move-bins", "--drain", "1"], ["remove-workers", "--id", "1"]):
        assert run.control(*words).returncode == 0
        done = run.control("checkpoint", "--json")
        taken: dict[str, Any] = json.loads(done.stdout)
        assert counted.checkpoint()[0] >= taken["number"], done.stderr
    assert run.status()["checkpoint"]["failing_seconds"] is None
    assert run.control("stop").returncode == 0
    said = end(run, 0)
    assert "stopped at checkpoint" in said
    lines, records = counts(said)
    assert 0 < lines < LINES
    check_equal(records, counted.out.read_text().count("\n"))
    more_lines, more_records = counts(end(counted.run("--processes", "2"), 0))
    check_equal(lines + more_lines, LINES)
    check_equal(records + more_records, counted.out.read_text().count("\n"))
    counted.check()


def open_files(pid: int) -> list[str]:
    """Return the files that a process has open."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed
            found.append(os.readlink(path))
    return found


@pytest.mark.slow
def test_a_lost_process_brings_the_job_back_at_the_same_addresses_without_those_that_joined_by_hand(
    counted: Counted,
) -> None:
    run = counted.run("--processes", "2", "--name", "counted", rate=40)
    counted.await_more()
    other = run.megaflow("run", WORDCOUNT, "--join", "counted")
    try:
        before = run.status_when(lambda status: len(status["workers"]) == 3)
        assert run.control("move-bins", "--balance").returncode == 0
        founders = [worker["address"] for worker in before["workers"] if worker["id"] < 2]
        pids, stayed = {worker["pid"] for worker in before["workers"]}, 0
        for lost in (1, 2):
            counted.await_more()
            os.kill(run.status()["workers"][1]["pid"], signal.SIGKILL)
            said = await_restart(run, lost)
            assert "was killed by SIGKILL; restart 1 of 3: resumes from" in said
            after = run.status_when(lambda status: status["state"] == "running")
            assert [worker["address"] for worker in after["workers"]] == founders
            found = {worker["pid"] for worker in after["workers"]}
            stayed += len(pids & found)
            assert {open_files(pid).count(str(counted.store)) for pid in found} == {1}, "of this life"
            pids = found
        assert stayed, "a process that was not lost goes on, unless it was much too slow"
        left = other.end()
        assert left.code == 75 and "this process ends, and the others take over its bins" in left.errors, left.errors
    finally:
        other.finish()
    counted.await_more()
    assert run.control("stop").returncode == 0
    end(run, 0)
    end(counted.run("--processes", "2"), 0)
    counted.check()


@pytest.mark.parametrize("is_alone", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stop_ends_a_process_that_joined_by_hand_with_0(counted: Counted, is_alone: bool) -> None:
    run = counted.run("--name", "counted", rate=40)
    run.status_when(lambda status: status["state"] == "running")  # or there would be no job of this name yet
    other = run.megaflow("run", WORDCOUNT, "--join", "counted")
    try:
        run.status_when(lambda status: len(status["workers"]) == 2)
        change = ("remove-workers", "--id", "0") if is_alone else ("move-bins", "--balance")
        assert run.control(*change).returncode == 0
        counted.await_more()
        assert run.control("stop").returncode == 0
        left = other.end()
        assert left.code == 0 and says(left.errors, "has stopped at checkpoint") and "lost" not in left.errors, left
    finally:
        other.finish()
    end(run, 0)
    end(counted.run(), 0)
    counted.check()


@pytest.mark.slow
def test_the_second_signal_at_a_joined_process_has_the_effect_it_announces(counted: Counted) -> None:
    run = counted.run("--name", "counted", rate=40)
    run.status_when(lambda status: status["state"] == "running")
    other = run.megaflow("run", WORDCOUNT, "--join", "counted")
    try:
        run.status_when(lambda status: len(status["workers"]) == 2)
        assert run.control("move-bins", "--balance").returncode == 0
        other.send_signal(signal.SIGTERM)
        wait_until(lambda: any("is leaving" in line for line in other.errors))
        other.send_signal(signal.SIGTERM)
        left = other.end()
        assert left.code == 128 + signal.SIGTERM and "fails the job" not in left.errors, left
        assert says(left.errors, "a second Ctrl-C ends it", "the job resumes without it"), left
        await_restart(run, 1)
    finally:
        other.finish()
    run.status_when(lambda status: status["state"] == "running" and len(status["workers"]) == 1)
    assert run.control("stop").returncode == 0
    end(run, 0)
    end(counted.run(), 0)
    counted.check()


@pytest.mark.slow
def test_resumed_and_recovered_jobs_take_new_processes(counted: Counted) -> None:
    run = counted.run("--processes", "2", rate=40)
    counted.await_more()
    assert run.control("stop").returncode == 0
    end(run, 0)
    run = counted.run("--name", "counted", rate=40)
    await_pruned(counted)
    added = run.control("add-workers", "1", "--balance")
    assert added.returncode == 0, added.stderr
    other = run.megaflow("run", WORDCOUNT, "--join", "counted")
    try:
        before = run.status_when(lambda status: len(status["workers"]) == 3)
        assert run.control("move-bins", "--balance").returncode == 0
        os.kill(before["workers"][1]["pid"], signal.SIGKILL)
        await_restart(run, 1)
        other.end()
    finally:
        other.finish()
    run.status_when(lambda status: status["state"] == "running")
    await_pruned(counted)
    added = run.control("add-workers", "1", "--balance")
    assert added.returncode == 0, added.stderr
    end(run, 0)
    counted.check()


def await_pruned(counted: Counted) -> None:
    """Wait until the commit that a life started from is removed."""
    begun = min(counted.store.glob("*.commit"))
    wait_until(lambda: not begun.exists(), STATUS_SECONDS)
    begun = max(counted.store.glob("*.commit"))
    wait_until(lambda: not begun.exists(), STATUS_SECONDS)


@pytest.mark.slow
def test_a_job_that_shrinks_divides_what_a_lost_process_had_among_the_others(counted: Counted) -> None:
    run = counted.run("--processes", "3", "--shrink", rate=100)
    before = run.status_when(lambda status: len(status["workers"]) == 3)["workers"]
    assert run.control("move-bins", "--bins", "0", "--to", "1").returncode == 0
    counted.await_more()
    os.kill(before[0]["pid"], signal.SIGKILL)  # the coordinator
    assert "; restart 1 of 3 with 2 processes: resumes from checkpoint" in await_restart(run, 1)
    after = run.status_when(lambda status: status["state"] == "running")["workers"]
    assert [worker["address"] for worker in after] == [worker["address"] for worker in before[1:]]
    if [worker["pid"] for worker in after] == [worker["pid"] for worker in before[1:]]:  # unless one was much too slow
        assert [worker["bins"] for worker in after] == [128, 128], "each has what it had, and of the others some"
    counted.await_more()
    end(run, 0)
    counted.check()


def await_restart(run: Run, number: int) -> str:
    """Wait until a job recovers for the `number`-th time; return its message about it."""
    said: list[str] = []

    def has_said() -> bool:
        said[:] = [line for line in run.said if "; restart " in line]
        return len(said) == number

    wait_until(has_said, STATUS_SECONDS)
    return said[-1]


@pytest.mark.slow
def test_a_job_that_loses_processes_before_each_checkpoint_ends_and_its_state_is_kept(counted: Counted) -> None:
    run = counted.run("--processes", "2", "--restarts", "1", rate=40, every=1000)
    for lost in range(2):
        workers = run.status_when(lambda status: status["state"] == "running")["workers"]
        os.kill(workers[0]["pid"], signal.SIGKILL)  # the coordinator
        if lost == 0:
            said = await_restart(run, 1)
            assert said.endswith("restart 1 of 1: the store has no checkpoint yet: begins with the first line\n")
    said = end(run, 75)
    assert "no checkpoint was taken since restart 1 of 1; its state is kept in" in said
    end(counted.run("--processes", "2"), 0)
    counted.check()


@pytest.mark.slow
def test_a_drain_and_a_move_outlive_a_stop_and_losses(counted: Counted) -> None:
    def bins(run: Run) -> list[int]:
        status = run.status_when(lambda status: status["state"] == "running")
        return [worker["bins"] for worker in status["workers"]]

    run = counted.run("--processes", "3", rate=10)
    counted.await_more()
    assert run.control("move-bins", "--drain", "1").returncode == 0
    assert run.control("move-bins", "--bins", "0,3,6", "--to", "2").returncode == 0
    wanted = bins(run)
    assert wanted[1] == 0 and wanted[0] < 128 < wanted[2]
    assert run.control("checkpoint").returncode == 0
    os.kill(run.status()["workers"][2]["pid"], signal.SIGKILL)
    await_restart(run, 1)
    assert bins(run) == wanted, "after a loss"
    assert run.control("stop").returncode == 0
    end(run, 0)
    run = counted.run("--processes", "3", rate=10)
    counted.await_more()
    assert bins(run) == wanted, "after a stop"
    run.process.kill()
    end(run, -signal.SIGKILL)
    run = counted.run("--processes", "2", rate=10)
    counted.await_more()
    assert bins(run) == [256, 0], "worker 1 stays drained"
    assert f"; worker 2 is gone: its {wanted[2]} bins go to the others" in "".join(run.said)
    assert run.control("stop").returncode == 0
    end(run, 0)
    run = counted.run("--processes", "3", rate=100)
    counted.await_more()
    assert bins(run) == [128, 0, 128], "a worker that is new takes its share"
    end(run, 0)
    counted.check()


@pytest.mark.slow
def test_a_refused_take_over_leaves_a_healthy_job_running(counted: Counted, start: Callable[..., Run]) -> None:
    other = start(WORDCOUNT, "--lines", str(TEXT), "--rate", "1", "--output", "none", "--name", "other")
    run = counted.run("--name", "counted", rate=10)
    counted.await_more()
    for words, why in (
        (["--name", "other"], "a job named 'other' is running already"),
        (["--drop-state", "nothing"], "the store has no operator 'nothing'"),
    ):
        assert why in end(counted.run("--take-over", *words), 1)
        assert "is in use by process" in end(counted.run("--name", "third"), 1)
    other.process.kill()
    assert run.control("stop", "--job", "counted").returncode == 0
    end(run, 0)
    end(counted.run(), 0)
    counted.check()


@pytest.mark.slow
def test_a_damaged_segment_is_found_before_anything_changes(counted: Counted) -> None:
    run = counted.run(rate=100)
    counted.await_more()
    assert run.control("stop").returncode == 0
    end(run, 0)
    with counted.out.open("a") as file:
        file.write("of the job that was killed\n")
    segment = max(counted.store.glob("*.seg"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:20] + bytes([whole[20] ^ 255]) + whole[21:])
    before = contents(counted.out, counted.store)
    assert f"{segment.name} is damaged at byte" in end(counted.run(), 1)
    check_equal(contents(counted.out, counted.store), before)
    segment.write_bytes(whole)
    end(counted.run(), 0)
    counted.check()


@pytest.mark.slow
def test_what_would_come_again_ends_the_job_at_once_and_the_program_may_be_mended(counted: Counted) -> None:
    app = counted.folder / "app.py"
    app.write_text(PROGRAM)
    run = counted.run(app=str(app), rate=40)
    counted.await_more()
    stopped = run.control("stop").stdout
    at = counted.checkpoint()[0]
    assert stopped == f"the job has stopped at checkpoint {at}; run the same command again to resume\n"
    end(run, 0)

    app.write_text(PROGRAM.replace("total +=", "assert word != 'return', 'a fault of the program'\n    total +="))
    said = end(counted.run(app=str(app)), 1)
    assert "; with other code: app.py differs\n" in said and "; restart " not in said
    before, _, shown = said.partition("Traceback (most recent call last):")
    assert "AssertionError: a fault of the program" in shown
    kept = f"{counted.store} has its state as of checkpoint {counted.checkpoint()[0]}: mend what the error names"
    assert f"megaflow: the job has failed; {kept}, and the same command resumes from there\n" in before

    app.write_text(PROGRAM.replace('name="count"', 'name="words"'))
    last = end(counted.run(app=str(app)), 1).splitlines()[-1]
    assert last.startswith("megaflow: the store has the state of operator 'count', but the program has no")

    app.write_text(PROGRAM)
    end(counted.run(app=str(app)), 0)
    counted.check()
    full = counted.folder / "full"
    said = end(counted.run(app=str(app), store=full, output="/dev/full"), 75)
    assert said.splitlines()[-1].endswith(f"its state is kept in {full}: run the same command again")


FIRST = """
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=8)
"""
SECOND = """
def words(word, n, total):
    total = {"n": (total or {"n": 0})["n"] + n}
    return total, [(word, total["n"])]

def upgrade(word, total, version):
    return {"n": total}

def dataflow(flow):
    pairs = flow.lines().map(lambda word: (word, 1))
    return pairs.stateful_state_machine(words, len, bins=32, version=2, upgrade=upgrade, rehash=True)
"""


def contents(*paths: Path) -> dict[str, bytes]:
    """Return the contents of these files, and of the files in these folders."""
    files = (file for path in paths for file in (path.iterdir() if path.is_dir() else [path]))
    return {file.name: file.read_bytes() for file in files if file.name != LOCK}


@pytest.mark.slow
def test_a_changed_program_goes_on_once_it_is_said_how(tmp_path: Path, start: Callable[..., Run]) -> None:
    app, lines, out = (tmp_path / name for name in ("app.py", "lines", "out.jsonl"))

    def run(program: str, *words: str) -> Run:
        app.write_text(program)
        with lines.open("a") as file:
            file.write("a\nb\na\n")
        more = ("--output", f"jsonl:{out}", "--state", str(tmp_path / "store"), *words)
        return start(str(app), "--lines", str(lines), *more)

    end(run(FIRST), 0)
    before = contents(tmp_path / "store", out)
    said = end(run(SECOND, "--processes", "2"), 1)
    assert "if it has a new name ('words'), add --rename-state count=words" in said and "Traceback" not in said
    refused = SECOND.replace(", rehash=True", "")
    assert "give the old hash= again" in end(run(refused, "--rename-state", "count=words"), 1)
    assert "end_of_the_world" in end(run(FIRST.replace("flow.lines()", "flow.end_of_the_world()")), 1)
    check_equal(contents(tmp_path / "store", out), before, "what is refused changes nothing")
    for _ in "12":
        end(run(SECOND, "--rename-state", "count=words"), 0)
    records = [json.loads(line)["record"] for line in out.read_text().splitlines()]
    totals = {word: [n for each, n in records if each == word] for word in "ab"}
    check_equal(totals, {"a": list(range(1, 13)), "b": list(range(1, 7))})
    said = end(run(FIRST, "--rename-state", "words=count"), 1)
    assert "operator 'count' in the store are of version 2, but the program has version 1: run" in said


@pytest.mark.slow
def test_a_job_of_its_own_begins_with_a_checkpoint_that_has_a_name(counted: Counted, start: Callable[..., Run]) -> None:
    run = counted.run("--processes", "2", rate=100)
    counted.await_more()
    named = run.control("checkpoint", "--name", "first")
    assert named.returncode == 0, named.stderr
    counted.await_more()
    assert run.control("checkpoint", "--name", "second").returncode == 0
    again = run.control("checkpoint", "--name", "second")
    assert again.returncode == 1 and "another checkpoint is already named 'second'" in again.stderr
    jobs = run.environment["XDG_RUNTIME_DIR"]
    dropped = CliRunner().invoke(cli, ["state", "rm", str(counted.store), "second", "--runtime-dir", jobs])
    assert dropped.exit_code == 0, dropped.output
    copied = CliRunner().invoke(cli, ["state", "copy", str(counted.store), str(counted.folder / "copy")])
    assert copied.exit_code == 0, copied.output
    assert run.control("stop").returncode == 0
    end(run, 0)
    end(counted.run(), 0)
    counted.check()

    before = {path.name: path.read_bytes() for path in counted.store.iterdir()}
    forked = start(
        WORDCOUNT, "--lines", str(TEXT), "--output", f"jsonl:{counted.folder / 'own.jsonl'}", "--processes", "3",
        "--state", str(counted.folder / "own"), "--from-checkpoint", f"{counted.store}:first",
    )  # fmt: skip
    assert "begins with checkpoint first of" in end(forked, 0)
    words = dict(read_state(counted.store, "count"))
    check_equal(dict(read_state(counted.folder / "own", "count")), words)
    with (counted.folder / "own.jsonl").open(encoding="utf-8") as lines:
        totals = Counter(json.loads(line)["record"][0] for line in lines)
    first = dict(read_state(counted.store, "count", "first"))
    check_equal(totals, Counter(words) - Counter(first))
    assert totals.total() > 0
    check_equal({path.name: path.read_bytes() for path in counted.store.iterdir()}, before)
    assert CliRunner().invoke(cli, ["state", "verify", str(counted.folder / "copy")]).exit_code == 0
