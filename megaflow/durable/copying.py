"""A copy of a store: a backup of all that counts, or one checkpoint of it; the job of the store may go on meanwhile.

1. All segments that are to be copied are open before the first is copied (`reading`, rule 1): so the copy is of one
   moment, whatever the job removes.
2. A segment is compared with its checksum on its way: a damaged one is never copied.
3. Commits come after their segments, the highest one, which names the others, before these. So a copy that was broken
   off is no store, or one that is called damaged; it is never one that goes on from something older.
   Spark's record of what its batches hold comes before them, too, as of the newest batch that they have: of a later one
   that was answered Spark would think that it is in. If the commit has it, that is enough (`query_record`).
4. Nothing is written into a folder that holds anything. What was written is removed again if something fails, with the
   lock, and the folder if it was made for that: whoever waits for that lock sees that its name is gone.

A job that begins with a checkpoint of another one, its `Origin`, has a store of its own: no file is in two stores.
"""

import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from megaflow.durable.commits import Commit, OutputLength, commit_name
from megaflow.durable.inspection import StoreContent, chunks
from megaflow.durable.local_folder import LOCK, SPARK, LocalFolder, open_for_a_job, open_to_look
from megaflow.durable.query_record import files_as_of, write_record
from megaflow.durable.reading import find_checkpoint, open_commits
from megaflow.durable.segments import SegmentRef, damaged
from megaflow.durable.store import FolderStore, Store
from megaflow.errors import StoreDamaged, StoreError


def open_to_copy(source: LocalFolder, chosen: int | str | None = None) -> Sequence[Commit]:
    """Open what is to be copied: all that counts, or one checkpoint; return its commits, oldest first.

    Raises StoreError if there is no such checkpoint, StoreDamaged, OSError.
    """

    def select(content: StoreContent) -> Sequence[Commit]:
        if chosen is not None:
            commit = find_checkpoint(source.path, content, chosen)
            return [replace(commit, kept=(), named=tuple(each for each in commit.named if each[1] == commit.number))]
        if content.damage:
            raise StoreDamaged("; ".join(content.damage))
        return content.commits

    return open_commits(source, select)


def file_of(output: str) -> str:
    """Return the path of the file that is an output, as stores call that; "" if it is none.

    >>> file_of("late=jsonl:/data/late.jsonl"), file_of("-")
    ('/data/late.jsonl', '')
    """
    head, _, path = output.partition(":")
    return path if head.rpartition("=")[2] in ("jsonl", "csv") else ""


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
    before = os.listdir(path) if os.path.isdir(path) else None
    folder = open_for_a_job(path)
    try:
        check_empty(path)  # by now nobody else makes a store there
        store = FolderStore(folder)
        try:
            _write(FolderStore(source), commits, store, copied, partial(_copy_records, source, commits[-1], path))
        except BaseException:
            with contextlib.suppress(OSError):
                store.delete(sorted(store.list(), reverse=True))
            shutil.rmtree(os.path.join(path, SPARK), ignore_errors=True)
            with contextlib.suppress(OSError):
                if LOCK not in (before or ()):
                    os.unlink(os.path.join(path, LOCK))
                if before is None:
                    os.rmdir(path)
            raise
    except OSError as error:
        raise StoreError(f"{path} cannot be written to: {error.strerror}") from error
    finally:
        folder.close_folder()


def _write(
    source: Store,
    commits: Sequence[Commit],
    target: Store,
    copied: Callable[[SegmentRef], None] = lambda segment: None,
    before_commits: Callable[[], None] = lambda: None,
) -> None:
    """Put segments, and then commits, into a store that is empty."""
    for segment in segments_of(commits):
        target.put(segment.name, read_whole(source, segment))
        copied(segment)
    before_commits()
    for commit in reversed(commits):
        if not target.commit(commit_name(commit.number), commit.to_bytes()):
            raise StoreError(f"another job has started with this store: {commit_name(commit.number)} exists")


def _copy_records(source: LocalFolder, commit: Commit, path: str) -> None:
    """Copy what Spark has recorded of the queries of a commit."""
    for query, batch in commit.spark:
        record = Path(source.path, SPARK, query)
        if commit.record is None and record.is_dir():  # else a job that goes on from the copy says that it is missing
            write_record(Path(path, SPARK, query), files_as_of(record, batch))


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


def without_record(commit: Commit) -> str:
    """Say why Spark's record is not kept with a commit."""
    if any(number == commit.number for _, number in commit.named):
        return (
            "its query had states of its own, or an earlier megaflow took the checkpoint: a checkpoint does not "
            "contain such states, so no other job can start from it"
        )
    return (
        "only a checkpoint with a name contains the progress of Spark's query: take one with megaflow control "
        "checkpoint --name NAME"
    )


class Origin:
    """A checkpoint of another store, with which the store of a new job begins. To be closed."""

    def __init__(self, path: str, chosen: str) -> None:
        """Open it; `chosen` is its name or number. Raises StoreError if there is no such one; OSError."""
        self.path = path
        self.title = f"checkpoint {chosen} of {path}"
        self._folder: LocalFolder | None = open_to_look(path)
        try:
            self.commit = open_to_copy(self._folder, chosen)[0]
            if self.commit.spark and self.commit.record is None:
                raise StoreError(f"{self.title} has read lines from Spark: {without_record(self.commit)}")
        except BaseException:
            self.close()
            raise

    @property
    def opened(self) -> tuple[tuple[str, int], ...]:
        """Its files, which stay open whatever their job removes, and their descriptors."""
        return () if self._folder is None else self._folder.opened

    def check_output(self, name: str) -> None:
        """Raise StoreError for an output that is the other job's file."""
        path = file_of(name)
        if path and path in (file_of(said.output) for said in self.commit.outputs):
            raise StoreError(f"--output {name} is already the output of {self.title}: name another file")

    def copy_into(self, store: Store, outputs: tuple[OutputLength, ...], query: str) -> Commit:
        """Begin a store that has no commit, for a job with these outputs; return its commit.

        If it has lines of Spark, the job's `query` goes on with them. What is there is of an attempt that was broken
        off, and removed. Raises StoreDamaged or OSError, StoreError if another job has begun with the store.
        """
        assert self._folder is not None, "it is open"
        store.delete(store.list())
        spark = tuple((query, batch) for _, batch in self.commit.spark)
        commit = replace(self.commit, outputs=outputs, tokens=(), named=(), spark=spark)
        _write(FolderStore(self._folder), [commit], store)
        return commit

    def close(self) -> None:
        """Let go of it, once or again."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close_folder()
