"""JSON files: arrays and values over several lines, for `flow.json()`.

1. The elements of an array at the top level are the records. Any other value at the top level is one record. So a file
   may be one array, several arrays, one value, or values one after another.
2. No record is a part of a value. In an array, a value ends if `,` or `]` follows. At the top level, a number or a name
   ends at a blank or at the end of the file; other values end by themselves. Until then a reader asks for more text.
3. A position is after a value, a `]` or a blank, never between `[` or `,` and the value after it. So the next character
   tells whether the position is in an array: if so, it is `,` or `]`. A reader needs nothing else, and reads the same
   records wherever it begins. A reader that continues from its last position also finds an extra `]` or `,`.
4. A fault ends the file: after it, a whole value looks like a part of another one. With `on_error="skip"` the rest of
   the file is left out. Only a number with too many digits is left out alone, because its end is known. In a growing
   file, nothing would be read after a fault, so `skip` is refused there. A later run of a job with a store also leaves
   out what the file has gained. But if the file only ends within a value, a later run reads that value again.
5. Values are those of `json.loads`, also for NaN, repeated names and lone surrogates.
6. Memory is bounded by the format's `bytes_max` for each value. A reader that needs more text doubles it, so parsing a
   long value repeatedly costs at most a constant factor of parsing it once.
"""

import codecs
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from megaflow.control.messages import ParserPlace
from megaflow.errors import SourceError
from megaflow.job.formats.json_scanner import FoundValues, find_values
from megaflow.job.formats.record_format import (
    SHOWN,
    Count,
    Fault,
    LineStream,
    Name,
    OpenedFile,
    RecordBlock,
    RecordFormat,
    RecordParser,
    Skip,
)
from megaflow.job.formats.text_encoding import UTF_8
from megaflow.job.formats.text_lines import (
    AGAIN,
    BATCH_BYTES,
    BLOCK_BYTES,
    BYTE_ORDER_MARK,
    LINE_BYTES_MAX,
    LINE_END,
    Text,
)

TEXT_LINE_END: Final = re.compile(r"\r\n|\n|\r")
REMEDY: Final = (
    "Mend the file. on_error='skip' leaves out {}. If each line is a value, flow.json_lines(on_error='skip') leaves "
    "out single lines."
)
LEFT_OUT: Final = ("left out",)
"""Head in place of a parser that has found a fault, so that the rest of the input is left out."""
OUTSIDE: Final = ("outside",)
"""Head in place of a parser whose open text begins outside an array."""


class Before(NamedTuple):
    """Text before a place in its line."""

    column: int | None  # number of characters; None: unknown
    tail: str  # the last of these characters

    def with_text(self, text: str) -> "Before":
        """Return the same for a place after more text, which has no line end.

        >>> Before(2, "[1").with_text(", 2")
        Before(column=5, tail='[1, 2')
        """
        column = None if self.column is None else self.column + len(text)
        return Before(column, (self.tail + text[-SHOWN:])[-SHOWN:])


class ValueBlock(RecordBlock):
    """Records of a text that may have several in a line. It counts records as lines.

    The `end` of a fault is a character of the text.
    """

    __slots__ = ("begin", "characters", "is_last", "open_from", "place")

    def __init__(
        self, records: list[Any], data: bytes, characters: list[int], faults: Sequence[Fault], is_last: bool,
        place: Callable[[int], int], begin: int = 0, open_from: int | None = None,
    ) -> None:  # fmt: skip
        """`characters`: where each record ends in the text. `place` returns the byte of a character.

        `begin` is the byte at which this block begins. `open_from`: see `FoundValues`.
        """
        super().__init__(records, data, None, faults)
        self.characters = characters
        self.is_last = is_last
        self.place = place
        self.begin = begin
        self.open_from = open_from

    def without_open(self) -> RecordBlock:
        """Return the block before the record in which its text ends, which is its last fault."""
        assert self.open_from is not None, "the last fault is open"
        data, faults = self.data[: self.place(self.open_from) - self.begin], self.faults[:-1]
        return ValueBlock(self.records, data, self.characters, faults, False, self.place, self.begin)

    def bytes_before(self, records: int) -> int:
        """Return where reading continues after so many records. After the last one, this is the end of the data."""
        if records >= len(self.records):
            return len(self.data)
        return self.place(self.characters[records - 1]) - self.begin if records else 0

    def _parts(self, count: int, passed: int) -> tuple[RecordBlock, RecordBlock]:
        at = self.begin
        if passed:
            at = self.place(self.faults[0].end)
        elif count:
            at = self.place(self.characters[count - 1])
        data, left = self.data[: at - self.begin], self.data[at - self.begin :]
        lines = len(LINE_END.findall(data))
        faults = [
            replace(fault, before=fault.before - count, line=fault.line - lines) for fault in self.faults[passed:]
        ]
        is_last = self.is_last and not faults
        part = ValueBlock(
            self.records[:count], data, self.characters[:count], self.faults[:passed], is_last, self.place, self.begin
        )
        records, characters = self.records[count:], self.characters[count:]
        is_last = self.is_last and not is_last
        return part, ValueBlock(records, left, characters, faults, is_last, self.place, at, self.open_from)


