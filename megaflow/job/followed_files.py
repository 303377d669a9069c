"""`--follow`: files that grow and files that appear, as a source whose partitions are files, by their inodes.

1. A file is its inode: it stays the same partition when it is renamed, so a rotated file is read to its end by whoever
   has it open, and what has its name then is another partition, read from its beginning. A name that a pattern has
   twice for one inode, as before and after a rotation, is read once.
2. A position is where a line begins, with a digest of what precedes it (TAIL_BYTES of it). Before what is new is read,
   and when a file is opened at a position, that is compared: if a file has become shorter, or other bytes stand there,
   it was truncated, or removed and its inode given to a new one. Then it begins anew: all that it has is read.
3. A line is read when its end is there. The last line of a file that was removed has none to come, and is read.
4. What nobody has a name for any more is let go DELETED_SECONDS after its last byte was read; then its inode may come
   again. Its partition does not end: it waits, and finds that by the pattern.
5. A file is opened by looking for its inode among those that the pattern stands for. One that was renamed while nobody
   read it is found beside where it was, if rule 2 knows it. So what is rotated twice while no job runs, to names that
   the pattern does not have, is not found: a pattern should have these names.
6. Nothing tells of a change: each file is looked at every POLL_SECONDS, the folders every FIND_SECONDS.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

from megaflow.connect.source_protocol import Found, Idle
from megaflow.errors import SourceError
from megaflow.job.compression import has_suffix
from megaflow.job.file_formats import HEAD_BYTES, compression_of, encoding_of
from megaflow.job.record_format import LINES, RecordBlock, RecordFormat, RecordParser
from megaflow.job.splits import find_files
from megaflow.job.text_encoding import NotText, ReplacedBytes
from megaflow.job.text_form import check_is_text
from megaflow.job.text_lines import BLOCK_BYTES, LINE_BYTES_MAX, LINE_END, Text, whole_lines

POLL_SECONDS: Final = 0.25  # until a file that had nothing new is looked at again
FIND_SECONDS: Final = 1.0  # until new files are looked for again
DELETED_SECONDS: Final = 5.0  # that a program may still write to a file which it, or another one, has removed
TAIL_BYTES: Final = 256

Position: TypeAlias = tuple[str, int, str]
"""The path when it was read, the byte at which the next line begins, and the digest of what precedes it."""


class FollowedFiles:
    """The files that a pattern stands for, now and later: a `megaflow.connect.Source`."""

    def __init__(
        self, pattern: str, errors: str = "strict", format: RecordFormat = LINES, *, input: str = "",
        encoding: str = "", replaced: ReplacedBytes | None = None,
        tell: Callable[[str, str], None] = lambda about, text: None, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`pattern` is absolute, `encoding` none that is decoded as a stream. `tell` has the user told of something.

        `now` returns seconds of a clock that only goes forward.
        """
        self.pattern = pattern
        self.errors = errors
        self.format = format
        self.input = input
        self.encoding = encoding
        self.replaced = replaced
        self.tell = tell
        self.now = now
        self._names: dict[int, str] = {}  # inode -> path, for readers
        self._named_at = -FIND_SECONDS  # seconds of a clock

    def discover(self) -> Found:
        """Return the inodes of the files that there are, in the order of their paths."""
        return Found([*inodes(self.pattern)], FIND_SECONDS)

    def open(self, partition: int, position: Position | None) -> "FollowedFile":
        """Return what reads a file, once that is found."""
        return FollowedFile(self, partition, position)

    def name_of(self, inode: int) -> str | None:
        """Return the path of a file, as of FIND_SECONDS ago at most; None if the pattern has none."""
        now = self.now()
        if now - self._named_at >= (FIND_SECONDS if inode in self._names else POLL_SECONDS):
            self._names, self._named_at = inodes(self.pattern), now
        return self._names.get(inode)


def followers(
    followed: Iterable[tuple[str, str, str]], errors: str, replaced: ReplacedBytes, tell: Callable[[str, str], None],
    now: Callable[[], float],
) -> dict[str, Callable[[RecordFormat], FollowedFiles]]:
    """Return what reads the inputs whose files are followed, each given as its name, a pattern and an encoding."""
    return {
        name: partial(
            FollowedFiles, pattern, errors, input=name, encoding=encoding, replaced=replaced, tell=tell, now=now
        )
        for name, pattern, encoding in followed
    }


