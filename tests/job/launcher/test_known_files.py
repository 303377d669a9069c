"""Files are recognized under other names, without false matches: each line counts once."""

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.control.messages import SplitEnd
from megaflow.durable.commits import Commit, SplitRemainder
from megaflow.durable.relocation import relocate
from megaflow.errors import StoreError, StoreUnfit
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.files.splits import find_files, plan_splits
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.launcher.store.input_positions import resumed_input
from megaflow.job.launcher.store.known_files import recognized, stamp_of

Said = tuple[SplitRemainder, ...]


def stopped(reader: SplitReader) -> SplitEnd:
    assert reader.stopped is not None
    return reader.stopped


class Runs:
    """Successive runs of a job on one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: Said = ()
        self.reports: list[str] = []
        self.lines = Counter[str]()  # read so far
        self.times = 1_000  # modification time of the next file, seconds

    def write(self, name: str, *lines: str, at: int | None = None) -> Path:
        """Add lines to a file. If it does not exist, create it with a modification time of its own."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.writelines(f"{line}\n" for line in lines)
        self.times += 10
        os.utime(path, (self.times, self.times) if at is None else (at, at))
        return path

    def run(
        self, records: int | None = None, pattern: str = "**", input: str = "", copies: Iterable[tuple[str, str]] = (),
        forget: bool = False, workers: int | None = None, meanwhile: Callable[[], object] = lambda: None,
    ) -> list[str]:  # fmt: skip
        """Read the new lines, or at most `limit` records, and commit; return what was read.

        `meanwhile` is called after the files are planned, before they are opened.
        """
        files = find_files(str(self.folder / pattern))
        found = [replace(split, input=input) for split in plan_splits(files, workers)]
        said, splits = recognized(self.said, found, copies, forget, self.reports.append)
        kept = resumed_input(said, splits, forget)
        meanwhile()
        left, prints, read = {split.number: split for split in kept.to_read}, {}, list[str]()
        for split in kept.to_read:
            reader = reader_of(split)
            while records is None or len(read) < records:
                if not (batch := reader.next_batch()):
                    prints[split.number] = stopped(reader)
                    del left[split.number]
                    break
                read += batch
            else:
                rest = reader.rest(len(read) - records)
                del read[records:]
                if rest is not None:
                    left[split.number] = rest
                elif not reader.next_batch():
                    prints[split.number] = stopped(reader)
                    del left[split.number]
                reader.close()
                break
            reader.close()
        self.said = kept.remainders(left.values(), prints)
        self.lines.update(read)
        return read


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "in")


def compress(path: Path, keep_time: bool = True) -> Path:
    """Compress a file as gzip does."""
    copy = path.with_name(path.name + ".gz")
    copy.write_bytes(gzip.compress(path.read_bytes()))
    status = path.stat()
    if keep_time:
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.unlink()
    return copy


@pytest.mark.parametrize("make", ["link", "symlink", "bind"])
@pytest.mark.parametrize("records", [None, 2])
def test_another_name_of_a_file_is_not_read(runs: Runs, make: str, records: int | None) -> None:
    path = runs.write("a", "1", "2", "3")
    runs.run(records)
    if make == "bind":
        os.symlink(runs.folder, runs.folder.parent / "mounted")
        pattern = "../mounted/*"
        assert runs.run(pattern=pattern) == ["1", "2", "3"][records or 3 :]
        assert any("continues" in report for report in runs.reports)
    else:
        getattr(os, make)(path, runs.folder / "b")
        assert runs.run() == ["1", "2", "3"][records or 3 :]
        assert runs.reports == [f"reads '{path}' once, and not again as '{runs.folder / 'b'}'"]
        path.rename(runs.folder.parent / "away")
        runs.write("c", "4")
        assert runs.run() == ["4"]
    assert runs.run() == [] and set(runs.lines.values()) == {1}


def test_names_of_one_file_found_together_are_read_once(runs: Runs) -> None:
    os.link(runs.write("a", "1"), runs.folder / "b")
    assert runs.run() == ["1"] and runs.run() == []
    (runs.folder / "a").unlink()
    assert runs.run() == []


def test_a_file_in_a_folder_with_two_names_keeps_its_record(runs: Runs) -> None:
    path = runs.write("../out/f", "1", "2")
    (runs.folder / "b").symlink_to("../out")
    assert runs.run(1) == ["1"]
    runs.said = tuple(replace(each, stamp=(0, *each.stamp[1:])) for each in runs.said)  # before a start of the machine
    (runs.folder / "a").symlink_to("../out")  # the folder is searched under this name now
    os.utime(path, (1, 1))
    assert runs.run() == ["2"] and runs.run() == []
    (runs.folder / "b").unlink()
    assert runs.run() == [] and set(runs.lines.values()) == {1}


