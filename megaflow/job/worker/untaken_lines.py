"""Spark's lines, or rows, committed at a worker before a checkpoint and not taken in: copied, written, read back.

1. A copy is made by the worker's thread, between two steps of its source, and costs no more than a list of what is
   there: texts do not change, and of what is in files it has descriptors of its own. The thread that writes reads them.
2. It is written as segments that have nothing else, whole by each checkpoint: what is written counts for that one only.
   What that may cost is bounded as that of all checkpoints is, by their pace.
3. A job that goes on gives the lines of each worker of the one before to one of its own, in their order: so a partition
   is still read in order. They are staged there as a task would stage them, under a run of their own, and committed by
   one command under the name of the newest batch: see `control.coordinator.spark_commits`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from megaflow.control.messages import CommitBatch, Split
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.blocks import BlockKind, CutHeader, keys_of, pack, states_of
from megaflow.durable.commits import Commit, Portion, UntakenLines
from megaflow.durable.segments import SegmentReader, SegmentWriter
from megaflow.durable.store import Store
from megaflow.job.worker.staged_units import Content, Mark, records_in
from megaflow.quick_dataclass import dataclass

RUN: Final = "before"  # of no call of foreachBatch: those have names of their own
ATTEMPT: Final = 0

Place: TypeAlias = tuple[int, int, int]
"""Descriptor, start and size in bytes."""
Chunk: TypeAlias = tuple[Content | Place, Mark]
"""A unit (see `staged_units`): its content, or where that is; and its mark."""


@dataclass(eq=False)
class LinesCopy:
    """Lines as they were at one moment; to be closed."""

    lines: int
    chunks: list[Chunk]
    files: list[int]  # descriptors

    def units(self) -> Iterator[tuple[Content, Mark]]:
        """Yield each unit, its content and its mark. Raises OSError."""
        for content, mark in self.chunks:
            yield read_content(content, mark) if isinstance(content, tuple) else content, mark

    def close(self) -> None:
        """Let go of the files."""
        while self.files:
            os.close(self.files.pop())


@dataclass(frozen=True, slots=True)
class LinesCut:
    """What a source has not taken in at a checkpoint, to be written."""

    number: int
    time: int  # the checkpoint's epoch
    splits: tuple[Split, ...]  # told with it
    copy: LinesCopy
    portions: tuple[Portion, ...] = ()  # told with it, too


def content_bytes(content: Content) -> bytes:
    """Return the content of a unit as it is in a file."""
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def read_content(place: Place, mark: Mark) -> Content:
    """Return the content of a unit that is in a file. Raises OSError."""
    file, start, size = place
    parts = []
    while size and (part := os.pread(file, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    data = b"".join(parts)
    return data if isinstance(mark, int) else data.decode("utf-8", "surrogatepass")


def write_lines(
    cut: LinesCut, worker: int, store: Store, next_name: Callable[[], str], segment_bytes: int
) -> tuple[UntakenLines, ...]:
    """Put the lines into the store, a segment after the other; they are durable then. Raises OSError."""
    written: list[UntakenLines] = []
    header = CutHeader(cut.number, cut.time, None, worker)
    segment, lines = SegmentWriter(header), 0

    def put() -> None:
        ref, parts = segment.finish(next_name())
        store.put(ref.name, parts)
        written.append(UntakenLines(ref, lines))

    for content, mark in cut.copy.units():
        segment.add(pack(BlockKind.LINES, "", None, [content], [mark]))
        lines += records_in(content, mark)
        if segment.length >= segment_bytes:
            put()
            segment, lines = SegmentWriter(header), 0
    if lines:
        put()
    return tuple(written)


def untaken_batch(commit: Commit, readers: Sequence[int]) -> CommitBatch | None:
    """Return the command that has these workers take in what is left; None if no batch has come yet."""
    for query, batch in commit.spark:
        places = zip(_places(commit, readers), commit.untaken)
        winners = {number: (reader, ATTEMPT, each.lines) for number, (reader, each) in enumerate(places)}
        return CommitBatch(query, RUN, batch, winners)
    return None


def restaged(commit: Commit, store: Store, worker: int, readers: Sequence[int]) -> Iterator[StageLines | StageEnd]:
    """Yield what is to be staged at a worker for that command. Raises StoreDamaged or OSError."""
    if not commit.untaken:
        return
    query, batch = commit.spark[0]
    for number, (reader, each) in enumerate(zip(_places(commit, readers), commit.untaken)):
        if reader != worker:
            continue
        name = query, RUN, batch, number, ATTEMPT, worker
        segment = SegmentReader(each.segment.name, partial(store.read, each.segment.name), each.segment.length)
        for block in segment.blocks():
            for content, mark in zip(keys_of(block), states_of(block)):
                yield StageLines(*name, records_in(content, mark), content, "" if isinstance(mark, int) else mark)
        yield StageEnd(*name, each.lines)


def _places(commit: Commit, readers: Sequence[int]) -> list[int]:
    """Return who is to take in each of the parts: all of one earlier worker go to the same one."""
    before = sorted({each.segment.worker for each in commit.untaken})
    ranks = {worker: rank for rank, worker in enumerate(before)}
    return [readers[ranks[each.segment.worker] % len(readers)] for each in commit.untaken]
