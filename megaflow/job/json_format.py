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
            first = [line for line in lines if line and not line.isspace()][:2]
            if len(first) == 2 or is_all:
                break
            if len(data) < size or size > LINE_BYTES_MAX:
                return JsonParser(text)  # a file that grows has the first line of a value by then, or will be faulty
            size *= 2
        if is_one_value(first):
            raise SourceError(
                f"{text.name} is one JSON value, and not one to a line. Write its values as lines, say by "
                "jq -c '.[]' FILE > FILE.jsonl, or read the file in the program by json.load."
            )
        return JsonParser(text)

    def stream(
        self, name: Name, start: ParserPlace | None, rest: Sequence[str] | None = None, is_piped: bool = False
    ) -> LineStream:
        """Return what parses lines that have no file."""
        return JsonStream(self, name, 0 if start is None else start.line)


class JsonParser(LinesParser):
    """Parses one file."""

    def made(self, lines: list[str], data: bytes) -> RecordBlock:
        """Return the block of some lines."""
        return block_of(lines, data)


class JsonStream(LineStream):
    """Parses lines that have no file."""

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the values of lines. Raises SourceError."""
        return self.settled(block_of(lines, b""), len(lines))


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


def is_one_value(first: Sequence[str]) -> bool:
    """Tell whether a file is one JSON value, by its first two lines that are not blank, or all if it has fewer.

    >>> is_one_value(["{", ' "a": 1']), is_one_value(['[{"a": 1}]']), is_one_value(['{"a": 1', '{"a": 2}'])
    (True, True, False)
    """
    if not first or not first[0].lstrip().startswith(("[", "{")):
        return False
    text = "\n".join(first)
    begins = len(first[0]) + 1
    try:
        value, end = json.JSONDecoder().raw_decode(text.lstrip())
    except json.JSONDecodeError as error:
        return len(first) > 1 and error.pos + len(text) - len(text.lstrip()) > begins
    except RecursionError:
        return False
    if len(first) == 1:
        return isinstance(value, list) and len(value) > 0 and all(isinstance(each, dict) for each in value)
    return end + len(text) - len(text.lstrip()) > begins
