"""The name of a job: its own is kept or refused, a default one gets a number while another job has it.

A job's file that is gone is written again.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import CommandRefused, JobNotFound
from megaflow.job.job_file import NAME, find, own_job, publish, withdraw
from megaflow.job.launcher.run.published_job import job_title, published
from megaflow.job.spec import JobSpec, PickledFunction


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def published_as(report: Callable[[str], None] = print, **names: Any) -> Any:
    return published(JobSpec(PickledFunction(b"", ()), **names), "127.0.0.1", 2101, "s3cret", None, report)


def test_two_jobs_of_one_title_have_two_names() -> None:
    with published_as(title="totals") as first, published_as(title="totals") as second:
        assert (first.job.name, second.job.name) == ("totals", "totals-2")
    with published_as(title="totals") as third, published_as() as untitled:
        assert (third.job.name, untitled.job.name) == ("totals", "job")


def test_a_name_that_is_taken_is_refused() -> None:
    with published_as(name="totals", title="other") as file, pytest.raises(CommandRefused, match="choose another"):
        assert file.job.name == "totals"
        published_as(name="totals").__enter__()


@pytest.mark.parametrize("text", ["totals", "März", "…", "", "a b/c", "-x", ".hidden", "folded-<lambda>", "long " * 40])
def test_a_title_of_any_text_is_a_valid_name(text: str) -> None:
    assert NAME.fullmatch(job_title(text) + "-100"), job_title(text)


@pytest.mark.parametrize("lost", ["file", "folder"])
def test_file_that_is_gone_is_written_again(tmp_path: Path, lost: str) -> None:
    with published_as(name="totals") as file:
        path = tmp_path / "megaflow" / "totals.json"
        file.publish(replace(file.job, port=2102))
        path.unlink() if lost == "file" else shutil.rmtree(path.parent)
        with pytest.raises(JobNotFound):
            find("totals")
        file.look()
        found = find("totals")
        assert (found.port, found.secret) == (2102, "s3cret"), "as it was published last"
        assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
        content = path.read_bytes()
        file.look()
        assert path.read_bytes() == content
    file.look()
    assert not path.exists(), "the job has ended"


def test_coordinator_that_moves_writes_a_file_that_is_gone(tmp_path: Path) -> None:
    with published_as(name="totals") as file:
        shutil.rmtree(tmp_path / "megaflow")
        file.publish(replace(file.job, port=2102))
        assert find("totals").port == 2102


def test_file_of_another_job_stays_and_the_user_learns_it_once() -> None:
    said: list[str] = []
    with published_as(said.append, name="totals") as file:
        withdraw(file.job, Path(str(file.job.folder)) / "totals.json")
        other = own_job("totals", "127.0.0.1", 2103, "its own", 0, None, "")
        path = publish(other)
        for _ in range(2):
            file.look()
        assert find("totals").secret == "its own"
        [text] = said
        assert "no longer find job 'totals'" in text and "another job" in text and "--connect 127.0.0.1:2101" in text
        withdraw(other, path)
        file.look()
        assert find("totals").secret == "s3cret" and len(said) == 1


def test_folder_that_cannot_be_made_again_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    runtime, elsewhere = tmp_path / "run", tmp_path / "tmp"
    runtime.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("MEGAFLOW_SECRET", "s3cret")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    with published_as(said.append, name="totals") as file:
        shutil.rmtree(runtime)  # as at a logout
        for _ in range(2):
            file.look()
        [text] = said
        assert f"{runtime}/megaflow is gone and cannot be made again. Steer it by --connect 127.0.0.1:2101" in text
        assert not list(elsewhere.glob("*/totals.json"))
        runtime.mkdir()  # as at the next login
        file.look()
        assert find("totals").pid == os.getpid() and len(said) == 1
