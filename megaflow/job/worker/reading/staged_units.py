"""The content of one message of a Spark task, kept as it came and opened when it is taken: a text, or packed rows.

A unit is its content and a mark: for a text the separator of its lines, for packed rows their number. So the kind of a
unit in a file is known without reading the file.
"""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import chain, count
from typing import IO, Any, NamedTuple, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.rows.packed_rows import pack_rows, unpack_rows

Content: TypeAlias = str | bytes
Mark: TypeAlias = str | int
Unpack: TypeAlias = Callable[[bytes], tuple[str, list[Any]]]
"""Returns the name of the input, and the rows."""

Place: TypeAlias = tuple[int, int, int]
"""Descriptor, start and size in bytes."""
Chunk: TypeAlias = tuple[Content | Place, Mark]
"""A unit: its content or its place in a file, and its mark."""


def records_in(content: Content, mark: Mark) -> int:
    """Return how many lines or rows a unit has.

    >>> records_in("a,b", ","), records_in(b"packed", 7)
    (2, 7)
    """
    return mark if isinstance(mark, int) else content.count(mark) + 1  # type: ignore[arg-type]


def mark_of(content: Content, separator: str, records: int) -> Mark:
    """Return the mark of a unit in a message. Raises ProtocolError if the message has neither lines nor rows."""
    if type(records) is not int or records < 1:
        raise ProtocolError(f"Staged lines arrived as {records!r:.50}.")
    if type(content) is bytes and separator == "":
        return records
    if not (type(content) is type(separator) is str) or not separator or separator[0] in separator[1:]:
        raise ProtocolError("Staged lines arrived as text that is not split into lines.")
    if content.count(separator) + 1 != records:
        raise ProtocolError(f"{content.count(separator) + 1} staged lines arrived as {records}.")
    return separator


def joined(lines: Sequence[str]) -> tuple[str, str]:
    """Return lines as one text, and a separator that none of them contains, as executors send them.

    >>> joined(["a", "b"]), joined(["a\\nb", "c"])
    (('a\\nb', '\\n'), ('a\\nb\\x00c', '\\x00'))
    """
    separators: Iterable[str] = chain("\n\0", (f"\0{number}\n" for number in count()))
    separator = next(each for each in separators if not any(each in line for line in lines))
    return separator.join(lines), separator


class OpenLines:
    """A text from which lines are taken."""

    input = ""  # lines have no name

    def __init__(self, text: str, separator: str) -> None:
        self._text = text
        self._separator = separator
        self._position: int | None = 0  # of the first line that is not taken; None: all are taken

    @property
    def is_taken(self) -> bool:
        """Whether all lines are taken."""
        return self._position is None

    def take(self, limit_bytes: int) -> tuple[list[str], int]:
        """Return lines, at least one, and the length of their text, line ends included."""
        assert self._position is not None
        start, text = self._position, self._text
        # The first separator from here on ends the first line with which the limit is reached.
        end = text.find(self._separator, start + limit_bytes - 1)
        self._position = end + len(self._separator) if end >= 0 else None
        end = end if end >= 0 else len(text)
        return text[start:end].split(self._separator), end - start + 1

    def rest(self, ahead: Sequence[str]) -> list[tuple[Content, Mark]]:
        """Return the rest as units, preceded by the lines `ahead`, which were taken last."""
        rest: list[tuple[Content, Mark]] = [joined(ahead)] if ahead else []
        if self._position is not None:
            rest.append((self._text[self._position :], self._separator))
        return rest