class FollowedFile:
    """One file, on one worker."""

    def __init__(self, source: FollowedFiles, inode: int, position: Position | None) -> None:
        self.inode = inode
        self.path, self._offset, self._digest = position or ("", 0, "")
        self.lives = 0  # times that it has begun anew
        self._source = source
        self._moved = position is not None  # it may have been renamed since
        self._file = -1
        self._buffer = b""  # what was read from `_offset` on, and is not handed out
        self._block: RecordBlock | None = None  # of the first bytes of that
        self._text: Text | None = None  # None: nothing stands in the file yet, or it is not open
        self._parser: RecordParser | None = None  # None: the file has no whole head yet, or is not open
        self._is_compressed = False  # so that it is not read
        self._tail = b""  # what precedes it
        self._let_go_at: float | None = None  # seconds of a clock; None: it has a name, or something new

    def read(self, limit: int) -> tuple[list[Any], Position] | Idle:
        """Return records. Raises SourceError for what cannot be read or parsed."""
        if self._is_compressed or (self._file < 0 and not self._find()):
            return Idle(after_seconds=FIND_SECONDS)
        try:
            block = self._block or self._parsed(is_end=False) or self._parsed(self._refill())
        except NotText as error:
            line = self.line_name(error.position, 0)
            raise error.explained(line, self._source.encoding, self._source.pattern) from None
        if block is None:
            return Idle(after_seconds=FIND_SECONDS if self._file < 0 else POLL_SECONDS)
        start = self._offset
        part, self._block = block.split(limit)
        if part.faults:  # an empty batch counts as taken, so a fault is counted once
            self._source.format.note(part.faults, lambda line: self.line_name(start, line))
        if self._text is not None and self._text.has_replaced and self._source.replaced is not None:
            if count := self._text.replaced_in(part.data):
                self._source.replaced.note(self._source.input, count, self._text.name)
        self._pass(len(part.data))
        return part.records, (self.path, self._offset, digest(self._tail))

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def bytes_at(self, start: int, size: int) -> bytes:
        """Return some bytes of the open file. Raises SourceError."""
        try:
            return os.pread(self._file, size, start)
        except OSError as error:
            raise SourceError(f"cannot read {self.path!r}: {error.strerror}") from error

    def lines_before(self, position: int) -> int:
        """Return how many lines it has before one that begins at `position`. Costs reading them."""
        lines, rest = 0, b""
        for start in range(0, position, BLOCK_BYTES):
            data = rest + self.bytes_at(start, min(BLOCK_BYTES, position - start))
            whole = whole_lines(data, start + BLOCK_BYTES >= position)
            lines, rest = lines + len(LINE_END.findall(data[:whole])), data[whole:]
        return lines

    def line_name(self, position: int, line: int) -> str:
        """Return the name of the line so many lines behind one that starts at a position. Costs reading up to there."""
        return f"line {self.lines_before(position) + line + 1} of {self.path!r}"

    def _parsed(self, is_end: bool) -> RecordBlock | None:
        """Return the block of records with which the buffer begins; None if there is none.

        `is_end`: nothing will follow. Then a head that is not complete is dropped.
        """
        source = self._source
        if self._text is None and self._file >= 0 and self._buffer:
            self._text = self._begin_text()
        if self._text is not None and self._parser is None and self._file >= 0:
            self._parser = self._opened(self._text, is_end)
        if self._parser is None:
            self._pass(len(self._buffer) if is_end else 0)
            return None
        if self._offset < self._parser.body:
            self._pass(self._parser.body - self._offset)
        block = self._parser.cut(self._buffer, self._offset, is_end)
        return None if block is None else source.format.settled(block, lambda line: self.line_name(self._offset, line))

    def _begin_text(self) -> Text | None:
        """Return how to decode the file; None if it is compressed. Raises SourceError if it is no text."""
        head, encoding = self.bytes_at(0, HEAD_BYTES), self._source.encoding
        if compression := compression_of(head):
            self._source.tell(
                f"compressed {self.path}",
                f"{self.path!r} is compressed by {compression}, so it is not followed: name it without --follow.",
            )
            self._is_compressed = True
            return None
        check_is_text(head, repr(self.path), self.path, encoding)
        if not encoding and (marked := encoding_of(head)):
            raise SourceError(
                f"Cannot follow {self.path!r}: it is in {marked.upper()}, whose lines are not cut at single bytes. "
                "Have it written in UTF-8, or leave --follow out."
            )
        return Text(repr(self.path), self._source.errors, encoding)

    def _opened(self, text: Text, is_end: bool) -> RecordParser | None:
        """Return the parser of the file; None if that needs more of the file, or what it has is no head."""

        def beginning(size: int) -> tuple[bytes, bool]:
            data = self.bytes_at(0, size)
            return data, is_end and len(data) < size

        try:
            return self._source.format.open(text, beginning)
        except SourceError:
            if not is_end:
                raise
            return None

    def _pass(self, size: int) -> None:
        """Go on so many bytes later."""
        data = self._buffer[:size] if size <= len(self._buffer) else self.bytes_at(self._offset, size)
        self._buffer = self._buffer[size:]
        self._offset += size
        self._tail = (self._tail + data)[-TAIL_BYTES:]

    def _find(self) -> bool:
        """Open the file, where it is now; tell whether it is there."""
        for path in filter(None, (self._source.name_of(self.inode), self._beside())):
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SourceError(f"cannot read {path!r}: {error.strerror}") from error
            status = os.fstat(self._file)
            if status.st_ino == self.inode and stat.S_ISREG(status.st_mode):
                self.path, self._moved, self._let_go_at = path, False, None
                self._tail = self.bytes_at(max(0, self._offset - TAIL_BYTES), min(self._offset, TAIL_BYTES))
                if self._offset and (status.st_size < self._offset or digest(self._tail) != self._digest):
                    self._begin_anew()
                return True
            self.close()
        return False

    def _beside(self) -> str | None:
        """Return where the file is that was renamed while nobody read it: in its folder, and as long as it was."""
        if not self._moved:
            return None
        folder = os.path.dirname(self.path)
        try:
            entries = [*os.scandir(folder)]
        except OSError:
            return None
        paths = (entry.path for entry in entries if entry.inode() == self.inode and entry.is_file())
        return next((path for path in paths if tail_of(path, self._offset) == self._digest), None)

    def _refill(self) -> bool:
        """Read on; return whether nothing will follow what there is now."""
        status = os.fstat(self._file)
        before = self.bytes_at(self._offset - len(self._tail), len(self._tail))
        if status.st_size < self._offset + len(self._buffer) or before != self._tail:
            self._begin_anew()
        had, size = len(self._buffer), max(BLOCK_BYTES, 2 * len(self._buffer))
        if size > LINE_BYTES_MAX:
            most = f"{LINE_BYTES_MAX >> 20} MiB"
            raise SourceError(f"{self.path!r} has a line of more than {most} at byte {self._offset}: is it text?")
        self._buffer = self.bytes_at(self._offset, size)
        if len(self._buffer) > had or status.st_nlink:
            self._let_go_at = None
            return False
        return self._let_go()

    def _let_go(self) -> bool:
        """Close a file without a name, after a while; return whether its last line is to be read first."""
        now = self._source.now()
        if self._let_go_at is None:
            self._let_go_at = now + DELETED_SECONDS
        if now < self._let_go_at:
            return False
        if self._buffer:
            return True
        self._digest = digest(self._tail)
        self.close()
        return False

    def _begin_anew(self) -> None:
        self._offset, self._buffer, self._tail, self._digest = 0, b"", b"", ""
        self._block = self._parser = self._text = None
        self.lives += 1


