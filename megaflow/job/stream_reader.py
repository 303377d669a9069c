"""A file whose text is not its bytes, as a split: one that is read from its beginning on by each reader.

Such are compressed files, and those in an encoding that is decoded as a stream (`text_encoding`, rule 3).

1. A reader cannot begin in the midst of such a file, so it is one split. `start` and `end` count its own bytes, so
   that sizes, fingerprints and shares are as of other files; `skip` is how much of its *text* was read, from the
   beginning of the file, whatever `start` says.
2. The text up to `skip` follows from the bytes before `start`, which were read by then: a fingerprint of these
   tells whether it is what was read. While any text is left, `start` is less than `end`.
3. A reader that goes on begins at the first byte, and decodes as much text as `skip` says only to drop it.
4. Damage, and bytes that are not in the encoding, are errors only when all whole lines before them are read.
"""

import sys
from contextlib import closing
from dataclasses import replace

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.compression import CompressedText
from megaflow.job.file_formats import HEAD_BYTES, compression_of, encoding_of
from megaflow.job.record_format import LINES, RecordFormat
from megaflow.job.split_reader import SplitReader
from megaflow.job.text_encoding import UTF_8, NotText, ReplacedBytes, StreamDecoder, is_streamed
from megaflow.job.text_form import RawBytes, TextForm, check_is_text
from megaflow.job.text_lines import BLOCK_BYTES, Text, whole_lines

UNKNOWN = sys.maxsize  # where the text ends
REPLACEMENT = "\ufffd".encode()


class StreamReader(SplitReader):
    """Reads a file as a stream: `position` and `end` are of its text, in UTF-8 unless its lines can be cut."""

    def __init__(
        self, split: Split, errors: str = "strict", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES,
        replaced: ReplacedBytes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(split, errors, block_bytes, format, replaced)
        self.position, self.end = split.skip, UNKNOWN
        self._name = f"the text of {split.path!r}" if split.compression else repr(split.path)
        self._pieces: CompressedText | RawBytes
        self._decoder: StreamDecoder | None = None  # None: the lines are cut first
        self._has_begun = False
        self._bytes_read = split.start
        self._waiting = bytearray()  # text that was decoded and is not read
        self._begins = split.skip  # its first byte's place in the whole text
        self._fault: SourceError | None = None  # comes behind that text

    def _begin(self) -> None:
        split = self.split
        if split.compression:
            self._pieces = CompressedText(split.path, self._file, split.end, split.compression)
        else:
            self._pieces = RawBytes(split.path, self._file, split.end)
        self._waiting.clear()
        self._has_begun = False
        left = split.skip
        while left or not self._has_begun:
            try:
                piece = self._next_piece()
            except SourceError as error:
                if left:
                    raise
                self._fault = error  # it has no line before that
                break
            if not piece and left:
                raise SourceError(f"{split.path!r} has {left} bytes of text less than were read of it before.")
            self._waiting += piece[left:]
            left -= min(left, len(piece))
            if not piece:
                self.end = self._begins + len(self._waiting)
                break

    def _next_piece(self) -> bytes:
        """Return the next bytes of the text; none at its end. Raises SourceError."""
        while True:
            try:
                data = self._pieces.next_piece()
            finally:
                self._bytes_read = self._pieces.bytes_read
            if not self._has_begun:
                self._begin_text(data)
            if self._decoder is None:
                return data
            text = self._decoder.feed(data, is_end=not data)
            if text or not data:
                return text

    def _begin_text(self, data: bytes) -> None:
        """Find out how to decode what begins with these bytes. Raises SourceError if it is no text."""
        split, self._has_begun = self.split, True
        head = data[:HEAD_BYTES]
        if twice := split.compression and compression_of(head):
            raise SourceError(
                f"Cannot read {split.path!r} as lines: it is compressed twice, by {split.compression} and by {twice}. "
                "Decompress it first."
            )
        check_is_text(head, self._name, split.path, split.encoding)
        encoding = split.encoding or encoding_of(head) or UTF_8
        if is_streamed(encoding):
            self._decoder = StreamDecoder(encoding, self._text.errors)
            self._encoding, encoding = encoding, UTF_8
        self._text = Text(self._name, self._text.errors, encoding)

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
        return replace(self.split, start=min(self._bytes_read, self.split.end - 1) if skip else 0, skip=skip)

    def _replaced_in(self, data: bytes) -> int:
        return data.count(REPLACEMENT) if self._decoder is not None else super()._replaced_in(data)

    @property
    def _has_replaced(self) -> bool:
        return self._text.has_replaced or (self._decoder is not None and self._decoder.has_replaced)

    def _read_bytes(self, size: int) -> bytes:
        del self._waiting[: self.position - self._begins]
        self._begins = self.position
        while len(self._waiting) <= size and self.end == UNKNOWN and self._fault is None:
            try:
                piece = self._next_piece()
            except SourceError as error:
                self._fault = error
                break
            self._waiting += piece
            if not piece:
                self.end = self._begins + len(self._waiting)
        data = bytes(self._waiting[:size])
        if self._fault is not None and not whole_lines(data, ends_line=False) and len(self._waiting) <= size:
            raise self._explained(self._fault)
        return data

    def _lack(self, data: bytes) -> None:
        """Raise the fault of the file if the bytes before it do not end a record."""
        if self._fault is not None and len(data) == len(self._waiting):
            raise self._explained(self._fault)

    def _explained(self, fault: SourceError) -> SourceError:
        """Return the error for a user; all lines before are read."""
        if isinstance(fault, NotText):
            return fault.explained(self.line_name(self.position, 0), self._encoding, self.split.path, self.split.input)
        if not self.position:
            return fault
        return SourceError(f"{str(fault).rstrip('.')}. All lines before it were read: {self.position} bytes of text")


def reader_of(
    split: Split, errors: str = "strict", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES,
    replaced: ReplacedBytes | None = None,
) -> SplitReader:  # fmt: skip
    """Return what reads a split, as a stream or not. Raises SourceError if the part before it was read otherwise."""
    streamed = TextForm(split.encoding, split.compression).is_streamed
    if split.skip if not streamed else split.start and not split.skip and not split.compression:
        raise SourceError(
            f"The first part of {split.path!r} was read in another encoding, which cannot be changed in the "
            "middle. Name that encoding again, or start over with a new --state folder."
        )
    return (StreamReader if streamed else SplitReader)(split, errors, block_bytes, format, replaced)
