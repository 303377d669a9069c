"""Spark's record of a query, as of one of its batches: kept with a checkpoint that has a name, put into other stores.

The record is the folder STORE/spark/QUERY that Spark writes, and goes on writing. What a batch has is in `offsets/B`,
that it was answered in `commits/B`, which files there are in `sources/`, what the query itself keeps in `state/`. Each
file is written under another name, renamed, and never changed; Spark removes those that are a hundred batches old.

1. As of batch B are what `offsets` and `commits` have up to B, and `sources` whole. That is what a crash could leave
   after B was planned, before the next one was. Of the sources Spark writes what it has found before it plans with it,
   so what a batch up to B has is there; more than that only waits for the next batch. Their files are numbered for
   themselves: after a crash in between their numbers are ahead of the batches', and to go by these would lose lines.
2. Files come in the order of their folders' names, commits before states: if B counts as answered, the version of the
   states that it has made, B + 1, was there before. Of a checksum whose file has not come nothing is wanted, so each
   file is read before its checksum: one that was renamed meanwhile comes without, which Spark does not mind.
3. A checkpoint that is given a name gets a segment with all that, before its commit. Then Spark has planned one batch
   more than the commit names, at most, since that one would be answered by a later checkpoint: so it has removed
   nothing of what is needed, and who reads does not race with it. The segment is the commit's as its others are: it is
   durable before, is verified and copied as they are, and goes with the last commit that names it.
4. A query that keeps states of its own (of duplicates that it drops, say) is not kept so, since they may be large; then
   no other job can go on from the checkpoint.
5. A commit that has the record needs no folder: whoever takes the store over makes it, whole or not at all, if it is
   not there. So another job's store begins with such a commit. There the query has another name, and with that another
   id: of two with one id Spark would stop the first.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

from megaflow.durable.blocks import BlockKind, CutHeader, keys_of, pack, states_of
from megaflow.durable.commits import Commit
from megaflow.durable.local_folder import SPARK
from megaflow.durable.segments import LAUNCHER, SegmentReader, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import StoreError

OFFSETS: Final = "offsets"
SOURCES: Final = "sources"
STATES: Final = "state"
ID: Final = "metadata"  # the file that has it
CHECKSUM: Final = ".crc"  # of the file NAME in .NAME.crc


def files_as_of(record: Path, newest: int) -> Iterator[tuple[str, bytes]]:
    """Yield the files that Spark has, names and contents, as of a batch. Raises OSError."""
    for folder in sorted(record.iterdir()):
        if folder.is_file():
            yield folder.name, folder.read_bytes()
            continue
        limit = {SOURCES: None, STATES: newest + 1}.get(folder.name, newest)
        for path, _, names in os.walk(folder):
            there = set()
            for name in sorted(names, key=lambda name: (name.startswith("."), name)):
                is_wanted = name[1:].removesuffix(CHECKSUM) in there if name.startswith(".") else _is_in(name, limit)
                try:
                    content = Path(path, name).read_bytes() if is_wanted else None
                except FileNotFoundError:
                    continue  # removed meanwhile, as it is old
                if content is not None:
                    there.add(name)
                    yield os.path.relpath(os.path.join(path, name), record), content


def _is_in(name: str, limit: int | None) -> bool:
    """Whether a file is of no later batch or version.

    >>> _is_in("8.compact", 8), _is_in("9", 8), _is_in("9", None), _is_in("schema", 8)
    (True, False, True, True)
    """
    number = name.partition(".")[0]
    return limit is None or not number.isdecimal() or int(number) <= limit


def keep_record(store: Store, path: str, commit: Commit) -> Commit:
    """Return a commit that has the record of its query, for which it puts a segment into the store, at this path.

    It has none if it has no batch, or as rule 4 says. Cost: reads the record, and two syncs. Raises OSError with the
    file if that cannot be read, StoreError if the store cannot be written to.
    """
    for query, batch in commit.spark:
        record = Path(path, SPARK, query)
        os.stat(record / OFFSETS / str(batch))  # else somebody has removed it
        if (record / STATES).exists():
            break
        segment = SegmentWriter(CutHeader(commit.checkpoint, commit.time, None, LAUNCHER))
        for name, content in files_as_of(record, batch):
            segment.add(pack(BlockKind.FILE, "", None, [name], [content]))
        ref, parts = segment.finish(segment_name(commit.incarnation, LAUNCHER, commit.checkpoint))
        try:
            store.put(ref.name, parts)
        except OSError as error:
            raise StoreError(f"the store {path} cannot be written to: {error.strerror}") from error
        return replace(commit, record=ref)
    return commit


def kept_files(store: Store, commit: Commit) -> Iterator[tuple[str, bytes]]:
    """Yield what a commit has kept of the record of its query. Raises StoreDamaged or OSError."""
    if (ref := commit.record) is not None:
        for block in SegmentReader(ref.name, partial(store.read, ref.name), ref.length).blocks():
            yield from zip(keys_of(block), states_of(block))


def is_restored(path: str, commit: Commit) -> bool:
    """Tell whether the commit has the record, and the store at this path has not: then it is made of that."""
    return commit.record is not None and not any(Path(path, SPARK, query).exists() for query, _ in commit.spark)


def restore_record(store: Store, path: str, commit: Commit) -> None:
    """Make the folder of the record in the store at this path, if `is_restored`. Raises StoreDamaged or OSError."""
    if is_restored(path, commit):
        [(query, _)] = commit.spark
        write_record(Path(path, SPARK, query), with_id(query, kept_files(store, commit)))


def with_id(query: str, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a record for the query of this name."""
    for name, content in files:
        if name == ID:
            yield name, json.dumps({"id": str(UUID(hex=query))}).encode()
        elif name != f".{ID}{CHECKSUM}":
            yield name, content


def write_record(record: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Make the folder of a record of such files, whole or not at all; durable when this returns. Raises OSError."""
    record.parent.mkdir(mode=0o700, exist_ok=True)
    part = record.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    for name, content in files:
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sync_path(path)
    for folder, _, _ in os.walk(part):
        sync_path(folder)
    part.rename(record)
    for above in record.parents[:2]:
        sync_path(above)


def sync_path(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
