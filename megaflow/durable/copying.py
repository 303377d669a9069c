"""A copy of a store: a backup of all that counts, or one checkpoint of it; the job of the store may go on meanwhile.

1. All segments that are to be copied are open before the first is copied (`reading`, rule 1): so the copy is of one
   moment, whatever the job removes.
2. A segment is compared with its checksum on its way: a damaged one is never copied.
3. Commits come after their segments, the highest one, which names the others, before these. So a copy that was broken
   off is no store, or one that is called damaged; it is never one that goes on from something older.
   Spark's record of what its batches hold comes before them, too, up to the newest batch that they have: of a later one
   that was answered Spark would think that it is in.
4. Nothing is written into a folder that holds anything. What was written is removed again if something fails.
"""

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from megaflow.durable.commits import Commit, commit_name
from megaflow.durable.inspection import StoreContent, chunks
from megaflow.durable.local_folder import LOCK, SPARK, LocalFolder, open_for_a_job
from megaflow.durable.reading import find_checkpoint, open_commits
from megaflow.durable.segments import SegmentRef, damaged
from megaflow.durable.store import FolderStore, Store
from megaflow.errors import StoreDamaged, StoreError


def open_to_copy(source: LocalFolder, chosen: int | None = None) -> Sequence[Commit]:
    """Open what is to be copied: all that counts, or one checkpoint; return its commits, oldest first.

    Raises StoreError if there is no such checkpoint, StoreDamaged, OSError.
    """

    def select(content: StoreContent) -> Sequence[Commit]:
        if chosen is not None:
            return [replace(find_checkpoint(source.path, content, chosen), kept=())]
        if content.damage:
            raise StoreDamaged("; ".join(content.damage))
        return content.commits

    return open_commits(source, select)


def segments_of(commits: Sequence[Commit]) -> list[SegmentRef]:
    """Return the segments that commits name, each once, by name."""
    return sorted({each for commit in commits for each in commit.files}, key=lambda each: each.name)


def copy_store(
    source: LocalFolder,
    commits: Sequence[Commit],
    path: str,
    copied: Callable[[SegmentRef], None] = lambda segment: None,
) -> None:
    """Make a store in a new or empty folder, of commits that are open; `copied` is called after each segment.

    Raises StoreError if the folder is not empty or cannot be written to, StoreDamaged if a segment is not as it was
    written. Costs two syncs for each file; in memory there is one segment.
    """
    check_empty(path)
    folder = open_for_a_job(path)
    written: list[str] = []
    try:
        check_empty(path)  # by now nobody else makes a store there
        store = FolderStore(folder)
        try:
            for segment in segments_of(commits):
                written.append(segment.name)
                store.put(segment.name, read_whole(FolderStore(source), segment))
                copied(segment)
            for query, batch in commits[-1].spark:
                record = Path(source.path, SPARK, query)
                if record.is_dir():  # else a job that goes on from the copy says that it is not there
                    copy_record(record, Path(path, SPARK, query), batch)
            for commit in reversed(commits):
                written.append(commit_name(commit.number))
                store.commit(commit_name(commit.number), commit.to_bytes())
        except BaseException:
            with contextlib.suppress(OSError):
                store.delete(reversed(written))
            shutil.rmtree(os.path.join(path, SPARK), ignore_errors=True)
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written to: {error.strerror}") from error
    finally:
        folder.close_folder()


def copy_record(source: Path, target: Path, newest: int) -> None:
    """Copy the folder of Spark's record of a query, but for batches after the newest. Raises OSError."""
    target.mkdir(mode=0o700, parents=True)
    for entry in os.scandir(source):
        number = entry.name.removeprefix(".").partition(".")[0]
        if entry.is_dir(follow_symlinks=False):
            copy_record(Path(entry.path), target / entry.name, newest)
        elif not number.isdecimal() or int(number) <= newest:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, as it is old
                shutil.copyfile(entry.path, target / entry.name, follow_symlinks=False)


def check_empty(path: str) -> None:
    """Raise StoreError if a folder holds anything but the file of a lock."""
    names = os.listdir(path) if os.path.isdir(path) else []
    if any(name != LOCK for name in names):
        raise StoreError(f"{path} is not empty: name a new folder for the copy")


def read_whole(store: Store, segment: SegmentRef) -> list[bytes]:
    """Return a segment's content. Raises StoreDamaged if it is not as it was written."""
    parts = list(chunks(store, segment))
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    if crc != segment.crc or sum(map(len, parts)) != segment.length:
        raise damaged(segment.name, 0, "it does not have its length or checksum")
    return parts
