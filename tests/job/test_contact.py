"""A running job is found by its name or by the address of a process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from megaflow.cli.main import cli
from megaflow.control.launcher_messages import BusyReport, RestartStops, StopRestart, WhoIsBusy
from megaflow.control.messages import StatusQuery
from megaflow.control.reports import BusyWorker
from megaflow.errors import JobNotFound, JobRecovers, NoAnswer, UsageError
from megaflow.job import admin_socket, contact
from megaflow.job.admin_socket import NAMED_MAX, Silence, end_by_force
from megaflow.job.contact import conversation, find_contact
from megaflow.job.job_file import (
    Job,
    folder_of,
    process_namespace,
    process_start,
    process_state,
    publish,
    republish,
    withdraw,
)
from megaflow.job.launcher.run import job_control
from megaflow.job.launcher.run.door_keeper import DoorKeeper
from megaflow.job.launcher.run.job_control import RunningJob
from tests.job.offices import SECRET, Office
from tests.ports import closed_port
from tests.words import says


def test_an_address_needs_the_secret_and_a_name_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("MEGAFLOW_SECRET", raising=False)
    with pytest.raises(UsageError, match="MEGAFLOW_SECRET"):
        find_contact("localhost:80")
    monkeypatch.setenv("MEGAFLOW_SECRET", " s ")
    assert find_contact("[::1]:80") == (("::1", 80), b"s")
    with pytest.raises(UsageError, match="--join localhost:x"):
        find_contact("localhost:x")
    with pytest.raises(JobNotFound, match="nobody"):
        find_contact("nobody")


def test_a_coordinator_that_left_since_the_file_was_read_is_looked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_port() as left, Office() as here:
        files = [Job("a", 1, None, *place, SECRET.decode()) for place in (left, here.address, left, left)]
        monkeypatch.setattr(contact, "find", lambda name: files.pop(0))
        with conversation("a", None, 20.0) as talk:
            assert talk.ask(StatusQuery()) == "yes"
        nobody = pytest.raises(JobNotFound, match=f"job 'a' does not answer at {left[0]}:{left[1]}")
        with nobody, conversation("a", None, 20.0):
            raise AssertionError("nobody is there")
    assert files == []


def test_a_job_that_takes_too_long_to_recover_is_named_with_the_time_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as left:
        runs = Job("a", 1, None, *left, SECRET.decode(), attempt=1)
        files = [runs, runs, replace(runs, attempt=2, recovering="restart 1 of 3")]
        monkeypatch.setattr(contact, "find", lambda name: files.pop(0) if len(files) > 1 else files[0])
        back_too_late = pytest.raises(JobRecovers, match=r"restart 1 of 3\). It was not back within 0.5 s")
        with back_too_late, conversation("a", None, 0.5):
            raise AssertionError("it is not back")


BUSY = BusyWorker((0,), 77, 12.3, "busy", "fold", "app.py:12")


@pytest.fixture
def mute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job whose coordinator accepts connections but never answers, for clients with little patience."""
    with muted(tmp_path, monkeypatch, os.getpid()) as job:
        yield job


