"""Followed files that were copied to another volume, or restored at their places: they have other inodes.

A followed file is identified by its inode (`megaflow.job.files.followed_files`). So a copy counts as another file and
is read from its beginning. `--relocate OLD=NEW` gives the present place of a store's files; OLD and NEW are the same if
the files were restored there. Without this option, the job reports such files.

1. A file at the new path continues the recorded file if it has the bytes that were read: those at its beginning, and
   those before the position. A rotation may have renamed the file since its path was recorded, so its successor may
   have that path now. If the path has a different file, a file beside it may match instead: it has the bytes that were
   read, and a name that begins alike. Files with the most bytes read are matched first.
2. If no file is found, the record keeps its inode and gets the new path, so that the rest is found in a compressed copy
   beside it. But the run is refused if there is no copy and the file at the new path continues no recorded file,
   because that file would not continue what was read.
3. Inode numbers of two volumes are unrelated. If a recorded file has the same number as another file's copy, it is not
   on the new volume. It is dropped if it was read to its end; otherwise the run is refused. It is also refused if the
   dropped file is at its path with another number, because it would be read again: two files have exchanged theirs.
4. Without the option, a file at a recorded path is reported if it has the bytes that were read there, but another
   inode. Restored files often exchange their inodes, because a file system gives the numbers of removed files to new
   ones. So a file whose inode belongs to another record is reported as well, unless it has the bytes of that record.
   It may then be that file, renamed by a rotation. No file continues by itself: a new log may begin like the old one.
"""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from megaflow.durable.commits import SourcePartition
from megaflow.durable.relocation import is_named, relocated
from megaflow.errors import StoreUnfit
from megaflow.job.files.file_position import SAMPLE_BYTES, FilePosition, digest, tail_of, targets
from megaflow.job.files.rotated_copy import find_copy
from megaflow.job.formats.compression import has_suffix
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

