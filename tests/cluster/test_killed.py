"""After a job was killed, hung up on, or interrupted repeatedly, no process of it runs and no file remains."""

import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.job.job_file import process_start
from tests.cluster.counts import check_counts
from tests.cluster.processes import STOP_SECONDS, WORDCOUNT, Run, lives, wait_until

pytestmark = pytest.mark.cluster


def children_of(run: Run) -> list[int]:
    launcher = run.process.pid
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


ALONE = ["unshare", "--pid", "--fork", "--mount-proc"]  # instead of a container


@pytest.mark.parametrize("again", range(3))
def test_signals_without_a_gap_leave_no_file_behind(
    start: Callable[..., Run], tmp_path: Path, text: Path, again: int
) -> None:
    out = tmp_path / "out.jsonl"
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "100", "--output", f"jsonl:{out}")
    if again:
        wait_until(lambda: any("steer it with" in line for line in run.said))
    else:
        wait_until(lambda: run.files() != [])
    for _ in range(6):
        run.process.send_signal(signal.SIGINT)
    run.end()
    assert [path for path in run.folder.iterdir() if path.suffix != ".ended"] == []
    assert not (out.exists() and out.stat().st_size == 0)


def test_a_job_drains_when_its_terminal_closes(start: Callable[..., Run], tmp_path: Path, text: Path) -> None:
    out = tmp_path / "out.jsonl"
    ours, theirs = os.openpty()
    run = start(
        WORDCOUNT, "--lines", str(text), "--rate", "50", "--output", f"jsonl:{out}", start_new_session=True,
        stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    wait_until(lambda: out.exists() and out.stat().st_size > 0)
    os.close(ours)
    assert run.process.wait(180) == 0 and run.files() == []
    lines = sum(1 for _ in out.open()) // 8
    assert 0 < lines < 4000
    check_counts(out, Counter(word for line in text.read_text().splitlines()[:lines] for word in line.split()))


@pytest.mark.skipif(
    shutil.which(ALONE[0]) is None
    or subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode != 0,
    reason="needs to be root",
)
def test_a_command_in_another_container_takes_no_job_for_dead(start: Callable[..., Run], text: Path) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "10", "--output", "none", "--name", "count")
    run.reading()

    def ask(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [*ALONE, sys.executable, "-m", "megaflow", "control", "status", *words]
        return subprocess.run(command, env=run.environment, capture_output=True, text=True, check=False)

    done = ask()
    assert done.returncode == 1 and "in another container, or ended: count" in done.stderr, done.stderr
    done = ask("--job", "count")
    assert done.returncode == 0 and len(run.files()) == 1, done.stderr
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == 0 and run.files() == []


# Each worker except the first is busy in a different way. The first joiner spends a long time in an import.
BUSY = """
import pathlib, time

first = pathlib.Path(__file__ + ".first")
if first.exists():
    first.unlink()
    time.sleep(600)

def loop():
    while True:
        pass

WAYS = [lambda: None, loop, lambda: time.sleep(600), lambda: sum(range(10**15))]

def keep_busy(line):
    pathlib.Path(f"{__file__}.{line}").touch()
    return WAYS[int(line)]()

def dataflow(flow):
    return flow.lines().exchange(int).map(keep_busy)
"""


def test_nobody_outlives_the_launcher_whatever_he_is_busy_with(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "busy.py"
    app.write_text(BUSY)
    run = start(str(app), "--lines", "-", "--processes", "4", stdin=subprocess.PIPE)
    run.status_when(lambda status: len(status["workers"]) == 4)
    first = Path(f"{app}.first")
    first.touch()
    adding = [run.megaflow("control", "add-workers", "1")]
    try:
        wait_until(lambda: not first.exists())
        for way in "123":
            run.process.write_line(way)
        wait_until(lambda: all(Path(f"{app}.{way}").exists() for way in "123"))
        adding.append(run.megaflow("control", "add-workers", "1"))  # it asks to join before its turn
        wait_until(lambda: len(children_of(run)) == 6)
        started = {pid: process_start(pid) for pid in children_of(run)}
        run.process.kill()
        wait_until(lambda: not any(lives(pid, began) for pid, began in started.items()), STOP_SECONDS)
    finally:
        for command in adding:
            command.finish()


FICKLE = """
import pathlib

if pathlib.Path(__file__ + ".stop").exists():
    raise RuntimeError("not today")

def dataflow(flow):
    return flow.lines()
"""


@pytest.mark.slow
def test_the_launcher_forgets_who_has_left_and_who_never_came(start: Callable[..., Run], tmp_path: Path) -> None:
    app, stop = tmp_path / "fickle.py", tmp_path / "fickle.py.stop"
    app.write_text(FICKLE)
    run = start(str(app), "--lines", "-", stdin=subprocess.PIPE)
    run.status_when(lambda status: len(status["workers"]) == 1)
    launcher = run.process.pid

    def held() -> tuple[int, int]:
        return len(os.listdir(f"/proc/{launcher}/fd")), len(children_of(run))

    before = held()
    resource.prlimit(launcher, resource.RLIMIT_NOFILE, [before[0] + 12] * 2)  # a starting process takes eleven
    for _ in range(2):
        added = run.control("add-workers", "1")
        assert added.returncode == 0, added.stderr
        worker = run.status()["workers"][-1]["id"]
        assert run.control("remove-workers", "--id", str(worker)).returncode == 0
        stop.touch()
        failed = run.control("add-workers", "1")
        assert failed.returncode == 1 and "not today" in failed.stderr, failed.stderr
        stop.unlink()
    refused = run.control("add-workers", "4")
    assert refused.returncode == 1 and "the launcher cannot start processes" in refused.stderr, refused.stderr
    wait_until(lambda: held() == before)
    assert run.process.stdin is not None
    run.process.stdin.close()
    assert run.end()[0] == 0


@pytest.mark.slow
def test_ctrl_c_at_a_process_that_joined_by_hand_lets_it_leave_and_twice_ends_it_by_name(
    start: Callable[..., Run], text: Path
) -> None:
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "10", "--output", "none", "--name", "count")
    run.reading()
    joining = ("run", WORDCOUNT, "--join", "count")
    first = run.megaflow(*joining)
    try:
        wait_until(lambda: any("worker 1 of job 'count'" in line for line in first.errors))
        assert run.control("move-bins", "--bins", "0-3", "--to", "1").returncode == 0
        first.send_signal(signal.SIGINT)
        ended = first.end()
        assert ended.code == 0 and "Traceback" not in ended.errors, ended.errors
        assert ended.errors.splitlines()[1].startswith("megaflow: worker 1 is leaving: it finishes its work"), ended
    finally:
        first.finish()
    second = run.megaflow(*joining)
    try:
        wait_until(lambda: any("worker 2 of job 'count'" in line for line in second.errors))
        assert run.control("move-bins", "--bins", "0-3", "--to", "2").returncode == 0
        place = run.status()["workers"][1]["address"]
        second.send_signal(signal.SIGINT)
        second.send_signal(signal.SIGTERM)
        assert second.wait(STOP_SECONDS) in (130, 143)
        code, _, said = run.end()
        assert code == 1 and said[-1].startswith(f"megaflow: worker 2 ({place}) closed its connection"), said
        assert "and with it the state of 4 of 256 bins of" in said[-1] and run.files() == [], said
    finally:
        second.finish()
