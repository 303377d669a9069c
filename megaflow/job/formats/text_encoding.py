"""Bytes to text: the compression and encoding of an input, and the bytes that are not in its encoding.

1. The default is UTF-8, and strict: a byte that is not UTF-8 ends the job, with its place and the remedy. If such bytes
   were replaced silently, different names would become one key.
2. Most encodings write `\\n` and `\\r` as these single bytes, and use them in no other character. Their files are cut
   into lines before decoding, so that a position is a byte of the file and several workers can read one file. Such
   encodings are ASCII, Latin-1, the code pages of Windows, GBK, Big5, Shift JIS, and EUC.
3. The others (UTF-16, UTF-32, ISO 2022, EBCDIC) are decoded as a stream, from the first byte on: see `StreamDecoder`.
4. With `replace`, each sequence of bytes that cannot be decoded becomes U+FFFD, and is counted.
"""

import codecs
import shlex
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Final

from megaflow.errors import SourceError, UsageError
from megaflow.job.formats.compression import FORMATS
from megaflow.job.formats.file_formats import binary_of, compression_of, encoding_of
from megaflow.job.formats.raw_file import read_head, reading
from megaflow.quick_dataclass import dataclass

UTF_8: Final = "utf-8"
ENCODING_ERRORS: Final = ("strict", "replace")
COUNTED: Final = "megaflow-replace"
"""The name, for Python's codecs, of the error handler that replaces and counts."""
ODD: Final = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7", "mbcs", "oem")
"""Python's encodings that are not for files of lines: they depend on the platform, or hide line ends in characters."""
STATEFUL: Final = ("iso2022", "hz")
"""Encodings in which an escape sequence changes the meaning of bytes, so that a line cannot stand alone."""


class _Replaced(threading.local):
    """Number of byte sequences that this thread has ever replaced."""

    count = 0


_replaced = _Replaced()


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    _replaced.count += 1
    return "\ufffd", error.end


codecs.register_error(COUNTED, _replace)


def decode_counted(data: bytes, encoding: str) -> tuple[str, int]:
    r"""Return a text like `replace`, and the number of U+FFFD that stand for bytes not in the encoding.

    >>> decode_counted(b"Ren\xe9, \xff\xef\xbf\xbd", "utf-8")
    ('Ren\ufffd, \ufffd\ufffd', 2)
    """
    before = _replaced.count
    return data.decode(encoding, COUNTED), _replaced.count - before


def parse_encoding(given: str) -> str:
    """Return Python's name of an encoding. UTF-8 with a byte order mark is UTF-8. Raises UsageError.

    >>> parse_encoding("Latin-1"), parse_encoding("UTF8"), parse_encoding("utf-8-sig"), parse_encoding("UTF-16LE")
    ('iso8859-1', 'utf-8', 'utf-8', 'utf-16-le')
    """
    try:
        found = codecs.lookup(given)
    except (LookupError, ValueError):
        raise UsageError(
            f"encoding={given}: Python has no encoding of this name. Give one such as latin-1, cp1252 or utf-16."
        ) from None
    name = found.name.replace("_", "-")
    if not getattr(found, "_is_text_encoding", True) or name in ODD:
        raise UsageError(
            f"encoding={given}: Files of lines cannot be in this encoding. Give one such as latin-1 or utf-16."
        )
    return UTF_8 if name == "utf-8-sig" else name


def is_streamed(encoding: str) -> bool:
    """Return whether text in an encoding can be decoded only from its beginning: see rule 3.

    >>> [is_streamed(parse_encoding(name)) for name in ("utf-8", "latin-1", "gb18030", "utf-16", "cp037", "iso2022_jp")]
    [False, False, False, True, True, True]
    """
    if encoding == UTF_8:
        return False
    return encoding.startswith(STATEFUL) or "\n\r".encode(encoding, "replace") != b"\n\r"


@dataclass(frozen=True, slots=True)
class TextForm:
    """How the bytes of a file become text."""

    encoding: str = ""  # Python's name; "": UTF-8 or, for a compressed file, the encoding that its text's mark names
    compression: str = ""  # such as gzip; "": none

    @property
    def is_streamed(self) -> bool:
        """Whether the file can be read only from its beginning."""
        return bool(self.compression) or is_streamed(self.encoding or UTF_8)


PLAIN: Final = TextForm()


