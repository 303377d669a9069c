"""The store keeper commits what it is given, reports the result, and refuses what does not belong to this job."""

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import CommitFailed, Committed
from megaflow.control.launcher_messages import DropName, NameDropped
from megaflow.durable.commits import Commit, OutputLength
from megaflow.durable.incarnation import Incarnation, begin, read_commits
from megaflow.durable.local_folder import LOCK, LocalFolder, open_to_look
from megaflow.durable.query_record import kept_files
from megaflow.durable.store import Store
from megaflow.errors import StoreError, StoreFenced
from megaflow.job.files.splits import plan_splits
from megaflow.job.launcher.store import store_keeper
from megaflow.job.launcher.store.commit_draft import ToCommit
from megaflow.job.launcher.store.input_positions import InputPositions
from megaflow.job.launcher.store.store_keeper import StoreKeeper
from tests.bench import WAIT_SECONDS, Bench
from tests.words import says

OUT = "jsonl:/x/out.jsonl"


class StoreBench(Bench):
    """A keeper of a store."""

    def __init__(self, folder: Path) -> None:
        super().__init__("megaflow-store")
        self.folder = folder
        self.keeper = StoreKeeper(str(folder), "app.py:dataflow", 2)

    def begin(self, output: str = OUT, length: int = 0) -> Commit:
        return self.keeper.begin((OutputLength(output, length),))

    def commit(self, checkpoint: int, *names: str, **more: Any) -> Committed | CommitFailed:
        begun = self.keeper.latest
        commit = Commit(
            begun.number, checkpoint, 10 * checkpoint, begun.incarnation, app=begun.app, outputs=begun.outputs, **more
        )
        self.keeper.commit(ToCommit(commit, self.keeper.input.to_read, 100 * checkpoint, names))
        self.wait()
        (result,) = self.keeper.results()
        return result

    def be_fenced(self) -> None:
        """Begin, then commit after another launcher without a lock has taken over the store."""
        self.begin()
        self.keeper.start(self.woken.release)
        (self.folder / "000000000002.commit").write_bytes(b"of another launcher, which had no lock")
        self.keeper.commit(ToCommit(Commit(1, 1, 10, 1, app="app.py:dataflow"), (), 0))
        self.wait()

    def read(self) -> list[Commit]:
        folder = open_to_look(self.folder)
        try:
            return read_commits(Store(folder))
        finally:
            folder.close_folder()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    made = StoreBench(tmp_path / "store")
    yield made
    made.keeper.close()


def test_a_new_store_names_the_output_before_anything_is_written(bench: StoreBench) -> None:
    assert bench.keeper.is_new and bench.keeper.found is None
    bench.begin(length=77)
    (first,) = bench.read()
    assert (first.incarnation, first.checkpoint, first.outputs[0].output, first.outputs[0].length) == (1, 0, OUT, 77)


