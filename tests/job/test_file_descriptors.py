"""Followed files share the descriptors of a process. If they are few, the longest quiet file is closed."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from megaflow.connect.source_protocol import Gone, Idle, NotHere
from megaflow.errors import LimitReached
from megaflow.job.files import file_descriptors, followed_files, growing_file
from megaflow.job.files.file_descriptors import FileDescriptors
from megaflow.job.files.followed_files import FollowedFile, FollowedFiles
from tests.words import says

FILES = 12


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIND_SECONDS", "POLL_SECONDS"):
        for module in (followed_files, growing_file):
            monkeypatch.setattr(module, name, 0.0)


@pytest.fixture
def soft() -> Iterator[int]:
    """Limit the descriptors of this process to six more than it has open, and return the soft limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each) for each in os.listdir("/dev/fd"))
    filled = [lowest_free()]  # all below the highest one, so that the free ones are in a row
    while filled[-1] <= highest:
        filled.append(os.open(os.devnull, os.O_RDONLY))
    del filled[0]
    soft = lowest_free() + 6
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for file in filled:
        os.close(file)


@pytest.fixture
def few(soft: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Leave no room above the soft limit, as if the hard limit were the same, and a small reserve."""
    monkeypatch.setattr(file_descriptors, "_above", lambda make: None)
    monkeypatch.setattr(file_descriptors, "RESERVE", 3)
    monkeypatch.setattr(file_descriptors, "LAST", 2)
    return soft


def lowest_free() -> int:
    file = os.open(os.devnull, os.O_RDONLY)
    os.close(file)
    return file


def descriptors_of(folder: Path) -> list[int]:
    """Return this process's descriptors of files in a folder, whatever else it has open."""
    found = []
    for each in os.listdir("/dev/fd"):
        with suppress(OSError):  # it was closed meanwhile
            found += [int(each)] if os.readlink(f"/dev/fd/{each}").startswith(f"{folder}/") else []
    return found


class Bench:
    """Workers of one process that follow the same folder, each some of its files."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.folder, self.seconds, self.lost = folder, 0.0, list[tuple[str, int]]()
        shared = FileDescriptors()
        self.said: list[str] = []
        self.sources = [
            FollowedFiles(
                f"{folder}/*", lose=lambda path, size: self.lost.append((Path(path).name, size)),
                now=lambda: self.seconds, descriptors=shared, tell=lambda about, text: self.said.append(text),
            )
            for _ in range(workers)
        ]  # fmt: skip
        self.readers: dict[int, FollowedFile] = {}
        self.positions: dict[int, Any] = {}
        self.held: set[int] = set()

    def write(self, number: int, text: str, suffix: str = "") -> None:
        with (self.folder / f"{number:02}{suffix}").open("a") as file:
            file.write(text)

    def turn(self) -> list[str]:
        """Return what all readers read in one turn each, until each is idle."""
        for index, inode in enumerate(self.sources[0].discover().partitions):
            if inode not in self.readers:
                self.readers[inode] = self.sources[index % len(self.sources)].open(inode, self.positions.get(inode))
        records, busy = list[str](), dict(self.readers)
        self.held = set()
        while busy:
            for inode, reader in list(busy.items()):
                answer = reader.read(100)
                if isinstance(answer, Gone):
                    del busy[inode], self.readers[inode], self.positions[inode]
                elif isinstance(answer, Idle):
                    del busy[inode]
                    self.held.update([inode] if answer.is_held else [])
                else:
                    records += answer[0]
                    self.positions[inode] = answer[1]
        return records

    def read(self) -> list[str]:
        """Return what can be read, in any order of files, as long as files wait for descriptors."""
        records = self.turn()
        while self.held:
            records += self.turn()
            self.seconds += 1
        return sorted(records)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_more_files_than_descriptors_are_read_as_they_grow(tmp_path: Path, few: int, workers: int) -> None:
    bench = Bench(tmp_path, workers)
    for number in range(FILES):
        bench.write(number, f"{number}\n")
    assert bench.read() == sorted(f"{number}" for number in range(FILES))
    assert 0 < len(descriptors_of(tmp_path)) < FILES and max(descriptors_of(tmp_path)) < few - 3, "beside the reserve"
    for number in range(FILES):
        bench.write(number, f"more {number}\n")
    assert bench.read() == sorted(f"more {number}" for number in range(FILES)) and bench.turn() == []
    assert all(position[1] == (tmp_path / f"{n:02}").stat().st_size for n, position in enumerate(
        bench.positions[(tmp_path / f"{n:02}").stat().st_ino] for n in range(FILES)
    ))  # fmt: skip
    bench.close()
    assert descriptors_of(tmp_path) == [] and not bench.lost


def test_files_lie_above_the_soft_limit_while_there_is_room(tmp_path: Path, soft: int) -> None:
    bench = Bench(tmp_path)
    for number in range(FILES):
        bench.write(number, f"{number}\n")
    assert len(bench.read()) == FILES and not bench.held
    here = {int(each) for each in os.listdir("/dev/fd")}
    assert len([each for each in here if each >= soft]) >= FILES - 6, "none is closed"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft, "it is the limit of processes that the program starts"
    bench.close()


def test_closed_files_are_found_after_a_rotation(tmp_path: Path, few: int) -> None:
    bench = Bench(tmp_path)
    for number in range(FILES):
        bench.write(number, f"{number}\n")
    bench.read()
    for number in range(FILES):
        (tmp_path / f"{number:02}").rename(tmp_path / f"{number:02}.1")
        bench.write(number, f"old {number}\n", ".1")
        bench.write(number, f"new {number}\n")
    assert bench.read() == sorted(f"{age} {number}" for number in range(FILES) for age in ("old", "new"))
    bench.write(3, "3\n")
    (tmp_path / "04").write_text("4, truncated\n")
    assert bench.read() == ["3", "4, truncated"] and not bench.lost
    bench.close()


def test_the_inode_of_a_removed_closed_file_is_free(tmp_path: Path, few: int) -> None:
    bench = Bench(tmp_path)
    for number in range(FILES):
        bench.write(number, "same\n")
    bench.read()
    for number in range(FILES):
        (tmp_path / f"{number:02}").unlink()
    bench.turn()
    bench.seconds += growing_file.DELETED_SECONDS
    bench.turn()
    bench.seconds += growing_file.DELETED_SECONDS
    assert bench.turn() == [] and not bench.lost
    assert not bench.positions, "no position is kept for a new file"
    for number in range(FILES):
        bench.write(number, "same\n")
    assert bench.read() == ["same"] * FILES
    bench.close()


def test_bytes_that_a_closed_file_was_seen_to_gain_are_reported(tmp_path: Path, few: int) -> None:
    bench = Bench(tmp_path)
    for number in range(FILES):
        bench.write(number, f"{number:02}\n")
    bench.read()
    for number in range(FILES):  # all descriptors are taken by files whose lines have no end
        bench.write(number, "unfinished")
    with pytest.raises(LimitReached) as refused:
        bench.read()
    assert says(str(refused.value), "Cannot follow '", "ends in an unfinished line", "ulimit -n")
    for number in range(FILES):
        (tmp_path / f"{number:02}").unlink()
    bench.turn()
    bench.write(FILES, "last\n")  # it waits for the descriptor of a removed file
    bench.turn()
    assert len(bench.held) == 1
    records = []
    for _ in range(4):
        records += bench.turn()
        bench.seconds += growing_file.DELETED_SECONDS
    read = records.count("unfinished")
    assert sorted({*records}) == ["last", "unfinished"] and records.count("last") == 1
    assert 0 < read < FILES, "open files are read to their ends"
    assert {size for _, size in bench.lost} == {len("unfinished")}
    assert not bench.held
    bench.close()


def test_files_with_unread_lines_stay_open_and_others_wait(tmp_path: Path, few: int) -> None:
    descriptors = FileDescriptors()
    (tmp_path / "a").touch()
    path, readers = str(tmp_path / "a"), [object() for _ in range(9)]
    files = [descriptors.open(reader, path) for reader in readers]
    opened = [(reader, file) for reader, file in zip(readers, files, strict=True) if file is not None]
    assert 0 < len(opened) < 9 and None in files
    late = readers[files.index(None)]
    assert descriptors.open(late, path) is None
    for since, (reader, file) in enumerate(reversed(opened)):
        descriptors.rest(reader, file, float(since))
    found = descriptors.open(late, path)
    assert found is not None
    assert descriptors.take(opened[-1][0]) == -1, "it has been quiet for longest"
    assert descriptors.take(opened[0][0]) == opened[0][1]
    for reader in readers:
        descriptors.close(reader, found if reader is late else opened[0][1] if reader is opened[0][0] else -1)


def test_a_new_file_is_not_missing_while_no_descriptor_is_free(tmp_path: Path, soft: int) -> None:
    (tmp_path / "a").write_text("1\n")
    source = FollowedFiles(f"{tmp_path}/*", descriptors=FileDescriptors())
    (inode,) = FollowedFiles(f"{tmp_path}/*").discover().partitions  # by another process: this one must search
    reader = source.open(inode, None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    answer = reader.read(9)
    assert isinstance(answer, Idle) and answer.is_held, "another process does not get it"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    records: list[str] = []
    while not isinstance(answer := reader.read(9), Idle | NotHere):
        records += answer[0]
    reader.close()
    assert records == ["1"]
