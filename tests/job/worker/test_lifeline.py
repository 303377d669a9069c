"""A process ends when no other process holds its pipe, or when the thread that started it ends."""

import os
import subprocess
import sys
import threading

import pytest

from megaflow.job.launcher.processes.wakeups import withheld_signals
from megaflow.job.spec import STOP_SIGNALS
from megaflow.job.worker.process.lifeline import ORPHANED

SLEEP = "print('ready', flush=True); import time; time.sleep(600)"


def start(code: str, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", f"from megaflow.job.worker.process.lifeline import *; {code}; {SLEEP}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


def test_the_end_of_the_pipe_is_the_end_of_the_process_and_what_comes_before_is_not() -> None:
    reading, writing = os.pipe()
    with start(f"end_with({reading}, print)", pass_fds=[reading]) as process:
        os.close(reading)
        assert process.stdout.readline() == "ready\n"
        os.write(writing, b"a word")
        assert process.poll() is None
        os.close(writing)
        assert process.wait(180) == ORPHANED


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_a_process_is_killed_when_the_thread_that_started_it_ends() -> None:
    started, may_end = [], threading.Event()

    def run() -> None:
        started.append(start("die_with_parent()"))
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    while not started:
        pass
    [process] = started
    with process:
        assert process.stdout.readline() == "ready\n" and process.poll() is None
        may_end.set()
        assert process.wait(180) == -9


def test_signals_of_a_stop_are_left_to_the_launcher() -> None:
    code = "input(); leave_signals(); print('left', flush=True)"
    with withheld_signals(), start(code, stdin=subprocess.PIPE) as process:
        for number in STOP_SIGNALS:
            process.send_signal(number)  # before the process handles them
        process.stdin.write("\n")
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(2)] == ["left\n", "ready\n"]
        for number in STOP_SIGNALS:
            process.send_signal(number)
        assert process.poll() is None
        process.kill()


def test_what_a_process_starts_has_the_default_actions() -> None:
    show = """
import os, signal, sys
from megaflow.job.worker.process.lifeline import STOP_SIGNALS, leave_signals
leave_signals()
if (pid := os.fork()) == 0:
    print([signal.getsignal(each).name for each in STOP_SIGNALS], flush=True)
    os._exit(0)
os.waitpid(pid, 0)
os.execvp("grep", ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"])
"""
    with withheld_signals():
        process = subprocess.Popen([sys.executable, "-c", show], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    forked, *started = output.splitlines()
    assert forked == str(["SIG_DFL"] * len(STOP_SIGNALS))
    for line in started:
        assert not int(line.split()[1], 16) & sum(1 << each - 1 for each in STOP_SIGNALS), line


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc loads it")
def test_library_for_ends_of_threads_is_loaded_before() -> None:
    show = "print('libgcc_s' in open('/proc/self/maps').read(), flush=True)"
    for call in ("load_for_ends_of_threads()", "pass"):
        with start(f"{call}; {show}") as process:
            assert process.stdout.readline() == f"{call != 'pass'}\n"
            process.kill()
