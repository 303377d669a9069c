"""Spark's lines or rows, committed at a worker before a checkpoint but not yet taken: copied, written and read back.

1. The worker's thread makes the copy between two steps of its source. The copy costs only a list of units, because
   texts do not change. It has its own descriptors of the files. The thread that writes cuts reads the files.
2. Each checkpoint writes all of these lines, in segments that belong to this checkpoint only. The pace of checkpoints
   bounds the cost, as for everything that they write.
3. A job that resumes gives all lines of one earlier worker to one of its own workers, in their order. So a partition is
   still read in order. They are staged there as a task would stage them, under a run of their own. One command commits
   them under the name of the newest batch: see `control.coordinator.reading.spark_commits`.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.messages import CommitBatch
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.durable.blocks import Block, BlockKind, keys_of, pack, states_of
from megaflow.durable.commits import Commit
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
    chunks: list[Chunk]
    files: list[int]  # descriptors

    def blocks(self) -> Iterator[tuple[Block, int]]:
        """Yield a block of each unit, and the number of its lines. Raises OSError."""
        for place, mark in self.chunks:
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


def untaken_batch(commit: Commit, readers: Sequence[int]) -> CommitBatch | None:
    """Return the command that makes these workers take the remaining lines; None if no batch has come yet."""
    for query, batch in commit.spark:
        places = zip(_places(commit, readers), commit.untaken)
        winners = {number: (reader, ATTEMPT, each.lines) for number, (reader, each) in enumerate(places)}
        return CommitBatch(query, RUN, batch, winners)
    return None


def restaged(commit: Commit, store: Store, worker: int, readers: Sequence[int]) -> Iterator[StageLines | StageEnd]:
    """Yield the messages that stage the remaining lines of that command at a worker. Raises StoreDamaged or OSError."""
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
    """Return the worker that takes each of the parts; all parts of one earlier worker go to the same one."""
    before = sorted({each.segment.worker for each in commit.untaken})
    ranks = {worker: rank for rank, worker in enumerate(before)}
    return [readers[ranks[each.segment.worker] % len(readers)] for each in commit.untaken]
