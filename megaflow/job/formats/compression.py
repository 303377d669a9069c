"""Text of compressed files: gzip, bzip2, xz and Zstandard, recognized by their first bytes.

1. A file is decompressed in pieces of at most PIECE_BYTES, however far its bytes expand. So memory use does not depend
   on the compression ratio.
2. Several members in a row are one text, as `cat a.gz b.gz` produces them. Zeros after a member are padding. Other data
   after a member is an error. A damaged member and a member without an end are also errors. They never count as the end
   of the text, as they do in some readers.
"""

import bz2
import importlib
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from megaflow.errors import SourceError
from megaflow.job.formats.raw_file import PIECE_BYTES, RawBytes

GZIP: Final = 16 + zlib.MAX_WBITS  # zlib's code for gzip's own header and checksum
ZSTD_MODULES: Final = ("compression.zstd", "backports.zstd")  # in Python 3.14 and newer; for older ones


class GzipMember:
    """One member of a gzip file, with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(GZIP)
        self.needs_input = True  # whether more bytes are needed to get more text
        self.eof = False  # whether the end of the member was reached and its checksum is right
        self.unused_data = b""  # the bytes after the end of the member

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Return the next text, at most so many bytes. Raises zlib.error."""
        text = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(text) < max_length and not self._inner.unconsumed_tail
        self.eof, self.unused_data = self._inner.eof, self._inner.unused_data
        return text


Decompressor: TypeAlias = GzipMember | bz2.BZ2Decompressor
"""Decompressor of one member. Those of the other formats have the same interface."""


class Format(NamedTuple):
    """A compression format."""

    name: str
    begin: Callable[[], Decompressor]
    fault: type[Exception]  # the error that a damaged member raises


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
"""Name of a format -> function that returns it for a path. It raises SourceError if this Python cannot read it."""
SUFFIXES: Final = (".gz", ".bz2", ".zst", ".xz")


def has_suffix(path: str) -> bool:
    """Return whether the file's name says that it is compressed, as that of a rotated log does.

    >>> has_suffix("a.txt.GZ"), has_suffix("a.gz.txt")
    (True, False)
    """
    return os.path.splitext(path)[1].lower() in SUFFIXES


class CompressedText(RawBytes):
    """Text of an open file from its beginning, piece by piece."""

    def __init__(self, path: str, file: int, size: int, compression: str) -> None:
        super().__init__(path, file, size)
        self._format = FORMATS[compression](path)
        self._member: Decompressor | None = None
        self._members = 0
        self._bytes = b""  # read from the file, not decompressed

    def next_piece(self) -> bytes:
        """Return the next bytes of the text, b"" at its end. Raises SourceError with the place in the file."""
        while self._member is not None or self._begin():
            member = self._member
            assert member is not None, "one has begun"
            data = b""
            if member.needs_input:
                data, self._bytes = self._bytes or self._read(), b""
            try:
                text = member.decompress(data, PIECE_BYTES)
            except self._format.fault as error:
                begins = max(0, self.bytes_read - PIECE_BYTES)
                raise SourceError(
                    f"{self._path!r} is damaged in bytes {begins} to {self.bytes_read} of its {self._format.name} "
                    f"data: {error}"
                ) from None
            if member.eof:
                self._member, self._bytes = None, member.unused_data
            if text:
                return text
        return b""

    def _begin(self) -> bool:
        """Begin the next member. Return whether there is one."""
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

    def _read(self) -> bytes:
        if self.bytes_read == self._size:
            raise SourceError(
                f"{self._path!r} is incomplete: it ends at byte {self._size}, in the middle of its "
                f"{self._format.name} data. Copy it again, and read it from its beginning."
            )
        return super().next_piece()
