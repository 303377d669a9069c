"""Heartbeat of a worker process: when it was last well, and which of its workers are busy, for its launcher.

The process writes the sign repeatedly at the same place of a file without a name, which it has inherited. So neither
side ever waits for the other, nothing accumulates, and the launcher reads the sign when it wants to.

The sign begins with a checksum. A read during a write finds a wrong checksum, and the launcher reads again. All times
are those of the machine's monotonic clock, which both processes share.
"""

import json
import os
import threading
import zlib
from dataclasses import asdict

from megaflow.job.dropped_tail import shared_memory
from megaflow.quick_dataclass import dataclass

READ_BYTES = 64 * 1024
BUSY_WRITTEN_MAX = 8  # workers of a process; each takes less than 8 KB
READS_MAX = 10  # reads in a row that may fall into a write
HEAD_BYTES = 8  # checksum and length


@dataclass(frozen=True, slots=True)
class LongStep:
    """Worker that has been in one step for long, or process that is loading its program."""

    worker: int | None  # None: the process
    since: float  # seconds of the monotonic clock
    function: str | None = None  # the last five are as in `megaflow.timely.dataflow.running_place.RunningPlace`
    where: str | None = None
    operator: str | None = None
    record: str | None = None
    waits: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a process reports about itself."""

    now: float  # seconds of the monotonic clock
    busy: tuple[LongStep, ...] = ()


def write_sign(file: int, sign: Heartbeat) -> None:
    """Replace the sign that the launcher can read. Raises OSError."""
    rows = [asdict(each) for each in sign.busy[:BUSY_WRITTEN_MAX]]
    data = json.dumps({"now": sign.now, "busy": rows}).encode()
    os.pwrite(file, zlib.crc32(data).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data, 0)


def parse_sign(data: bytes) -> Heartbeat | None:
    """Return the sign in the data of a sign file. None if there is none yet, or if it is being written."""
    length = int.from_bytes(data[4:HEAD_BYTES], "big")
    body = data[HEAD_BYTES : HEAD_BYTES + length]
    if not length or zlib.crc32(body) != int.from_bytes(data[:4], "big"):
        return None
    record = json.loads(body)
    return Heartbeat(record["now"], tuple(LongStep(**each) for each in record["busy"]))


class HeartbeatFile:
    """The launcher's end, made together with the process's end, which is a copy of it. Any thread may read."""

    def __init__(self, now: float) -> None:
        """`now` is the time when the process begins. It has given no sign yet."""
        self.file = shared_memory("megaflow-sign")
        self._lock = threading.Lock()  # prevents a read of another file that reuses the number after a close
        self.begin(now)

    def read(self) -> Heartbeat:
        """Return the last sign."""
        with self._lock:
            for _ in range(READS_MAX if self.file >= 0 else 0):
                if (sign := parse_sign(os.pread(self.file, READ_BYTES, 0))) is not None:
                    self._last = sign
                    break
            return self._last

    def begin(self, now: float) -> None:
        """Note that the process begins only now. Any thread may call it."""
        with self._lock:
            self.began = now
            self._last = Heartbeat(now)

    def write(self, sign: Heartbeat) -> None:
        """Write in place of a process on another machine. Any thread may call it. Does nothing once closed."""
        with self._lock:
            if self.file >= 0:
                write_sign(self.file, sign)

    def close(self) -> None:
        """Close the file. The last sign read stays available."""
        with self._lock:
            if self.file >= 0:
                file, self.file = self.file, -1  # first, so that it is closed once even if Ctrl-C comes between
                os.close(file)