class JsonValues(RecordFormat):
    """The format of an input that the program reads by `flow.json()`."""

    block_bytes = BATCH_BYTES
    is_of_lines = False
    uncut = "flow.json() reads each file from its beginning. Leave ?unordered out."
    longest = (
        "JSON value",
        "A record is an element of an array at the top level, or a whole value there. Write other values as lines, as "
        "jq -c '.NAME[]' FILE > FILE.jsonl does, and read them by flow.json_lines().",
    )

    def __init__(
        self, skip: Skip | None = None, count: Count = lambda kind, count, text: None, bytes_max: int = LINE_BYTES_MAX
    ) -> None:
        """`skip` counts faults. If it is None, a fault is an error. `count` counts remarks."""
        super().__init__(skip, count, bytes_max)
        if skip is not None:
            self.unfollowed = (
                "flow.json(on_error='skip') leaves out the rest of a file behind a fault, so it would read nothing "
                "that the file gains. Leave on_error out, or write each value as a line and read it by "
                "flow.json_lines(on_error='skip')."
            )

    def open(self, text: Text, file: OpenedFile) -> RecordParser:
        """Return the parser of a file."""
        return ValueParser(text, self.skip is not None)

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream:
        """Return the parser of lines that have no file. Raises SourceError if their order is not known."""
        if start is None:
            raise SourceError(
                "flow.json() reads files, standard input and iterables. Lines from Spark, or from a feed of an "
                "EngineCluster, have no order here. Read them by flow.json_lines() if each line is a value."
            )
        return ValueStream(self, name, start)


