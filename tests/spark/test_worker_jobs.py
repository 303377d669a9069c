"""The record of a session's jobs. These tests need no Spark."""

from threading import Event
from unittest.mock import Mock

import pytest

from megaflow.spark import worker_jobs
from megaflow.spark.worker_jobs import WorkerJobs

WAIT_SECONDS = 180.0


def test_what_is_kept_does_not_follow_how_many_processes_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_jobs, "serve", Mock())
    jobs, ended = WorkerJobs(Mock(), "archive", "path"), Mock()
    for number in range(20):
        jobs.submit(number, "", b"", ended)
        jobs.avoid(str(number))
        for thread in (*jobs._threads, *jobs._avoiding):
            thread.join(WAIT_SECONDS)
    assert ended.call_count == 20 and len(jobs._threads) == len(jobs._avoiding) == 1
    jobs.join()


def test_slots_of_other_jobs_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_jobs, "serve", Mock())
    jobs, others, end = WorkerJobs(Mock(), "archive", "path"), WorkerJobs(Mock(), "archive", "path"), Event()

    def ended(_: str | None) -> None:
        end.wait(WAIT_SECONDS)

    before = jobs.taken()
    jobs.submit(0, "", b"", ended)
    try:
        assert (jobs.taken_by_others(), others.taken_by_others()) == (before, before + 1)
    finally:
        end.set()
        jobs.join()
