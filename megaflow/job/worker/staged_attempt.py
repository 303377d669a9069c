"""What one attempt of a Spark task has sent to a worker: in memory, or in a file of its own without a name."""

import os
import tempfile
from collections import deque
from collections.abc import Hashable
from typing import IO, NamedTuple

from megaflow.job.worker.staged_units import Content, Mark
from megaflow.job.worker.untaken_lines import Chunk, content_bytes, read_content


class StagedUnit(NamedTuple):
    """What came in one message: in memory, or a range of the attempt's file."""

    content: Content | None
    mark: Mark
    start: int  # in the file
    size: int  # bytes: held in memory, or in the file


class StagedAttempt:
    """What one task attempt has sent so far. Written under the lock of its Staging."""

    def __init__(self, sender: Hashable, dropped: bool, query: str) -> None:
        self.sender = sender
        self.query = query
        self.dropped = dropped  # counted, not kept
        self.whole = False
        self.lines = 0
        self.chunks: deque[StagedUnit] = deque()
        self.file: IO[bytes] | None = None
        self.file_bytes = 0

    def spill(self, content: Content, mark: Mark, folder: str | None) -> None:
        """Append a unit to the file."""
        if self.file is None:
            self.file = tempfile.TemporaryFile(buffering=0, prefix="megaflow-staging-", dir=folder)  # noqa: SIM115
        data = content_bytes(content)
        with memoryview(data) as rest:
            while rest:
                rest = rest[self.file.write(rest) :]
        self.chunks.append(StagedUnit(None, mark, self.file_bytes, len(data)))
        self.file_bytes += len(data)

    def load(self, chunk: StagedUnit) -> Content:
        """Return what is in a chunk."""
        if chunk.content is not None:
            return chunk.content
        assert self.file is not None
        return read_content((self.file.fileno(), chunk.start, chunk.size), chunk.mark)

    def copy(self, files: list[int]) -> list[Chunk]:
        """Return the chunks, with a descriptor in `files` for those that are in a file."""
        if self.file is not None and self.chunks:
            files.append(os.dup(self.file.fileno()))
        return [
            (chunk.content if chunk.content is not None else (files[-1], chunk.start, chunk.size), chunk.mark)
            for chunk in self.chunks
        ]

    def held_bytes(self) -> int:
        """Return the memory accounted to this attempt."""
        return sum(chunk.size for chunk in self.chunks if chunk.content is not None)

    def clear(self) -> None:
        """Forget lines and file."""
        self.chunks.clear()
        if self.file is not None:
            self.file.close()
            self.file = None
