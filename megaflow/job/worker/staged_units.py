"""What came in one message of a Spark task, kept as it came, and opened when it is taken: a text, or packed rows.

A unit is its content and a mark: of a text what separates the lines in it, of packed rows how many they are. So a unit
that is in a file says what it is without being read.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from typing import Any, TypeAlias

from megaflow.control.packed_rows import pack_rows, unpack_rows
from megaflow.errors import ProtocolError

Content: TypeAlias = str | bytes
Mark: TypeAlias = str | int
Unpack: TypeAlias = Callable[[bytes], tuple[str, list[Any]]]
"""Returns whose rows these are, and the rows."""


def records_in(content: Content, mark: Mark) -> int:
    """Return how many lines or rows a unit has.

    >>> records_in("a,b", ","), records_in(b"packed", 7)
    (2, 7)
    """
    return mark if isinstance(mark, int) else content.count(mark) + 1  # type: ignore[arg-type]


def mark_of(content: Content, separator: str, records: int) -> Mark:
    """Return the mark of a unit as a message has it. Raises ProtocolError for what is neither lines nor rows."""
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
    """Return lines as one text, and a separator that is in none of them, as executors send them.

    >>> joined(["a", "b"]), joined(["a\\nb", "c"])
    (('a\\nb', '\\n'), ('a\\nb\\x00c', '\\x00'))
    """
    separators: Iterable[str] = chain("\n\0", (f"\0{number}\n" for number in count()))
    separator = next(each for each in separators if not any(each in line for line in lines))
    return separator.join(lines), separator


class OpenLines:
    """A text of which lines are taken."""

    input = ""  # they have no name

    def __init__(self, text: str, separator: str) -> None:
        self._text = text
        self._separator = separator
        self._position: int | None = 0  # of the first line that is not taken; None: all are

    @property
    def records(self) -> int:
        """How many are not taken."""
        return 0 if self._position is None else self._text.count(self._separator, self._position) + 1

    @property
    def is_taken(self) -> bool:
        """Whether all are."""
        return self._position is None

    def take(self, limit_bytes: int) -> tuple[list[str], int]:
        """Return lines, at least one, and how much text that is, each with its end."""
        assert self._position is not None
        start, text = self._position, self._text
        # The first separator from here on ends the first line with which the limit is reached.
        end = text.find(self._separator, start + limit_bytes - 1)
        self._position = end + len(self._separator) if end >= 0 else None
        end = end if end >= 0 else len(text)
        return text[start:end].split(self._separator), end - start + 1

    def rest(self, ahead: Sequence[str]) -> list[tuple[Content, Mark]]:
        """Return what is left as units, behind the lines `ahead`, which were taken last."""
        rest: list[tuple[Content, Mark]] = [joined(ahead)] if ahead else []
        if self._position is not None:
            rest.append((self._text[self._position :], self._separator))
        return rest


class OpenRows:
    """Packed rows of which some are taken."""

    def __init__(self, data: bytes, rows: int, unpack: Unpack) -> None:
        """Unpack them. Raises ProtocolError for other bytes, or another number of rows; what `unpack` does."""
        self.input, self._rows = unpack(data)
        if len(self._rows) != rows:
            raise ProtocolError(f"{len(self._rows)} staged rows arrived as {rows}.")
        self._data = data
        self._taken = 0

    @property
    def records(self) -> int:
        """How many are not taken."""
        return len(self._rows) - self._taken

    @property
    def is_taken(self) -> bool:
        """Whether all are."""
        return self._taken == len(self._rows)

    def take(self, limit_bytes: int) -> tuple[list[Any], int]:
        """Return rows, at least one, about as many as the limit; it is used up, as the next may be another input's."""
        start, rows = self._taken, len(self._rows)
        self._taken = min(rows, start + max(1, limit_bytes * rows // len(self._data)))
        return self._rows[start : self._taken], limit_bytes

    def rest(self, ahead: Sequence[Any]) -> list[tuple[Content, Mark]]:
        """Return what is left as a unit, `ahead` included, which were taken last. Cost: linear in all rows."""
        start = self._taken - len(ahead)
        if start == len(self._rows):
            return []
        return [(pack_rows(unpack_rows(self._data).rest(start)), len(self._rows) - start)]


def open_unit(content: Content, mark: Mark, unpack: Unpack) -> OpenLines | OpenRows:
    """Return a unit to take from."""
    if isinstance(content, str):
        assert isinstance(mark, str)
        return OpenLines(content, mark)
    assert isinstance(mark, int)
    return OpenRows(content, mark, unpack)


def no_rows(data: bytes) -> tuple[str, list[Any]]:
    """Unpack none: the program reads lines."""
    raise ProtocolError(f"{len(data)} bytes of rows arrived at a program that reads lines.")
