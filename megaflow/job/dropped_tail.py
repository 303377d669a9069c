"""Last 64 kB of what a process could not print, in memory that it shares with its launcher and that outlives it.

A process drops lines if nothing takes them for a while (see `megaflow.job.patient_stream`). It keeps the end of what it
has dropped here, so that the launcher has these lines even after a SIGKILL.

1. The file is memory without a name, which both processes have open, as for the heartbeat. So neither side ever waits
   for the other, and its size never changes. Its cost is zero while nothing is dropped.
2. The process writes the bytes first and their number last. After a kill in between, the launcher misses that piece,
   and the oldest bytes that it reads may already be overwritten.
3. Once the pipe has room again, the process forgets the bytes: from then on, the pipe has newer lines.
"""

import os
import tempfile
from typing import Final

TAIL_BYTES: Final = 64 * 1024
NUMBER_BYTES: Final = 8
HEAD_BYTES: Final = 2 * NUMBER_BYTES  # how many bytes and how many lines were dropped


def shared_memory(name: str) -> int:
    """Return the descriptor of a new file in memory, or of one without a name, which a child process may inherit.

    The kernel shows `name` in lists of open files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as unnamed:
        return os.dup(unnamed.fileno())


class DroppedTail:
    """The file; the process writes and the launcher reads."""

    def __init__(self, file: int | None = None) -> None:
        """`file` is an inherited descriptor. None makes a new file."""
        self.file = shared_memory("megaflow-dropped") if file is None else file
        self._bytes = self._lines = 0  # as the process has written them

    def add(self, data: bytes) -> None:
        """Keep the end of these bytes, after those before. Raises OSError."""
        self._lines += data.count(b"\n")
        self._bytes += len(data)
        kept = data[-TAIL_BYTES:]
        begin = (self._bytes - len(kept)) % TAIL_BYTES
        fitting = TAIL_BYTES - begin
        os.pwrite(self.file, kept[:fitting], HEAD_BYTES + begin)
        if len(kept) > fitting:
            os.pwrite(self.file, kept[fitting:], HEAD_BYTES)
        self._write_head()

    def forget(self) -> None:
        """Keep nothing. Raises OSError."""
        self._bytes = self._lines = 0
        self._write_head()

    def read(self) -> tuple[bytes, int]:
        """Return the last bytes, and how many lines were dropped before them."""
        head = os.pread(self.file, HEAD_BYTES, 0)
        size, lines = (int.from_bytes(head[at : at + NUMBER_BYTES], "big") for at in (0, NUMBER_BYTES))
        if not size:
            return b"", 0
        data = os.pread(self.file, TAIL_BYTES, HEAD_BYTES)
        if size > TAIL_BYTES:
            begin = size % TAIL_BYTES
            data = data[begin:] + data[:begin]
        data = data[:size]
        return data, max(0, lines - data.count(b"\n"))

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.file)

    def _write_head(self) -> None:
        head = self._bytes.to_bytes(NUMBER_BYTES, "big") + self._lines.to_bytes(NUMBER_BYTES, "big")
        os.pwrite(self.file, head, 0)
