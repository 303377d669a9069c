"""The name of a job: its own is kept or refused, a default one gets a number while another job has it."""

from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import CommandRefused
from megaflow.job.job_file import NAME
from megaflow.job.launcher.run.published_job import job_title, published
from megaflow.job.spec import JobSpec, PickledFunction


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def published_as(**names: Any) -> Any:
    return published(JobSpec(PickledFunction(b"", ()), **names), "127.0.0.1", 2101, "s3cret", None, print)


def test_two_jobs_of_one_title_have_two_names() -> None:
    with published_as(title="totals") as first, published_as(title="totals") as second:
        assert (first.name, second.name) == ("totals", "totals-2")
    with published_as(title="totals") as third, published_as() as untitled:
        assert (third.name, untitled.name) == ("totals", "job")


def test_a_name_that_is_taken_is_refused() -> None:
    with published_as(name="totals", title="other") as job, pytest.raises(CommandRefused, match="choose another"):
        assert job.name == "totals"
        published_as(name="totals").__enter__()


@pytest.mark.parametrize("text", ["totals", "März", "…", "", "a b/c", "-x", ".hidden", "folded-<lambda>", "long " * 40])
def test_a_title_of_any_text_is_a_valid_name(text: str) -> None:
    assert NAME.fullmatch(job_title(text) + "-100"), job_title(text)
