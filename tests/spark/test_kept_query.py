"""Spark's record and the store's commits agree, or the job is refused. These tests need no Spark."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from megaflow.control.client.conversation import Stopped
from megaflow.durable.local_folder import LOCK, SPARK
from megaflow.errors import SourceError, StoreError, StoreUnfit
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.packed_rows import times_of
from megaflow.spark import fed_query
from megaflow.spark.kept_query import (
    KeptQuery,
    check_frames,
    check_records,
    end_holder,
    held_lock,
    keep_queries,
    location_of,
    note_holder,
)
from megaflow.spark.push import Winner
from megaflow.spark.query_spec import RowFrames, SparkSpec
from megaflow.spark.row_packing import RowPacking
from megaflow.spark.source import checkpoint_of
from tests.words import says

WAIT_SECONDS = 180.0


def keep_lines(store: str, named: Iterable[tuple[str, int]]) -> KeptQuery:
    return keep_queries(store, named, "lines").queries[""]


def record(store: Path, planned: int, answered: int) -> KeptQuery:
    """A query in which Spark has planned batches up to `planned`, and received answers up to `answered`."""
    kept = keep_lines(str(store), ())
    for folder, last in (("offsets", planned), ("commits", answered), ("sources/0", planned)):
        (kept.record / folder).mkdir(parents=True)
        for batch in range(last + 1):
            (kept.record / folder / str(batch)).write_text("v1")
    return kept


def test_a_query_goes_on_that_a_commit_names_and_another_ones_record_goes(tmp_path: Path) -> None:
    kept = record(tmp_path, 3, 2)
    check_records(str(tmp_path), ((kept.name, 3),), "lines")
    check_records(str(tmp_path), ((kept.name, 2),), "lines")
    shutil.rmtree(kept.record / "commits")
    check_records(str(tmp_path), ((kept.name, 0),), "lines")
    check_records(str(tmp_path), ((kept.name, 3),), "lines")
    again = keep_lines(str(tmp_path), ((kept.name, 3),))
    assert (again.name, again.record) == (kept.name, kept.record) and (again.record / "offsets" / "3").exists()
    new = keep_lines(str(tmp_path), ())
    assert new.name != kept.name and sorted(os.listdir(tmp_path / SPARK)) == [new.name, new.way.name]


def test_spark_writes_the_record_of_a_query_into_its_folder(tmp_path: Path) -> None:
    (store := tmp_path / "a b%20#ü").mkdir()
    kept = keep_lines(str(store), ())
    query = fed_query.FedQuery("lines", fed_query.Contact(("host", 7), b""), kept=kept)
    assert checkpoint_of(query, tmp_path) == f"file:{kept.way}", "Spark does not decode URIs"


def test_what_java_of_an_earlier_attempt_still_writes_is_not_in_the_record(tmp_path: Path) -> None:
    old = record(tmp_path, 3, 3)
    begun = old.way / "offsets" / ".4.tmp"
    begun.write_text("begun")
    new = keep_lines(str(tmp_path), ((old.name, 3),))
    assert old.record == new.record and (new.way / "offsets" / "3").exists()
    with pytest.raises(FileNotFoundError):
        begun.rename(old.way / "offsets" / "4")
    (old.way / "offsets").mkdir(parents=True)  # Spark makes missing folders
    (old.way / "offsets" / "4").touch()
    assert sorted(os.listdir(new.record / "offsets")) == [".4.tmp", "0", "1", "2", "3"]
    keep_lines(str(tmp_path), ((old.name, 3),))
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
        check_records(str(tmp_path), ((kept.name, newest),), "lines")


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
    kept = keep_lines(str(tmp_path), ())
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
    kept = keep_lines(str(tmp_path), ())
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
    kept = keep_lines(str(tmp_path), ())
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


BATCH_FRAME, STREAM = SimpleNamespace(isStreaming=False), SimpleNamespace(isStreaming=True)
SPEC = SparkSpec("text", "in")


def test_each_input_has_a_query_and_a_new_one_begins_beside_the_others(tmp_path: Path) -> None:
    store = str(tmp_path)
    first = keep_queries(store, (), RowFrames({"orders": STREAM, "regions": BATCH_FRAME}))
    orders, regions = first.queries["orders"], first.queries["regions"]
    assert regions.name == "regions-batch" and not regions.is_over and not regions.record.exists()
    regions.sync()
    assert sorted(os.listdir(tmp_path / SPARK)) == sorted((orders.name, orders.way.name))
    (orders.record / "offsets").mkdir()
    (orders.record / "offsets" / "4").touch()
    named = (orders.name, 4), (regions.name, 0)
    frames = {"orders": STREAM, "regions": BATCH_FRAME, "payments": SPEC}
    check_records(store, named, RowFrames(frames))
    again = keep_queries(store, named, RowFrames(frames)).queries
    assert again["orders"].name == orders.name and (again["orders"].way / "offsets" / "4").exists()
    assert again["regions"].is_over and not again["orders"].is_over
    payments = again["payments"]
    assert payments.name.startswith("payments-") and payments.record.exists() and payments.way != again["orders"].way
    without = keep_queries(store, named[:1], RowFrames(frames)).queries
    assert not without["regions"].is_over and without["payments"].name != payments.name
    assert not payments.record.exists(), "no commit names it"


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ({"orders": STREAM}, "belongs to the rows 'regions'. Name them again"),
        ({"regions": BATCH_FRAME, "sales": STREAM}, "belongs to the rows 'orders'"),
        ({"orders": STREAM, "regions": SPEC}, "rows 'regions' from a batch DataFrame, but now it is a streaming"),
        ({"orders": BATCH_FRAME, "regions": STREAM}, "'orders' from a streaming DataFrame, but now it is a batch"),
        (None, "belongs to the rows 'orders'"),
    ],
)  # fmt: skip
def test_other_inputs_than_the_store_has_are_refused(tmp_path: Path, frames: dict[str, Any] | None, why: str) -> None:
    named = ("orders-id", 4), ("regions-batch", 0)
    (tmp_path / SPARK / "orders-id" / "offsets").mkdir(parents=True)
    (tmp_path / SPARK / "orders-id" / "offsets" / "4").touch()
    with pytest.raises(StoreError, match=why):
        check_records(str(tmp_path), named, "lines" if frames is None else RowFrames(frames))
    check_records(str(tmp_path), named, RowFrames({"orders": STREAM, "regions": BATCH_FRAME}))


def test_rows_that_come_first_cannot_come_later(tmp_path: Path) -> None:
    (tmp_path / SPARK / "orders-id" / "offsets").mkdir(parents=True)
    (tmp_path / SPARK / "orders-id" / "offsets" / "0").touch()
    rows = RowFrames({"orders": STREAM, "before": BATCH_FRAME}, first="before")
    with pytest.raises(StoreError, match="has read other rows, but none of 'before'"):
        check_records(str(tmp_path), (("orders-id", 0),), rows)
    check_records(str(tmp_path), (("orders-id", 0), ("before-batch", 0)), rows)
    check_records(str(tmp_path), (("before-batch", 0),), rows)
    check_records(str(tmp_path), (), rows)


def of_columns(ddl: str, is_streaming: bool = True) -> Any:
    schema = SimpleNamespace(json=lambda: schema_json(parse_ddl(ddl)))
    return SimpleNamespace(isStreaming=is_streaming, schema=schema)


def test_frames_that_are_read_on_have_the_columns_of_the_store(tmp_path: Path) -> None:
    named = ("orders-id", 4), ("regions-batch", 0)
    columns = {"orders": (("k", "long"),), "regions": (("k", "long"),), "new": (("k", "long"),)}
    other = of_columns("k STRING")
    frames = {"orders": of_columns("k LONG, v INT"), "regions": of_columns("k STRING", False), "new": other}
    check_frames(named, RowFrames(frames), columns)
    check_frames(named, RowFrames({**frames, "orders": other}), {})
    check_frames(named, RowFrames({**frames, "orders": SPEC}), columns)
    with pytest.raises(StoreUnfit, match="the rows 'orders'"):
        check_frames(named, RowFrames({**frames, "orders": other}), columns)


def test_a_query_has_the_columns_of_the_store_and_then_its_own(tmp_path: Path) -> None:
    frames = RowFrames({"orders": STREAM, "new": STREAM, "regions": BATCH_FRAME})
    named = ("orders-id", 4), ("regions-batch", 0)
    columns = dict.fromkeys(("orders", "new", "regions"), (("k", "long"),))
    feed = keep_queries(str(tmp_path), named, frames, columns=columns)
    assert feed.columns() == {"orders": columns["orders"], "regions": columns["regions"]}, "the new one has no rows yet"
    with pytest.raises(StoreUnfit, match="the rows 'orders'"):
        feed.queries["orders"].opened(schema_json(parse_ddl("k STRING")))
    for name in "orders", "new":
        feed.queries[name].opened(schema_json(parse_ddl("k LONG, v INT")))
    assert feed.columns() == {**dict.fromkeys(("orders", "new"), (("k", "long"), ("v", "integer"))),
                              "regions": columns["regions"]}  # fmt: skip
    lines = keep_queries(str(tmp_path), (("id", 3),), "lines", columns={"": (("k", "long"),)})
    assert lines.columns() == {}, "those of its CSV are no columns of rows"


def test_a_restored_record_is_not_missing(tmp_path: Path) -> None:
    rows = RowFrames({"orders": STREAM})
    with pytest.raises(StoreError, match="lacks batch 4"):
        check_records(str(tmp_path), (("orders-id", 4),), rows)
    check_records(str(tmp_path), (("orders-id", 4),), rows, ["orders-id"])
    with pytest.raises(StoreError, match="belongs to the rows 'sales'"):
        check_records(str(tmp_path), (("sales-id", 4),), rows, ["sales-id"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_is_staged_while_its_record_is_synced_and_committed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    kept = keep_lines(str(tmp_path), ())
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
    for kept in None, KeptQuery("q", tmp_path):
        coordinator = SimpleNamespace(ask=Mock(side_effect=Stopped), address="host:7")
        query = fed_query.FedQuery("lines", fed_query.Contact(("host", 7), b""), kept=kept)
        (tmp_path / SPARK / "q").mkdir(parents=True, exist_ok=True)
        with nullcontext() if kept is None else pytest.raises(SourceError, match="InterruptedException"):
            query.stage_batch(cast(Any, coordinator), "rows", "frame", 0)


def test_rows_are_late_by_the_watermark_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()
    monkeypatch.setattr(fed_query, "push_frame", lambda frame, job, transfer, packing: found.append(packing) or [])
    spark_session = pytest.importorskip("megaflow.spark.spark_session")
    monkeypatch.setattr(spark_session, "start_query", lambda frame, checkpoint, trigger, stage, title: stage(frame, 1))
    frames = RowFrames({"orders": STREAM}, time_mode="EventTime")
    columns = schema_json(parse_ddl("n INT"))
    for micros in None, 7_000_000:
        store = tmp_path / str(micros)
        store.mkdir()
        kept = keep_queries(str(store), (), frames, micros).queries["orders"]
        (kept.record / "offsets").mkdir()
        for batch, watermark in enumerate((3000, 9000)):
            text = json.dumps({"batchTimestampMs": 1, "batchWatermarkMs": watermark})
            (kept.record / "offsets" / str(batch)).write_text(f"v1\n{text}\n")
        contact = fed_query.Contact(("host", 7), b"")
        query = fed_query.FedQuery(STREAM, contact, "orders", kept, time_mode="EventTime")
        query.packing = RowPacking("orders", columns)
        coordinator = SimpleNamespace(ask=lambda body, **_: [(1, "host", 7)], address="host:7")
        query.start(STREAM, cast(Any, coordinator), "rows", location_of(kept.record))
    assert [times_of(packing.schema).late_ms for packing in found] == [3000, 7000]  # type: ignore[union-attr]
