"""The form of a file's text: how it is compressed, and its encoding, as the launcher finds them in its first bytes."""

import os
import shlex
from typing import Final

from megaflow.errors import SourceError
from megaflow.job.compression import PIECE_BYTES
from megaflow.job.compression import format_of as decompression_of
from megaflow.job.file_formats import HEAD_BYTES, binary_of, compression_of, encoding_of
from megaflow.job.text_encoding import UTF_8, is_streamed
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the bytes of a file become text."""

    encoding: str = ""  # Python's name; "": UTF-8, or, of a compressed file, what the mark of its text says
    compression: str = ""  # such as gzip; "": none

    @property
    def is_streamed(self) -> bool:
        """Whether the file can be read from its beginning on only."""
        return bool(self.compression) or is_streamed(self.encoding or UTF_8)


PLAIN: Final = TextForm()


def form_of(path: str, encoding: str = "") -> TextForm:
    """Return the form of a file; `encoding` is what the user says of it, or "".

    Raises SourceError for a file that cannot be read or decompressed here, and for one of a binary format.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise SourceError(f"Cannot read {path!r}: {error.strerror}.") from error
    if compression := compression_of(head):
        decompression_of(compression, path)
        return TextForm(encoding, compression)
    check_is_text(head, repr(path), path, encoding)
    return TextForm(encoding or encoding_of(head))


def check_is_text(head: bytes, name: str, path: str, encoding: str) -> None:
    """Raise SourceError if these first bytes show a binary format, or an encoding that the user has to name."""
    found = binary_of(head)
    if found is not None and not (found.is_text and (encoding or encoding_of(head))):
        remedy = found.remedy.format(path=shlex.quote(path))
        raise SourceError(f"Cannot read {name} as lines: it is {found.name}. {remedy}")


class RawBytes:
    """The bytes of an open file, piece by piece."""

    def __init__(self, path: str, file: int, size: int) -> None:
        """`size`: where the file ends; what it grows by meanwhile is not read."""
        self.bytes_read = 0
        self._path = path
        self._file = file
        self._size = size

    def next_piece(self) -> bytes:
        """Return the next bytes; none at their end. Raises SourceError."""
        try:
            data = os.pread(self._file, min(PIECE_BYTES, self._size - self.bytes_read), self.bytes_read)
        except OSError as error:
            raise SourceError(f"Cannot read {self._path!r}: {error.strerror}.") from error
        if not data and self.bytes_read < self._size:
            raise SourceError(
                f"{self._path!r} shrank while it was read: it ends at byte {self.bytes_read}, but "
                f"{self._size - self.bytes_read} more bytes were expected."
            )
        self.bytes_read += len(data)
        return data
