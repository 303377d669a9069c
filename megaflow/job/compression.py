"""The text of compressed files: gzip, bzip2, xz and Zstandard, told by their first bytes.

1. A file is decompressed in pieces of PIECE_BYTES at most, however much its bytes stand for: what is in memory does not
   depend on how well it is compressed.
2. Several members one behind the other are one text, as `cat a.gz b.gz` makes them; zeros behind them are padding.
   Whatever else follows is an error, and so are a member that is damaged and one without an end: never the end of the
   text, as some readers have it.
"""

import bz2
import importlib
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from megaflow.errors import SourceError

PIECE_BYTES: Final = 64 * 1024  # of text, and of what is read at once
GZIP: Final = 16 + zlib.MAX_WBITS  # with gzip's own header and checksum, as zlib is told
ZSTD_MODULES: Final = ("compression.zstd", "backports.zstd")  # from Python 3.14 on; the same for earlier ones


class Decompressor(Protocol):
    """What decompresses one member, as of `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool:
        """Whether its end was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether there is no more text without more bytes."""

    @property
    def unused_data(self) -> bytes:
        """What was behind its end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return the next text, up to so many bytes."""


class GzipMember:
    """One member of a gzip file."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(GZIP)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether its end was reached, and its checksum holds."""
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        """What was behind its end."""
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return the next text, up to so many bytes. Raises zlib.error."""
        text = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(text) < max_length and not self._inner.unconsumed_tail
        return text


class Format(NamedTuple):
    """A way to compress."""

    name: str
    begin: Callable[[], Decompressor]
    fault: type[Exception]  # what a member raises that is damaged


def _xz(path: str) -> Format:
    try:
        lzma: Any = importlib.import_module("lzma")
    except ImportError as error:
        raise SourceError(f"Cannot read {path!r}: this Python was built without lzma, which xz needs.") from error
    return Format("xz", lzma.LZMADecompressor, lzma.LZMAError)


def _zstandard(path: str) -> Format:
    for name in ZSTD_MODULES:
        with suppress(ImportError):
            module: Any = importlib.import_module(name)
            return Format("Zstandard", module.ZstdDecompressor, module.ZstdError)
    raise SourceError(f"Cannot read {path!r}: Zstandard needs a library. Install it: pip install 'megaflow[zstd]'")


FORMATS: Final[dict[str, Callable[[str], Format]]] = {
    "gzip": lambda _: Format("gzip", GzipMember, zlib.error),
    "bzip2": lambda _: Format("bzip2", bz2.BZ2Decompressor, OSError),
    "Zstandard": _zstandard,
    "xz": _xz,
}
SUFFIXES: Final = (".gz", ".bz2", ".zst", ".xz")


def has_suffix(path: str) -> bool:
    """Tell whether a file is compressed by its name, as a rotated log is.

    >>> has_suffix("a.txt.GZ"), has_suffix("a.gz.txt")
    (True, False)
    """
    return os.path.splitext(path)[1].lower() in SUFFIXES


def format_of(compression: str, path: str) -> Format:
    """Return the format that `compression_of` has named. Raises SourceError if this Python cannot read it."""
    return FORMATS[compression](path)


class CompressedText:
    """The text of an open file from its beginning on, piece by piece."""

    def __init__(self, path: str, file: int, size: int, compression: str) -> None:
        """`size`: where the file ends; what it grows by meanwhile is not read."""
        self.bytes_read = 0  # of the file
        self._path = path
        self._file = file
        self._size = size
        self._format = format_of(compression, path)
        self._member: Decompressor | None = None
        self._members = 0
        self._bytes = b""  # not decompressed

    def next_piece(self) -> bytes:
        """Return the next bytes of the text; none at its end. Raises SourceError, which says where in the file."""
        while self._member is not None or self._begin():
            member = self._member
            assert member is not None, "one has begun"
            data = self._take() if member.needs_input else b""
            try:
                text = member.decompress(data, PIECE_BYTES)
            except self._format.fault as error:
                raise self._damaged(str(error)) from None
            if member.eof:
                self._member, self._bytes = None, member.unused_data
            if text:
                return text
        return b""

    def _begin(self) -> bool:
        """Begin with the next member, if there is one."""
        while True:
            if self._members:
                self._bytes = self._bytes.lstrip(b"\0")
            if self._bytes or self.bytes_read == self._size:
                break
            self._bytes = self._read()
        if not self._bytes:
            return False
        self._member = self._format.begin()
        self._members += 1
        return True

    def _take(self) -> bytes:
        data, self._bytes = self._bytes or self._read(), b""
        return data

    def _read(self) -> bytes:
        if self.bytes_read == self._size:
            raise SourceError(
                f"{self._path!r} is incomplete: it ends at byte {self._size}, in the middle of its "
                f"{self._format.name} data. Copy it again, and read it from its beginning."
            )
        try:
            data = os.pread(self._file, min(PIECE_BYTES, self._size - self.bytes_read), self.bytes_read)
        except OSError as error:
            raise SourceError(f"Cannot read {self._path!r}: {error.strerror}.") from error
        if not data:
            raise SourceError(
                f"{self._path!r} shrank while it was read: it ends at byte {self.bytes_read}, but "
                f"{self._size - self.bytes_read} more bytes were expected."
            )
        self.bytes_read += len(data)
        return data

    def _damaged(self, reason: str) -> SourceError:
        begins = max(0, self.bytes_read - PIECE_BYTES)
        return SourceError(
            f"{self._path!r} is damaged in bytes {begins} to {self.bytes_read} of its {self._format.name} data: "
            f"{reason}"
        )
