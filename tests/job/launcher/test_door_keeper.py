"""The launcher answers at its admin socket, whatever other clients do there."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.control.launcher_messages import BusyReport, WhoIsBusy
from megaflow.control.reports import BusyWorker
from megaflow.errors import NoAnswer
from megaflow.job.admin_socket import ask_launcher, short_name
from megaflow.job.job_file import Job, door_path, present, process_namespace, process_start, publish, withdraw
from megaflow.job.launcher.run import door_keeper
from megaflow.job.launcher.run.door_keeper import REQUEST_BYTES, VISITORS_MAX, DoorKeeper
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.secret import private_folder
from megaflow.timely.communication.wire import Kind, frames

WAIT_SECONDS = 90.0
BUSY = BusyReport((BusyWorker((1,), 77, 12.3, "busy", "fold", "app.py:12", "count", "'word'"),), (0,))


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "megaflow"


def job(name: str = "count") -> Job:
    pid = os.getpid()
    return Job(name, pid, process_start(pid), "127.0.0.1", 2101, "s3cret", process_namespace())


@contextlib.contextmanager
def answering(job: Job, report: BusyReport = BUSY) -> Iterator[None]:
    path = publish(job)
    try:
        with DoorKeeper(job, {WhoIsBusy: lambda request: report}, lambda: None):
            yield
    finally:
        withdraw(job, path)


def ask(job: Job) -> BusyReport:
    return ask_launcher(job, WhoIsBusy(), BusyReport, WAIT_SECONDS)


def visit(job: Job) -> socket.socket:
    visitor = socket.socket(socket.AF_UNIX)
    visitor.settimeout(WAIT_SECONDS)
    with short_name(door_path(private_folder(), job.name)) as name:
        visitor.connect(name)
    return visitor


def test_the_launcher_answers_again_and_again() -> None:
    with answering(job()):
        assert [ask(job()) for _ in range(3)] == [BUSY] * 3


def test_the_door_is_gone_with_the_job(runtime_folder: Path) -> None:
    with answering(job()):
        assert door_path(runtime_folder, "count").is_socket()
    assert [path for path in runtime_folder.iterdir() if path.suffix != ".ended"] == []
    with pytest.raises(NoAnswer, match="the launcher of job 'count' does not answer"):
        ask(job())


def test_door_that_is_gone_opens_again(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_keeper, "FILE_SECONDS", 0.01)
    with answering(job()):
        door = door_path(runtime_folder, "count")
        for _ in range(2):
            door.unlink()
            answer = None
            while answer is None:
                with contextlib.suppress(NoAnswer):
                    answer = ask(job())
            assert answer == BUSY


def test_each_of_several_jobs_has_a_door() -> None:
    other = BusyReport((), (3,))
    with answering(job("count")), answering(job("count-2"), other):
        assert (ask(job("count")), ask(job("count-2"))) == (BUSY, other)


def test_a_folder_may_have_a_path_longer_than_a_socket_s_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system has no other name for it")
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    named = job("n" * 64)
    with answering(named):
        assert ask(named) == BUSY


def test_the_door_of_a_launcher_that_was_killed_goes_with_its_file(runtime_folder: Path) -> None:
    dead = Job("count", os.getpid(), "1", "127.0.0.1", 2101, "s3cret", process_namespace())  # its id is reused
    publish(dead)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(door_path(runtime_folder, "count")))
    assert list(present()) == []
    assert [path for path in runtime_folder.iterdir() if path.suffix != ".ended"] == []


def test_a_door_that_cannot_be_judged_stays(runtime_folder: Path) -> None:
    elsewhere = Job("count", 1, "1", "127.0.0.1", 2101, "s3cret", "pid:[1]")
    publish(elsewhere)
    door_path(runtime_folder, "count").touch()
    assert [alive for _, alive in present()] == [False]
    assert door_path(runtime_folder, "count").exists()


def test_a_job_takes_the_place_of_a_socket_without_a_job(runtime_folder: Path) -> None:
    private_folder()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(door_path(runtime_folder, "count")))
    with answering(job()):
        assert ask(job()) == BUSY


def test_silent_visitors_keep_nobody_out() -> None:
    with answering(job()), contextlib.ExitStack() as stack:
        silent = [stack.enter_context(visit(job())) for _ in range(VISITORS_MAX + 1)]
        assert silent[0].recv(1) == b""  # the connection that has waited longest was closed
        assert ask(job()) == BUSY


def test_many_visitors_at_a_time_are_answered() -> None:
    answers: list[BusyReport] = []
    with answering(job()):
        threads = [threading.Thread(target=lambda: answers.append(ask(job()))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
    assert answers == [BUSY] * 8


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"".join(frames(Kind.VALUE, encode("status"))),
        b"".join(frames(Kind.VALUE, encode(BUSY))),
        b"".join(frames(Kind.VALUE, b"\xc1")),
        b"".join(frames(Kind.VALUE, b"x" * (REQUEST_BYTES + 1))),
        b"\0\0\0\0\x90" * 2000,  # empty frames, marked as parts of a longer message
    ],
)
def test_a_visitor_that_asks_nothing_sensible_is_sent_away(data: bytes) -> None:
    with answering(job()):
        with contextlib.closing(visit(job())) as stranger:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stranger.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert ask(job()) == BUSY


def test_a_visitor_that_reads_nothing_is_not_waited_for() -> None:
    long = BusyReport((BusyWorker((1,), 77, 12.3, "busy", record="x" * (8 << 20)),), ())
    answers = iter([long, BUSY])
    path = publish(job())
    door = DoorKeeper(job(), {WhoIsBusy: lambda request: next(answers)}, lambda: None)
    with door, contextlib.closing(visit(job())) as lazy:
        Client(lazy, "the door").send(WhoIsBusy())
        assert ask(job()) == BUSY
    withdraw(job(), path)
