"""Lines of text in bytes: where they end, and their text.

1. A line ends at `\\n`, `\\r\\n` or `\\r`, and nowhere else (not at form feeds or U+2028, unlike `str.splitlines`). The
   last line of a file may have no end. `open(path)` and Spark do the same.
2. Text is decoded once per block of whole lines. In the encodings used here, neither `\\n` nor `\\r` is ever part of a
   longer character. So invalid bytes are found, and replaced, just as in the whole file. A byte order mark at the
   beginning of a file is not part of its text. Elsewhere it is text like any other, as with
   `open(path, encoding="utf-8-sig")`.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Self, TypeVar

from megaflow.errors import SourceError, UsageError
from megaflow.job.formats.file_formats import compression_of, encoding_of
from megaflow.job.formats.text_encoding import ENCODING_ERRORS, UTF_8, NotText, check_is_text, decode_counted

T = TypeVar("T")

BLOCK_BYTES: Final = 64 * 1024  # one read, one decode; larger ones gain nothing
BATCH_BYTES: Final = 6144  # small, so that a fold's results for one batch stay in the processor's cache
LINE_BYTES_MAX: Final = 64 * 1024 * 1024  # unless the job sets another limit; a longer "line" means a binary file
AGAIN: Final = 1.25
"""A stream parses an open record again when its text has grown by this factor, if it is longer than BLOCK_BYTES."""
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MARK: Final = "\ufeff"
"""The same in text."""
LINE_END: Final = re.compile(rb"\r\n|\n|\r")
NULS: Final = re.compile(rb"[\r\n]\0")
LONE_RETURN: Final = re.compile(r"\r(?!\n)")


class Line(NamedTuple):
    """A line, or a record of several lines, with its place: the records of `flow.lines(with_source=True)`.

    `path` is the absolute path of the file, `-` for standard input, and empty for an iterable. `number` counts the
    lines of the file from 1. For a record of several lines, it is the number of the first.
    """

    text: str
    path: str
    number: int


class Text:
    """Decoder of the bytes of one input."""

    def __init__(self, name: str, errors: str = "strict", encoding: str = "") -> None:
        """`name` is that of the input, for errors. `encoding` is not one that is decoded as a stream; "": UTF-8."""
        if errors not in ENCODING_ERRORS:
            raise UsageError(f"Encoding errors are handled by {' or '.join(ENCODING_ERRORS)}, not by {errors!r}.")
        self.name = name
        self.errors = errors
        self.encoding = encoding or UTF_8
        self.has_replaced = False  # whether bytes were ever replaced

    @classmethod
    def growing(
        cls, head: bytes, path: str, errors: str, encoding: str, tell: Callable[[str, str], None]
    ) -> Self | None:  # fmt: skip
        """Return the decoder of a growing file that begins with `head`. None if it is compressed; `tell` reports that.

        Raises SourceError if it is not text, or cannot be cut into lines while it grows.
        """
        if compression := compression_of(head):
            what = f"{path!r} is compressed by {compression}, so it cannot be followed"
            tell(f"compressed {path}", f"{what}. Name it without --follow.")
            return None
        check_is_text(head, repr(path), path, encoding)
        if not encoding and (marked := encoding_of(head)):
            raise SourceError(
                f"Cannot follow {path!r}: it is in {marked.upper()}, whose lines do not end at single "
                "bytes. Write it in UTF-8, or leave --follow out."
            )
        return cls(repr(path), errors, encoding)

    def decode(self, data: bytes, position: int) -> str:
        """Return the text of `data`, which starts at byte `position` of the input.

        A byte order mark at the beginning of the input is dropped. Raises NotText if `errors` is "strict".

        >>> Text("a file").decode(b"\\xef\\xbb\\xbfa\\n", 0)
        'a\\n'
        """
        if position == 0 and data.startswith(BYTE_ORDER_MARK) and self.encoding == UTF_8:
            data, position = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        try:
            return data.decode(self.encoding)
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise NotText(data[error.start : error.end], position + error.start, error.reason) from None
        self.has_replaced = True
        return decode_counted(data, self.encoding)[0]

    def replaced_in(self, data: bytes) -> int:
        """Return how many byte sequences are replaced in some lines. Costs decoding them again.

        >>> Text("a file", "replace").replaced_in(b"Ren\\xe9\\n\\xff\\n")
        2
        """
        return decode_counted(data, self.encoding)[1]


def line_start(file: int, position: int) -> int:
    """Return the first byte >= position of an open file at which a line starts, or the file's end if none does.

    Costs one small read, plus the length of the line that covers `position`.
    """
    if position == 0:
        return 0
    at, size = position - 1, 256  # the byte before `position` tells whether a line starts there
    while data := os.pread(file, size, at):
        if found := LINE_END.search(data):
            end = at + found.end()
            is_cut = found[0] == b"\r" and os.pread(file, 1, end) == b"\n"  # \r\n is a single end
            return end + is_cut
        at, size = at + len(data), BLOCK_BYTES
    return at


def whole_lines(data: bytes, ends_line: bool) -> int:
    """Return how many of the first bytes of `data` are whole lines. `data` starts at the beginning of a line.

    `ends_line` says that `data` ends at the end of a line. Otherwise a `\\r` in last place does not count yet, because
    a `\\n` may follow it.

    >>> whole_lines(b"a\\nb\\r", ends_line=False), whole_lines(b"a\\nb\\r", ends_line=True)
    (2, 4)
    """
    if ends_line:
        return len(data)
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1


def lines_of(text: str) -> list[str]:
    """Split the text of whole lines. The lines have no ends.

    >>> lines_of("a\\r\\nb\\x0bc\\rd\\n\\ne")
    ['a', 'b\\x0bc', 'd', '', 'e']
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _split(text)


