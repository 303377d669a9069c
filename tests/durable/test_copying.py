"""A copy of a store is complete and of one moment, and a job can resume from it."""

import os
from pathlib import Path
from typing import Any

import pytest

from megaflow.durable.commits import OutputLength
from megaflow.durable.copying import Origin, copy_store, open_to_copy
from megaflow.durable.incarnation import begin
from megaflow.durable.inspection import verify
from megaflow.durable.local_folder import LocalFolder, open_for_a_job, open_to_look
from megaflow.durable.segments import SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import StoreDamaged, StoreError
from megaflow.job.kept_states import read_state
from tests.durable.kept_histories import KeptHistory, no_waiting_for_the_disk, words
from tests.durable.test_reading import Disturbed, go_on

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here
APP = "wordcount.py:dataflow"


@pytest.fixture
def history(tmp_path: Path) -> Any:
    history = words(tmp_path / "state")
    yield history
    history.close()


def files(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != "lock"}


def copy(source: Path, target: Path, chosen: int | None = None) -> None:
    folder = open_to_look(source)
    try:
        copy_store(folder, open_to_copy(folder, chosen), str(target))
    finally:
        folder.close_folder()


def latest(path: Path) -> tuple[int, tuple[int, ...]]:
    """Return the checkpoint from which a job would resume there, and the other commits that are kept."""
    folder = open_for_a_job(path)
    commit = begin(Store(folder), APP).latest
    assert not verify(Store(folder)).damage
    folder.close_folder()
    return commit.checkpoint, commit.kept


def test_a_copy_has_what_counts_to_the_last_byte_and_a_job_goes_on_from_it(
    tmp_path: Path, history: KeptHistory
) -> None:
    copy(tmp_path / "state", tmp_path / "copy")
    assert files(tmp_path / "copy") == files(tmp_path / "state")
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o700
    assert latest(tmp_path / "copy")[0] == 3
    assert dict(read_state(tmp_path / "copy", "count")) == history.at[3]


def test_a_copy_of_one_checkpoint_has_no_other(tmp_path: Path, history: KeptHistory) -> None:
    copy(tmp_path / "state", tmp_path / "copy", 2)
    assert sorted(files(tmp_path / "copy")) == ["000000000003.commit", "i1-w0-000001.seg", "i1-w0-000002.seg"]
    assert latest(tmp_path / "copy") == (2, ())
    assert dict(read_state(tmp_path / "copy", "count")) == history.at[2]


def test_a_job_may_go_on_before_and_while_it_is_copied(tmp_path: Path, history: KeptHistory) -> None:
    folder = Disturbed(tmp_path / "state", history, times=2)
    told: list[SegmentRef] = []

    def copied(segment: SegmentRef) -> None:
        told.append(segment)
        go_on(history)

    copy_store(folder, open_to_copy(folder), str(tmp_path / "copy"), copied)
    folder.close_folder()
    assert len(told) == 3
    assert latest(tmp_path / "copy")[0] == 11
    assert dict(read_state(tmp_path / "copy", "count")) == history.at[11]


def test_a_store_that_begins_with_a_checkpoint_of_another_has_nothing_else_of_it(
    tmp_path: Path, history: KeptHistory
) -> None:
    history.checkpoint({"rose": 4}, names=["nightly"])
    go_on(history)
    origin = Origin(str(tmp_path / "state"), "nightly")
    with pytest.raises(StoreError, match=r"jsonl:out\.jsonl is already the output of checkpoint nightly"):
        origin.check_output("jsonl:out.jsonl")
    origin.check_output("jsonl:new.jsonl")
    before = files(tmp_path / "state")
    folder = open_for_a_job(tmp_path / "new")
    (tmp_path / "new" / "i1-w0-000001.seg").write_text("of an attempt that was broken off")
    outputs = (OutputLength("jsonl:new.jsonl", 17),)
    origin.copy_into(Store(folder), outputs, "query")
    origin.close()
    begun = begin(Store(folder), APP).latest
    folder.close_folder()
    assert (begun.checkpoint, begun.outputs, begun.kept, begun.named) == (4, outputs, (), ())
    assert dict(read_state(tmp_path / "new", "count")) == history.at[4]
    assert files(tmp_path / "state") == before


@pytest.mark.parametrize(
    ("names", "why"),
    [([], "only a checkpoint with a name contains"), (["nightly"], "its query had states of its own")],
)
def test_a_checkpoint_with_batches_of_spark_and_without_their_record_is_no_origin(
    tmp_path: Path, history: KeptHistory, names: list[str], why: str
) -> None:
    history.checkpoint({"rose": 4}, names=names, spark=(("query", 3),))
    with pytest.raises(StoreError, match=f"checkpoint 4 of .* has read lines from Spark: .*{why}"):
        Origin(str(tmp_path / "state"), "4")


def test_a_folder_that_holds_anything_is_refused_and_left_as_it_is(tmp_path: Path, history: KeptHistory) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("mine")
    for target in ("copy", "state"):
        before = files(tmp_path / target)
        with pytest.raises(StoreError, match=f"{target} is not empty: name a new folder for the copy"):
            copy(tmp_path / "state", tmp_path / target)
        assert files(tmp_path / target) == before


def test_a_damaged_segment_is_not_copied_and_nothing_is_left(tmp_path: Path, history: KeptHistory) -> None:
    segment = tmp_path / "state" / "i1-w0-000003.seg"
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"i1-w0-000003\.seg is damaged"):
        copy(tmp_path / "state", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (tmp_path / "copy").mkdir()
    with pytest.raises(StoreDamaged, match=r"i1-w0-000003\.seg is damaged"):
        copy(tmp_path / "state", tmp_path / "copy")
    assert not [*(tmp_path / "copy").iterdir()]
    copy(tmp_path / "state", tmp_path / "copy", 2)
    assert latest(tmp_path / "copy")[0] == 2


@pytest.mark.parametrize("fails", range(1, 7))
def test_a_copy_that_is_broken_off_is_never_an_older_store(
    tmp_path: Path, history: KeptHistory, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    class PowerLost(BaseException):
        pass

    assert len(files(tmp_path / "state")) == 6
    links = iter(range(1, 100))
    link, remove = LocalFolder.link, LocalFolder.remove

    def no_more(self: LocalFolder, *names: str) -> None:
        raise PowerLost

    def link_or_end(self: LocalFolder, name: str, new: str) -> None:
        if next(links) == fails:
            monkeypatch.setattr(LocalFolder, "remove", no_more)
            raise PowerLost
        link(self, name, new)

    monkeypatch.setattr(LocalFolder, "link", link_or_end)
    with pytest.raises(PowerLost):
        copy(tmp_path / "state", tmp_path / "copy")
    monkeypatch.setattr(LocalFolder, "link", link)
    monkeypatch.setattr(LocalFolder, "remove", remove)
    if any(name.endswith(".commit") for name in os.listdir(tmp_path / "copy")):
        with pytest.raises(StoreDamaged):
            latest(tmp_path / "copy")
    else:
        with pytest.raises(StoreError, match="is not a store"):
            open_to_look(tmp_path / "copy")
