"""A running job is found by its name or by the address of a process."""

import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from megaflow.control.launcher_messages import BusyReport, WhoIsBusy
from megaflow.control.messages import StatusQuery
from megaflow.control.reports import BusyWorker
from megaflow.errors import JobNotFound, UsageError
from megaflow.job import contact, side_door
from megaflow.job.contact import conversation, find_contact
from megaflow.job.job_file import Job, process_namespace, process_start, publish, withdraw
from megaflow.job.launcher.door_keeper import DoorKeeper
from megaflow.job.side_door import NAMED_MAX, Silence
from tests.job.offices import SECRET, Office
from tests.ports import closed_port


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


BUSY = BusyWorker((0,), 77, 12.3, "busy", "fold", "app.py:12")


@pytest.fixture
def mute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job whose coordinator takes connections and says nothing; clients have little patience."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(contact, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(contact, "QUIET_AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(side_door, "LAUNCHER_SECONDS", 30.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        host, port = listener.getsockname()
        job = Job("count", os.getpid(), process_start(os.getpid()), host, port, "s", process_namespace())
        path = publish(job)
        yield job
        withdraw(job, path)


def talk_to(told: list[Silence], connect: str | None = None) -> None:
    with conversation(None, connect, 0.3, told.append):
        raise AssertionError("it says nothing")


def test_a_coordinator_that_says_nothing_is_named_by_the_launcher(mute: Job) -> None:
    told: list[Silence] = []
    with DoorKeeper(mute, {WhoIsBusy: lambda request: BusyReport((BUSY,), (0, 1))}), pytest.raises(
        JobNotFound, match=r"so the request was not sent: worker 0 has been in 'fold' \(app.py:12\) for 12.3 s"
    ):
        talk_to(told)
    assert told[0] == Silence("count", False, (BUSY,), (0, 1)) and told[0].is_busy


def test_what_holds_the_coordinator_up_may_be_unknown(mute: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Silence] = []
    with pytest.raises(JobNotFound, match="the launcher of job 'count' does not answer"):
        talk_to(told)
    monkeypatch.setenv("MEGAFLOW_SECRET", "s")
    with pytest.raises(JobNotFound, match="--connect names only a worker's address"):
        talk_to(told, f"127.0.0.1:{mute.port}")
    with DoorKeeper(mute, {WhoIsBusy: lambda request: BusyReport((BUSY,), (4,))}), pytest.raises(JobNotFound):
        talk_to(told)
    assert not any(each.is_busy for each in told) and told[-1].busy == (BUSY,)


def test_a_sentence_names_only_some_of_many_that_are_busy() -> None:
    assert str(Silence("count", True, (BUSY,) * (NAMED_MAX + 2))).endswith("; and 2 more")
    assert str(Silence("count", True)) == "its launcher knows no worker that is in a long step"