def _split(text: str) -> list[str]:
    lines = text.split("\n")
    if not lines[-1]:  # the text after the last end is not a line
        lines.pop()
    return lines


def piped_lines(text: str) -> list[str]:
    """Split the text of whole lines like `lines_of`, but so that `restored` can give back their ends.

    A line that ends in `\\r\\n` keeps one `\\r`, and one that ends in `\\r` alone gets two.

    >>> piped_lines("a\\nb\\r\\nc\\rd")
    ['a', 'b\\r', 'c\\r\\r', 'd']
    """
    return lines_of(text) if "\r" not in text else _split(LONE_RETURN.sub("\r\r\n", text))


def without_marks(lines: list[str]) -> list[str]:
    """Return lines that `piped_lines` has split as `lines_of` would return them."""
    return [line.rstrip("\r") for line in lines] if "\r" in "".join(lines) else lines


def restored(line: str) -> str:
    """Return a line that `piped_lines` has split, with its end.

    >>> [restored(line) for line in piped_lines("a\\nb\\r\\nc\\rd")]
    ['a\\n', 'b\\r\\n', 'c\\r', 'd\\n']
    """
    return line[:-1] if line.endswith("\r\r") else f"{line}\n"


def bytes_of(data: bytes, lines: int, of: int = 0) -> int:
    """Return how many bytes the first lines of `data` take, including their ends. `data` consists of whole lines.

    `of`: how many lines it has, if that is known. Costs reading these lines, or the others if they are fewer.

    >>> bytes_of(b"a\\r\\nb\\nc", 2), bytes_of(b"a\\r\\nb\\nc", 3), bytes_of(b"a\\nb\\nc\\n", 2, 3)
    (5, 6, 4)
    """
    if of - lines < lines < of and b"\r" not in data:
        end = len(data)
        for _ in range(of - lines):
            end = data.rfind(b"\n", 0, end - 1) + 1
        return end
    end = 0
    for _, found in zip(range(lines), LINE_END.finditer(data)):
        end = found.end()
        lines -= 1
    return len(data) if lines else end


def batches_of(lines: list[T], size: int) -> Iterator[list[T]]:
    """Slice lines of `size` bytes in all into batches of about 6 KB each.

    >>> [len(batch) for batch in batches_of(["a" * 40] * 250, 10_000)]
    [153, 97]
    """
    step = max(1, len(lines) * BATCH_BYTES // max(1, size))
    return (lines[start : start + step] for start in range(0, len(lines), step))


def lines_before(bytes_at: Callable[[int, int], bytes], position: int) -> int:
    """Return the number of lines of a file before the line that begins at `position`. Costs reading them.

    `bytes_at` returns the bytes from a place on, at most so many.
    """
    lines, rest = 0, b""
    for start in range(0, position, BLOCK_BYTES):
        data = rest + bytes_at(start, min(BLOCK_BYTES, position - start))
        whole = whole_lines(data, start + BLOCK_BYTES >= position)
        lines, rest = lines + len(LINE_END.findall(data[:whole])), data[whole:]
    return lines


def before_nuls(data: bytes) -> bytes | None:
    """Return the lines before the first one that begins with NULs, except the first line. None if there is none.

    >>> before_nuls(b"a\\n\\0\\0b\\n"), before_nuls(b"\\0a\\n")
    (b'a\\n', None)
    """
    found = NULS.search(data)
    return None if found is None else data[: found.end() - 1]