Place: TypeAlias = tuple[str, int]  # path and inode


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A recorded file whose path has changed."""

    unread: SourcePartition
    seen: FilePosition  # as recorded
    now: FilePosition  # with the new path


def moved_partitions(
    partitions: Iterable[SourcePartition], inputs: Collection[str], moved: Sequence[tuple[str, str]]
) -> tuple[SourcePartition, ...]:
    """Return the rest of each partition. For followed `inputs` it names the present places of their files.

    `moved` has pairs of an old path, as in the store, and a new path. Raises StoreUnfit by rules 2 and 3. Cost: reads
    two samples of each file that has moved, and of files that a rotation may have made from it.
    """
    partitions = tuple(partitions)
    files = {
        each.number: MovedFile(each, seen, replace(seen, path=relocated(seen.path, moved), target=""))
        for each in partitions if each.input in inputs and each.position is not None
        if is_named((seen := FilePosition.of(decode(each.position))).path, moved)
    }  # fmt: skip
    places = _places(files.values())
    _check_places(files.values(), places)
    found: dict[tuple[str, bytes], SourcePartition] = {}
    for each in partitions:
        now = each if each.number not in files else _moved(files[each.number], places.get(each.number))
        key = now.input, now.partition
        if key in found:
            now = _chosen(found[key], now, is_new=now.partition != each.partition)
        found[key] = now
    return tuple(found.values())


def copies(partitions: Collection[SourcePartition], inputs: Collection[str]) -> Iterator[str]:
    """Yield what to tell the user of copies at the paths of files of followed `inputs`, which will be read again.

    See rule 4. Cost: looks at each path, and reads two samples of each file that has another inode now, or four.
    """
    positions = {
        (each.input, each.partition): FilePosition.of(decode(each.position))
        for each in partitions if each.input in inputs and each.position is not None
    }  # fmt: skip
    for file, seen in positions.items():
        for path, inode in _file_at(seen.path) if seen.offset else ():
            now = file[0], encode(inode)
            if now != file and not _continues(path, positions.get(now)) and _has_what_was_read(path, seen):
                yield (
                    f"{path!r} has another inode than before, so it is a new file and is read from its beginning, with "
                    f"the {seen.offset} bytes that were read of the old one. If it is the same file, restored or "
                    f"copied, stop the job, restore a copy of the store, and give --relocate {path}={path}"
                )


def _moved(file: MovedFile, place: Place | None) -> SourcePartition:
    partition, seen = file.unread, file.now
    if place is not None:
        seen = replace(seen, path=place[0], is_removed=False)
        partition = replace(partition, partition=encode(place[1]))
    return replace(partition, position=encode(seen.as_tuple()))


def _places(files: Collection[MovedFile]) -> dict[int, Place]:
    """Return the places of recorded files that are found, by the number of their partition; see rule 1."""
    places: dict[int, Place] = {}
    taken: set[tuple[str, int]] = set()  # input and inode
    by_offset = sorted(files, key=lambda each: -each.now.offset)
    for find in (_own, _at_path, _beside, _truncated):
        for each in by_offset:
            input, number = each.unread.input, each.unread.number
            candidates = find(each) if number not in places else ()
            place = next((place for place in candidates if (input, place[1]) not in taken), None)
            if place is not None:
                places[number] = place
                taken.add((input, place[1]))
    return places


def _own(file: MovedFile) -> Iterator[Place]:
    """Yield the place of the recorded file itself, if its folder was renamed on the same volume."""
    inode = decode(file.unread.partition)
    yield from (place for place in chain(_at_path(file), _beside(file)) if place[1] == inode)


def _at_path(file: MovedFile) -> Iterator[Place]:
    """Yield the place of the file at the new path if it has the bytes that were read."""
    yield from (place for place in _file_at(file.now.path) if _has_what_was_read(place[0], file.now))


def _beside(file: MovedFile) -> Iterator[Place]:
    """Yield the places of files that a rotation may have made from a file that was partly read."""
    for target in targets(file.now.path) if file.now.offset else ():
        folder, name = os.path.split(target)
        stem = os.path.splitext(name)[0]
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for path in (os.path.join(folder, each) for each in names if each.startswith(stem) and not has_suffix(each)):
            yield from (place for place in _file_at(path) if _has_what_was_read(path, file.now))


def _truncated(file: MovedFile) -> Iterator[Place]:
    """Yield the place of the file at the new path if it has the recorded inode; it was truncated and begins anew."""
    yield from (place for place in _file_at(file.now.path) if place[1] == decode(file.unread.partition))


def _file_at(path: str) -> Iterator[Place]:
    try:
        status = os.stat(path)
    except OSError:
        return
    if stat.S_ISREG(status.st_mode):
        yield path, status.st_ino


def _check_places(files: Iterable[MovedFile], places: Mapping[int, Place]) -> None:
    """Raise StoreUnfit if the file at a new path continues no recorded file, and there is no copy; see rule 2."""
    files = tuple(files)
    taken = {(each.unread.input, places[each.unread.number][1]) for each in files if each.unread.number in places}
    for each in files:
        if each.unread.number in places:
            continue
        is_other = any((each.unread.input, inode) not in taken for _, inode in _file_at(each.now.path))
        if is_other and not _has_copy(each.now):
            raise StoreUnfit(
                f"{each.now.path!r} does not have the bytes that were read of {each.seen.path!r}, so it cannot take "
                "its place. Copy the file again, or leave out the flag that names it."
            )


def _has_copy(seen: FilePosition) -> bool:
    copy = find_copy(seen)
    if copy is not None:
        copy.close()
    return copy is not None


def _has_what_was_read(path: str, seen: FilePosition) -> bool:
    """Return whether a file begins with the bytes that were seen and has the bytes before the position."""
    if seen.offset and tail_of(path, seen.offset) != seen.tail:
        return False
    try:
        with open(path, "rb") as file:
            is_unknown = not (seen.size and seen.head)
            return is_unknown or digest(file.read(min(seen.size or 0, SAMPLE_BYTES))) == seen.head
    except OSError:
        return False


def _continues(path: str, recorded: FilePosition | None) -> bool:
    """Return whether a file is the one that was recorded with its inode, as far as its bytes show."""
    return recorded is not None and bool(recorded.offset or recorded.head) and _has_what_was_read(path, recorded)


def _chosen(one: SourcePartition, other: SourcePartition, is_new: bool) -> SourcePartition:
    """Return which of two files with the same inode number to keep; see rule 3.

    With `is_new`, `other` received the number on the new volume; otherwise `one` did.
    """
    kept, dropped = (other, one) if is_new else (one, other)
    seen = FilePosition.of(None if dropped.position is None else decode(dropped.position))
    for path, inode in _file_at(seen.path) if seen.offset else ():
        if encode(inode) not in (dropped.partition, kept.partition) and _has_what_was_read(path, seen):
            raise StoreUnfit(
                f"{path!r} has another inode than before, as the other file has that one now, so it would be read "
                f"again. Also give --relocate {path}={path}, or name the folder of both."
            )
    if (seen.size or 0) > seen.offset:
        raise StoreUnfit(
            f"{seen.path!r} has {seen.size - seen.offset if seen.size else 0} bytes that were not read, and is not "
            "where the other files of the store are now. Put it there, then run the same command."
        )
    return kept