class OpenRows:
    """Packed rows from which rows are taken."""

    def __init__(self, data: bytes, rows: int, unpack: Unpack) -> None:
        """Unpack the rows. Raises ProtocolError for invalid bytes or a wrong number of rows, and errors of `unpack`."""
        self.input, self._rows = unpack(data)
        if len(self._rows) != rows:
            raise ProtocolError(f"{len(self._rows)} staged rows arrived as {rows}.")
        self._data = data
        self._taken = 0

    @property
    def is_taken(self) -> bool:
        """Whether all rows are taken."""
        return self._taken == len(self._rows)

    def take(self, limit_bytes: int) -> tuple[list[Any], int]:
        """Return about as many rows as the limit allows, at least one, and the limit, so that the caller stops here.

        The next unit may belong to another input.
        """
        start, rows = self._taken, len(self._rows)
        self._taken = min(rows, start + max(1, limit_bytes * rows // len(self._data)))
        return self._rows[start : self._taken], limit_bytes

    def rest(self, ahead: Sequence[Any]) -> list[tuple[Content, Mark]]:
        """Return the rest as a unit, with the rows `ahead`, which were taken last. Cost: linear in all rows."""
        start = self._taken - len(ahead)
        if start == len(self._rows):
            return []
        return [(pack_rows(unpack_rows(self._data).rest(start)), len(self._rows) - start)]


def open_unit(content: Content, mark: Mark, unpack: Unpack) -> OpenLines | OpenRows:
    """Open a unit to take records from it."""
    if isinstance(content, str):
        assert isinstance(mark, str)
        return OpenLines(content, mark)
    assert isinstance(mark, int)
    return OpenRows(content, mark, unpack)


def no_rows(data: bytes) -> tuple[str, list[Any]]:
    """Raise ProtocolError: the program reads lines, not rows."""
    raise ProtocolError(f"{len(data)} bytes of rows arrived at a program that reads lines.")


def read_content(place: Place, mark: Mark) -> Content:
    """Return the content of a unit in a file. Raises OSError."""
    file, start, size = place
    parts = []
    while size and (part := os.pread(file, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    data = b"".join(parts)
    return data if isinstance(mark, int) else data.decode("utf-8", "surrogatepass")


class StagedUnit(NamedTuple):
    """The content of one message: in memory, or a range of the attempt's file."""

    content: Content | None
    mark: Mark
    start: int  # in the file
    size: int  # bytes: held in memory, or in the file


class StagedAttempt:
    """The lines or rows that one attempt of a task has sent, in memory or in a nameless file of their own.

    Written under the lock of its Staging.
    """

    def __init__(self, sender: Hashable, dropped: bool, query: str) -> None:
        self.sender = sender
        self.query = query
        self.dropped = dropped  # new content is counted, but not kept
        self.whole = False
        self.lines = 0
        self.chunks: deque[StagedUnit] = deque()
        self.file: IO[bytes] | None = None
        self.file_bytes = 0

    def spill(self, content: Content, mark: Mark, folder: str | None) -> None:
        """Append a unit to the attempt's file."""
        if self.file is None:
            self.file = tempfile.TemporaryFile(buffering=0, prefix="megaflow-staging-", dir=folder)  # noqa: SIM115
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        with memoryview(data) as rest:
            while rest:
                rest = rest[self.file.write(rest) :]
        self.chunks.append(StagedUnit(None, mark, self.file_bytes, len(data)))
        self.file_bytes += len(data)

    def load(self, chunk: StagedUnit) -> Content:
        """Return the content of a chunk."""
        if chunk.content is not None:
            return chunk.content
        assert self.file is not None
        return read_content((self.file.fileno(), chunk.start, chunk.size), chunk.mark)

    def copy(self, files: list[int]) -> list[Chunk]:
        """Return the chunks; for those in the file, add a descriptor of it to `files`."""
        if self.file is not None and self.chunks:
            files.append(os.dup(self.file.fileno()))
        return [
            (chunk.content if chunk.content is not None else (files[-1], chunk.start, chunk.size), chunk.mark)
            for chunk in self.chunks
        ]

    def held_bytes(self) -> int:
        """Return the memory accounted to this attempt."""
        return sum(chunk.size for chunk in self.chunks if chunk.content is not None)

    def clear(self) -> None:
        """Drop the lines and close the file."""
        self.chunks.clear()
        if self.file is not None:
            self.file.close()
            self.file = None
