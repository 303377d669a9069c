"""The launcher's information on busy workers, and when it reports them to the user."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from megaflow.errors import ClusterError
from megaflow.job.heartbeat import Heartbeat, HeartbeatFile, LongStep, write_sign
from megaflow.job.launcher.processes import busy_workers
from megaflow.job.launcher.processes.busy_workers import BusyWords, is_in_a_step, where_it_is, who_is_busy
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children

PLACE = ("fold", "app.py:12", "count", "'word'")
WAIT_SECONDS = 30.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pause the test between a heartbeat and a look."""
    monkeypatch.setattr(busy_workers, "SILENT_SECONDS", WAIT_SECONDS)


@contextmanager
def processes(count: int) -> Iterator[Children]:
    """Return idle processes whose heartbeats the test gives."""
    children = Children()
    try:
        for number in range(count):
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            process = subprocess.Popen(command, stdin=subprocess.PIPE)
            child = Child(("127.0.0.1", 2101 + number), process, sign=HeartbeatFile(time.monotonic() - 1000))
            child.join((number,))
            children.all.append(child)
        children.coordinator = ("127.0.0.1", 2101)
        yield children
    finally:
        for child in children.all:
            if child.process is not None:
                child.process.send_signal(signal.SIGCONT)
        children.kill(children.all)


def give_sign(child: Child, *busy: LongStep, late_by: float = 0.0) -> None:
    assert child.sign is not None
    write_sign(child.sign.file, Heartbeat(time.monotonic() - late_by, busy))


def test_those_that_are_busy_are_told_the_longest_first() -> None:
    with processes(2) as children:
        give_sign(children.all[0], LongStep(0, time.monotonic() - 5, *PLACE))
        give_sign(children.all[1], LongStep(1, time.monotonic() - 50, *PLACE))
        report = who_is_busy(children)
        assert [(each.workers, each.state) for each in report.busy] == [((1,), "busy"), ((0,), "busy")]
        assert report.busy[0].seconds >= 50 and report.busy[0].function == "fold"
        assert report.coordinating == (0,)


def test_a_process_that_has_not_joined_shows_what_it_loads() -> None:
    with processes(2) as children:
        give_sign(children.all[0])
        joining = children.all[1]
        joining.workers = ()
        give_sign(joining, LongStep(None, time.monotonic() - 5, "load", "app.py:3"))
        [busy] = who_is_busy(children).busy
        assert (busy.workers, busy.function, busy.state) == ((), "load", "busy")
        assert where_it_is(joining).startswith("in 'load' (app.py:3) for 5.")
        give_sign(joining, LongStep(None, time.monotonic() - 15, waits="the database sqlite:a, attempt 3"))
        assert where_it_is(joining).startswith("waiting for 15.")
        assert where_it_is(joining).endswith(" s for the database sqlite:a, attempt 3")
        give_sign(joining)
        assert where_it_is(joining) == ""


def test_a_process_without_signs_is_silent_or_suspended_or_has_ended() -> None:
    with processes(3) as children:
        for child in children.all:
            give_sign(child, LongStep(child.workers[0], 0.0, *PLACE), late_by=60)
        suspended, ended = children.all[1].process, children.all[2].process
        assert suspended is not None and ended is not None
        suspended.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, suspended.pid, os.WSTOPPED | os.WNOWAIT)
        ended.kill()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        busy = {each.workers: each for each in who_is_busy(children).busy}
        assert {workers: each.state for workers, each in busy.items()} == {(0,): "silent", (1,): "suspended"}
        assert busy[0,].seconds >= 60 and busy[0,].where == "app.py:12"  # the last known place


def test_a_process_may_take_its_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with processes(1) as children:
        monkeypatch.setattr(busy_workers, "START_SECONDS", 10_000.0)
        assert who_is_busy(children).busy == ()
        monkeypatch.setattr(busy_workers, "START_SECONDS", 1000.0)
        assert [each.state for each in who_is_busy(children).busy] == ["silent"]


def test_what_the_launcher_cannot_see_is_left_out() -> None:
    with processes(1) as children:
        children.all.append(Child(("127.0.0.1", 2999)))  # started by hand
        give_sign(children.all[0])
        assert who_is_busy(children).busy == ()


def test_the_user_is_told_once_of_each_long_step_and_not_often(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with processes(2) as children:
        first, second = children.all
        words = BusyWords(children, said.append, str)
        began = time.monotonic()

        def look(*steps: tuple[Child, float]) -> int:
            for child, seconds in steps:
                give_sign(child, LongStep(child.workers[0], began - seconds, *PLACE))
            words.look()
            return len(said)

        assert look((first, 5.0), (second, 5.0)) == 0
        assert look((first, 12.0)) == 1
        assert "worker 0 has been in 'fold' (app.py:12) for 12." in said[0]
        assert look((first, 13.0), (second, 13.0)) == 1  # too early
        monkeypatch.setattr(busy_workers, "TOLD_SECONDS", 0.0)
        words._next = 0.0
        assert look() == 2
        assert look() == 2  # both were reported
        assert look((first, 1.0)) == 3  # it has reached another step


@pytest.mark.parametrize("steps_left", [0, 1, 3])
def test_a_process_that_does_not_answer_is_waited_for_as_long_as_it_is_in_a_step(steps_left: int) -> None:
    looks = []

    def is_at_work() -> bool:
        looks.append(is_in_a_step(child))
        if len(looks) == steps_left:
            give_sign(child)
        return looks[-1]

    with processes(1) as children, socket.create_server(("127.0.0.1", 0)) as mute:
        [child] = children.all
        child.address = mute.getsockname()
        give_sign(child, *[LongStep(0, time.monotonic() - 5, *PLACE)] * (steps_left > 0))
        with pytest.raises(ClusterError, match=r"did not answer within 0\.05 s"):
            child.connect(b"secret", 0.05, is_at_work)
        mute.accept()[0].close()
        mute.setblocking(False)
        with pytest.raises(BlockingIOError):  # it was called once: a second launcher would be refused
            mute.accept()
    assert looks == [True] * steps_left + [False]


def test_a_process_that_is_suspended_in_a_step_is_not_in_one() -> None:
    with processes(1) as children:
        give_sign(children.all[0], LongStep(0, time.monotonic() - 900, *PLACE), late_by=800)
        assert not is_in_a_step(children.all[0])