def form_of(path: str, encoding: str = "") -> TextForm:
    """Return the form of a file. `encoding` is the user's statement, or "".

    Raises SourceError for a file that cannot be read or decompressed here, and for one of a binary format.
    """
    with reading(path):
        head = read_head(path)
    if compression := compression_of(head):
        FORMATS[compression](path)
        return TextForm(encoding, compression)
    check_is_text(head, repr(path), path, encoding)
    return TextForm(encoding or encoding_of(head))


def check_is_text(head: bytes, name: str, path: str, encoding: str) -> None:
    """Raise SourceError if these first bytes show a binary format, or an encoding that the user has to name."""
    found = binary_of(head)
    if found is not None and not (found.is_text and (encoding or encoding_of(head))):
        remedy = found.remedy.format(path=shlex.quote(path))
        raise SourceError(f"Cannot read {name} as lines: it is {found.name}. {remedy}")


class NotText(SourceError):
    """Bytes that are not in the encoding. A reader that knows their line turns this into an error for the user."""

    def __init__(self, data: bytes, position: int, reason: str) -> None:
        """`position` is the place of `data` in the input, in bytes."""
        super().__init__(data, position, reason)
        self.position = position
        self.shown = f"0x{data[:4].hex(' ')} ({reason})"

    def __str__(self) -> str:
        return f"byte {self.position} is {self.shown}"

    def explained(self, line: str, encoding: str, spec: str, input: str = "") -> SourceError:
        """Return the error for a user. `line` names the line; `spec` and `input` are the input's path and name.

        >>> error = NotText(bytes([0xe9]), 17, "invalid byte").explained("line 3 of 'a.csv'", "", "a.csv")
        >>> print(str(error)[:111])
        Line 3 of 'a.csv' is not UTF-8: byte 17 is 0xe9 (invalid byte). Name its encoding: --lines 'a.csv?encoding=lati
        """
        other = "latin-1" if encoding in ("", UTF_8) else "utf-8"
        named = f"{input}={spec}" if input else spec
        return SourceError(
            f"{line[0].upper()}{line[1:]} is not {(encoding or UTF_8).upper()}: {self}. Name its encoding: --lines "
            f"'{named}?encoding={other}'. Or give --encoding-errors replace, which reads U+FFFD for such bytes and "
            "counts them."
        )


class StreamDecoder:
    """Decodes a text piece by piece, to UTF-8, for an encoding whose lines cannot be cut before decoding."""

    def __init__(self, encoding: str, errors: str) -> None:
        self.has_replaced = False  # whether bytes were ever replaced
        self._decoder = codecs.getincrementaldecoder(encoding)(COUNTED if errors == "replace" else errors)
        self._fed = 0  # bytes
        self._fault: NotText | None = None  # to raise after the text before it

    def feed(self, data: bytes, is_end: bool) -> bytes:
        """Return the text of more bytes. Raises NotText in the call after the one that returned the text before it.

        >>> StreamDecoder("utf-16", "strict").feed("é\\n".encode("utf-16"), True)
        b'\\xc3\\xa9\\n'
        """
        if self._fault is not None:
            raise self._fault
        state, before = self._decoder.getstate(), _replaced.count
        try:
            text = self._decoder.decode(data, is_end)
        except UnicodeDecodeError as error:
            held = len(error.object) - len(data)  # bytes of earlier pieces
            bad = error.object[error.start : error.end]
            self._fault = NotText(bad, self._fed - held + error.start, error.reason)
            self._decoder.setstate(state)
            text = self._decoder.decode(data[: max(0, error.start - held)]) if error.start > held else ""
            if not text:
                raise self._fault from None
        self._fed += len(data)
        self.has_replaced |= _replaced.count > before
        return text.encode(UTF_8, "surrogatepass")


@dataclass(eq=False)
class ReplacedBytes:
    """Counts of byte sequences that are not text, by input. Only the thread that decodes writes them."""

    tell: Callable[[str, str], None] = lambda about, text: None  # the input, and the place of its first sequences
    counts: dict[str, int] = field(default_factory=dict)  # input -> sequences; "": the only input, without a name

    def note(self, input: str, count: int, where: str) -> None:
        """Add to the count. `where` names the text with the first of these sequences."""
        if input not in self.counts:
            self.tell(
                f"text of {input!r}", f"{where} has bytes that are not text. U+FFFD is read in their place, here and "
                "later; control status and the end of the job count them."
            )  # fmt: skip
        self.counts[input] = self.counts.get(input, 0) + count
