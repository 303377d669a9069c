"""JSON lines: each line of a file is one value.

A batch goes through `json.loads` in one call. Only if that fails is each line parsed alone, to find the faults.

A file that is one JSON value, an array of objects or a value over several lines, is refused when it is opened. None of
its lines then comes out as if it were a record of its own, also with `on_error="skip"`.
"""

import json
from collections.abc import Sequence
from typing import Any

from megaflow.control.messages import ParserPlace
from megaflow.errors import SourceError
from megaflow.job.record_format import (
    Beginning,
    Fault,
    LinesParser,
    LineStream,
    Name,
    RecordBlock,
    RecordFormat,
    RecordParser,
)
from megaflow.job.text_lines import BATCH_BYTES, BLOCK_BYTES, LINE_BYTES_MAX, Text, lines_of, whole_lines

WHAT = "JSON"


class JsonLines(RecordFormat):
    """The format of an input that the program reads by `flow.json_lines()`."""

    block_bytes = BATCH_BYTES

    def open(self, text: Text, beginning: Beginning) -> RecordParser | None:
        """Return the parser of a file; None if the file must grow first. Raises SourceError if it is one value."""
        size = BLOCK_BYTES
        while True:
            data, is_all = beginning(size)
            lines = lines_of(text.decode(data[: whole_lines(data, is_all)], 0))
            verdict = is_one_value(lines, is_all)
            if verdict is not None or size > LINE_BYTES_MAX:
                break
            if len(data) < size:
                return None
            size *= 2
        if verdict:
            raise one_value(text.name)
        return JsonParser(text)

    def stream(
        self, name: Name, start: ParserPlace | None, rest: Sequence[str] | None = None, is_piped: bool = False
    ) -> LineStream:
        """Return what parses lines that have no file."""
        return JsonStream(self, name, start, rest)


class JsonParser(LinesParser):
    """Parses one file."""

    def made(self, lines: list[str], data: bytes) -> RecordBlock:
        """Return the block of some lines."""
        return block_of(lines, data)


class JsonStream(LineStream):
    """Parses lines that have no file."""

    def __init__(
        self, format: JsonLines, name: Name, start: ParserPlace | None, rest: Sequence[str] | None
    ) -> None:
        super().__init__(format, name, 0 if start is None else start.line)
        self._waiting: list[str] = [*start.open] if start is not None else []  # from the first line on
        self._is_judged = start is None or start.line > 0  # they are lines, and not one value
        if rest is not None and not self._is_judged:
            self._judged([*rest], True)

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the values of lines. Raises SourceError."""
        if not self._is_judged:
            lines = self._judged([*self._waiting, *lines], False)
        return self.settled(block_of(lines, b""), len(lines))

    def end(self) -> list[Any]:
        """Return the values of lines that have waited for more. Raises SourceError."""
        lines = self._judged(self._waiting, True)
        self._waiting = []
        return self.settled(block_of(lines, b""), len(lines))

    def place(self, input: str) -> ParserPlace:
        """Return where another stream goes on with the lines that follow."""
        return ParserPlace(input, self.line, (), tuple(self._waiting))

    def _judged(self, lines: list[str], is_all: bool) -> list[str]:
        """Return the lines if they are no part of one value; none as long as that is not known."""
        verdict = is_one_value(lines, is_all)
        if verdict:
            raise one_value("the input")
        self._is_judged = verdict is not None
        self._waiting = [] if self._is_judged else lines
        return lines if self._is_judged else []


def block_of(lines: Sequence[str], data: bytes) -> RecordBlock:
    """Return the values of lines, and the faults. Blank lines have no value."""
    try:
        return RecordBlock([*map(json.loads, lines)], data)
    except (ValueError, RecursionError):
        pass
    records: list[Any] = []
    ends, faults = list[int](), list[Fault]()
    for index, line in enumerate(lines):
        if not line or line.isspace():
            continue
        try:
            records.append(json.loads(line))
            ends.append(index + 1)
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            faults.append(Fault(len(records), index, index + 1, f"{WHAT}: {reason}", line))
    return RecordBlock(records, data, ends, faults)


def one_value(name: str) -> SourceError:
    """Return the error for an input that is one JSON value."""
    return SourceError(
        f"{name} is one JSON value rather than one value per line. Write its values as lines, for example by jq "
        "-c '.[]' FILE > FILE.jsonl, or read the file in the program by json.load."
    )


def is_one_value(lines: Sequence[str], is_all: bool) -> bool | None:
    """Tell whether an input with these first lines is one JSON value; None: that shows only with more lines.

    It is one if the value that begins in the first line goes on in the second, blank ones aside. A file of one line is
    one if that is an array of objects.

    >>> is_one_value(["{", "", ' "a": 1'], False), is_one_value(['{"a": 1', '{"a": 2}'], False)
    (True, False)
    >>> is_one_value(["["], False), is_one_value(['[{"a": 1}]'], False), is_one_value(['[{"a": 1}]'], True)
    (None, False, True)
    """
    first = [line.strip() for line in lines if line and not line.isspace()][:2]
    if not first:
        return False if is_all else None
    if not first[0].startswith(("[", "{")):
        return False
    try:
        value = json.loads(first[0])
    except RecursionError:
        return False
    except json.JSONDecodeError:
        if len(first) == 1:
            return False if is_all else None
    else:
        is_array = isinstance(value, list) and len(value) > 0 and all(isinstance(each, dict) for each in value)
        return is_array and is_all and len(first) == 1
    try:
        _, end = json.JSONDecoder().raw_decode("\n".join(first))
    except json.JSONDecodeError as error:
        end = error.pos
    return end > len(first[0]) + 1
