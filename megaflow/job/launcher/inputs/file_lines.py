"""Lines of a pipe, a terminal or an open file, which the launcher reads from the present position.

`LineReader` calls `FileLines` on its thread.
"""

import os
import select
from typing import Final

from megaflow.errors import SourceError, naming
from megaflow.job.formats.file_formats import compression_of, encoding_of
from megaflow.job.formats.record_format import too_long
from megaflow.job.formats.text_encoding import UTF_8, NotText, ReplacedBytes, StreamDecoder, check_is_text, is_streamed
from megaflow.job.formats.text_lines import (
    BLOCK_BYTES,
    LINE_BYTES_MAX,
    LINE_END,
    Text,
    lines_of,
    piped_lines,
    whole_lines,
)
from megaflow.job.launcher.processes.wakeups import Wakeup

MARK_BYTES: Final = 10  # of the longest mark of a compressed file
LONGEST: Final = "line", "Is it a text file? flow.json() reads a longer line from a file."
DECOMPRESS: Final = {"gzip": "zcat", "bzip2": "bzcat", "xz": "xzcat", "Zstandard": "zstdcat"}


class TextSplitter:
    """Splitter of a byte stream into lines. It cuts them by `whole_lines`, and marks their ends as `piped_lines` does.

    >>> splitter = TextSplitter(Text("standard input"))
    >>> splitter.feed(b"a\\r"), splitter.feed(b"\\nb\\nc"), splitter.end()
    ([], ['a\\r', 'b'], ['c'])
    """

    def __init__(self, text: Text, bytes_max: int = LINE_BYTES_MAX) -> None:
        """`bytes_max`: of a line, with its end."""
        self.lines = 0  # so far
        self.replaced = 0  # byte sequences, so far
        self.text = text
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []  # the start of a line; no line end, except perhaps a last \\r
        self._parts_bytes = 0
        self._position = 0  # of `_parts` in the stream

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes. Raises SourceError."""
        end = LINE_END.search(data)
        if self._parts_bytes + (len(data) if end is None else end.end()) > self._bytes_max:
            raise too_long(LONGEST, self._bytes_max, self.text.name, f"byte {self._position}")
        self._parts.append(data)
        self._parts_bytes += len(data)
        if b"\n" not in data and b"\r" not in data and not self._parts[0].endswith(b"\r"):
            return []
        whole = b"".join(self._parts)
        length = whole_lines(whole, ends_line=False)
        return self._cut(whole, length)

    def end(self) -> list[str]:
        """Return the last line, if it has no end. Raises SourceError."""
        whole = b"".join(self._parts)
        return self._cut(whole, len(whole))

    def _cut(self, whole: bytes, length: int) -> list[str]:
        data = whole[:length]
        try:
            lines = piped_lines(self.text.decode(data, self._position))
        except NotText as error:
            before = data[: max(0, error.position - self._position)]
            number = self.lines + len(lines_of(before.decode("latin-1"))) + (not before or before[-1:] in b"\r\n")
            raise error.explained(f"line {number} of {self.text.name}", self.text.encoding, "-") from None
        self.lines += len(lines)
        self.replaced += self.text.replaced_in(data) if self.text.has_replaced else 0
        self._position += length
        self._parts = [whole[length:]] if length < len(whole) else []
        self._parts_bytes = len(whole) - length
        return lines


class FileLines:
    """Lines of an open file descriptor: a pipe, a terminal, a regular file. Does not close it."""

    def __init__(self, file: int, name: str, errors: str = "strict", encoding: str = "") -> None:
        """`encoding`: "" for UTF-8, or for the encoding of a byte order mark. Raises SourceError for a closed file."""
        self.done = False
        self.bytes_max = LINE_BYTES_MAX  # of a line; set before the first read
        self.replaced = ReplacedBytes()  # written by the thread that reads
        self._file = file
        self._name = name
        self._errors = errors
        self._encoding = encoding
        self._first = b""  # bytes, while they are too few to detect compression and encoding
        self._splitter: TextSplitter | None = None  # once the encoding is known
        self._decoder: StreamDecoder | None = None
        with naming(SourceError, f"Cannot read {name}"):
            os.fstat(file)

    def wait(self, stopped: Wakeup) -> bool:
        """Wait until there are bytes to read, or the end; return False if `stopped` is woken."""
        poller = select.poll()
        poller.register(self._file, select.POLLIN)
        poller.register(stopped, select.POLLIN)
        return all(file != stopped.fileno() for file, _ in poller.poll())

    def read(self) -> list[str]:
        """Read one more block; return the lines that it completes. Raises SourceError."""
        with naming(SourceError, f"Cannot read {self._name}"):
            data = os.read(self._file, BLOCK_BYTES)
        self.done = not data
        if self._splitter is None:
            data = self._first = self._first + data
            if not self.done and len(data) < MARK_BYTES and b"\n" not in data:
                return []
            self._first = b""
            self._splitter = self._begin(data)
        if self._decoder is not None:
            try:
                data = self._decoder.feed(data, self.done)
            except NotText as error:
                line = f"line {self._splitter.lines + 1} of {self._name}"
                raise error.explained(line, self._encoding, "-") from None
        lines = self._splitter.feed(data) if data else []
        if self.done:
            lines += self._splitter.end()
        count, self._splitter.replaced = self._splitter.replaced, 0
        if self._decoder is not None and self._decoder.has_replaced:
            count = sum(line.count("\ufffd") for line in lines)
        if count:
            self.replaced.note("", count, self._name)
        return lines

    def _begin(self, head: bytes) -> TextSplitter:
        """Choose how to decode a stream that begins with `head`. Raises SourceError if it is not text."""
        if compression := compression_of(head):
            raise SourceError(
                f"Cannot read {self._name} as lines: it is compressed by {compression}. Decompress it first: "
                f"{DECOMPRESS[compression]} FILE | megaflow run … --lines -"
            )
        check_is_text(head, self._name, "FILE", self._encoding)
        self._encoding = self._encoding or encoding_of(head) or UTF_8
        if not is_streamed(self._encoding):
            return TextSplitter(Text(self._name, self._errors, self._encoding), self.bytes_max)
        self._decoder = StreamDecoder(self._encoding, self._errors)
        return TextSplitter(Text(self._name, self._errors), self.bytes_max)
