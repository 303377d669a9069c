"""Spark's records of queries, as of one batch: kept with a checkpoint that has a name, and written to other stores.

A record is the folder STORE/spark/QUERY, which Spark writes continuously. `offsets/B` contains the plan of batch B.
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
   be large. Then no record of the checkpoint is kept, so no other job can start from it.
5. A commit that contains the record needs no folder: if the folder is missing, the launcher that takes the store over
   writes it, whole or not at all. So another job's store begins with such a commit. There the query has another name,
   and therefore another id: of two queries with one id, Spark would stop the first.
6. One segment has the records of all queries. The files of each are below the name of its input, unless there is only
   one record. A batch DataFrame has no record, because its query has one batch only.
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
from megaflow.durable.commits import Commit, input_of, is_of_a_batch
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
    """Return a commit that contains the records of its queries; write their segment to the store at this path.

    Return the commit unchanged if it has no record, or because of rule 4. Cost: reads the records, and two syncs.
    Raises OSError with the file if one cannot be read, StoreError if the store cannot be written to.
    """
    records = {prefix: Path(path, SPARK, query) for query, prefix in _prefixes(commit).items()}
    newest = dict(commit.spark)
    for record in records.values():
        os.stat(record / OFFSETS / str(newest[record.name]))  # raises OSError if a user has removed it
    if not records or any((record / STATES).exists() for record in records.values()):
        return commit
    segment = SegmentWriter(CutHeader(commit.checkpoint, commit.time, None, LAUNCHER))
    for prefix, record in records.items():
        for name, content in files_as_of(record, newest[record.name]):
            segment.add(pack(BlockKind.FILE, "", None, [f"{prefix}{name}"], [content]))
    ref, parts = segment.finish(segment_name(commit.incarnation, LAUNCHER, commit.checkpoint))
    with naming(StoreError, f"the store {path} cannot be written to", ""):
        store.put(ref.name, parts)
    return replace(commit, record=ref)


def recorded(commit: Commit) -> list[str]:
    """Return the queries in a commit of which Spark keeps records."""
    return [query for query, _ in commit.spark if not is_of_a_batch(query)]


def _prefixes(commit: Commit) -> dict[str, str]:
    """Return the beginning of the names of each record's files in the segment, by query."""
    queries = recorded(commit)
    return {query: f"{input_of(query)}/" if len(queries) > 1 else "" for query in queries}


def kept_files(store: Store, commit: Commit) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the records in a commit. Raises StoreDamaged or OSError."""
    if (ref := commit.record) is not None:
        for block in ref.open(store.read).blocks():
            yield from zip(keys_of(block), states_of(block))


def to_restore(path: str, commit: Commit) -> list[str]:
    """Return the queries whose records must be written from the commit, because the store at this path lacks them."""
    return [] if commit.record is None else [e for e in recorded(commit) if not Path(path, SPARK, e).exists()]


def restore_records(store: Store, path: str, commit: Commit) -> None:
    """Write the folders of the records `to_restore` into the store at this path. Raises StoreDamaged or OSError."""
    prefixes = _prefixes(commit)
    for query in to_restore(path, commit):
        begin = prefixes[query]
        own = ((name.removeprefix(begin), file) for name, file in kept_files(store, commit) if name.startswith(begin))
        write_record(Path(path, SPARK, query), with_id(query, own))


def with_id(query: str, files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a record with the id of the query of this name."""
    for name, content in files:
        if name == ID:
            yield name, json.dumps({"id": str(UUID(hex=query.rpartition("-")[2]))}).encode()
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
