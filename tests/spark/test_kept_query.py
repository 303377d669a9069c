"""Spark's record and the store's commits agree, or the job is refused. These tests need no Spark."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from megaflow.control.client.conversation import Stopped
from megaflow.durable.local_folder import LOCK, SPARK
from megaflow.errors import SourceError, StoreError
from megaflow.spark import fed_query
from megaflow.spark.kept_query import KeptQuery, check_record, end_holder, held_lock, keep_query, note_holder
from megaflow.spark.push import Winner
from tests.words import says

WAIT_SECONDS = 180.0


def record(store: Path, planned: int, answered: int) -> KeptQuery:
    """A query in which Spark has planned batches up to `planned`, and received answers up to `answered`."""
    kept = keep_query(str(store), (), "lines")
    for folder, last in (("offsets", planned), ("commits", answered), ("sources/0", planned)):
        (kept.record / folder).mkdir(parents=True)
        for batch in range(last + 1):
            (kept.record / folder / str(batch)).write_text("v1")
    return kept


def test_a_query_goes_on_that_a_commit_names_and_another_ones_record_goes(tmp_path: Path) -> None:
    kept = record(tmp_path, 3, 2)
    check_record(str(tmp_path), ((kept.name, 3),))
    check_record(str(tmp_path), ((kept.name, 2),))
    shutil.rmtree(kept.record / "commits")
    check_record(str(tmp_path), ((kept.name, 0),))
    check_record(str(tmp_path), ((kept.name, 3),))
    again = keep_query(str(tmp_path), ((kept.name, 3),), "lines")
    assert (again.name, again.record) == (kept.name, kept.record) and (again.record / "offsets" / "3").exists()
    new = keep_query(str(tmp_path), (), "lines")
    assert new.name != kept.name and sorted(os.listdir(tmp_path / SPARK)) == [new.name, new.way.name]


def test_what_java_of_an_earlier_attempt_still_writes_is_not_in_the_record(tmp_path: Path) -> None:
    old = record(tmp_path, 3, 3)
    begun = old.way / "offsets" / ".4.tmp"
    begun.write_text("begun")
    new = keep_query(str(tmp_path), ((old.name, 3),), "lines")
    assert old.record == new.record and (new.way / "offsets" / "3").exists()
    with pytest.raises(FileNotFoundError):
        begun.rename(old.way / "offsets" / "4")
    (old.way / "offsets").mkdir(parents=True)  # Spark makes missing folders
    (old.way / "offsets" / "4").touch()
    assert sorted(os.listdir(new.record / "offsets")) == [".4.tmp", "0", "1", "2", "3"]
    keep_query(str(tmp_path), ((old.name, 3),), "lines")
    assert not old.way.exists()


@pytest.mark.parametrize(
    ("planned", "answered", "newest", "why"),
    [
        (3, 2, 4, "lacks batch 4, which the last checkpoint includes"),
        (5, 4, 3, "reports batch 4 as done"),
        (1, 1, 0, "reports batch 1 as done"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    tmp_path: Path, planned: int, answered: int, newest: int, why: str
) -> None:
    kept = record(tmp_path, planned, answered)
    with pytest.raises(StoreError, match=f"{kept.record} {why}"):
        check_record(str(tmp_path), ((kept.name, newest),))


def test_what_spark_has_written_is_synced_once_and_before_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr("megaflow.spark.kept_query.sync_path", lambda path: synced.append(str(path)))
    kept = record(tmp_path, 1, 0)
    synced.clear()
    kept.sync()
    names = [os.path.relpath(path, kept.record) for path in synced]
    assert sorted(names) == [
        ".",
        "offsets",
        "offsets/0",
        "offsets/1",
        "sources",
        "sources/0",
        "sources/0/0",
        "sources/0/1",
    ]
    assert names.index("offsets") > names.index("offsets/1") and names[-1] == "."
    synced.clear()
    kept.sync()
    assert not synced
    (kept.record / "offsets" / "2").write_text("v1")
    (kept.record / "offsets" / "0").unlink()
    kept.sync()
    assert [os.path.relpath(path, kept.record) for path in synced] == ["offsets/2", "offsets", "."]


def test_a_query_waits_until_java_of_the_one_before_has_ended(tmp_path: Path) -> None:
    kept = keep_query(str(tmp_path), (), "lines")
    java = os.open(tmp_path / SPARK / LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(java, fcntl.LOCK_EX)
    waited: list[float] = []
    reports: list[str] = []

    def ends(seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) == 3:
            os.close(java)
        return False

    with held_lock(kept.record.parent, ends, reports.append) as lock:
        assert len(waited) == 3
        inherited = os.dup(lock)
    assert len(reports) == 1 and says(reports[0], "60 s", "Spark's Java process of an earlier run")
    with (
        pytest.raises(SourceError, match="stopped before Spark started"),
        held_lock(kept.record.parent, lambda seconds: True, reports.append),
    ):
        pass
    os.close(inherited)
    with held_lock(kept.record.parent, lambda seconds: True, reports.append):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process does not tell which files it has open")
def test_java_of_a_launcher_that_was_killed_is_ended_at_once(tmp_path: Path) -> None:
    kept = keep_query(str(tmp_path), (), "lines")
    with held_lock(kept.record.parent, lambda seconds: True, pytest.fail) as lock:
        java = subprocess.Popen(["sleep", "600"], pass_fds=[lock])
        note_holder(lock, java.pid)
    try:
        with held_lock(kept.record.parent, lambda seconds: bool(java.wait(180) and False), pytest.fail) as lock:
            assert java.wait(0) == -signal.SIGKILL
            assert not os.pread(lock, 100, 0), "who is gone is not noted any more"
    finally:
        java.kill()
        java.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is killed")
def test_a_process_that_has_the_number_of_one_that_is_gone_is_left_alone(tmp_path: Path) -> None:
    kept = keep_query(str(tmp_path), (), "lines")
    with held_lock(kept.record.parent, lambda seconds: True, pytest.fail) as lock:
        other = subprocess.Popen(["sleep", "600"])
        try:
            for noted in (other.pid, 1 << 40, 1):
                note_holder(lock, noted)
                assert not end_holder(lock)
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_is_staged_while_its_record_is_synced_and_committed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    kept = keep_query(str(tmp_path), (), "lines")
    steps: list[str] = []
    staged = threading.Event()
    coordinator: Any = None

    def sync() -> None:
        assert staged.wait(WAIT_SECONDS)
        steps.append("synced")
        if fails:
            raise StoreError("no space")

    def push(*args: object) -> list[Winner]:
        steps.append("staged")
        staged.set()
        return [Winner(0, 1, 2, 3)]

    def ask(coordinator: object, body: object, grace_seconds: float = 0.0) -> object:
        steps.append(type(body).__name__)
        return [(1, "host", 7)]

    monkeypatch.setattr(kept, "sync", sync)
    monkeypatch.setattr(fed_query, "push_frame", push)
    monkeypatch.setattr(fed_query, "_ask", ask)
    monkeypatch.setattr(fed_query, "ENDING_SECONDS", 0.0)
    query = fed_query.FedQuery("lines", fed_query.Contact(("host", 7), b""), kept=kept)
    with pytest.raises(SourceError, match="InterruptedException") if fails else nullcontext():
        query.stage_batch(coordinator, "rows", "frame", 0)
    assert str(query.batch_error or "") == ("no space" if fails else "")
    assert steps == ["IngestPorts", "staged", "synced", *([] if fails else ["CommitRequest"])]


def test_a_batch_that_was_not_committed_as_the_job_ended_is_not_done_for_a_query_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fed_query, "ENDING_SECONDS", 0.0)
    for kept in None, KeptQuery("lines", "q", tmp_path):
        coordinator = SimpleNamespace(ask=Mock(side_effect=Stopped), address="host:7")
        query = fed_query.FedQuery("lines", fed_query.Contact(("host", 7), b""), kept=kept)
        (tmp_path / SPARK / "q").mkdir(parents=True, exist_ok=True)
        with nullcontext() if kept is None else pytest.raises(SourceError, match="InterruptedException"):
            query.stage_batch(cast(Any, coordinator), "rows", "frame", 0)