def inodes(pattern: str) -> dict[int, str]:
    """Return the files that there are now, by inode. Raises SourceError if two file systems give them the same ones."""
    found: dict[int, str] = {}
    devices: dict[int, int] = {}
    for path in matching(pattern):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(f"cannot read {path!r}: {error.strerror}") from error
        if devices.setdefault(status.st_ino, status.st_dev) != status.st_dev:
            raise SourceError(
                f"{found[status.st_ino]!r} and {path!r} are on two file systems and have one inode number: follow them "
                "as two inputs, each by a name"
            )
        found.setdefault(status.st_ino, path)
    return found


def matching(pattern: str) -> list[str]:
    """Return the files that a pattern stands for, sorted; compressed ones, which do not grow, are left out."""
    try:
        return [path for path in find_files(pattern) if not has_suffix(path)]
    except SourceError:  # there is none yet
        return []


def digest(data: bytes) -> str:
    """Return what tells some bytes from others."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def tail_of(path: str, offset: int) -> str | None:
    """Return the digest of what precedes a place in a file; None if it cannot be read, or is shorter."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, offset - TAIL_BYTES))
            data = file.read(min(offset, TAIL_BYTES))
    except OSError:
        return None
    return digest(data) if len(data) == min(offset, TAIL_BYTES) else None