def test_a_file_that_grew_before_it_was_opened_may_be_renamed(runs: Runs) -> None:
    path = runs.write("a", "one")
    with open(path, "a") as file:
        file.write("tw")
    assert runs.run(meanwhile=lambda: runs.write("a", "o")) == ["one", "two"]
    path.rename(runs.folder / "b")
    assert runs.run() == []
    runs.write("b", "three")
    assert runs.run() == ["three"]


def test_equal_content_alone_is_a_new_file(runs: Runs) -> None:
    for day in range(3):
        runs.write(f"day{day}", "same", "lines")
        assert runs.run() == ["same", "lines"]
    shutil.copy2(runs.folder / "day0", runs.folder / "copy")
    assert runs.run() == ["same", "lines"], "a copy has another inode"


def test_a_new_file_with_the_inode_of_a_deleted_one_is_new(runs: Runs) -> None:
    path = runs.write("day0", "same", "lines")
    runs.run()
    runs.said = tuple(replace(each, stamp=(*each.stamp[:2], each.stamp[2] - 1)) for each in runs.said)
    path.rename(runs.folder / "day1")  # as if it were made anew on the inode
    assert runs.run() == ["same", "lines"]


def test_an_inode_is_that_of_the_newest_of_its_files(runs: Runs) -> None:
    path = runs.write("day0", "same")
    runs.run()
    old = replace(runs.said[0], path=str(runs.folder / "gone"), number=9)
    runs.write("day0", "lines")
    runs.run()
    runs.said = (old, *(replace(each, stamp=(*each.stamp[:2], each.stamp[2] - 1)) for each in runs.said))
    path.rename(runs.folder / "day1")  # as if it were made anew on the inode: longer than `old`, and begins like it
    assert runs.run() == ["same", "lines"]


def test_one_file_counts_for_each_input(runs: Runs) -> None:
    path = runs.write("a", "1")
    runs.run(input="orders")
    os.link(path, runs.folder / "b")
    found = [replace(split, input="clicks", number=7) for split in plan_splits([str(runs.folder / "b")])]
    assert recognized(runs.said, found)[1] == tuple(found)


def test_a_file_not_begun_exchanges_names_with_a_shorter_new_one(runs: Runs) -> None:
    a = runs.write("a", "1", "2")
    runs.run(0)
    b, c = runs.write("b", "3"), runs.folder / "c"
    a.rename(c), b.rename(a), c.rename(b)
    assert sorted(runs.run()) == ["1", "2", "3"] and runs.run() == []


def test_files_that_exchange_their_names_are_known(runs: Runs) -> None:
    first, second = runs.write("a", "1", "2", "3"), runs.write("b", "1", "2", "3", "4")
    assert runs.run(2) == ["1", "2"]
    first.rename(runs.folder / ".c")
    second.rename(first)
    (runs.folder / ".c").rename(second)
    assert Counter(runs.run()) == Counter(["3", "1", "2", "3", "4"]) and runs.run() == []


def test_a_rotated_file_keeps_its_record_and_its_successor_is_new(runs: Runs) -> None:
    path = runs.write("log", "head", "1")
    runs.run(1)
    runs.write("log", "2")
    path.rename(runs.folder / "log.1")
    runs.write("log", "head", "3")
    assert sorted(runs.run()) == ["1", "2", "3", "head"]
    (runs.folder / "log.1").rename(runs.folder / "log.2")
    path.rename(runs.folder / "log.1")
    runs.write("log", "head", "4")
    assert runs.run() == ["head", "4"]
    compress(runs.folder / "log.2").rename(runs.folder / "log.3.gz")
    assert runs.run() == [], "it has the time of the log"


@pytest.mark.parametrize("name", ["log.1.gz", "log-20260307.gz", "log.2026-03-07.gz"])
def test_a_log_written_then_rotated_and_compressed_goes_on(runs: Runs, name: str) -> None:
    path = runs.write("log", "head", "1")
    runs.run()
    runs.write("log", "2")
    compress(path).rename(runs.folder / name)
    runs.write("log", "head", "3")
    assert sorted(runs.run()) == ["2", "3", "head"] and runs.run() == []


def test_a_new_file_on_the_inode_of_a_compressed_one_is_new(runs: Runs) -> None:
    path = runs.write("log", "1")
    runs.run()
    runs.write("log", "2")
    compress(path)
    runs.write("log", "3")
    runs.said = tuple(replace(each, stamp=(*stamp_of(str(path))[:2], each.stamp[2])) for each in runs.said)
    assert sorted(runs.run()) == ["2", "3"] and runs.run() == []


