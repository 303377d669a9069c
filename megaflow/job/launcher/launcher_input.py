"""The lines that the launcher itself reads and sends to the first worker: its standard input, or an iterable.

Neither is read further ahead than a credit allows: what was sent and has not been taken in by the worker's source.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from megaflow.errors import SourceError, UsageError
from megaflow.job.splits import LINE_BYTES_MAX, lines_of, whole_lines

AHEAD_BYTES_MAX = 2 * 1024 * 1024  # of text; some milliseconds of work, so that the source never waits for the launcher
BLOCK_BYTES = 64 * 1024
PULL_SECONDS = 0.02  # an iterable is asked for this long before the loop looks at anything else


class PushedSource(Protocol):
    """Something that yields lines to push."""

    def read(self) -> list[str]:
        """Return the next lines, perhaps none; blocks if there is no `fileno` to wait for."""

    def fileno(self) -> int | None:
        """Return what becomes readable when there are lines; None if `read` may be called at any time."""

    @property
    def done(self) -> bool:
        """Whether there are no more lines."""


class TextSplitter:
    """Cuts a byte stream into lines as `megaflow.job.splits` cuts files.

    >>> splitter = TextSplitter("standard input")
    >>> splitter.feed(b"a\\r"), splitter.feed(b"\\nb\\nc"), splitter.end()
    ([], ['a', 'b'], ['c'])
    """

    def __init__(self, name: str, errors: str = "replace") -> None:
        self._name = name
        self._errors = errors
        self._rest = b""  # starts a line
        self._parts: list[bytes] = []  # after _rest, without any line end but perhaps a last \r
        self._parts_bytes = 0
        self._position = 0  # of _rest in the stream

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        if self._parts_bytes + len(data) > LINE_BYTES_MAX:
            raise SourceError(
                f"{self._name} has a line of more than {LINE_BYTES_MAX >> 20} MiB at byte {self._position}: is it text?"
            )
        self._parts.append(data)
        self._parts_bytes += len(data)
        if b"\n" not in data and b"\r" not in data and not self._parts[0].endswith(b"\r"):
            return []
        whole = b"".join(self._parts)
        length = whole_lines(whole, ends_line=False)
        return self._cut(whole, length)

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        whole = b"".join(self._parts)
        return self._cut(whole, len(whole))

    def _cut(self, whole: bytes, length: int) -> list[str]:
        try:
            lines = lines_of(whole[:length].decode("utf-8", self._errors))
        except UnicodeDecodeError as error:
            raise SourceError(
                f"invalid UTF-8 in {self._name} at byte {self._position + error.start} "
                f"({whole[error.start : error.end].hex(' ')}: {error.reason}); "
                f"--encoding-errors replace reads on with U+FFFD in its place"
            ) from error
        self._position += length
        self._parts = [whole[length:]] if length < len(whole) else []
        self._parts_bytes = len(whole) - length
        return lines


class FileLines:
    """Lines of an open file descriptor: a pipe, a terminal, a regular file. Does not close it."""

    def __init__(self, file: int, name: str, errors: str) -> None:
        self.done = False
        self._file = file
        self._splitter = TextSplitter(name, errors)
        # epoll takes no regular files and refuses some devices (/dev/null); reading those does not block.
        try:
            kind = os.fstat(file).st_mode
        except OSError as error:
            raise SourceError(f"cannot read {name}: {error.strerror}") from error
        self._waits = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(file)

    def fileno(self) -> int | None:
        """Return the descriptor if it is one to wait for."""
        return self._file if self._waits else None

    def read(self) -> list[str]:
        """Return the lines completed by one more block."""
        data = os.read(self._file, BLOCK_BYTES)
        if data:
            return self._splitter.feed(data)
        self.done = True
        return self._splitter.end()


class IterableLines:
    """Lines of any iterable of str, pulled only as far as needed; a line end at a line's end is left out."""

    def __init__(self, lines: Iterable[Any]) -> None:
        self.done = False
        self._lines = iter(lines)

    def fileno(self) -> int | None:
        """Return None: an iterable is simply asked."""
        return None

    def read(self) -> list[str]:
        """Return about a block of lines, or what comes within a fiftieth of a second; at least one."""
        lines: list[str] = []
        size = 0
        until = time.monotonic() + PULL_SECONDS
        for line in self._lines:
            if not isinstance(line, str):
                raise UsageError(f"lines must be an iterable of str, but one is {line!r:.80} ({type(line).__name__})")
            lines.append(line.removesuffix("\n").removesuffix("\r"))
            size += len(line)
            if size >= BLOCK_BYTES or time.monotonic() >= until:
                return lines
        self.done = True
        return lines


class Credit:
    """How much text was sent and not yet taken in.

    >>> credit = Credit(limit_bytes=10)
    >>> credit.sent(["12345678"]); credit.sent(["ab", "c"]); credit.is_left
    False
    >>> credit.taken(2); credit.is_left
    True
    """

    def __init__(self, limit_bytes: int = AHEAD_BYTES_MAX) -> None:
        self._limit_bytes = limit_bytes
        self._sent: deque[tuple[int, int]] = deque()  # (lines, bytes) of each message not wholly taken in
        self._ahead_bytes = 0
        self._taken = 0  # lines of the first message

    @property
    def is_left(self) -> bool:
        """Whether more may be sent."""
        return self._ahead_bytes < self._limit_bytes

    def sent(self, lines: list[str]) -> None:
        """Note lines that were sent in one message."""
        size = sum(map(len, lines)) + len(lines)
        self._sent.append((len(lines), size))
        self._ahead_bytes += size

    def taken(self, lines: int) -> None:
        """Note that so many more lines were taken in."""
        self._taken += lines
        while self._sent and self._taken >= self._sent[0][0]:
            count, size = self._sent.popleft()
            self._taken -= count
            self._ahead_bytes -= size
