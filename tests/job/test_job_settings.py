"""A process that is started by hand is told the job's terms, and how to find the job is checked first."""

from pathlib import Path
from typing import Any

import pytest

from megaflow.control.messages import Done, Request, StatusQuery, Terms, TermsQuery
from megaflow.errors import JobNotFound, UsageError
from megaflow.job.job_settings import TermsDoor
from megaflow.job.join_by_hand import find_contact

TERMS = Terms("job", 2, 10.0, "replace", "jsonl")


class Beyond:
    """Notes what is passed on to the control door."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def connected(self, connection: Any, hello: dict[str, Any]) -> None:
        self.seen.append(hello)

    def received(self, connection: Any, value: Any) -> None:
        self.seen.append(value)

    def lost(self, connection: Any) -> None:
        self.seen.append("lost")


class Asker:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.answers: list[object] = []

    def send(self, value: object) -> None:
        self.answers.append(value)


def test_terms_are_told_at_once_and_all_else_is_passed_on() -> None:
    beyond, asker = Beyond(), Asker()
    connection: Any = asker
    door = TermsDoor(TERMS, beyond)
    door.connected(connection, {})
    door.received(connection, Request(7, TermsQuery()))
    for value in (Request(8, StatusQuery()), Request("x", TermsQuery()), "nonsense"):  # type: ignore[arg-type]
        door.received(connection, value)
    door.lost(connection)
    assert asker.answers == [Done(7, TERMS)]
    assert beyond.seen == [{}, Request(8, StatusQuery()), Request("x", TermsQuery()), "nonsense", "lost"]  # type: ignore[arg-type]


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