@pytest.mark.parametrize("name", ["old/log.1.gz", "log-old.gz", "blog.1.gz"])
def test_equal_text_under_a_name_of_no_rotation_is_new(runs: Runs, name: str) -> None:
    path = runs.write("log", "1", "2")
    runs.run()
    (runs.folder / name).parent.mkdir(exist_ok=True)
    compress(path, keep_time=False).rename(runs.folder / name)
    assert runs.run() == ["1", "2"]


def test_a_moved_folder_goes_on(runs: Runs) -> None:
    for name in "abc":
        runs.write(f"today/{name}", f"{name}1", f"{name}2")
    runs.run(3)
    (runs.folder / "today").rename(runs.folder / "yesterday")
    runs.write("today/a", "a3")
    assert sorted(runs.run()) == ["a3", "b2", "c1", "c2"] and runs.run() == []


@pytest.mark.parametrize("records", [0, 1, 4, None])
@pytest.mark.parametrize("keep_time", [True, False])
def test_a_compressed_file_goes_on_in_its_text(runs: Runs, records: int | None, keep_time: bool) -> None:
    lines = [str(number) for number in range(4)]
    path = runs.write("log", *lines[:4])
    read = runs.run(records)
    runs.write("log", "more")
    compress(path, keep_time)
    assert read + runs.run() == [*lines, "more"]
    assert runs.run() == []
    runs.write("log", *lines)
    assert runs.run() == lines, "a new file has the name"


def test_a_compressed_file_with_other_text_is_new(runs: Runs) -> None:
    path = runs.write("log", "1", "2")
    runs.run()
    path.write_text("3\n4\n")
    compress(path)
    assert runs.run() == ["3", "4"]


def test_a_compressed_file_never_goes_on_within_a_line(runs: Runs) -> None:
    lines = [f"line {number} of a file with long lines" for number in range(1000)]
    path = runs.write("log", *lines)
    runs.run(253, workers=1)  # the first of four parts, whose last line ends in the second one
    compress(path)
    with pytest.raises(StoreUnfit, match="was read in several parts"):
        runs.run()


def test_a_file_read_in_parts_cannot_go_on_compressed(runs: Runs) -> None:
    lines = [f"{number:0100}" for number in range(1000)]
    path = runs.write("log", *lines)
    read = runs.run(50, workers=2)
    compress(path)
    said = runs.said
    assert read + runs.run(0, workers=2) == lines[:50], "one part was not begun, and goes on after the other"
    assert len(runs.said) == 1 and read + runs.run() == lines
    runs.said = (*said[:-1], replace(said[-1], start=said[-1].end))
    with pytest.raises(StoreUnfit, match=r"log' was read in several parts .* as .*log\.gz'\. Decompress it"):
        runs.run(workers=2)


@pytest.mark.parametrize("records", [None, 1])
def test_a_copy_is_known_if_the_user_says_so(runs: Runs, records: int | None) -> None:
    path = runs.write("a", "1", "2")
    runs.run(records)
    copy = runs.folder / "copy"
    shutil.copy(path, copy)
    same = ((str(path), str(copy)),)
    assert runs.run(copies=same) == ["1", "2"][records or 2 :], "both are there"
    assert runs.run() == [] and runs.run(copies=same) == []
    path.unlink()
    assert runs.run(copies=same) == []


def test_copy_with_more_lines_than_its_file_is_refused(runs: Runs) -> None:
    path = runs.write("a", "1", "2")
    runs.run()
    copy = runs.folder / "copy"
    shutil.copy(path, copy)
    with copy.open("a") as file:
        file.write("3\n")
    same = ((str(path), str(copy)),)
    with pytest.raises(StoreUnfit, match=r"copy' has lines that it lacks, which would never be read"):
        runs.run(copies=same)
    path.unlink()
    assert runs.run(copies=same) == ["3"]


def test_a_copy_takes_the_place_of_its_file(runs: Runs) -> None:
    path = runs.write("a", "1", "2")
    runs.run(1)
    copy = runs.folder / "copy"
    shutil.copy(path, copy)
    path.unlink()
    with pytest.raises(StoreUnfit, match="--forget-missing"):
        runs.run()
    with pytest.raises(StoreUnfit, match="No file '/none' was read"):
        runs.run(copies=(("/none", str(copy)),))
    assert runs.run(copies=((str(path), str(copy)),)) == ["2"] and runs.run() == []


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_copy_takes_the_place_of_a_file_whose_name_is_reused(runs: Runs, is_compressed: bool) -> None:
    path, copy = runs.write("a", "1", "2"), runs.folder / "copy"
    runs.run(1)
    runs.write("a", "3")
    shutil.copy(path, copy)
    path.unlink()
    if is_compressed:
        copy = compress(copy, keep_time=False)
    runs.write("a", "x", "y")
    with pytest.raises(StoreUnfit, match=r"has changed .* --same-file"):
        runs.run()
    assert sorted(runs.run(copies=((str(path), str(copy)),))) == ["2", "3", "x", "y"] and runs.run() == []