def test_checkpoints_are_committed_in_a_thread_with_what_is_left_to_be_read(bench: StoreBench, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("line\n" * 10)
    bench.begin()
    bench.keeper.input = InputPositions(plan_splits([str(tmp_path / "a")]))
    bench.keeper.start(bench.woken.release)
    for checkpoint in (1, 2, 4, 5):
        assert bench.commit(checkpoint) == Committed(checkpoint)
        assert bench.keeper.latest.checkpoint == checkpoint
    commits = bench.read()
    assert [commit.checkpoint for commit in commits] == [5, 4], "as many are kept as were asked for"
    assert [(each.path, each.start, each.end) for each in commits[0].splits] == [(str(tmp_path / "a"), 0, 50)]
    bench.keeper.close()
    again = StoreKeeper(str(bench.folder), "app.py:dataflow", 2)
    assert again.found is not None and again.found.checkpoint == 5
    assert again.begin((OutputLength(OUT, 0),)).incarnation == 2
    again.close()


def test_a_commit_is_told_before_what_is_not_needed_then_is_removed(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, removed = threading.Event(), threading.Event()
    collect = Incarnation.collect

    def late(incarnation: Incarnation) -> None:
        assert told.wait(WAIT_SECONDS)
        collect(incarnation)
        removed.set()

    bench.begin()
    bench.keeper.start(bench.woken.release)
    for checkpoint in (1, 2):
        assert bench.commit(checkpoint) == Committed(checkpoint)
    monkeypatch.setattr(Incarnation, "collect", late)
    assert bench.commit(3) == Committed(3)
    told.set()
    assert removed.wait(WAIT_SECONDS) and len(list(bench.folder.glob("*.commit"))) == 2


def test_a_disk_that_fails_fails_a_checkpoint_and_the_next_may_succeed(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.begin()
    bench.keeper.start(bench.woken.release)
    sync = LocalFolder.sync

    def full(folder: LocalFolder, file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalFolder, "sync", full)
    failed = bench.commit(1)
    assert isinstance(failed, CommitFailed) and failed.reason.endswith("store: No space left on device")
    monkeypatch.setattr(LocalFolder, "sync", sync)
    assert bench.commit(2) == Committed(2)


def test_a_commit_in_doubt_is_told_when_it_is_known(bench: StoreBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_keeper, "DOUBT_SECONDS", 0.0)
    bench.begin()
    bench.keeper.start(bench.woken.release)
    sync, failures = LocalFolder.sync_names, [1, 2]

    def fails_at_first(folder: LocalFolder) -> None:
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    monkeypatch.setattr(LocalFolder, "sync_names", fails_at_first)
    assert bench.commit(1) == Committed(1) and not failures
    assert bench.read()[0].checkpoint == 1


def begin_anew(bench: StoreBench) -> Commit:
    bench.keeper.begin_anew()
    while (begun := bench.keeper.begun_anew()) is None:
        bench.wait()
    return begun


def test_it_begins_anew_behind_what_is_being_committed_and_tells_nothing_of_that(bench: StoreBench) -> None:
    bench.begin(length=50)
    bench.keeper.start(bench.woken.release)
    assert (begin_anew(bench).incarnation, bench.keeper.length) == (2, 50)
    assert bench.commit(1) == Committed(1) and bench.keeper.length == 100
    latest = bench.keeper.latest
    bench.keeper.commit(ToCommit(Commit(0, 2, 20, 0, app=latest.app, outputs=latest.outputs), (), 200))
    begun = begin_anew(bench)
    assert (begun.incarnation, begun.checkpoint) in [(3, 1), (3, 2)], "it was under way, or had to wait"
    assert bench.keeper.length == 100 * begun.checkpoint and bench.keeper.latest == begun == bench.read()[0]
    assert bench.keeper.results() == []
    assert bench.commit(3) == Committed(3)


@pytest.mark.parametrize("is_there", [True, False])
def test_what_becomes_of_a_commit_in_doubt_is_what_the_store_has_when_it_begins_anew(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    monkeypatch.setattr(store_keeper, "DOUBT_SECONDS", 2 * WAIT_SECONDS)
    bench.begin()
    bench.keeper.start(bench.woken.release)
    assert bench.commit(1) == Committed(1)
    sync, doubted = LocalFolder.sync_names, threading.Event()

    def fails(folder: LocalFolder) -> None:
        monkeypatch.setattr(LocalFolder, "sync_names", sync)
        if not is_there:
            (bench.folder / "000000000003.commit").unlink()
        doubted.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LocalFolder, "sync_names", fails)
    latest = bench.keeper.latest
    bench.keeper.commit(ToCommit(Commit(0, 2, 20, 0, app=latest.app, outputs=latest.outputs), (), 200))
    assert doubted.wait(WAIT_SECONDS)
    begun = begin_anew(bench)
    assert (begun.incarnation, begun.checkpoint) == (2, 2 if is_there else 1)
    assert bench.keeper.length == (200 if is_there else 100)


def test_a_fenced_launcher_does_not_begin_anew(bench: StoreBench) -> None:
    bench.be_fenced()
    with pytest.raises(StoreError, match="another launcher has taken over the store"):
        begin_anew(bench)


def test_with_a_name_spark_s_record_is_kept_as_of_the_batch(bench: StoreBench) -> None:
    spark = (("query", 1),)
    for name in ("offsets/1", "offsets/2"):
        file = bench.folder / "spark" / "query" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    bench.begin()
    bench.keeper.start(bench.woken.release)
    assert bench.commit(1, spark=spark) == Committed(1) and bench.keeper.latest.record is None
    assert bench.commit(2, "nightly", spark=spark) == Committed(2)
    assert list(kept_files(Store(open_to_look(bench.folder)), bench.keeper.latest)) == [("offsets/1", b"")]
    answered = bench.commit(3, "nightly", spark=spark)
    assert isinstance(answered, Committed) and answered.refused and bench.keeper.latest.record is None
    failed = bench.commit(4, "weekly", spark=(("query", 3),))
    assert isinstance(failed, CommitFailed) and "spark/query/offsets/3': No such file" in failed.reason
    assert begin_anew(bench).checkpoint == 3
    assert bench.commit(5, "weekly", spark=spark) == Committed(5) and bench.keeper.latest.record is not None


def test_a_name_keeps_a_checkpoint_until_it_is_dropped(bench: StoreBench) -> None:
    bench.begin()
    bench.keeper.start(bench.woken.release)
    assert bench.commit(1, "nightly", "upgrade") == Committed(1)
    for checkpoint in (2, 3, 4):
        assert bench.commit(checkpoint) == Committed(checkpoint)
    again = bench.commit(5, "nightly", "weekly")
    assert isinstance(again, Committed) and [name for name, _ in again.refused] == ["nightly"]
    assert again.refused[0][1].startswith("another checkpoint is already named 'nightly', so this one was")
    assert [commit.checkpoint for commit in bench.read()] == [5, 4, 1]
    assert bench.keeper.drop_name(DropName("nightly")) == NameDropped()
    assert [commit.checkpoint for commit in bench.read()] == [5, 4, 1], "it has another name"
    assert bench.keeper.drop_name(DropName("upgrade")) == NameDropped()
    assert [commit.checkpoint for commit in bench.read()] == [5, 4]
    refused = bench.keeper.drop_name(DropName("nightly")).refused
    assert says(refused, "'nightly'", "available: weekly")
    assert bench.commit(6) == Committed(6)


def test_a_name_whose_dropping_is_in_doubt_is_dropped_once_that_is_known(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_keeper, "DOUBT_SECONDS", 0.0)
    bench.begin()
    bench.keeper.start(bench.woken.release)
    bench.commit(1, "nightly")
    bench.commit(2)
    sync, failures = LocalFolder.sync_names, [1, 2]

    def fails_at_first(folder: LocalFolder) -> None:
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    monkeypatch.setattr(LocalFolder, "sync_names", fails_at_first)
    assert bench.keeper.drop_name(DropName("nightly")) == NameDropped() and not failures
    assert bench.commit(3) == Committed(3)
    assert not bench.read()[0].named and [commit.checkpoint for commit in bench.read()] == [3, 2]


def test_another_launcher_ends_this_one(bench: StoreBench) -> None:
    bench.be_fenced()
    with pytest.raises(StoreError, match="another launcher has taken over the store"):
        bench.keeper.results()


def test_no_start_after_a_commit_since_the_store_was_read(bench: StoreBench) -> None:
    """Refuse a start on a file system without locks: it would repeat what the other launcher has read since."""
    folder = LocalFolder(bench.folder)
    try:
        other = begin(Store(folder), "app.py:dataflow")
        other.commit(replace(other.latest, checkpoint=1, time=10))
        before = bench.read()
        with pytest.raises(StoreFenced, match="another launcher has taken over the store"):
            bench.begin()
        assert bench.read() == before
    finally:
        folder.close_folder()


def test_a_launcher_that_lost_its_processes_does_not_take_the_store_back_from_its_successor(bench: StoreBench) -> None:
    bench.begin()
    bench.keeper.start(bench.woken.release)
    folder = LocalFolder(bench.folder)
    try:
        begin(Store(folder), "app.py:dataflow")
        before = bench.read()
        bench.keeper.begin_anew()
        bench.wait()
        with pytest.raises(StoreFenced, match="another launcher has taken over the store"):
            bench.keeper.begun_anew()
        assert bench.read() == before
    finally:
        folder.close_folder()


def test_what_is_not_this_jobs_is_refused_and_nothing_changes(bench: StoreBench) -> None:
    with pytest.raises(StoreError, match="is in use by process"):
        StoreKeeper(str(bench.folder), "app.py:dataflow", 2)
    bench.begin(length=100)
    bench.keeper.close()
    before = {path.name: path.read_bytes() for path in bench.folder.iterdir() if path.name != LOCK}
    with pytest.raises(StoreError, match=r"belongs to 'app.py:dataflow', not to 'other.py:dataflow'\. Run that"):
        StoreKeeper(str(bench.folder), "other.py:dataflow", 2)
    again = StoreKeeper(str(bench.folder), "app.py:dataflow", 2)
    with pytest.raises(StoreError, match=r"belongs to --output jsonl:/x/out.jsonl, not -\. Outputs"):
        again.check_outputs([OutputLength("-", 0)])
    again.check_outputs([OutputLength(OUT, 100)])
    again.close()
    assert {path.name: path.read_bytes() for path in bench.folder.iterdir() if path.name != LOCK} == before