@pytest.fixture
def suspended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same job with a store, and a suspended launcher."""
    if process_state(os.getpid()) == "?":
        pytest.skip("this system does not tell the state of a process")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        with muted(tmp_path, monkeypatch, child.pid, attempt=1) as job:
            yield job
    finally:
        child.kill()
        child.communicate()


@contextmanager
def muted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, attempt: int = 0) -> Iterator[Job]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(contact, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(contact, "SUSPENDED_SECONDS", 0.1)
    monkeypatch.setattr(contact, "QUIET_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(admin_socket, "LAUNCHER_SECONDS", 30.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        host, port = listener.getsockname()
        job = Job("count", pid, process_start(pid), host, port, "s", process_namespace(), attempt)
        path = publish(job)
        yield job
        withdraw(job, path)


def talk_to(told: list[Silence], connect: str | None = None) -> None:
    with conversation(None, connect, 0.3, told.append):
        raise AssertionError("it says nothing")


def test_a_coordinator_that_says_nothing_is_named_by_the_launcher(mute: Job) -> None:
    told: list[Silence] = []
    with DoorKeeper(mute, {WhoIsBusy: lambda request: BusyReport((BUSY,), (0, 1))}, lambda: None), pytest.raises(
        NoAnswer, match=r"so the request was not sent: worker 0 has been in 'fold' \(app.py:12\) for 12.3 s"
    ):
        talk_to(told)
    assert told[0] == Silence("count", False, (BUSY,), (0, 1)) and told[0].is_busy


def test_what_holds_the_coordinator_up_may_be_unknown(mute: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Silence] = []
    with pytest.raises(NoAnswer, match="the launcher of job 'count' does not answer"):
        talk_to(told)
    monkeypatch.setenv("MEGAFLOW_SECRET", "s")
    with pytest.raises(NoAnswer, match="--connect names only a worker's address"):
        talk_to(told, f"127.0.0.1:{mute.port}")
    door = DoorKeeper(mute, {WhoIsBusy: lambda request: BusyReport((BUSY,), (4,))}, lambda: None)
    with door, pytest.raises(NoAnswer):
        talk_to(told)
    assert not any(each.is_busy for each in told) and told[-1].busy == (BUSY,)


def test_a_suspended_launcher_is_named_and_not_waited_for(suspended: Job) -> None:
    told: list[Silence] = []
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=f"is suspended: resume the process with kill -CONT {suspended.pid}"):
        talk_to(told)
    assert told[0].is_suspended and not told[0].is_busy
    with pytest.raises(NoAnswer, match=f"is suspended.*kill -KILL {suspended.pid} ends the launcher"):
        end_by_force(suspended, 60.0)
    ended = CliRunner().invoke(cli, ["control", "status"])
    assert ended.exit_code == 0, ended.output
    assert "silent: neither its coordinator nor its launcher answers" in ended.stdout
    assert f"kill -CONT {suspended.pid}" in ended.stdout
    ended = CliRunner().invoke(cli, ["control", "explain"])
    assert ended.exit_code == 1 and f"kill -CONT {suspended.pid}" in ended.stderr
    assert time.monotonic() - began < admin_socket.LAUNCHER_SECONDS, "the launcher was never waited for"


@pytest.mark.parametrize("control", [["stop"], ["stop", "--job", "count"]])
def test_a_launcher_stops_a_restart_that_waits(mute: Job, control: list[str]) -> None:
    answers = [RestartStops(False), RestartStops(True)]  # it begins to wait meanwhile

    def handle(request: StopRestart) -> RestartStops:
        if len(answers) == 1:
            withdraw(mute, folder_of(mute) / f"{mute.name}.json")
        return answers.pop(0)

    republish(replace(mute, recovering="restart 1 of 3: worker 1 was lost; 2 queued: no free slot"))
    with DoorKeeper(mute, {StopRestart: handle}, lambda: None):
        ended = CliRunner().invoke(cli, ["control", *control, "--timeout", "100"])
    assert (ended.exit_code, ended.stdout, answers) == (0, "the job has stopped\n", []), ended.output


def test_a_program_gets_the_status_of_a_restart_that_waits(mute: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_control, "BACK_SECONDS", 0.1)
    republish(replace(mute, recovering="restart 1 of 3: worker 1 was lost; 2 queued: no free slot"))
    status = RunningJob("count", mute.pid, "kept").status()
    assert (status.job, status.state, status.workers) == ("count", "recovering", ())
    assert says(str(status.restart), "restart 1 of 3", "2 queued")


def test_a_restart_that_cannot_be_stopped_is_named_with_the_time_given(mute: Job) -> None:
    republish(replace(mute, recovering="restart 1 of 3"))
    with DoorKeeper(mute, {StopRestart: lambda request: RestartStops(False)}, lambda: None), pytest.raises(
        JobRecovers, match=r"restart 1 of 3\). It was not back within 0.5 s"
    ):
        contact.stop(None, None, 0.5)


def test_a_refused_port_of_a_suspended_job_is_reported_at_once(
    suspended: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "LOSS_SECONDS", 600.0)
    with closed_port() as left, pytest.raises(JobNotFound, match="does not answer"):
        republish(replace(suspended, port=left[1]))
        with conversation("count", None, 600.0):
            raise AssertionError("nobody is there")


def test_a_sentence_names_only_some_of_many_that_are_busy() -> None:
    assert str(Silence("count", True, (BUSY,) * (NAMED_MAX + 2))).endswith("; and 2 more")
    assert says(str(Silence("count", True)), "no worker", "long step")
