"""A compressed file as a split: one that is read from its beginning on, whoever reads it.

1. Nobody can begin in the midst of a compressed file, so it is one split. `start` and `end` count its own bytes, so
   that sizes, fingerprints and shares are as of other files; `skip` is how much of its *text* was read, from the
   beginning of the file, whatever `start` says.
2. The text up to `skip` follows from the bytes before `start`, which were decompressed by then: a fingerprint of these
   tells whether it is what was read. While any text is left, `start` is less than `end`.
3. Who goes on begins at the first byte, and decompresses as much text as `skip` says only to drop it.
4. What is damaged is an error only when all whole lines before it are read.
"""

import sys
from contextlib import closing
from dataclasses import replace

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.compression import CompressedText, is_compressed
from megaflow.job.record_format import LINES, RecordFormat
from megaflow.job.split_reader import SplitReader
from megaflow.job.text_lines import BLOCK_BYTES, Text, whole_lines

UNKNOWN = sys.maxsize  # where the text ends


class CompressedReader(SplitReader):
    """Reads a compressed file: `position` and `end` are of its text."""

    def __init__(
        self, split: Split, errors: str = "replace", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES
    ) -> None:
        super().__init__(split, errors, block_bytes, format)
        self.position, self.end = split.skip, UNKNOWN
        self._text = Text(f"the text of {split.path!r}", errors)
        self._pieces: CompressedText
        self._bytes_read = split.start
        self._waiting = bytearray()  # text that was decompressed and is not read
        self._begins = split.skip  # its first byte's place in the whole text
        self._fault: SourceError | None = None  # comes behind that text

    def _begin(self) -> None:
        self._pieces = CompressedText(self.split.path, self._file, self.split.end)
        self._waiting.clear()
        left = self.split.skip
        while left:
            piece = self._pieces.next_piece()
            if not piece:
                raise SourceError(f"{self.split.path!r} has {left} bytes of text less than were read of it before")
            self._waiting += piece[left:]
            left -= min(left, len(piece))

    def beginning(self, size: int) -> tuple[bytes, bool]:
        """Return so many bytes from the beginning of the text, and whether it has no more."""
        if self.position:
            with closing(self.anew()) as reader:
                reader._open()
                return reader.beginning(size)
        data = self._read_bytes(size)
        return data, len(data) == self.end

    def rest(self, untaken: int) -> Split | None:
        """Return what is left with the last `untaken` lines of batches; None if that is nothing."""
        skip = self.position_after(self._handed_out - untaken)
        if skip >= self.end:
            return None
        return replace(self.split, start=min(self._bytes_read, self.split.end - 1), skip=skip)

    def _read_bytes(self, size: int) -> bytes:
        del self._waiting[: self.position - self._begins]
        self._begins = self.position
        while len(self._waiting) <= size and self.end == UNKNOWN and self._fault is None:
            try:
                piece = self._pieces.next_piece()
            except SourceError as error:
                self._fault = error
                break
            finally:
                self._bytes_read = self._pieces.bytes_read
            self._waiting += piece
            if not piece:
                self.end = self._begins + len(self._waiting)
        data = bytes(self._waiting[:size])
        if self._fault is not None and not whole_lines(data, ends_line=False) and len(self._waiting) <= size:
            raise SourceError(f"{self._fault}. All lines before are read, {self.position} bytes of text")
        return data

    def _lack(self, data: bytes) -> None:
        """Raise the fault of the file if the bytes before it do not end a record."""
        if self._fault is not None and len(data) == len(self._waiting):
            raise SourceError(f"{self._fault}. All lines before are read, {self.position} bytes of text")


def reader_of(
    split: Split, errors: str = "replace", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES
) -> SplitReader:
    """Return what reads a split, compressed or not."""
    return (CompressedReader if is_compressed(split.path) else SplitReader)(split, errors, block_bytes, format)
