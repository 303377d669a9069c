"""JSON lines: each line of a file is one value.

First, one `map` parses all lines of a block. Only if it fails are the lines parsed one by one, to find the faults. No
part of a longer value ever becomes a record, even with `on_error="skip"`:

1. A file that is one JSON value, an array of objects or a value over several lines, is refused when it is opened.
2. A faulty line may begin a value that continues in the following lines. If these lines complete the value, or the file
   ends within it, all of them are one fault. If they do not, but each of them is a value by itself, only the first line
   is faulty: it was cut short.
3. In any other case, these lines may be parts of a broken value. Then the job fails, even with `on_error="skip"`.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from megaflow.control.messages import ParserPlace
from megaflow.errors import SourceError
from megaflow.job.formats.record_format import (
    Fault,
    LineStream,
    Name,
    OpenedFile,
    RecordBlock,
    RecordFormat,
    RecordParser,
)
from megaflow.job.formats.text_lines import BATCH_BYTES, Text, bytes_of, lines_of

WHAT: Final = "JSON"
SPAN_LINES_MAX: Final = 1024
"""A value over more lines counts as broken: see rule 3. So only this many lines ever wait for others."""
REMEDY: Final = "Read a file with values over several lines by flow.json()."


class JsonLines(RecordFormat):
    """The format of an input that the program reads by `flow.json_lines()`."""

    block_bytes = BATCH_BYTES

    def open(self, text: Text, file: OpenedFile) -> RecordParser | None:
        """Return the parser of a file. None if the file must grow first. Raises SourceError if it is one value."""
        for whole, is_all, must_grow in file.heads():
            verdict = is_one_value(lines_of(text.decode(whole, 0)), is_all)
            if verdict:
                raise one_value(text.name)
            if verdict is not None:
                break
            if must_grow:
                return None
        return JsonParser(text, waits=self.skip is not None)

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream:
        """Return the parser of lines that have no file."""
        return JsonStream(self, name, start)


class JsonParser(RecordParser):
    """Parses one file."""

    def __init__(self, text: Text, waits: bool) -> None:
        """`waits`: a faulty line may wait for the following lines. Otherwise it is an error in any case."""
        super().__init__(text)
        self._waits = waits

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        lines = lines_of(text)
        block, used = block_of(lines, data, is_end or not self._waits)
        return block if used or not lines else None


class JsonStream(LineStream):
    """Parses lines that have no file."""

    def __init__(self, format: JsonLines, name: Name, start: ParserPlace | None) -> None:
        super().__init__(format, name, start)
        self._waits = start is not None and format.skip is not None  # as in JsonParser; not for lines without an order
        self._is_judged = start is None or start.line > 0  # they are known to be lines, not one value

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the values of lines. Raises SourceError."""
        lines = [*self._waiting, *lines]
        if not self._is_judged and not self._judge(lines, False):
            self._waiting = lines
            return []
        block, used = block_of(lines, b"", not self._waits)
        self._waiting = lines[used:]
        return self.settled(block, used)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the values of lines that have waited for more lines. Raises SourceError."""
        lines, self._waiting = self._waiting, []
        if not self._is_judged:
            self._judge(lines, True)
        return self.settled(*block_of(lines, b"", True))

    def _judge(self, lines: Sequence[str], is_all: bool) -> bool:
        """Return whether the lines are now known not to be one value. Raises SourceError if they are one."""
        verdict = is_one_value(lines, is_all)
        if verdict:
            raise one_value("the input")
        self._is_judged = verdict is not None
        return self._is_judged


def block_of(lines: Sequence[str], data: bytes, is_end: bool) -> tuple[RecordBlock, int]:
    """Return the values and faults of lines, and the number of these lines. `is_end`: no lines follow.

    Blank lines have no value. If only following lines can show what a faulty line is, it waits, with all after it.
    """
    try:
        return RecordBlock([*map(json.loads, lines)], data), len(lines)
    except (ValueError, RecursionError):
        pass
    records, ends, faults = list[Any](), list[int](), list[Fault]()
    index = 0
    while index < len(lines):
        line, end = lines[index], index + 1
        try:
            if line and not line.isspace():
                records.append(json.loads(line))
                ends.append(end)
        except (ValueError, RecursionError) as error:
            found = span_of(lines[index : index + SPAN_LINES_MAX], is_end)
            if found is None:
                break
            end, is_fatal = index + found[0], found[1]
            reason = str(error)
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            fault = Fault(len(records), index, end, f"{WHAT}: {reason}", line)
            goes_on = is_fatal or found[0] > 1
            faults.append(replace(fault, remedy=REMEDY, is_fatal=is_fatal) if goes_on else fault)
        index = end
    return RecordBlock(records, data[: bytes_of(data, index, len(lines))], ends, faults), index


def span_of(lines: Sequence[str], is_end: bool) -> tuple[int, bool] | None:
    """Return how many lines a faulty value in the first line takes, and whether it is fatal: see rules 2 and 3.

    None: only more lines can show this.

    >>> span_of(["{", '"a":', "1}", "2"], False), span_of(['{"a":', "1", "2"], False), span_of(['{"a":', "1"], False)
    ((3, False), (1, False), None)
    >>> span_of(['{"a": tru}'], False), span_of(["{", '"a": 1, "b": tru,', "2"], False)
    ((1, False), (1, True))
    """
    begin, count = len(lines[0]) - len(lines[0].lstrip()), 1
    if lines[0][begin : begin + 1] not in ("[", "{"):
        return 1, False
    while True:
        count = min(2 * count, len(lines))
        text = "\n".join(lines[:count]) + "\n"
        try:
            _, end = json.JSONDecoder().raw_decode(text, begin)
            return text.count("\n", 0, end) + 1, False
        except json.JSONDecodeError as error:
            end = error.pos
        except (ValueError, RecursionError):
            return 1, False
        if end < len(text):
            break
        if count == SPAN_LINES_MAX:
            return 1, True
        if count == len(lines):
            return (count, False) if is_end else None
    last = text.count("\n", 0, end)  # the line with the fault; it continues the value if it has text before the fault
    goes_on = last - (not text[text.rfind("\n", 0, end) + 1 : end].strip())
    return 1, not all(map(is_value, lines[1 : goes_on + 1]))


def is_value(line: str) -> bool:
    """Return whether a line is a value, or blank."""
    try:
        return not line.strip() or json.loads(line) is not NotImplemented
    except (ValueError, RecursionError):
        return False


def one_value(name: str) -> SourceError:
    """Return the error for an input that is one JSON value."""
    return SourceError(
        f"{name} is one JSON value rather than one value per line. Read it by flow.json() instead of "
        "flow.json_lines(), or write its values as lines, for example by jq -c '.[]' FILE > FILE.jsonl."
    )


def is_one_value(lines: Sequence[str], is_all: bool) -> bool | None:
    """Return whether an input with these first lines is one JSON value. None if only more lines can show it.

    It is one value if the value that begins in the first line continues in the second, not counting blank lines. A file
    of one line is one value if that is an array of objects.

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
