"""Records of `flow.lines()` that are more than one line's text: several lines, or lines with their source.

1. With `start=`, each line in which the pattern is found begins a record. The record ends where the next one begins, or
   with the file. The lines before the first such line are a record of their own, so no line is lost.
2. A record that no later line has ended waits for one. A clock never cuts it, so the records of a file do not depend on
   when it was read. In a growing file, the last record waits until the file is removed. The end of a job does not end
   it either: its position is before the record, and the next run reads it again.
3. A record of more than the format's `bytes_max` is an error. So memory is bounded, and no record is cut.
4. The number of a line counts from 1 in its file. A reader that begins within the file counts the lines before. It
   keeps that count with its position, so a block that is parsed again gets the same numbers.
5. The lines that the launcher sends are in order, and their number travels with the parser's place. Spark's lines have
   neither order nor number here, so they are refused.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any, Final, NamedTuple

from megaflow.control.messages import ParserPlace
from megaflow.errors import SourceError, UsageError
from megaflow.job.formats.record_format import LineStream, Name, OpenedFile, RecordBlock, RecordFormat, RecordParser
from megaflow.job.formats.text_lines import LINE_BYTES_MAX, Line, Text, bytes_of, lines_of

Starts = Callable[[str], object]
"""Returns a true value if a line begins a record."""

MAKE: Final = partial(tuple.__new__, Line)
"""Makes a Line of its fields. The constructor of Line, which is Python code, takes three times as long (measured)."""


class CutLines(NamedTuple):
    """Records, how many lines end with each of them, and how many lines they have in all."""

    records: list[str]
    ends: list[int] | None  # None: each record is one line
    lines: int


def cut_lines(lines: Sequence[str], starts: Starts | None, is_end: bool) -> CutLines:
    """Return the whole records at the beginning of lines. `is_end`: no line follows.

    >>> cut_lines(["a", " b", "c", "d"], re.compile(r"^\\S").search, False)
    CutLines(records=['a\\n b', 'c'], ends=[2, 3], lines=3)
    """
    if starts is None:
        return CutLines([*lines], None, len(lines))
    ends = [index for index, line in enumerate(lines) if index and starts(line)]
    if is_end and lines:
        ends.append(len(lines))
    records = [
        lines[begin] if end - begin == 1 else "\n".join(lines[begin:end]) for begin, end in zip([0, *ends], ends)
    ]
    return CutLines(records, ends, ends[-1] if ends else 0)


class LineRecords(RecordFormat):
    """The format of an input that the program reads by `flow.lines(start=…)` or `flow.lines(with_source=True)`."""

    def __init__(
        self, start: "str | re.Pattern[str] | None" = None, with_source: bool = False, bytes_max: int = LINE_BYTES_MAX
    ) -> None:
        """Raises UsageError if `start` is not a pattern."""
        super().__init__(bytes_max=bytes_max)
        self.starts: Starts | None = None
        self.with_source = with_source
        if with_source:
            self.uncut = "flow.lines(with_source=True) counts lines from the beginning of a file. Leave ?unordered out."
        if start is None:
            return
        try:
            pattern = re.compile(start)
        except (re.error, TypeError) as error:
            raise UsageError(f"flow.lines(): start={start!r:.80} is not a regular expression: {error}.") from None
        if not isinstance(pattern.pattern, str):
            raise UsageError(f"flow.lines(): start must be a pattern for str, not for bytes: {start!r:.80}.")
        self.starts = pattern.search
        self.uncut = (
            "flow.lines(start=…) joins lines, but ?unordered splits files between any two lines. Leave ?unordered out."
        )
        self.longest = "record", f"Does start={pattern.pattern!r:.80} match the first line of each record?"

    def open(self, text: Text, file: OpenedFile) -> RecordParser:
        """Return the parser of a file."""
        return FileLinesParser(self, text, file)

    def stream(self, name: Name, start: ParserPlace | None, is_piped: bool = False) -> LineStream:
        """Return the parser of lines that have no file. Raises SourceError if their order is not known."""
        if start is None:
            what = "start=…" if self.starts is not None else "with_source=True"
            raise SourceError(
                f"flow.lines({what}) reads files, standard input and iterables. Lines from Spark, or from a feed of an "
                "EngineCluster, have no file and no order here. Name the files by --lines PATH."
            )
        return LaunchedLines(self, name, start, "-" if is_piped else "")

    def made(self, records: list[str], ends: Sequence[int] | None, path: str, number: int) -> list[Any]:
        """Return the records for the program. `number` is that of the first line."""
        if not self.with_source:
            return records
        numbers = count(number) if ends is None else (number + begin for begin in (0, *ends))
        return [*map(MAKE, zip(records, repeat(path), numbers))]


class FileLinesParser(RecordParser):
    """Parses one file."""

    def __init__(self, format: LineRecords, text: Text, file: OpenedFile) -> None:
        super().__init__(text)
        self._format = format
        self._file = file
        self._known = 0, 0  # a byte, and the number of lines before it in the file

    def _block(self, text: str, data: bytes, position: int, is_end: bool) -> RecordBlock | None:
        lines = lines_of(text)
        found = cut_lines(lines, self._format.starts, is_end)
        if not (found.lines or is_end):
            return None
        if found.lines < len(lines):
            data = data[: bytes_of(data, found.lines, len(lines))]
        before = 0
        if self._format.with_source:
            before = self._known[1] if self._known[0] == position else self._file.lines_before(position)
            self._known = position + len(data), before + found.lines
        records = self._format.made(found.records, found.ends, self._file.path, before + 1)
        return RecordBlock(records, data, found.ends or None)


class LaunchedLines(LineStream):
    """Cuts the lines of one input that the launcher sends. An open record waits, even on the next worker."""

    def __init__(self, format: LineRecords, name: Name, start: ParserPlace, path: str) -> None:
        super().__init__(format, name, start)
        self._lines = format
        self._path = path
        self._size = sum(map(len, start.open))

    def feed(self, lines: Sequence[str]) -> list[Any]:
        """Return the records that these lines complete. Raises SourceError if a record is too long."""
        self._size += sum(map(len, lines))
        self._waiting += lines
        starts = self._lines.starts
        if starts is not None and len(self._waiting) > len(lines) and not any(map(starts, lines)):
            self._check_size()
            return []  # only new lines are checked, however long the record is
        return self._cut(False)

    def end(self, is_cut: bool = False) -> list[Any]:
        """Return the record that has waited for more lines."""
        return [] if is_cut else self._cut(True)

    def _cut(self, is_end: bool) -> list[Any]:
        found = cut_lines(self._waiting, self._lines.starts, is_end)
        made = self._lines.made(found.records, found.ends, self._path, self.line + 1)
        self.line += found.lines
        del self._waiting[: found.lines]
        self._size = sum(map(len, self._waiting))
        self._check_size()
        return made

    def _check_size(self) -> None:
        if self._size > self._format.bytes_max:
            raise self._format.too_long("the input", self._name(self.line))
