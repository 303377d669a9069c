"""Standard error that may have no reader: a write waits a limited time for its reader, then drops the rest.

1. A write waits WAIT_SECONDS, again after each progress. While nothing is read, later writes are dropped at once. So a
   stopped reader costs a job one wait, not one per line.
2. Dropped lines are counted. The next write that finds room begins with their number.
3. A write that fails, as at a closed terminal, also counts as dropped. A function that prints for debugging does not
   end a job.
4. A pipe or terminal is opened again, so that writes to it do not block. The nonblocking flag belongs to the open file,
   which other processes share if they have inherited it. If a file cannot be opened again, it gets small pieces, each
   one only when the file has room.
5. A regular file always accepts data, so it stays as it is.
6. A worker process keeps the end of what it drops in a `DroppedTail`, which outlives it.
"""

import contextlib
import io
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

from megaflow.control.wording import quantity
from megaflow.job.dropped_tail import DroppedTail

WAIT_SECONDS: Final = 1.0
OPEN_FILES: Final = "/proc/self/fd"  # on Linux
PIECE_BYTES: Final = 4096  # a pipe that has room accepts this much at once
SMALL_BYTES: Final = 512


class PatientFile(io.RawIOBase):
    """Raw file of such a stream."""

    def __init__(
        self, seconds: float, given: int, file: int, send: Callable[[memoryview], int], piece_bytes: int
    ) -> None:
        """`send` writes bytes to `file` and returns how many. `given` is the inherited descriptor, which others use."""
        self._seconds = seconds
        self._given = given
        self._send = send
        self._piece_bytes = piece_bytes
        self._poller = select.poll()
        self._poller.register(file, select.POLLOUT)
        self.dropped = 0  # lines not yet reported
        self.tail: DroppedTail | None = None  # keeps the end of what is dropped
        self.is_terminal = os.isatty(given)  # or a process that reads it shows it on one
        self._end = ""  # the missing end of a line that was cut

    def writable(self) -> bool:
        """Return True: it can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that the process has inherited."""
        return self._given

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return self.is_terminal

    def write(self, data: Any, /) -> int:
        """Write these bytes, or drop those that are not read in time. Return how many were given."""
        given, note = bytes(data), (self._end + dropped_text(self.dropped)).encode()
        rest = memoryview(note + given)
        with contextlib.suppress(OSError):
            rest = self._sent(rest, 0.0 if self.dropped else self._seconds)
        if 0 < len(rest) < len(note) + len(given):
            self._end = "\n"
        if len(rest) <= len(given):
            if self.dropped and self.tail is not None:
                self.tail.forget()
            self.dropped = 0  # the note is written
        if rest:
            lost = bytes(rest[-len(given) :])
            self.dropped += max(1, lost.count(b"\n"))
            if self.tail is not None:
                self.tail.add(lost)
        else:
            self._end = ""
        return len(given)

    def _sent(self, rest: memoryview, seconds: float) -> memoryview:
        """Send bytes as far as there is room in time. Return the rest. Raises OSError."""
        until = time.monotonic() + seconds
        while rest and self._poller.poll(max(0.0, until - time.monotonic()) * 1000):
            with contextlib.suppress(BlockingIOError):  # another process has used the room
                rest = rest[self._send(rest[: self._piece_bytes]) :]
                until = time.monotonic() + seconds
        return rest


def patient(stream: TextIO, seconds: float = WAIT_SECONDS) -> TextIO:
    """Return a stream to the same file with a bounded wait for its reader. Return `stream` itself if it never waits."""
    try:
        given = stream.fileno()
        kind = os.fstat(given).st_mode
    except OSError:
        return stream
    if stat.S_ISREG(kind):
        return stream
    buffered = io.BufferedWriter(PatientFile(seconds, given, *unblocking(given, kind)))
    return io.TextIOWrapper(buffered, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


def unblocking(file: int, kind: int) -> tuple[int, Callable[[memoryview], int], int]:
    """Return a descriptor of the same file, a function that writes to it, and how much at once: see rule 4."""
    if stat.S_ISSOCK(kind):
        connection = socket.socket(fileno=os.dup(file))
        return file, lambda piece: connection.send(piece, socket.MSG_DONTWAIT), PIECE_BYTES
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        again = os.open(f"{OPEN_FILES}/{file}", flags)
    except OSError:
        return file, lambda piece: os.write(file, piece), SMALL_BYTES
    return again, lambda piece: os.write(again, piece), PIECE_BYTES


def print_patiently() -> PatientFile | None:
    """Bound the time that this process's messages wait for a reader. Return the file, None if it never waits."""
    if sys.stderr is None:
        return None
    sys.stderr = patient(sys.stderr)
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    return raw if isinstance(raw, PatientFile) else None


def dropped_text(lines: int) -> str:
    """Return the line that reports dropped lines, "" if there are none.

    >>> print(dropped_text(3), end="")
    megaflow: dropped 3 lines on standard error, because nothing read them
    """
    note = f"megaflow: dropped {quantity(lines, 'line')} on standard error, because nothing read them\n"
    return note if lines else ""


def has_room(stream: TextIO, seconds: float = WAIT_SECONDS) -> bool:
    """Wait at most so many seconds until a stream accepts a line. Return whether it does; True if unknown."""
    try:
        return bool(select.select([], [stream], [], seconds)[1])
    except (OSError, ValueError, TypeError):  # it is not a file
        return True
