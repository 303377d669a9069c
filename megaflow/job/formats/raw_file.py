"""Bytes of a file, whatever they mean: errors that name the file, and prints.

Prints are hashes that identify the part of a file that was read, without keeping it.

1. A print is a hash of SAMPLES samples, spread evenly over the bytes before a place, because these may be many. It
   notices a change that shifts the rest or touches a sample.
2. The reader takes a print from its open file, and sends it with its position. If a commit opened the path instead, it
   would fail once the file is archived, or describe another file that has taken the name.
3. A reader that continues compares the print with the file that it opens. So a worker that receives a split from
   another worker does not continue in a file that has taken the name meanwhile.
4. A text has the same print whether its file is compressed or not: `TextPrint` computes it from the content of a
   compressed file.
"""

import errno
import hashlib
import os
from collections.abc import Callable
from typing import Final

from megaflow.errors import MegaflowError, SourceError, naming

PIECE_BYTES: Final = 64 * 1024
"""The most bytes of a file at once."""
HEAD_BYTES: Final = 4096
"""Enough for all marks of formats, and for the first kilobytes of a compressed text."""
NUL_BLOCK_BYTES: Final = 1 << 20  # of NULs at once, which are passed over
NUL_BLOCKS: Final = 64  # passed over in one call
SAMPLES: Final = 8  # of a file, spread evenly over the part that was read
SAMPLE_BYTES: Final = 4096
ELSEWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ESTALE)
"""Errors of a file that another process may be able to open: on another machine, or with other rights."""


class reading(naming):
    """Raises an error of this kind for each OSError of a block, which reads a file.

    This takes a fifth of the time that a function with `contextmanager` takes (measured), and is around each read.
    """

    def __init__(self, path: str, kind: type[MegaflowError] = SourceError) -> None:
        super().__init__(kind, f"Cannot read {path!r}")


def may_be_open_elsewhere(error: BaseException | None) -> bool:
    """Return whether a process that cannot open a file because of this error may leave it to another process."""
    return isinstance(error, OSError) and error.errno in ELSEWHERE


def read_head(path: str) -> bytes:
    """Return the first HEAD_BYTES of a file. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return file.read(HEAD_BYTES)


class RawBytes:
    """Bytes of an open file, piece by piece."""

    def __init__(self, path: str, file: int, size: int) -> None:
        """`size`: where the file ends. Bytes that are added later are not read."""
        self.bytes_read = 0  # of the file
        self._path = path
        self._file = file
        self._size = size

    def next_piece(self) -> bytes:
        """Return the next bytes, b"" at their end. Raises SourceError."""
        with reading(self._path):
            data = os.pread(self._file, min(PIECE_BYTES, self._size - self.bytes_read), self.bytes_read)
        if not data and self.bytes_read < self._size:
            raise SourceError(
                f"{self._path!r} shrank while it was read: it ends at byte {self.bytes_read}, but "
                f"{self._size - self.bytes_read} more bytes were expected."
            )
        self.bytes_read += len(data)
        return data


def _places(length: int) -> list[tuple[int, int]]:
    """Return the begin and end of each sample of so many bytes. The last sample ends with these bytes."""
    starts = [max(0, length - SAMPLE_BYTES) * number // (SAMPLES - 1) for number in range(SAMPLES)]
    return [(start, start + min(SAMPLE_BYTES, length - start)) for start in starts]


def _digest(length: int, bytes_at: Callable[[int, int], bytes]) -> str:
    found = hashlib.blake2b(digest_size=12)
    place, data = (0, 0), b""
    for start, end in _places(length):
        if (start, end) != place:  # a small file has the same sample several times
            place, data = (start, end), bytes_at(start, end)
        found.update(data)
    return found.hexdigest()


def print_of_file(file: int, length: int) -> str:
    """Return the print of the first bytes of an open file. Costs at most SAMPLES reads. Raises OSError."""
    return _digest(length, lambda start, end: os.pread(file, end - start, start))


def print_of(path: str, length: int) -> str:
    """Return the print, like `print_of_file`, of a file that is not open. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return print_of_file(file.fileno(), length)


NOTHING_READ: Final = _digest(0, lambda start, end: b"")
"""The print of no bytes."""


