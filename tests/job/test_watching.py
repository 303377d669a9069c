"""A watcher stays with the job that it has found first, whatever other jobs come and go."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.control import job_events
from megaflow.errors import JobNotFound, JobRecovers
from megaflow.job import watching
from megaflow.job.job_file import Job
from megaflow.job.watching import Wanted, Watcher


def test_a_watcher_stays_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Job("first", 1, None, "127.0.0.1", 1, "s", None)
    asked: list[Any] = []

    def find(name: str | None) -> Job:
        asked.append(name)
        return first if name is None else replace(first, recovering="restart 1 of 3: worker 1 was killed")

    def conversation(job: str | None, *_: Any, **__: Any) -> Any:
        asked.append(job)
        if len(asked) > 3:
            raise JobNotFound("it has ended")
        raise JobRecovers("it resumes")

    monkeypatch.setattr(watching, "find", find)
    monkeypatch.setattr(watching, "conversation", conversation)
    seen = list(Watcher((None, None, 60.0), Wanted(status=False), pause=lambda seconds: None).watch())
    assert [each.body for each in seen if isinstance(each, watching.JobEvent)] == [
        job_events.Recovering("restart 1 of 3: worker 1 was killed")
    ]
    assert asked == [None, "first", "first", "first"]
