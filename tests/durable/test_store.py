"""The five operations of a store: their steps in order, and the result when a disk fails."""

import errno
import random

import pytest

from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt
from megaflow.testing import SimulatedDisk

NAME = "i1-w0-000001.seg"
PUT = [
    f"create {NAME}.0.tmp",
    "write 3 bytes",
    "write 2 bytes",
    "sync a file",
    "close a file",
    f"link {NAME}",
    f"remove {NAME}.0.tmp",
    "sync the folder",
]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(random.Random(0))


def step(disk: SimulatedDisk, what: str) -> int:
    """Return the number of the step of the next `put` that matches."""
    return len(disk.steps) + 1 + PUT.index(what)


def test_a_file_is_written_aside_synced_linked_and_its_name_synced(disk: SimulatedDisk) -> None:
    Store(disk.open()).put(NAME, [b"abc", b"de"])
    assert disk.steps == PUT
    disk.lose_power()
    store = Store(disk.open())
    assert store.list() == {NAME: 5} and store.read(NAME) == b"abcde"


def test_a_commit_is_written_like_any_other_file(disk: SimulatedDisk) -> None:
    store = Store(disk.open())
    assert store.commit(NAME, b"abc")
    assert disk.steps == [what for what in PUT if what != "write 2 bytes"]
    assert not store.commit(NAME, b"other") and store.list() == {NAME: 3}


def test_what_was_set_aside_by_one_that_ended_is_in_nobodys_way(disk: SimulatedDisk) -> None:
    disk.open().create(f"{NAME}.0.tmp")
    store = Store(disk.open())
    store.put(NAME, [b"abc"])
    assert store.list() == {f"{NAME}.0.tmp": 0, NAME: 3}


@pytest.mark.parametrize("at", [what for what in PUT if what.startswith(("write", "sync a", "close", "link"))])
def test_of_a_file_that_a_disk_refuses_nothing_is_left(disk: SimulatedDisk, at: str) -> None:
    disk.happenings[step(disk, at)] = "ENOSPC"
    store = Store(disk.open())
    with pytest.raises(OSError, match="No space left") as raised:
        store.put(NAME, [b"abc", b"de"])
    assert raised.value.errno == errno.ENOSPC
    assert store.list() == {}


def test_a_failed_sync_is_not_tried_again_on_that_file(disk: SimulatedDisk) -> None:
    disk.happenings[step(disk, "sync a file")] = "EIO"
    store = Store(disk.open())
    with pytest.raises(OSError, match="Input/output error"):
        store.put(NAME, [b"abc", b"de"])
    assert disk.steps.count("sync a file") == 1
    store.put(NAME, [b"abc", b"de"])
    assert disk.steps.count(f"create {NAME}.0.tmp") == 2, "it is a new file"
    disk.lose_power()
    assert Store(disk.open()).read(NAME) == b"abcde"


@pytest.mark.parametrize("at", [f"link {NAME}", "sync the folder"])
@pytest.mark.parametrize("how", ["EIO", "done-EIO"])
def test_a_commit_is_in_doubt_from_the_link_on(disk: SimulatedDisk, at: str, how: str) -> None:
    disk.happenings[step(disk, at) - 1] = how  # a commit has one write fewer
    with pytest.raises(CommitInDoubt, match=f"it is unknown whether {NAME} was written: .*Input/output error"):
        Store(disk.open()).commit(NAME, b"abc")
    assert set(disk.names) <= {NAME}


def test_all_that_can_be_removed_is_though_one_cannot(disk: SimulatedDisk) -> None:
    store = Store(disk.open())
    for name in "abc":
        store.put(name, [b""])
    disk.happenings[len(disk.steps) + 2] = "EIO"
    with pytest.raises(OSError, match="Input/output error"):
        store.delete(["a", "b", "gone", "c"])
    assert set(store.list()) == {"b"}
    disk.lose_power()
    assert set(disk.names) == {"b"}