class ValueParser(RecordParser):
    """Parses one file."""

    def __init__(self, text: Text, skips: bool) -> None:
        super().__init__(text)
        self._skips = skips
        self._last = 0, Before(0, ""), b""  # where the last data began, the text before it, and the data
        self._outside = 0  # the newest position known to be outside an array; 0 is such a position

    def cut(self, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        """Return the records at the beginning of `data`. None if there is none, and more bytes are needed."""
        encoding = self._text.encoding
        if not data:
            return None
        if not is_end:
            data = data[: whole_characters(data, encoding)]
        before = self._before(position)
        self._last = position, before, data
        text = self._text.decode(data, position)
        found = find_values(text, is_end, position in (0, self._outside))
        if found.taken == len(text) and text.endswith("\r") and not (is_end or found.is_last):  # half a line end?
            found = found.without_last()
        if not (found.taken or is_end):
            return None
        place = ByteOf(text, data, position, encoding).place
        faults = [*faults_of(found, text, before, self._skips, lambda at: position + place(at))]
        taken = data if found.taken == len(text) else data[: place(found.taken)]
        self._outside = position + place(found.outside) if found.outside else 0
        return ValueBlock(found.records, taken, found.ends, faults, found.is_last, place, open_from=found.open_from)

    def _before(self, position: int) -> Before:
        """Return the text before a byte in its line."""
        start, before, data = self._last
        if not start <= position <= start + len(data):
            return Before(None if position else 0, "")
        data = data[: position - start]
        begin = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        return (Before(0, "") if begin else before).with_text(data[begin:].decode(self._text.encoding, "replace"))


class ByteOf:
    """Maps characters of a decoded text to their bytes."""

    def __init__(self, text: str, data: bytes, position: int, encoding: str) -> None:
        self._text = text
        self._encoding = encoding
        is_marked = position == 0 and encoding == UTF_8 and data.startswith(BYTE_ORDER_MARK)
        self._mark = len(BYTE_ORDER_MARK) if is_marked else 0
        self._data = data[self._mark :] if is_marked else data
        self._is_plain = text.isascii() and len(text) == len(self._data)
        self._is_exact: bool | None = None  # whether encoding the text as UTF-8 gives the data

    def place(self, at: int) -> int:
        """Return the byte of the data at which a character begins."""
        if self._is_plain:
            return self._mark + at
        if self._is_exact is None:
            self._is_exact = self._encoding == UTF_8 and len(self._text.encode(UTF_8, "replace")) == len(self._data)
        if self._is_exact:
            return self._mark + len(self._text[:at].encode())
        return self._mark + bisect_left(range(len(self._data)), at, key=self._characters)

    def _characters(self, size: int) -> int:
        decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        return len(decoder.decode(self._data[:size]))


class ValueStream(LineStream):
    """Parses the lines of one input that the launcher sends. An open value waits, even on the next worker."""

    def __init__(self, format: JsonValues, name: Name, start: ParserPlace) -> None:
        super().__init__(format, name, start)
        self._open = "\n".join(start.open)  # text of the open value
        self._more: list[str] = []  # lines after it
        self._size = self._tried = len(self._open)
        self._before = Before(0, "")
        self._is_left_out = start.head == LEFT_OUT
        self._is_outside = start.head == OUTSIDE or not (start.line or start.open)

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError."""
        if self._is_left_out:
            self.line += len(lines)
            return []
        self._more += lines
        self._size += sum(map(len, lines)) + len(lines)
        if self._size > self._format.bytes_max:
            raise self._format.too_long("the input", self._name(self.line))
        if BLOCK_BYTES < self._size < self._tried * AGAIN:
            return []
        return self._parsed(False)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the records that have waited for more lines. Raises SourceError."""
        return [] if self._is_left_out else self._parsed(not is_cut)

    def place(self, input: str) -> ParserPlace:
        """Return the place where another stream continues with the following lines."""
        head = LEFT_OUT if self._is_left_out else OUTSIDE if self._is_outside else ()
        return ParserPlace(input, self.line, head, tuple(self._joined().split("\n")))

    def _joined(self) -> str:
        if self._more:
            self._open += "\n".join(self._more) + "\n"
            self._more.clear()
        return self._open

    def _parsed(self, is_end: bool) -> list[Any]:
        text = self._joined()
        found = find_values(text, is_end, self._is_outside)
        self._is_outside = found.outside is not None
        begin = text.rfind("\n", 0, found.taken) + 1
        before = self._before
        self._before = (Before(0, "") if begin else before).with_text(text[begin : found.taken])
        self._open = text[found.taken :]
        self._size = self._tried = len(self._open)
        self._is_left_out = found.is_last
        faults = [*faults_of(found, text, before, self._format.skip is not None)]
        lines = text.count("\n", 0, found.taken)
        return self.settled(RecordBlock(found.records, b"", None, faults), lines)


def faults_of(
    found: FoundValues, text: str, before: Before, skips: bool, byte: Callable[[int], int] = int
) -> Iterator[Fault]:
    """Yield what is wrong in a text as faults that name their places.

    `before`: see `Before`. `byte` returns the byte in the file at which a character of the text begins.
    """
    for wrong in found.wrong:
        ends = [each.end() for each in TEXT_LINE_END.finditer(text, 0, wrong.at)]
        begin = ends[-1] if ends else 0
        column, tail = Before(0, "") if ends else before
        where = f"byte {byte(wrong.at)}" if column is None else f"column {column + wrong.at - begin + 1}"
        is_last = found.is_last and wrong is found.wrong[-1]
        head = (tail + text[max(begin, wrong.at - SHOWN) : wrong.at])[-(SHOWN // 2) :]
        shown = head + TEXT_LINE_END.split(text[wrong.at : wrong.at + SHOWN // 2])[0]
        reason = f"JSON: {wrong.reason.removesuffix(' at')} at {where}"
        remedy = REMEDY.format("the rest of the file" if is_last else "this value")
        yield Fault(
            wrong.before, len(ends), wrong.end, reason, shown, remedy,
            is_open=is_last and found.open_from is not None, ends_file=is_last and skips,
        )  # fmt: skip


def whole_characters(data: bytes, encoding: str) -> int:
    """Return how many of the first bytes form whole characters.

    >>> whole_characters("aé".encode()[:2], "utf-8"), whole_characters("字".encode("gbk")[:1], "gbk")
    (1, 0)
    """
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    decoder.decode(data[-8:] if encoding == UTF_8 else data)
    return len(data) - len(decoder.getstate()[0])
