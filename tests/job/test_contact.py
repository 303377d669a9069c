"""A running job is found by its name or by the address of a process."""

from pathlib import Path

import pytest

from megaflow.control.messages import StatusQuery
from megaflow.errors import JobNotFound, UsageError
from megaflow.job import contact
from megaflow.job.contact import conversation, find_contact
from megaflow.job.job_file import Job
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