class TextPrint:
    """Print of the first `length` bytes of a text that arrives in pieces.

    >>> text = TextPrint(4)
    >>> for piece in (b"one\\n", b"two\\n"): text.add(piece)
    >>> text.length, text.digest() == _digest(4, lambda start, end: b"one\\n"[start:end])
    (8, True)
    """

    def __init__(self, wanted: int) -> None:
        self.length = 0  # of all pieces so far
        self._wanted = wanted
        self._samples = {place: bytearray() for place in _places(wanted)}

    def add(self, piece: bytes) -> None:
        """Add the next piece."""
        begins, self.length = self.length, self.length + len(piece)
        for (start, end), sample in self._samples.items():
            if begins < end and start < self.length:
                sample += piece[max(0, start - begins) : end - begins]

    def digest(self) -> str | None:
        """Return the print. None if the text is shorter."""
        if self.length < self._wanted:
            return None
        return _digest(self._wanted, lambda start, end: bytes(self._samples[start, end]))


def nuls_text(path: str, nuls: int, offset: int) -> str:
    """Return the text about so many NULs before a place in a file, which were left out."""
    return (
        f"{path!r} has {nuls} NUL bytes before byte {offset}. They are left out: a program has written "
        "on at its old place in a truncated file, or behind space that it had reserved"
    )


def nuls_from(bytes_at: Callable[[int, int], bytes], start: int) -> int:
    """Return how many NULs are read from a place on, block by block, until a block has other bytes, or is the last."""
    at = start
    for _ in range(NUL_BLOCKS):
        data = bytes_at(at, NUL_BLOCK_BYTES)
        if not data or data.strip(b"\0"):
            break
        at += len(data)
    return at - start


def nuls_at_start(bytes_at: Callable[[int, int], bytes], offset: int) -> int:
    """Return how many of the bytes before `offset` are NULs at the beginning of the file. Costs reading these."""
    at = 0
    while at < offset:
        data = bytes_at(at, min(NUL_BLOCK_BYTES, offset - at))
        bare = data.lstrip(b"\0")
        at += len(data) - len(bare)
        if bare or not data:
            break
    return at


class WrittenPart:
    """The written part of a growing file. NULs may follow: space that a program has reserved and fills from the front.

    Text behind NULs counts if they stay. Otherwise several threads fill the space, and one of them is late.

    >>> file = b"one\\n" + bytes(9)
    >>> part = WrittenPart(0)
    >>> part.find_end(lambda start, size: file[start : start + size], len(file)), part.has_space
    (4, True)
    """

    def __init__(self, start: int) -> None:
        """The bytes before `start` are written."""
        self._end = start
        self._size = start  # of the file at the last look
        self._searched = start  # there were only NULs between the end and this place
        self._is_searched = False  # up to the end of the file
        self._gap = -1  # place of NULs that were seen before other bytes

    @property
    def has_space(self) -> bool:
        """Whether NULs follow."""
        return self._end < self._size

    def find_end(self, bytes_at: Callable[[int, int], bytes], size: int) -> int:
        """Return where the NULs at the end of a file of this size begin, as far as it was searched.

        A call searches NUL_BLOCKS blocks of a new file or new space, and the next call goes on. After that, a call
        reads what was filled in; if there is nothing, it searches one block again.
        """
        if size == self._size == self._end:
            return size
        if size > self._size:
            self._is_searched, self._searched = False, max(self._searched, self._end)
        self._size = size
        if not size or bytes_at(size - 1, 1) != b"\0":
            self._end = self._searched = size
            return size
        self._end = min(self._end, size)
        if self._pass_text(bytes_at) and self._is_searched:
            return self._end
        if not self._end <= self._searched < size:
            self._searched = self._end
        for _ in range(1 if self._is_searched else NUL_BLOCKS):
            data = bytes_at(self._searched, NUL_BLOCK_BYTES)
            if bare := data.rstrip(b"\0"):
                if self._is_searched and self._gap != self._end:
                    self._gap = self._end
                    break
                self._end = self._searched + len(bare)
            self._searched += len(data)
            if not data or self._searched >= size:
                self._is_searched = True
                break
        return self._end

    def _pass_text(self, bytes_at: Callable[[int, int], bytes]) -> bool:
        """Move the end to the next NUL. Return whether it has moved."""
        before = self._end
        for _ in range(NUL_BLOCKS):
            data = bytes_at(self._end, PIECE_BYTES)
            nul = data.find(b"\0")
            self._end += len(data) if nul < 0 else nul
            if nul >= 0 or not data:
                break
        return self._end > before
