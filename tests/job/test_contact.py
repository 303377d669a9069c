"""A running job is found by its name or by the address of a process."""

from pathlib import Path

import pytest

from megaflow.errors import JobNotFound, UsageError
from megaflow.job.contact import find_contact


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
