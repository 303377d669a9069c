"""What the launcher pushes to one worker, lines or encoded items of several inputs, in the order in which it came."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from megaflow.control.watermark_messages import Partition
from megaflow.errors import ProtocolError, SourceError
from megaflow.job.text_lines import batches_of
from megaflow.timely.communication.codec.decode import decode

ITEM_BYTES = 24  # an object's, at the least, beside its encoding


class PushedLines:
    """Batches that were pushed and are not taken. Written by the worker's program, drained by its line queue."""

    def __init__(self) -> None:
        self.partitions: tuple[Partition, ...] = ()  # all that may be pushed; written by whoever builds the dataflow
        self.are_counted = False  # the first of all come here, so it is known which they are
        self._batches: deque[tuple[str, list[Any]]] = deque()  # with whose they are; items are encoded
        self._empty: dict[Partition, float] = {}  # what has nothing -> seconds, since when

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, lines: list[str] | list[bytes], input: str) -> None:
        """Keep lines of an input, or encoded items."""
        self._empty.pop(partition_of(input, lines), None)
        size = sum(map(len, lines)) + (ITEM_BYTES * len(lines) if lines and type(lines[0]) is bytes else 0)
        self._batches.extend((input, batch) for batch in batches_of(lines, size))  # type: ignore[misc]

    def take(self) -> tuple[Partition, list[Any]]:
        """Return the next batch, and of which partition it is; there must be one. Raises SourceError, as `items_of`."""
        input, batch = self._batches.popleft()
        partition = partition_of(input, batch)
        if type(batch[0]) is bytes:
            batch = items_of(input, batch)
        return partition, batch

    def empty(self, now: float, untaken: Partition | None) -> Iterator[tuple[Partition, float]]:
        """Yield each partition that has nothing to read, and since when: since this was asked first.

        `untaken`: of what was taken from here some is still to be read.
        """
        waiting = {partition_of(input, lines) for input, lines in self._batches} | {untaken}
        for each in self.partitions:
            if each not in waiting:
                yield each, self._empty.setdefault(each, now)

    def clear(self) -> None:
        """Drop all."""
        self._batches.clear()


def partition_of(input: str, lines: Sequence[Any]) -> Partition:
    """Return of which partition pushed lines are, or encoded items.

    >>> partition_of("clicks", [b"item"])
    ('items', 'clicks')
    """
    return "items" if lines and type(lines[0]) is bytes else "pushed", input


def items_of(input: str, encoded: Sequence[bytes]) -> list[Any]:
    """Return items of an input. Raises SourceError for one of a class that this process does not know."""
    try:
        return [*map(decode, encoded)]
    except ProtocolError as error:
        raise SourceError(
            f"Cannot read an item of the input {input!r} here: {error}; import its class in the module of the "
            "dataflow function, or use it in that function"
        ) from error
