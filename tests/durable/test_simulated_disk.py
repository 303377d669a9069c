"""The simulated disk: the data that it loses or keeps, and its failures."""

import random
from collections.abc import Callable

import pytest

from megaflow.testing import Crashed, SimulatedDisk
from megaflow.testing.simulated_disk import SimulatedFolder


def disks() -> list[SimulatedDisk]:
    return [SimulatedDisk(random.Random(seed)) for seed in range(60)]


def outcomes(prepare: Callable[[SimulatedDisk, SimulatedFolder], None]) -> set[bytes | None]:
    """Return the possible contents of file "a" after a loss of power; None: no such name."""
    found: set[bytes | None] = set()
    for disk in disks():
        prepare(disk, disk.open())
        disk.lose_power()
        found.add(disk.names["a"].content if "a" in disk.names else None)
    return found


def written(folder: SimulatedFolder, name: str, *parts: bytes) -> int:
    file = folder.create(name)
    for part in parts:
        folder.write(file, part)
    return file


def test_what_was_not_synced_is_lost_torn_or_kept() -> None:
    def prepare(disk: SimulatedDisk, folder: SimulatedFolder) -> None:
        written(folder, "a", b"xyz")
        folder.sync_names()

    assert outcomes(prepare) == {b"", b"x", b"xy", b"xyz", b"x\0\0", b"xy\0", b"\0\0\0"}


def test_a_name_that_was_not_synced_is_lost_or_kept() -> None:
    def prepare(disk: SimulatedDisk, folder: SimulatedFolder) -> None:
        folder.sync(written(folder, "a", b"xyz"))

    assert outcomes(prepare) == {None, b"xyz"}


def test_a_name_that_was_removed_and_not_synced_may_come_back() -> None:
    def prepare(disk: SimulatedDisk, folder: SimulatedFolder) -> None:
        folder.sync(written(folder, "a", b"xyz"))
        folder.sync_names()
        folder.remove("a")

    assert outcomes(prepare) == {None, b"xyz"}


def test_what_was_synced_stays() -> None:
    def prepare(disk: SimulatedDisk, folder: SimulatedFolder) -> None:
        folder.sync(written(folder, "b", b"xyz"))
        folder.link("b", "a")
        folder.remove("b")
        folder.sync_names()

    assert outcomes(prepare) == {b"xyz"}


def test_a_sync_that_failed_lies_the_next_time() -> None:
    def prepare(disk: SimulatedDisk, folder: SimulatedFolder) -> None:
        file = written(folder, "a", b"xyz")
        folder.sync_names()
        disk.happenings[len(disk.steps) + 1] = "EIO"
        with pytest.raises(OSError, match="error"):
            folder.sync(file)
        folder.sync(file)
        assert folder.read("a", 0, None) == b"xyz", "until the power goes nobody sees it"

    assert b"" in outcomes(prepare)


def test_a_failed_sync_of_the_folder_is_told_to_each_process_that_has_it_open_once() -> None:
    [disk, *_] = disks()
    first, second = disk.open(), disk.open()
    first.create("a")
    disk.happenings[len(disk.steps) + 1] = "EIO"
    for folder in (first, second):
        with pytest.raises(OSError, match="error"):
            folder.sync_names()
        folder.sync_names()
    disk.open().sync_names()


def test_a_full_disk_takes_a_part() -> None:
    disk = SimulatedDisk(random.Random(0), capacity=5)
    folder = disk.open()
    file = written(folder, "a", b"abc")
    with pytest.raises(OSError, match="No space left"):
        folder.write(file, b"defg")
    assert folder.read("a", 0, None) == b"abcde" and disk.used() == 5


def test_a_process_that_crashed_does_nothing_more_and_the_others_go_on() -> None:
    [disk, *_] = disks()
    first, second = disk.open(), disk.open()
    disk.happenings[1] = "crash"
    for _ in range(2):
        with pytest.raises(Crashed):
            first.create("a")
    second.create("b")
    assert set(disk.names) == {"b"}


def test_what_is_done_and_fails_is_done() -> None:
    [disk, *_] = disks()
    folder = disk.open()
    folder.create("a")
    disk.happenings[2] = "done-EIO"
    with pytest.raises(OSError, match="error"):
        folder.link("a", "b")
    assert set(disk.names) == {"a", "b"}


def test_a_loss_of_power_may_come_within_an_operation() -> None:
    [disk, *_] = disks()
    folder = disk.open()
    disk.happenings[1] = disk.lose_power
    with pytest.raises(Crashed):
        folder.create("a")
    assert disk.names == {}
