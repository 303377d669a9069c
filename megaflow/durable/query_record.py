"""Spark's record of a query, as of one batch: kept with a checkpoint that has a name, and written to other stores.

The record is the folder STORE/spark/QUERY, which Spark writes continuously. `offsets/B` contains the plan of batch B.
`commits/B` exists once the batch was answered. `sources/` has the known files, and `state/` the query's own states.
Spark writes each file under another name, renames it, and never changes it. It removes files that are a hundred batches
old.

1. The record as of batch B contains `offsets` and `commits` up to B, and all of `sources`. A crash between the plans of
   B and the next batch could leave exactly these files, so Spark can continue from them. Spark writes the files that it
   has found to `sources` before it plans with them. So the files of all batches up to B are there; additional files
   only wait for the next batch. `sources` has its own numbers. A crash between the two writes leaves them ahead of the
   batches' numbers, so a selection by number would lose lines.
2. Files are copied in the order of their folders' names, so commits come before states. If the copy has `commits/B`,
   then B + 1, the version of the states that B made, already exists. A checksum is copied only if its file was, so each
   file is read before its checksum. A file that was renamed meanwhile comes without one, which Spark accepts.
3. A checkpoint that is given a name gets a segment with all these files, before its commit. At that moment Spark has
   planned at most one batch after the commit's newest one, because only a later checkpoint answers that batch. So Spark
   has removed no needed file, and the reader does not race with it. The segment belongs to the commit like its others:
   it is durable before the commit, is verified and copied with it, and is removed with the last commit that names it.
4. The record of a query with its own states (for example, of duplicates that it drops) is not kept, because these may
   be large. So no other job can start from that checkpoint.
5. A commit that contains the record needs no folder: if the folder is missing, the launcher that takes the store over
   writes it, whole or not at all. So another job's store begins with such a commit. There the query has another name,
   and therefore another id: of two queries with one id, Spark would stop the first.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from uuid import UUID

from megaflow.durable.blocks import BlockKind, CutHeader, keys_of, pack, states_of
from megaflow.durable.commits import Commit
from megaflow.durable.local_folder import SPARK, sync_path
from megaflow.durable.segments import LAUNCHER, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import StoreError, naming

OFFSETS: Final = "offsets"
SOURCES: Final = "sources"
STATES: Final = "state"
ID: Final = "metadata"  # the file that contains the id
CHECKSUM: Final = ".crc"  # suffix: .NAME.crc has the checksum of the file NAME


def files_as_of(record: Path, newest: int) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of Spark's files, as of a batch. Raises OSError."""
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
                    continue  # removed meanwhile, because it is old
                if content is not None:
                    there.add(name)
                    yield os.path.relpath(os.path.join(path, name), record), content


def _is_in(name: str, limit: int | None) -> bool:
    """Return whether a file belongs to no later batch or version.

    >>> _is_in("8.compact", 8), _is_in("9", 8), _is_in("9", None), _is_in("schema", 8)
    (True, False, True, True)
    """
    number = name.partition(".")[0]
    return limit is None or not number.isdecimal() or int(number) <= limit


def keep_record(store: Store, path: str, commit: Commit) -> Commit:
    """Return a commit that contains the record of its query; write the record's segment to the store at this path.

    Return the commit unchanged if it has no batch, or because of rule 4. Cost: reads the record, and two syncs.
    Raises OSError with the file if one cannot be read, StoreError if the store cannot be written to.
    """
    for query, batch in commit.spark:
        record = Path(path, SPARK, query)
        os.stat(record / OFFSETS / str(batch))  # raises OSError if a user has removed it
        if (record / STATES).exists():
            break
        segment = SegmentWriter(CutHeader(commit.checkpoint, commit.time, None, LAUNCHER))
        for name, content in files_as_of(record, batch):
            segment.add(pack(BlockKind.FILE, "", None, [name], [content]))
        ref, parts = segment.finish(segment_name(commit.incarnation, LAUNCHER, commit.checkpoint))
        with naming(StoreError, f"the store {path} cannot be written to", ""):
            store.put(ref.name, parts)
        return replace(commit, record=ref)
    return commit


def kept_files(store: Store, commit: Commit) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the record in a commit. Raises StoreDamaged or OSError."""
    if (ref := commit.record) is not None:
        for block in ref.open(store.read).blocks():
            yield from zip(keys_of(block), states_of(block))


def is_restored(path: str, commit: Commit) -> bool:
    """Tell whether the record must be written from the commit, because the store at this path lacks it."""
    return commit.record is not None and not any(Path(path, SPARK, query).exists() for query, _ in commit.spark)


def restore_record(store: Store, path: str, commit: Commit) -> None:
    """Write the record's folder into the store at this path, if `is_restored`. Raises StoreDamaged or OSError."""
    if is_restored(path, commit):
        [(query, _)] = commit.spark
        write_record(Path(path, SPARK, query), with_id(query, kept_files(store, commit)))


def with_id(query: str, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a record with the id of the query of this name."""
    for name, content in files:
        if name == ID:
            yield name, json.dumps({"id": str(UUID(hex=query))}).encode()
        elif name != f".{ID}{CHECKSUM}":
            yield name, content


def write_record(record: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write the folder of a record, whole or not at all; it is durable when this returns. Raises OSError."""
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
