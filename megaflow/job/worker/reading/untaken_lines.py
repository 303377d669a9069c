"""Spark's lines or rows, committed at a worker before a checkpoint but not yet taken: copied, written and read back.

1. The worker's thread makes the copy between two steps of its source. The copy costs only a list of units, because
   texts do not change. It has its own descriptors of the files. The thread that writes cuts reads the files.
2. Each checkpoint writes all of these lines, in segments that belong to this checkpoint only. The pace of checkpoints
   bounds the cost, as for everything that they write.
3. A job that resumes gives all lines of one earlier worker to one of its own workers, in their order. So a partition is
   still read in order. They are staged there as a task would stage them, under a run of their own. One command of each
   query commits its own under the name of its newest batch: see `control.coordinator.reading.spark_commits`.
4. A segment contains the lines of one query. So the next batch of each query waits only for the rest of its own query.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.blocks import Block, BlockKind, keys_of, pack, states_of
from megaflow.durable.commits import Commit, UntakenLines
from megaflow.durable.segments import SegmentReader
from megaflow.durable.store import Store
from megaflow.job.worker.reading.staged_units import Chunk, read_content, records_in
from megaflow.quick_dataclass import dataclass

RUN: Final = "before"  # no call of foreachBatch has this name for its run
ATTEMPT: Final = 0


@dataclass(eq=False)
class LinesCopy:
    """A copy of lines as of one moment. Must be closed."""

    lines: int
    chunks: dict[str, list[Chunk]]  # by query
    files: list[int]  # descriptors

    def add(self, query: str, chunks: Iterable[Chunk]) -> None:
        """Append chunks of a query."""
        self.chunks.setdefault(query, []).extend(chunks)

    def blocks(self, query: str) -> Iterator[tuple[Block, int]]:
        """Yield a block of each unit of a query, and the number of its lines. Raises OSError."""
        for place, mark in self.chunks[query]:
            content = read_content(place, mark) if isinstance(place, tuple) else place
            yield pack(BlockKind.LINES, "", None, [content], [mark]), records_in(content, mark)

    def close(self) -> None:
        """Close the files."""
        while self.files:
            os.close(self.files.pop())


@dataclass(frozen=True, slots=True)
class LinesCut:
    """The lines that a source has not taken at a checkpoint, to be written."""

    report: PositionsAt  # to be sent with these lines once they are written
    time: int  # the checkpoint's epoch
    copy: LinesCopy


def untaken_batches(commit: Commit, readers: Sequence[int]) -> tuple[CommitBatch, ...]:
    """Return the commands that make these workers take the remaining lines: one for each query that had a batch."""
    return tuple(
        CommitBatch(query, RUN, batch, {
            number: (reader, ATTEMPT, each.lines) for number, reader, each in _parts(commit, readers, query)
        })
        for query, batch in commit.spark
    )  # fmt: skip


def restaged(commit: Commit, store: Store, worker: int, readers: Sequence[int]) -> Iterator[StageLines | StageEnd]:
    """Yield the messages that stage the remaining lines of those commands at a worker.

    Raises StoreDamaged or OSError.
    """
    for query, batch in commit.spark:
        for number, reader, each in _parts(commit, readers, query):
            if reader != worker:
                continue
            name = query, RUN, batch, number, ATTEMPT, worker
            segment = SegmentReader(each.segment.name, partial(store.read, each.segment.name), each.segment.length)
            for block in segment.blocks():
                for content, mark in zip(keys_of(block), states_of(block)):
                    yield StageLines(*name, records_in(content, mark), content, "" if isinstance(mark, int) else mark)
            yield StageEnd(*name, each.lines)


def _parts(commit: Commit, readers: Sequence[int], query: str) -> Iterator[tuple[int, int, UntakenLines]]:
    """Yield number, worker and lines of each part of a query's rest.

    All parts of one earlier worker go to the same worker.
    """
    before = sorted({each.segment.worker for each in commit.untaken})
    reader_of = {worker: readers[rank % len(readers)] for rank, worker in enumerate(before)}
    parts = (each for each in commit.untaken if each.query in (query, ""))
    for number, each in enumerate(parts):
        yield number, reader_of[each.segment.worker], each
