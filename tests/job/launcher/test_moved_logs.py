"""Followed files on another volume continue if they begin with the bytes that were read. Otherwise they are refused."""

import gzip
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from megaflow.connect.source_protocol import Idle
from megaflow.durable.commits import SourcePartition
from megaflow.errors import StoreUnfit
from megaflow.job.files.file_position import FilePosition
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.launcher.store.moved_logs import copies, moved_partitions
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.words import says


def read(partition: SourcePartition, pattern: str, limit: int = 100) -> tuple[list[str], SourcePartition]:
    """Read all lines, or up to a limit; return the rest."""
    source = FollowedFiles(pattern)
    start = None if partition.position is None else decode(partition.position)
    reader = source.open(decode(partition.partition), start)
    lines: list[str] = []
    position = partition.position
    while len(lines) < limit and not isinstance(answer := reader.read(limit), Idle):
        lines += answer[0]
        position = encode(answer[1])
    reader.close()
    return lines, SourcePartition(partition.number, partition.input, partition.partition, position)


def followed(path: Path, *lines: str, number: int = 0) -> SourcePartition:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return SourcePartition(number, "lines", encode(path.stat().st_ino))


@pytest.mark.parametrize("read_before", [1, 100])
def test_a_copy_goes_on_where_the_original_was_read(tmp_path: Path, read_before: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    lines, rest = read(followed(old / "a.log", "one", "two"), f"{old}/*", read_before)
    shutil.copytree(old, new)
    shutil.rmtree(old)
    with (new / "a.log").open("a") as file:
        file.write("three\n")
    [moved] = moved_partitions([rest], {"lines"}, [(str(old), str(new))])
    assert decode(moved.partition) == (new / "a.log").stat().st_ino
    assert lines + read(moved, f"{new}/*")[0] == ["one", "two", "three"]
    assert moved_partitions([moved], {"lines"}, [(str(old), str(new))]) == (moved,), "the flag does no harm later"


def test_a_copy_at_the_old_path_goes_on_if_it_is_named(tmp_path: Path) -> None:
    lines, rest = read(followed(tmp_path / "in" / "a.log", "one", "two"), f"{tmp_path}/in/*")
    other = followed(tmp_path / "in" / "other.log", "else", number=1)
    os.link(tmp_path / "in" / "a.log", tmp_path / "kept")  # or the copy could get its inode
    shutil.copy(tmp_path / "in" / "a.log", tmp_path / "copy")
    os.replace(tmp_path / "copy", tmp_path / "in" / "a.log")
    with (tmp_path / "in" / "a.log").open("a") as file:
        file.write("three\n")
    [told] = copies([rest, other], {"lines"})
    assert says(told, "a.log' has another inode", "the 8 bytes", f"--relocate {tmp_path}/in/a.log={tmp_path}/in/a.log")
    assert [*copies([rest], {"other"})] == []
    named = [(str(tmp_path / "in"), str(tmp_path / "in"))]
    moved = moved_partitions([rest, other], {"lines"}, named)
    assert lines + read(moved[0], f"{tmp_path}/in/*")[0] == ["one", "two", "three"] and moved[1] == other
    assert [*copies(moved, {"lines"})] == [] and moved_partitions(moved, {"lines"}, named) == moved
    (tmp_path / "in" / "a.log").write_text("new\n")
    assert [*copies([rest], {"lines"})] == [], "a file that does not have the bytes is no copy"


def test_copies_that_have_exchanged_their_inodes_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    _, first = read(followed(folder / "a.log", "one", "two"), f"{folder}/a*")
    _, second = read(followed(folder / "b.log", "three", number=1), f"{folder}/b*")
    swapped = replace(first, partition=second.partition), replace(second, partition=first.partition)
    told = [*copies(swapped, {"lines"})]
    assert says(told[0], "a.log' has another inode", "the 8 bytes", f"--relocate {folder}/a.log={folder}/a.log")
    assert says(told[1], "b.log' has another inode", "the 6 bytes") and len(told) == 2
    assert moved_partitions(swapped, {"lines"}, [(str(folder), str(folder))]) == (first, second)
    with pytest.raises(StoreUnfit, match=f"b.log' has another inode .* Also give --relocate {folder}/b.log="):
        moved_partitions(swapped, {"lines"}, [(f"{folder}/a.log", f"{folder}/a.log")])


def test_copy_that_has_the_inode_of_an_unread_file_is_named(tmp_path: Path) -> None:
    log = tmp_path / "in" / "a.log"
    _, rest = read(followed(log, "one", "two"), str(log))
    unread = SourcePartition(1, "lines", rest.partition)
    for position in (None, encode(FilePosition(str(tmp_path / "in" / "b.log"), size=8).as_tuple())):
        recorded = [replace(rest, partition=encode(1)), replace(unread, position=position)]
        [told] = copies(recorded, {"lines"})
        assert says(told, "a.log' has another inode", "the 8 bytes")


def test_rotated_files_that_took_known_paths_are_no_copies(tmp_path: Path) -> None:
    first, second = rotated(tmp_path / "in" / "a.log")
    assert [*copies([first, second], {"lines"})] == [], "the record of the first has the path of the second"
    both = [followed(tmp_path / "in" / name, "same", number=number) for number, name in enumerate(("b", "c"))]
    old, new = (read(each, f"{tmp_path}/in/{name}")[1] for each, name in zip(both, ("b", "c")))
    os.rename(tmp_path / "in" / "c", tmp_path / "in" / "b")
    assert [*copies([old, new], {"lines"})] == [], "it has the bytes of its own record"


def test_what_does_not_have_the_bytes_that_were_read_is_refused(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _, rest = read(followed(old / "a.log", "one", "two"), f"{old}/*")
    followed(new / "a.log", "other", "lines")
    with pytest.raises(StoreUnfit, match=r"new/a.log' does not have the bytes that were read of .*old/a.log'"):
        moved_partitions([rest], {"lines"}, [(str(old), str(new))])


def rotated(path: Path) -> tuple[SourcePartition, SourcePartition]:
    """Read a file of two lines, which is renamed while its reader has it open, then its successor of one line."""
    first = followed(path, "one", "two")
    reader = FollowedFiles(f"{path.parent}/*").open(decode(first.partition), None)
    position = first.position
    while not isinstance(answer := reader.read(100), Idle):
        position = encode(answer[1])
    os.rename(path, f"{path}.1")
    reader.close()
    _, rest = read(followed(path, "three", number=1), str(path))
    return SourcePartition(0, first.input, first.partition, position), rest


@pytest.mark.parametrize("has_successor", [True, False])
def test_rotated_files_go_on_beside_the_new_path(tmp_path: Path, has_successor: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    partitions = rotated(old / "a.log")[: 1 + has_successor]
    shutil.copytree(old, new)
    shutil.rmtree(old)
    if not has_successor:
        os.unlink(new / "a.log")
    for name in ("a.log.1", "a.log")[: 1 + has_successor]:
        with (new / name).open("a") as file:
            file.write(f"more of {name}\n")
    moved = moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
    assert [read(each, f"{new}/*")[0] for each in moved] == [["more of a.log.1"], ["more of a.log"]][: len(partitions)]
    assert moved_partitions(moved, {"lines"}, [(str(old), str(new))]) == moved


def test_rotated_files_of_a_renamed_folder_keep_their_inodes(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    partitions = rotated(old / "a.log")
    old.rename(new)
    moved = moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
    assert [each.partition for each in moved] == [each.partition for each in partitions]
    (new / "a.log").write_text("anew\n")
    moved = moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
    assert [each.partition for each in moved] == [each.partition for each in partitions], "it is truncated"


def test_rotated_files_may_exchange_their_inodes_in_a_copy(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    first, second = rotated(old / "a.log")
    shutil.copytree(old, new)
    inodes = [encode((new / name).stat().st_ino) for name in ("a.log.1", "a.log")]
    partitions = [replace(first, partition=inodes[1]), replace(second, partition=inodes[0])]
    moved = moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
    assert [each.partition for each in moved] == inodes


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_rotated_file_may_be_gone_or_compressed(tmp_path: Path, compressed: bool, swapped: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    first, second = rotated(old / "a.log")
    shutil.copytree(old, new)
    if compressed:
        (new / "a.log.1.gz").write_bytes(gzip.compress((new / "a.log.1").read_bytes()))
    os.unlink(new / "a.log.1")
    given = [second, first] if swapped else [first, second]
    moved = moved_partitions(given, {"lines"}, [(str(old), str(new))])
    partitions = {each.number: each.partition for each in moved}
    assert partitions == {0: first.partition, 1: encode((new / "a.log").stat().st_ino)}


def test_a_new_file_has_the_name_of_one_that_is_compressed(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _, rest = read(followed(old / "a.log", "one", "two"), f"{old}/*", 1)
    followed(new / "a.log", "three")
    (new / "a.log.1.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    [moved] = moved_partitions([rest], {"lines"}, [(str(old), str(new))])
    assert read(moved, f"{new}/*")[0] == ["two"]


def test_other_sources_and_other_files_stay_as_they_are(tmp_path: Path) -> None:
    _, rest = read(followed(tmp_path / "a.log", "one"), f"{tmp_path}/*")
    orders = SourcePartition(1, "orders", encode("p"), encode(("/old/x", 1)))
    others = rest, orders, SourcePartition(2, "lines", encode(7))
    assert moved_partitions(others, {"lines"}, [("/old", "/new")]) == others


def test_a_file_that_is_gone_keeps_its_rest_beside_the_new_path(tmp_path: Path) -> None:
    _, rest = read(followed(tmp_path / "old" / "a.log", "one"), f"{tmp_path}/old/*")
    [moved] = moved_partitions([rest], {"lines"}, [(str(tmp_path / "old"), str(tmp_path / "new"))])
    assert moved.partition == rest.partition
    assert FilePosition.of(decode(moved.position or b"")).path == str(tmp_path / "new" / "a.log")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("limit", [1, 100])
def test_inodes_of_two_volumes_may_be_equal(tmp_path: Path, first: bool, limit: int) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _, rest = read(followed(old / "a.log", "one"), f"{old}/*")
    _, gone = read(followed(old / "gone.log", "x", "y", number=1), f"{old}/gone*", limit)
    shutil.copytree(old, new)
    os.unlink(new / "gone.log")
    gone = SourcePartition(gone.number, gone.input, encode((new / "a.log").stat().st_ino), gone.position)
    partitions = [rest, gone] if first else [gone, rest]
    if limit == 1:
        with pytest.raises(StoreUnfit, match=r"new/gone.log' has 2 bytes that were not read"):
            moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
    else:
        [moved] = moved_partitions(partitions, {"lines"}, [(str(old), str(new))])
        assert moved.number == rest.number


def test_a_file_that_was_never_opened_is_read_at_its_new_place(tmp_path: Path) -> None:
    unread = followed(tmp_path / "old" / "a.log", "one", "two")
    position = FilePosition(str(tmp_path / "old" / "a.log"), size=8)
    (tmp_path / "kept").hardlink_to(tmp_path / "old" / "a.log")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    shutil.rmtree(tmp_path / "old")
    moves = [(str(tmp_path / "old"), str(tmp_path / "new"))]
    [moved] = moved_partitions([replace(unread, position=encode(position.as_tuple()))], {"lines"}, moves)
    assert decode(moved.partition) == (tmp_path / "new" / "a.log").stat().st_ino
    assert read(moved, f"{tmp_path}/new/*")[0] == ["one", "two"]


def test_a_log_that_was_rotated_under_a_link_goes_on_in_a_copy(tmp_path: Path) -> None:
    lines, rest = read(followed(tmp_path / "old" / "log", "one"), f"{tmp_path}/old/*")
    (tmp_path / "kept").hardlink_to(tmp_path / "old" / "log")
    files, links = tmp_path / "files", tmp_path / "links"
    links.mkdir()
    followed(files / "log.1", "one", "two")
    followed(files / "log", "three")
    (links / "log").symlink_to("../files/log")
    [moved] = moved_partitions([rest], {"lines"}, [(str(tmp_path / "old"), str(links))])
    assert lines + read(moved, f"{links}/*")[0] == ["one", "two"]
