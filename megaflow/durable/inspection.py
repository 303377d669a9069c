"""Content and damage of a store, for `megaflow state`, whether or not a job uses the store.

The highest commit names the others that count. If it cannot be read, the next lower one takes its place: a user can
then look at the sound parts, and begin another job with a sound checkpoint by number or name. Damage is reported, and
no job resumes from a damaged store. A running job removes commits, and then the segments that only these named. So a
missing file counts as damage only if the commit that names it still exists after the file was missed.
"""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from shlex import quote

from megaflow.durable.commits import Commit, commit_name, commit_numbers
from megaflow.durable.incarnation import check_present, is_newer, missing, read_commit
from megaflow.durable.segments import SegmentRef, crc_of, damaged
from megaflow.durable.store import Store
from megaflow.errors import StoreDamaged, StoreError
from megaflow.quick_dataclass import dataclass

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreContent:
    """Content of a store."""

    commits: tuple[Commit, ...]  # the valid ones, oldest first
    bytes: int  # of all files
    unnamed: tuple[str, ...]  # files that no commit names: under way, given up, or left by an earlier launcher
    damage: tuple[str, ...]  # in whole sentences
    newest: Commit | None  # the highest commit of all; None: there is none, or it cannot be read
    whole: int | None = None  # the newest checkpoint without damage; None: there is none, or it needs `verify`


def inspect(store: Store) -> StoreContent:
    """Read all commits. Raises OSError."""
    while True:
        files = store.list()
        numbers = commit_numbers(files)
        commits: dict[int, Commit] = {}
        damage = []
        lower = list(numbers)
        pending = [head := lower.pop()] if lower else []
        while pending:
            number = pending.pop()
            try:
                commits[number] = commit = read_commit(store, number)
                pending += [each for each in commit.others if number == head]
            except FileNotFoundError:
                if head == numbers[-1]:  # else the highest commit may have led to its removal
                    damage.append(str(missing(head, commit_name(number))))
            except StoreError as error:
                damage.append(str(error))
                if number == head and lower:
                    pending.append(head := lower.pop())
        if not (damage and is_newer(store, numbers)):
            break  # else the job that uses the store has removed the missing file
    named = {segment.name for commit in commits.values() for segment in commit.files}
    named.update(map(commit_name, commits))
    unnamed = sorted(files.keys() - named)
    in_order = tuple(commits[number] for number in sorted(commits))
    newest = commits.get(numbers[-1]) if numbers else None
    return StoreContent(in_order, sum(files.values()), tuple(unnamed), tuple(damage), newest)


def verify(store: Store, checked: Callable[[SegmentRef], None] = lambda segment: None) -> StoreContent:
    """Read all commits and all bytes of each segment; call `checked` after each segment. Raises OSError."""
    content = inspect(store)
    damage = list(content.damage)
    lengths = store.list()
    seen: set[SegmentRef] = set()
    wrong: set[SegmentRef] = set()
    for commit in reversed(content.commits):
        for segment in (each for each in commit.files if each not in seen):
            seen.add(segment)
            try:
                check_present(commit, segment, lengths)
                verify_segment(store, segment)
            except (FileNotFoundError, StoreError) as error:
                if commit_name(commit.number) in store.list():
                    wrong.add(segment)
                    is_gone = isinstance(error, FileNotFoundError)
                    damage.append(str(missing(commit.number, segment.name) if is_gone else error))
            checked(segment)
    newest = {commit.checkpoint: commit for commit in content.commits}  # of several commits, a user gets the last
    whole = (number for number, commit in newest.items() if number and wrong.isdisjoint(commit.files))
    return replace(content, damage=tuple(damage), whole=max(whole, default=None))


def way_out(path: str, content: StoreContent) -> str:
    """Return how a job can go on from a damaged store without a backup, "" if it cannot; `content` is of `verify`."""
    if not content.damage or content.whole is None:
        return ""
    return (
        f"Checkpoint {content.whole} is the newest that is whole. To go on from there, copy it to a new folder by "
        f"megaflow state copy {quote(path)} NEW --checkpoint {content.whole}, and give --state NEW"
    )


@contextmanager
def naming_way_out(store: Store, path: str) -> Iterator[None]:
    """Add to a StoreDamaged how the job can go on without a backup. Cost, after such an error: reads the store."""
    try:
        yield
    except StoreDamaged as error:
        found = ""
        with suppress(OSError):
            found = way_out(path, verify(store))
        if not found:
            raise
        raise StoreDamaged(f"{error}. {found}") from error


def check_whole(store: Store, commit: Commit) -> None:
    """Raise StoreDamaged, with the file and the place, if any segment of a commit has changed since it was written.

    Raises OSError for an unreadable segment. Cost: reads each once, and takes 0.4 s per gigabyte in addition to the
    disk, a thirtieth of the time to restore it.
    """
    for segment in commit.files:
        crc = length = 0
        for chunk in chunks(store, segment):
            crc, length = zlib.crc32(chunk, crc), length + len(chunk)
        if (crc, length) != (segment.crc, segment.length):
            verify_segment(store, segment)  # finds the place
            raise damaged(segment.name, 0, "it does not have its length or checksum")


def verify_segment(store: Store, segment: SegmentRef) -> None:
    """Read all of a segment. Raises StoreDamaged with the file and the place, StoreError for another version; OSError.

    Cost: reads it twice, the second time without the disk.
    """
    reader = segment.open(store.read)
    keys = sum(block.count for block in reader.blocks())
    crc = crc_of(chunks(store, segment))
    if (crc, keys, reader.header.number) != (segment.crc, segment.keys, segment.checkpoint):
        raise damaged(segment.name, 0, "it is a segment, but not the one that the commit names")


def chunks(store: Store, segment: SegmentRef) -> Iterator[bytes]:
    """Read a segment, a megabyte at a time."""
    for start in range(0, segment.length, _CHUNK_BYTES):
        yield store.read(segment.name, start, _CHUNK_BYTES)
