"""Copies of a store: a backup of all valid commits, or one checkpoint. The store's job may run meanwhile.

1. All segments are opened before the first one is copied (`reading`, rule 1). So the copy shows one moment, whatever
   the job removes.
2. Each segment is compared with its checksum on its way, so a damaged one is never copied.
3. Commits follow their segments, and the highest one, which names the others, precedes these. So an interrupted copy is
   no store, or one that counts as damaged; no job can resume from an older commit in it. Spark's record of its batches
   also precedes the commits. It is copied as of the newest batch in them: otherwise Spark would believe that a later
   answered batch is in the job. If the commit contains the record, no folder is copied (`query_record`).
4. A copy goes only into an empty folder. If it fails, everything that it has written is removed, with the lock, and the
   folder if it was made for the copy. A process that waits for that lock notices that its name is gone.

A job that begins with a checkpoint of another job, its `Origin`, has its own store: no file is in two stores.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from megaflow.durable.commits import Commit, OutputLength, commit_name, input_of, query_of
from megaflow.durable.inspection import StoreContent, chunks
from megaflow.durable.lineage import forked
from megaflow.durable.local_folder import LOCK, SPARK, LocalFolder, open_for_a_job, open_to_look
from megaflow.durable.query_record import files_as_of, recorded, write_record
from megaflow.durable.reading import find_checkpoint, open_commits
from megaflow.durable.relocation import file_of, relocate
from megaflow.durable.segments import SegmentRef, crc_of, damaged
from megaflow.durable.store import Store
from megaflow.errors import StoreDamaged, StoreError, naming


def open_to_copy(source: LocalFolder, chosen: int | str | None = None) -> Sequence[Commit]:
    """Open the commits to copy, all valid ones or one checkpoint's, with their segments; return them, oldest first.

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


def segments_of(commits: Sequence[Commit]) -> list[SegmentRef]:
    """Return the segments that commits name, each once, by name."""
    return sorted({each for commit in commits for each in commit.files}, key=lambda each: each.name)


def copy_store(
    source: LocalFolder,
    commits: Sequence[Commit],
    path: str,
    copied: Callable[[SegmentRef], None] = lambda segment: None,
) -> None:
    """Make a store from open commits in a new or empty folder; call `copied` after each segment.

    Raises StoreError if the folder is not empty or cannot be written to, StoreDamaged if a segment has changed since it
    was written. Costs two syncs per file, and memory for one segment.
    """
    check_empty(path)
    before = os.listdir(path) if os.path.isdir(path) else None
    with closing(Store(open_for_a_job(path))) as store, naming(StoreError, f"{path} cannot be written to", ""):
        check_empty(path)  # with the lock held, no other process makes a store there
        try:
            _put_segments(Store(source), commits, store, copied)
            _copy_records(source, commits[-1], path)
            _put_commits(commits, store)
        except BaseException:
            with suppress(OSError):
                store.delete(sorted(store.list(), reverse=True))
            shutil.rmtree(os.path.join(path, SPARK), ignore_errors=True)
            with suppress(OSError):
                if LOCK not in (before or ()):
                    os.unlink(os.path.join(path, LOCK))
                if before is None:
                    os.rmdir(path)
            raise


def _put_segments(
    source: Store, commits: Sequence[Commit], target: Store, copied: Callable[[SegmentRef], None]
) -> None:
    """Write the segments of commits to an empty store."""
    for segment in segments_of(commits):
        target.put(segment.name, read_whole(source, segment))
        copied(segment)


def _put_commits(commits: Sequence[Commit], target: Store) -> None:
    """Write commits, whose segments are there, to a store."""
    for commit in reversed(commits):
        if not target.commit(commit_name(commit.number), commit.to_bytes()):
            raise StoreError(f"another job has started with this store: {commit_name(commit.number)} exists")


def _copy_records(source: LocalFolder, commit: Commit, path: str) -> None:
    """Copy Spark's records of the queries in a commit."""
    for query, batch in commit.spark:
        record = Path(source.path, SPARK, query)
        if commit.record is None and record.is_dir():  # else a job that resumes from the copy reports it missing
            write_record(Path(path, SPARK, query), files_as_of(record, batch))


def check_empty(path: str) -> None:
    """Raise StoreError if a folder holds anything except a lock file."""
    names = os.listdir(path) if os.path.isdir(path) else []
    if any(name != LOCK for name in names):
        raise StoreError(f"{path} is not empty: name a new folder for the copy")


def read_whole(store: Store, segment: SegmentRef) -> list[bytes]:
    """Return a segment's content. Raises StoreDamaged if it has changed since it was written."""
    parts = list(chunks(store, segment))
    if crc_of(parts) != segment.crc or sum(map(len, parts)) != segment.length:
        raise damaged(segment.name, 0, "it does not have its length or checksum")
    return parts


def without_record(commit: Commit) -> str:
    """Return why Spark's record is not kept with a commit."""
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
    """A checkpoint of another store, with which the store of a new job begins. Call `close` after use."""

    def __init__(self, path: str, chosen: str, moved: Sequence[tuple[str, str]] = ()) -> None:
        """Open it; `chosen` is its name or number, `moved` is as in `relocation`.

        Raises StoreError if there is no such checkpoint; OSError.
        """
        self.path = path
        self.title = f"checkpoint {chosen} of {path}"
        self._folder: LocalFolder | None = open_to_look(path)
        try:
            self.commit = relocate(open_to_copy(self._folder, chosen)[0], moved, path)
            if recorded(self.commit) and self.commit.record is None:
                raise StoreError(f"{self.title} has read lines from Spark: {without_record(self.commit)}")
        except BaseException:
            self.close()
            raise

    @property
    def opened(self) -> tuple[tuple[str, int], ...]:
        """Its files and their descriptors; they stay open even if their job removes them."""
        return () if self._folder is None else self._folder.opened

    def check_output(self, name: str) -> None:
        """Raise StoreError if an output is a file of the other job."""
        path = file_of(name)
        if path and path in (file_of(said.output) for said in self.commit.outputs):
            raise StoreError(f"--output {name} is already the output of {self.title}: name another file")

    def copy_into(self, store: Store, outputs: tuple[OutputLength, ...], new_id: Callable[[], str]) -> Commit:
        """Write the first commit of a store, for a job with these outputs; return the commit.

        If the checkpoint has lines of Spark, queries of the job continue with them; `new_id` makes their ids. Files in
        the store come from an interrupted attempt and are removed. Raises StoreDamaged or OSError, and StoreError if
        another job has begun with the store.
        """
        assert self._folder is not None, "it is open"
        store.delete(store.list())
        names = {query: query_of(input_of(query), new_id()) for query in recorded(self.commit)}
        spark = tuple(sorted((names.get(query, query), batch) for query, batch in self.commit.spark))
        untaken = tuple(replace(each, query=names.get(each.query, each.query)) for each in self.commit.untaken)
        commit = replace(forked(self.commit), outputs=outputs, tokens=(), named=(), spark=spark, untaken=untaken)
        _put_segments(Store(self._folder), [commit], store, lambda segment: None)
        _put_commits([commit], store)
        return commit

    def close(self) -> None:
        """Close its files; further calls do nothing."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.close_folder()
