"""A worker process's sign of life: when it last was well, and which of its workers are busy, for its launcher to see.

The process writes it to a file without a name, which it has inherited, over and over at the same place. So neither side
ever waits for the other, nothing piles up, and the launcher reads what it wants to know when it wants to.

What is read while it is being written does not have the checksum that it begins with, and is read again. All times are
those of the machine's monotonic clock, which both processes share.
"""

import json
import os
import tempfile
import threading
import zlib
from dataclasses import asdict

from megaflow.quick_dataclass import dataclass

READ_BYTES = 64 * 1024
BUSY_WRITTEN_MAX = 8  # of the workers of a process: each takes less than 8 KB
READS_MAX = 10  # in a row that come at a moment of writing
HEAD_BYTES = 8  # checksum and length


@dataclass(frozen=True, slots=True)
class LongStep:
    """A worker that is in one step for long."""

    worker: int
    since: float  # seconds of the monotonic clock
    function: str | None = None  # the last four as in `megaflow.timely.dataflow.running_place.RunningPlace`
    where: str | None = None
    operator: str | None = None
    record: str | None = None


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """What a process says of itself."""

    now: float  # seconds of the monotonic clock
    busy: tuple[LongStep, ...] = ()


def write_sign(file: int, sign: SignOfLife) -> None:
    """Replace what the launcher can read; raises OSError."""
    rows = [asdict(each) for each in sign.busy[:BUSY_WRITTEN_MAX]]
    data = json.dumps({"now": sign.now, "busy": rows}).encode()
    os.pwrite(file, zlib.crc32(data).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data, 0)


def parse_sign(data: bytes) -> SignOfLife | None:
    """Return what a file of signs has; None if nothing yet, or if it is being written."""
    length = int.from_bytes(data[4:HEAD_BYTES], "big")
    body = data[HEAD_BYTES : HEAD_BYTES + length]
    if not length or zlib.crc32(body) != int.from_bytes(data[:4], "big"):
        return None
    record = json.loads(body)
    return SignOfLife(record["now"], tuple(LongStep(**each) for each in record["busy"]))


class SignFile:
    """The launcher's end; made together with the process's, which is a copy of it. Any thread may read."""

    def __init__(self, now: float) -> None:
        """`now` is when the process begins: it has given no sign yet."""
        if hasattr(os, "memfd_create"):
            self.file = os.memfd_create("megaflow-sign")
        else:
            with tempfile.TemporaryFile() as unnamed:
                self.file = os.dup(unnamed.fileno())
        self.began = now
        self._last = SignOfLife(now)
        self._lock = threading.Lock()  # so that nobody reads what has the number after it is closed

    def read(self) -> SignOfLife:
        """Return the last sign."""
        with self._lock:
            for _ in range(READS_MAX if self.file >= 0 else 0):
                if (sign := parse_sign(os.pread(self.file, READ_BYTES, 0))) is not None:
                    self._last = sign
                    break
            return self._last

    def begin(self, now: float) -> None:
        """Note that the process begins only now; any thread."""
        with self._lock:
            self.began = now
            self._last = SignOfLife(now)

    def write(self, sign: SignOfLife) -> None:
        """Write in the place of a process that runs elsewhere; any thread. Nothing once it is closed."""
        with self._lock:
            if self.file >= 0:
                write_sign(self.file, sign)

    def close(self) -> None:
        """Close the file; what was read last stays."""
        with self._lock:
            if self.file >= 0:
                file, self.file = self.file, -1  # first: a Ctrl-C may come between, and it is closed once
                os.close(file)
