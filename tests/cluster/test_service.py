"""Stops by a service manager: its signals reach every process of a job, and a container starts anew with old files."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from megaflow.job.job_file import process_state
from tests.cluster.processes import (
    ROOT,
    STATUS_SECONDS,
    Process,
    Run,
    children_of,
    committed,
    fall_asleep,
    records_of,
    signal_all,
    tree_of,
    wait_until,
)
from tests.cluster.test_signals import AT_START, PROGRAM
from tests.cluster.test_systemd_unit import Systemd
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# Starts a process that lives until a signal ends it, and a fork that returns how it would handle the signals.
STARTING = """
import os, signal, subprocess

def actions(word):
    reading, writing = os.pipe()
    if os.fork() == 0:
        numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        os.write(writing, " ".join(signal.getsignal(each).name for each in numbers).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    return [word, subprocess.Popen(["sleep", "600"]).pid, os.read(reading, 100).decode()]

def dataflow(flow):
    return flow.lines().map(actions)
"""


@pytest.mark.parametrize("is_kept", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_signal_to_all_processes_stops_the_job(
    start: Callable[..., Run], tmp_path: Path, number: int, code: int, is_kept: bool
) -> None:
    app, text, out, store = (tmp_path / name for name in ("app.py", "words.txt", "out.jsonl", "store"))
    app.write_text(STARTING)
    text.write_text("a\nb\n")
    words = [str(app), "--lines", str(text), "--follow", "--processes", "2", "--output", f"jsonl:{out}"]
    run = start(*words, *(["--state", str(store)] if is_kept else []))
    wait_until(lambda: len(records_of(out)) == 2)
    run.status_when(lambda record: record["state"] == "running")
    started = [pid for _, pid, _ in records_of(out)]
    assert set(started) < set(tree_of(run.process.pid))
    signal_all(run.process.pid, number)
    ended, _, said = run.end()
    assert ended == code and "2 lines, 2 records" in said[-1], said
    assert ("stopped at checkpoint" in said[-1]) == is_kept, said
    assert not any("SIG" in line or "lost" in line for line in said), said
    assert [actions for *_, actions in records_of(out)] == ["SIG_DFL SIG_DFL SIG_DFL"] * 2
    assert not any(map(process_state, started)), "the signal ended what the program had started"


def test_second_signal_to_all_processes_kills_them(start: Callable[..., Run], tmp_path: Path) -> None:
    run = fall_asleep(start, tmp_path)
    started = tree_of(run.process.pid)
    signal_all(run.process.pid, signal.SIGTERM)
    wait_until(lambda: any("stopping: " in line for line in run.said))
    signal_all(run.process.pid, signal.SIGTERM)
    code, _, said = run.end()
    assert code == 143 and said[-1] == "megaflow: ended by SIGTERM", said
    assert len(started) == 3 and not any(map(process_state, started))


def test_ignored_hangup_to_all_processes_has_no_effect(start: Callable[..., Run], tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("a\n")
    app = tmp_path / "app.py"
    app.write_text(PROGRAM)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        run = start(str(app), "--lines", str(text), "--follow", "--processes", "2", "--output", "none")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.status_when(lambda record: record["state"] == "running")
    signal_all(run.process.pid, signal.SIGHUP)
    signal_all(run.process.pid, signal.SIGTERM)
    code, _, said = run.end()
    assert code == 0 and "1 line, " in said[-1], "the hangup would have been the first of two signals"


def test_signal_to_all_processes_while_some_start(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, store, text, slow = (tmp_path / name for name in ("app.py", "store", "words.txt", "slow"))
    app.write_text(PROGRAM)
    text.write_text("a\n")
    (tmp_path / "sitecustomize.py").write_text(AT_START)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    words = (str(app), "--lines", str(text), "--follow", "--processes", "2", "--output", "none", "--state", str(store))

    def await_starts(count: int) -> None:
        wait_until(lambda: len(list(tmp_path.glob("starts-*"))) == count)

    run = start(*words)
    run.status_when(lambda record: record["state"] == "running")
    wait_until(lambda: committed(store) > 0)
    slow.touch()
    adding = run.megaflow("control", "add-workers", "1")
    await_starts(1)
    signal_all(run.process.pid, signal.SIGTERM)
    code, _, said = run.end()
    assert code == 0 and "stopped at checkpoint" in said[-1], said
    assert not any("SIGTERM" in line for line in said), said
    assert adding.end().code == 1

    app.write_text(PROGRAM.replace("[]", "[word]"))
    run = start(*words)  # the process that checks the changed program hangs
    await_starts(2)
    checking = children_of(run.process.pid)
    signal_all(run.process.pid, signal.SIGTERM)
    code, _, said = run.end()
    assert code == 143 and said[-1] == "megaflow: ended by SIGTERM", said
    assert len(checking) == 1 and not any(map(process_state, checking))


# A program that starts a job itself, and stops it at Ctrl-C.
EMBEDDING = """
import sys
import megaflow

def dataflow(flow):
    return flow.lines().map(str.upper)

if __name__ == "__main__":
    text, store = sys.argv[1:]
    try:
        with megaflow.start(dataflow, lines=text, follow=True, processes=2, state=store) as job:
            for record in job.outputs():
                print(record, flush=True)
    except KeyboardInterrupt:
        print(job.wait().stopped_at is not None)
"""


def test_interrupt_of_a_program_and_its_workers_stops_the_job(tmp_path: Path) -> None:
    program, text, store = (tmp_path / name for name in ("program.py", "words.txt", "store"))
    program.write_text(EMBEDDING)
    text.write_text("a\n")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    run = Process([sys.executable, str(program), str(text), str(store)], env=environment)
    try:
        run.await_line("A")
        signal_all(run.pid, signal.SIGINT)
        ended = run.end()
    finally:
        run.finish()
    assert (ended.code, ended.output) == (0, "A\nTrue\n"), ended.errors


def test_job_whose_runtime_folder_is_removed_is_found_again(start: Callable[..., Run], tmp_path: Path) -> None:
    app, text = tmp_path / "app.py", tmp_path / "words.txt"
    app.write_text(PROGRAM)
    text.write_text("a\n")
    run = start(str(app), "--lines", str(text), "--follow", "--name", "words", "--output", "none")
    run.status_when(lambda record: record["state"] == "running")
    [before] = [json.loads(file.read_text()) for file in run.files()]
    shutil.rmtree(run.folder)
    wait_until(lambda: bool(run.files()))
    [after] = [json.loads(file.read_text()) for file in run.files()]
    check_equal(after, before, "with the same secret")
    wait_until((run.folder / "words.sock").exists)
    done = run.control("stop", "--force")
    assert done.returncode == 0 and run.end()[0] == 1 and run.files() == [], done.stderr


class ControlGroup(Systemd):
    """A unit with systemd's default `KillMode=control-group`, and what systemd does at the end of `TimeoutStopSec`."""

    def stop(self, process: Process) -> None:
        """Send SIGTERM to all processes of the unit."""
        signal_all(process.pid, signal.SIGTERM)

    def give_up(self, process: Process) -> None:
        """Send SIGKILL to what is left."""
        signal_all(process.pid, signal.SIGKILL)


def test_unit_that_signals_its_control_group_keeps_every_count(tmp_path: Path) -> None:
    with ExitStack() as stack:
        unit = ControlGroup(tmp_path, stack)
        store = unit.state / "kept"
        for number in range(2):
            run = unit.start()
            unit.write(f"{number}.txt", b"a b a\nc a\n")
            wait_until(lambda: unit.counted() >= 5 * (number + 1))  # noqa: B023
            unit.stop(run)
            ended = run.end()
            assert ended.code == 0 and not unit.restarts(0), ended.errors
            assert "stopped at checkpoint" in ended.errors.splitlines()[-1], ended.errors

        run = unit.start()  # it does not stop in time
        unit.write("2.txt", b"a b a\nc a\n")
        wait_until(lambda: unit.counted() >= 15)
        before = committed(store)
        wait_until(lambda: committed(store) > before)
        [worker] = children_of(run.pid)
        os.kill(worker, signal.SIGSTOP)
        unit.stop(run)
        wait_until(lambda: any("stopping: " in line for line in run.errors))
        unit.give_up(run)
        assert run.end().code == -signal.SIGKILL and unit.restarts(-signal.SIGKILL)

        run = unit.start()
        unit.write("3.txt", b"a b a\nc a\n")
        wait_until(lambda: unit.counted() >= 20)
        unit.stop(run)
        assert run.end().code == 0
    counts = Counter(json.loads(line)["record"][0] for line in (unit.state / "counts.jsonl").read_text().splitlines())
    check_equal(counts, {"a": 12, "b": 4, "c": 4}, "each count once, however the unit was stopped")


COUNTING = """
def count(word, one, total):
    return (total or 0) + one, [(word, (total or 0) + one)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count)
"""
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def has_namespaces() -> bool:
    """Return whether this user may run a process in a PID namespace of its own."""
    if shutil.which(NAMESPACE[0]) is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


def contained(folder: Path, *words: str) -> Process:
    """Start a job as process 1 of a PID namespace, as in a container, and wait until it runs."""
    environment = {**os.environ, "MEGAFLOW_RUNTIME_DIR": str(folder)}
    run = Process([*NAMESPACE, sys.executable, "-m", "megaflow", "run", *words], env=environment)
    wait_until(lambda: any("steer it with" in line for line in run.errors) or run.poll() is not None)
    return run


@pytest.mark.skipif(not has_namespaces(), reason="this user may not make PID namespaces")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_container_restarts_with_the_files_of_the_last_one(tmp_path: Path, number: int) -> None:
    app, text, out, store = (tmp_path / name for name in ("app.py", "words.txt", "out.jsonl", "store"))
    app.write_text(COUNTING)
    text.touch()
    words = (str(app), "--lines", str(text), "--follow", "--name", "counts", "--processes", "2",
             "--output", f"jsonl:{out}", "--state", str(store))  # fmt: skip
    for attempt in range(1, 4):
        run = contained(tmp_path, *words)
        try:
            job = json.loads((tmp_path / "megaflow" / "counts.json").read_text())
            assert job["pid"] == 1, "as that of every container's first process"
            before = committed(store)
            with text.open("a") as lines:
                lines.write("a\n")
            wait_until(lambda: len(records_of(out)) == attempt, STATUS_SECONDS)  # noqa: B023
            wait_until(lambda: committed(store) > before or attempt == 3)  # noqa: B023
            [launcher] = children_of(run.pid)
            signal_all(launcher, number) if number == signal.SIGTERM else os.kill(launcher, number)
            ended = run.end()
        finally:
            run.finish()
        said = ended.errors.splitlines()
        assert any("resumes from checkpoint" in line for line in said) == (attempt > 1), said
        assert (number == signal.SIGKILL) or "stopped at checkpoint" in said[-1], said
    check_equal(records_of(out), [["a", total] for total in (1, 2, 3)], "each line once")
