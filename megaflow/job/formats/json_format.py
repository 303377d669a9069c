"""JSON lines: each line of a file is one value.

First, one `map` parses all lines of a block. Only if it fails are the lines parsed one by one, to find the faults. No
part of a longer value ever becomes a record, even with `on_error="skip"`:

1. A file that is one JSON value, an array of objects or a value over several lines, is refused when it is opened.
2. A faulty line may begin a value that continues in the following lines. If these lines complete the value, or the file
   ends within it, all of them are one fault. If they do not, but each of them is a value by itself, only the first line
   is faulty: it was cut short.
3. In any other case, these lines may be parts of a broken value. Then the job fails, even with `on_error="skip"`.
4. A byte order mark at the beginning of a line is left out and counted.
5. With `several`, a record is the list of a line's values. So a position is still between lines, and a line with a
   fault gives no value.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from megaflow.control.messages import ParserPlace
from megaflow.control.wording import MARKS, SKIPPED_VALUE_LINES
from megaflow.errors import SourceError
from megaflow.job.formats.record_format import (
    SKIPS,
    Count,
    Fault,
    LineStream,
    Name,
    OpenedFile,
    RecordBlock,
    RecordFormat,
    RecordParser,
    Skip,
    remark,
)
from megaflow.job.formats.text_lines import BATCH_BYTES, LINE_BYTES_MAX, MARK, Text, bytes_of, lines_of

WHAT: Final = "JSON"
SPAN_LINES_MAX: Final = 1024
"""A value over more lines counts as broken: see rule 3. So only this many lines ever wait for others."""
REMEDY: Final = "Read a file with values over several lines by flow.json()."
DECODE: Final = json.JSONDecoder().raw_decode
MEASURE: Final = json.JSONDecoder(parse_int=len).raw_decode
"""Finds the end of a value, also if it has a number with more digits than Python converts."""
SEVERAL: Final = "json_lines(several=True) reads several values in a line. " + SKIPS
OPENING: Final = '[{"'
CLOSING: Final = ']}"'
BLANKS: Final = re.compile(r"[ \t\n\r]*")
KEY_OF_RECORDS: Final = re.compile(r'\{\s*("(?:[^"\\]|\\.)*")\s*:\s*\[\s*\{')


class JsonLines(RecordFormat):
    """The format of an input that the program reads by `flow.json_lines()`."""

    block_bytes = BATCH_BYTES
    lines_of_faults = SKIPPED_VALUE_LINES

    def __init__(
        self, skip: Skip | None = None, count: Count = lambda kind, count, text: None, several: bool = False,
        bytes_max: int = LINE_BYTES_MAX,
    ) -> None:  # fmt: skip
        """`several`: a line may have several values, and a record is a list of them."""
        super().__init__(skip, count, bytes_max)
        self.several = several

    def open(self, text: Text, file: OpenedFile) -> RecordParser | None:
        """Return the parser of a file. None if the file must grow first. Raises SourceError if it is one value."""
        for whole, is_all, must_grow in file.heads(self.bytes_max):
            verdict = filter_of_one_value(lines_of(text.decode(whole, 0)), is_all)
            if verdict:
                raise one_value(text.name, verdict)
            if verdict is not None:
                break
            if must_grow:
                return None
        return JsonParser(text, waits=self.skip is not None, several=self.several)

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream:
        """Return the parser of lines that have no file."""
        return JsonStream(self, name, start)


class JsonParser(RecordParser):
    """Parses one file."""

    def __init__(self, text: Text, waits: bool, several: bool) -> None:
        """`waits`: a faulty line may wait for the following lines. Otherwise it is an error in any case."""
        super().__init__(text)
        self._waits = waits
        self._several = several

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        lines = lines_of(text)
        block, used = block_of(lines, data, is_end or not self._waits, self._several)
        return block if used or not lines else None


class JsonStream(LineStream):
    """Parses lines that have no file."""

    def __init__(self, format: JsonLines, name: Name, start: ParserPlace | None) -> None:
        super().__init__(format, name, start)
        self._several = format.several
        self._waits = start is not None and format.skip is not None  # as in JsonParser; not for lines without an order
        self._is_judged = start is None or start.line > 0  # they are known to be lines, not one value

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the values of lines. Raises SourceError."""
        lines = [*self._waiting, *lines]
        if not self._is_judged and not self._judge(lines, False):
            self._waiting = lines
            return []
        block, used = block_of(lines, b"", not self._waits, self._several)
        self._waiting = lines[used:]
        return self.settled(block, used)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the values of lines that have waited for more lines. Raises SourceError."""
        lines, self._waiting = self._waiting, []
        if not self._is_judged:
            self._judge(lines, True)
        return self.settled(*block_of(lines, b"", True, self._several))

    def _judge(self, lines: Sequence[str], is_all: bool) -> bool:
        """Return whether the lines are now known not to be one value. Raises SourceError if they are one."""
        verdict = filter_of_one_value(lines, is_all)
        if verdict:
            raise one_value("the input", verdict)
        self._is_judged = verdict is not None
        return self._is_judged


def block_of(lines: Sequence[str], data: bytes, is_end: bool, several: bool = False) -> tuple[RecordBlock, int]:
    """Return the values and faults of lines, and the number of these lines. `is_end`: no lines follow.

    Blank lines have no value. If only following lines can show what a faulty line is, it waits, with all after it.
    """
    try:
        values = [*map(json.loads, lines)]
        return RecordBlock([[value] for value in values] if several else values, data), len(lines)
    except (ValueError, RecursionError):
        pass
    records, ends, faults = list[Any](), list[int](), list[Fault]()
    index = 0
    while index < len(lines):
        line, end = lines[index].lstrip(MARK), index + 1
        if marks := len(lines[index]) - len(line):
            faults.append(remark(len(records), index, MARKS, marks))
        try:
            if line and not line.isspace():
                records.append(values_of(line) if several else json.loads(line))
                ends.append(end)
        except (ValueError, RecursionError) as error:
            found = span_of([line, *lines[index + 1 : index + SPAN_LINES_MAX]], is_end)
            if found is None:
                break
            size, is_fatal, is_open = found
            end = index + size
            reason = str(error)
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg.removesuffix(' at')} at column {error.colno}"
            fault = Fault(len(records), index, end, f"{WHAT}: {reason}", line, is_open=is_open)
            if is_fatal or size > 1:
                fault = replace(fault, remedy=REMEDY, is_fatal=is_fatal)
            elif not several and reason.startswith("Extra data") and has_several(line):
                fault = replace(fault, remedy=SEVERAL)
            faults.append(fault)
        index = end
    return RecordBlock(records, data[: bytes_of(data, index, len(lines))], ends, faults), index


def values_of(line: str) -> list[Any]:
    """Return the values of a line. Raises ValueError or RecursionError if one of them is faulty.

    >>> values_of('{"a": 1} {"a": 2}[3]')
    [{'a': 1}, {'a': 2}, [3]]
    """
    values, at = list[Any](), BLANKS.match(line).end()  # type: ignore[union-attr]
    while at < len(line):
        value, end = DECODE(line, at)
        at = BLANKS.match(line, end).end()  # type: ignore[union-attr]
        if at == end and at < len(line) and line[end - 1] not in CLOSING and line[end] not in OPENING:
            raise json.JSONDecodeError("Extra data", line, end)
        values.append(value)
    return values


def has_several(line: str) -> bool:
    """Return whether a line consists of several whole values."""
    try:
        return len(values_of(line)) > 1
    except (ValueError, RecursionError):
        return False


def span_of(lines: Sequence[str], is_end: bool) -> tuple[int, bool, bool] | None:
    """Return how many lines a faulty first value takes, whether it is fatal, and whether the lines end in it.

    See rules 2 and 3. None: only more lines can show this.

    >>> span_of(["{", '"a":', "1}", "2"], False), span_of(['{"a":', "1", "2"], False), span_of(['{"a":', "1"], False)
    ((3, False, False), (1, False, False), None)
    >>> span_of(['{"a": tru}'], False), span_of(["{", '"a": 1, "b": tru,', "2"], False), span_of(["[1,"], True)
    ((1, False, False), (1, True, False), (1, False, True))
    """
    begin, count = len(lines[0]) - len(lines[0].lstrip()), 1
    if lines[0][begin : begin + 1] not in ("[", "{"):
        return 1, False, False
    while True:
        count = min(2 * count, len(lines))
        text = "\n".join(lines[:count]) + "\n"
        try:
            _, end = MEASURE(text, begin)
            return text.count("\n", 0, end) + 1, False, False
        except json.JSONDecodeError as error:
            end = error.pos
        except RecursionError:
            return 1, False, False
        if end < len(text):
            break
        if count == SPAN_LINES_MAX:
            return 1, True, False
        if count == len(lines):
            return (count, False, True) if is_end else None
    last = text.count("\n", 0, end)  # the line with the fault; it continues the value if it has text before the fault
    goes_on = last - (not text[text.rfind("\n", 0, end) + 1 : end].strip())
    return 1, not all(map(is_value, lines[1 : goes_on + 1])), False


def is_value(line: str) -> bool:
    """Return whether a line is a value, or blank."""
    try:
        return not line.strip() or json.loads(line) is not NotImplemented
    except (ValueError, RecursionError):
        return False


def one_value(name: str, filter: str) -> SourceError:
    """Return the error for an input that is one JSON value, or has values over several lines."""
    what = "has a value over several lines" if filter == "." else "is one JSON value"
    remedy = "Read it by flow.json() instead of flow.json_lines(), or write its values as lines, for example by"
    if filter not in (".", ".[]"):
        remedy = "Write the values of its array as lines:"
    return SourceError(f"{name} {what} rather than one value per line. {remedy} jq -c '{filter}' FILE > FILE.jsonl.")


def filter_of_one_value(lines: Sequence[str], is_all: bool) -> str | None:
    """Return the jq filter for an input whose first lines show that it is one JSON value, or values over several lines.

    "": it has one value per line. None: only more lines can show this. The value that begins in the first line must
    continue in the second, not counting blank lines, and not only because the first line was cut short: see rule 2. A
    file of one line is one value if that is an array of objects.

    >>> filter_of_one_value(["{", "", ' "a": 1'], False), filter_of_one_value(['{"a": 1', '{"a": 2}'], False)
    ('.', '')
    >>> filter_of_one_value(["["], False), filter_of_one_value(['[{"a": 1}]'], False)
    (None, '')
    >>> filter_of_one_value(['[{"a": 1}]'], True), filter_of_one_value(['{"Records": [', '{"a": 1}', "]}"], True)
    ('.[]', '.Records[]')
    >>> filter_of_one_value(['{"a":', '{"a": 1}', '{"a": 2}'], False), filter_of_one_value(['{"a":', '{"a": 1}'], True)
    ('', '')
    """
    kept = [line.strip() for line in lines if line and not line.isspace()]
    text = "\n".join(kept).lstrip(MARK)
    if not kept:
        return "" if is_all else None
    if not text.startswith(("[", "{")):
        return ""
    first = len(kept[0].lstrip(MARK))
    try:
        value, end = MEASURE(text)
    except RecursionError:
        return ""
    except json.JSONDecodeError as error:
        if len(kept) == 1:
            return "" if is_all else None
        if error.pos <= first + 1:
            return ""
        last = text.count("\n", 0, error.pos)  # the line with the fault
        inside = kept[1 : last + (text[error.pos - 1] != "\n")]
        if not all(map(is_value, inside)):
            return filter_of(text, None, True)
        return None if error.pos == len(text) and not is_all else ""
    if end > first:
        return filter_of(text, value, not text[end:].strip())
    is_array = isinstance(value, list) and len(value) > 0 and all(isinstance(each, dict) for each in value)
    return ".[]" if is_array and is_all and end == len(text) else ""


def filter_of(text: str, value: Any, is_alone: bool) -> str:
    """Return the jq filter that writes the values of a text as lines. `value`: the first one; None: it is not whole."""
    if text.startswith("["):
        return ".[]"
    name = None
    if isinstance(value, dict) and is_alone:
        arrays = (key for key, each in value.items() if isinstance(each, list) and each and isinstance(each[0], dict))
        name = next(arrays, None)
    elif value is None and (found := KEY_OF_RECORDS.match(text)):
        name = json.loads(found[1], strict=False)
    if name is None:
        return "."
    return f".{name}[]" if name.isidentifier() and name.isascii() else f".[{json.dumps(name)}][]"