def test_what_is_no_copy_is_refused(runs: Runs) -> None:
    path, other = runs.write("a", "1", "2"), runs.write("b", "x", "2")
    said = runs.run(pattern="a")
    with pytest.raises(StoreUnfit, match=r"does not have the bytes that were read of .*, so it is no copy"):
        runs.run(copies=((str(path), str(other)),))
    assert said == ["1", "2"]


def test_a_tree_on_another_volume_is_relocated(runs: Runs) -> None:
    for name in "abc":
        runs.write(f"old/{name}", f"{name}1", f"{name}2")
    runs.run(3)
    shutil.copytree(runs.folder / "old", runs.folder.parent / "new")
    shutil.rmtree(runs.folder / "old")
    commit = Commit(1, 1, 5, 1, splits=runs.said)
    runs.said = relocate(commit, [(str(runs.folder / "old"), str(runs.folder.parent / "new"))], "store").splits
    assert runs.run(pattern="../new/*") == ["b2", "c1", "c2"]
    assert runs.run(pattern="../new/*") == []


def test_a_relocation_onto_another_record_is_refused(runs: Runs) -> None:
    runs.write("old/a", "1"), runs.write("new/a", "2")
    runs.run()
    with pytest.raises(StoreError, match=r"would both become .*new/a'"):
        relocate(Commit(1, 1, 5, 1, splits=runs.said), [(str(runs.folder / "old"), str(runs.folder / "new"))], "store")


def test_stores_without_stamps_go_by_paths(runs: Runs) -> None:
    path = runs.write("a", "1", "2")
    runs.run(1)
    runs.said = tuple(replace(each, stamp=()) for each in runs.said)
    os.link(path, runs.folder / "b")
    assert runs.run() == ["2"] and runs.said[0].stamp


class Model:
    """Files with unique lines, changed at random. Each line must be read once."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.runs, self.random = Runs(folder), Random(seed)
        self.names = iter(f"file{number}" for number in range(10_000))
        self.lines = iter(range(10**9))
        self.expected = Counter[str]()
        self.links: set[Path] = set()  # names that were added
        self.grow(self.runs.folder / next(self.names))
        self.runs.run()

    @property
    def files(self) -> list[Path]:
        """The plain files of the input, without links."""
        paths = sorted(path for path in self.runs.folder.rglob("*") if path.is_file() and path.suffix != ".gz")
        return [path for path in paths if path not in self.links]

    def grow(self, path: Path) -> None:
        lines = [f"line {next(self.lines)}" for _ in range(self.random.randint(1, 4))]
        self.runs.write(str(path.relative_to(self.runs.folder)), *lines)
        self.expected.update(lines)

    def is_read(self, path: Path) -> bool:
        return all(self.runs.lines[line] == self.expected[line] for line in path.read_text().splitlines())

    def change(self) -> None:
        """Change a file in a random way."""
        path, new = self.random.choice(self.files), self.runs.folder / next(self.names)
        status = path.stat()
        stamp = str(path), status.st_dev, status.st_ino
        is_recorded = stamp in {(each.path, *each.stamp[:2]) for each in self.runs.said}  # under its present name
        is_alone = status.st_nlink == 1 and len(self.files) > 1
        match self.random.randrange(8):
            case 0:
                self.grow(new)
            case 1:
                self.grow(path)
            case 2:
                path.rename(new)
            case 3 if len(self.files) > 1:
                other = self.random.choice([each for each in self.files if each != path])
                path.rename(new)
                other.rename(path)
                new.rename(other)
            case 4:
                os.link(path, new)
                self.links.add(new)
            case 5 if is_recorded and is_alone:
                compress(path)
            case 6 if is_recorded and self.is_read(path) and is_alone:
                content = path.read_text().splitlines()
                path.unlink()
                if self.random.random() < 0.5:  # often on the same inode
                    self.runs.write(new.name, *content)
                    self.expected.update(content)
                    self.runs.run()  # read it before it grows; otherwise it would look like the old file
            case 7:
                folder = self.runs.folder / next(self.names) / path.parent.name
                folder.mkdir(parents=True)
                path.rename(folder / path.name)

    def check(self) -> None:
        """Read the rest, and check that each line was read once and nothing is left."""
        self.runs.run()
        assert self.runs.lines == self.expected, (
            f"missing {self.expected - self.runs.lines}, too many {self.runs.lines - self.expected}"
        )
        assert self.runs.run() == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_each_line_is_read_once_whatever_names_its_file_has(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    model = Model(tmp_path_factory.mktemp("model") / "in", seed)
    for _ in range(12):
        model.change()
        if model.random.random() < 0.4:
            model.runs.run(model.random.choice([None, 0, 1, 2, 5]))
    model.check()
