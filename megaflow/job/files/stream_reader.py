"""Reader of a file whose text is not its bytes. Each reader reads its split from the beginning of the file.

Such files are compressed, or in an encoding that is decoded as a stream (`text_encoding`, rule 3).

1. A reader cannot begin in the middle of such a file, so the file is one split. `start` and `end` count the file's own
   bytes, so that sizes, prints and shares are like those of other files. `skip` is how much of its *text* was read,
   from the beginning of the file, whatever `start` is.
2. The text up to `skip` follows from the bytes before `start`, which were all read. So a print of these bytes tells
   whether they are the same. While any text is left, `start` is less than `end`.
3. A reader that continues begins at the first byte, and decodes the first `skip` bytes of text only to drop them.
4. Damage, and bytes that are not in the encoding, are errors only after all whole lines before them are read.
"""

import sys
from contextlib import closing

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.formats import text_encoding
from megaflow.job.formats.compression import CompressedText
from megaflow.job.formats.file_formats import compression_of, encoding_of
from megaflow.job.formats.raw_file import HEAD_BYTES, RawBytes
from megaflow.job.formats.record_format import LINES, RecordFormat
from megaflow.job.formats.text_lines import BLOCK_BYTES, Text, whole_lines

UNKNOWN = sys.maxsize  # the end of the text is not known yet
REPLACEMENT = "\ufffd".encode()


class StreamReader(SplitReader):
    """Reads a file as a stream. `position` and `end` count bytes of its text.

    The text is in UTF-8 if the file's encoding is decoded as a stream. Otherwise it is as in the file, decompressed.
    """

    can_leave_open = False

    def __init__(
        self, split: Split, errors: str = "strict", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES,
        replaced: text_encoding.ReplacedBytes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(split, errors, block_bytes, format, replaced)
        self.position, self.end = split.skip, UNKNOWN
        self._name = f"the text of {split.path!r}" if split.compression else repr(split.path)
        self._pieces: RawBytes | None = None  # None: the file is not open yet
        self._decoder: text_encoding.StreamDecoder | None = None  # None: the lines are cut before decoding
        self._has_begun = False
        self._waiting = bytearray()  # decoded text that is not yet read
        self._begins = split.skip  # position of its first byte in the whole text
        self._fault: SourceError | None = None  # to raise after that text

    def _begin(self) -> None:
        split = self.split
        self._pieces = RawBytes(split.path, self._file, split.end)
        if split.compression:
            self._pieces = CompressedText(split.path, self._file, split.end, split.compression)
        self._waiting.clear()
        self._has_begun = False
        left = self._wait_for_more(split.skip)
        while left:
            left = self._wait_for_more(left)

    def _wait_for_more(self, skip: int = 0) -> int:
        """Add the next text, without its first `skip` bytes. Return how many bytes are still to skip.

        Without bytes to skip, an error in the file is kept until the text before it is read.
        """
        try:
            piece = self._next_piece()
        except SourceError as error:
            if skip:
                raise
            self._fault = error
            return 0
        if not piece and skip:
            raise SourceError(f"{self.split.path!r} has {skip} bytes of text less than were read of it before.")
        self._waiting += piece[skip:]
        if not piece:
            self.end = self._begins + len(self._waiting)
        return skip - min(skip, len(piece))

    def _next_piece(self) -> bytes:
        """Return the next bytes of the text, b"" at its end. Raises SourceError."""
        assert self._pieces is not None, "the file is open"
        while True:
            data = self._pieces.next_piece()
            if not self._has_begun:
                self._begin_text(data)
            if self._decoder is None:
                return data
            text = self._decoder.feed(data, is_end=not data)
            self._text.has_replaced |= self._decoder.has_replaced
            if text or not data:
                return text

    def _begin_text(self, data: bytes) -> None:
        """Find out how to decode text that begins with these bytes. Raises SourceError if it is not text."""
        split, self._has_begun = self.split, True
        head = data[:HEAD_BYTES]
        if twice := split.compression and compression_of(head):
            raise SourceError(
                f"Cannot read {split.path!r} as lines: it is compressed twice, by {split.compression} and by {twice}. "
                "Decompress it first."
            )
        text_encoding.check_is_text(head, self._name, split.path, split.encoding)
        encoding = split.encoding or encoding_of(head) or text_encoding.UTF_8
        if text_encoding.is_streamed(encoding):
            self._decoder = text_encoding.StreamDecoder(encoding, self._text.errors)
            self._encoding, encoding = encoding, text_encoding.UTF_8
        self._text = Text(self._name, self._text.errors, encoding)

    def beginning(self, size: int) -> tuple[bytes, bool]:
        """Return so many bytes from the beginning of the text, and whether these are the whole text."""
        if self.position:
            with closing(self.anew()) as reader:
                reader._open()
                return reader.beginning(size)
        data = self._read_bytes(size)
        return data, len(data) == self.end

    def rest(self, untaken: int) -> Split | None:
        """Return what is left, including the last `untaken` lines of batches. None if nothing is left."""
        skip = self.position_after(self._handed_out - untaken)
        if skip >= self.end:
            return None
        read = self.split.start if self._pieces is None else self._pieces.bytes_read
        return self._rest_from(min(read, self.split.end - 1) if skip else 0, skip)

    def _replaced_in(self, data: bytes) -> int:
        return data.count(REPLACEMENT) if self._decoder is not None else super()._replaced_in(data)

    def _read_bytes(self, size: int) -> bytes:
        del self._waiting[: self.position - self._begins]
        self._begins = self.position
        while len(self._waiting) <= size and self.end == UNKNOWN and self._fault is None:
            self._wait_for_more()
        data = bytes(self._waiting[:size])
        if self._fault is not None and not whole_lines(data, ends_line=False) and len(self._waiting) <= size:
            raise self._explained(self._fault)
        return data

    def _lack(self, data: bytes) -> None:
        """Raise the fault of the file if the bytes before it do not end a record."""
        if self._fault is not None and len(data) == len(self._waiting):
            raise self._explained(self._fault)

    def _explained(self, fault: SourceError) -> SourceError:
        """Return the error for a user. All lines before it are read."""
        if isinstance(fault, text_encoding.NotText):
            return fault.explained(self.line_name(self.position, 0), self._encoding, self.split.path, self.split.input)
        if not self.position:
            return fault
        return SourceError(f"{str(fault).rstrip('.')}. All lines before it were read: {self.position} bytes of text")


def reader_of(
    split: Split, errors: str = "strict", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES,
    replaced: text_encoding.ReplacedBytes | None = None,
) -> SplitReader:  # fmt: skip
    """Return the reader of a split, as a stream or not. Raises SourceError if an earlier part was read differently."""
    streamed = text_encoding.TextForm(split.encoding, split.compression).is_streamed
    if split.skip if not streamed else split.start and not split.skip and not split.compression:
        raise SourceError(
            f"The first part of {split.path!r} was read in another encoding, which cannot be changed in the "
            "middle. Name that encoding again, or start over with a new --state folder."
        )
    return (StreamReader if streamed else SplitReader)(split, errors, block_bytes, format, replaced)
