"""Session: how an operator sends records one by one, or in lists, at one time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from megaflow.errors import CapabilityError
from megaflow.timely.order import Time

T = TypeVar("T")

BATCH_RECORDS = 700
"""Records in a batch. Tuples that stay in the cache and die young cost almost nothing; big batches cause cache misses
and garbage collection (measured: 256 KB of text a batch runs at 0.44 of the plain loop, 4 KB at 1.0)."""


def give_what_fits(records: Iterable[T], room: Callable[[], int], ship: Callable[[list[T]], None]) -> list[T]:
    """Ship batches of records while there is room; return the rest as a new list. Reads an iterator to its end.

    >>> shipped: list[list[int]] = []
    >>> give_what_fits([1, 2, 3, 4, 5], lambda: 3 - sum(map(len, shipped)), shipped.append), shipped
    ([4, 5], [[1, 2, 3]])
    """
    records = records if isinstance(records, list) else list(records)
    start = 0
    while start < len(records):
        fitting = min(room(), BATCH_RECORDS)
        if fitting < 1:
            break
        ship(records[start : start + fitting])
        start += fitting
    return records[start:]


class Shipping(Protocol):
    """Sending output, as a session uses it."""

    title: str

    def ship(self, time: Time, batch: list[Any]) -> None:
        """Send a batch."""

    def room(self) -> int:
        """Return how many records there is room for."""


class Session(Generic[T]):
    """Sends records at one time. Leaving its block flushes it. The operator's return also flushes it, and ends it.

    If two sessions are open at once, each keeps its own order.
    """

    __slots__ = ("_buffer", "_ended", "_output", "_time")

    def __init__(self, output: Shipping, time: Time) -> None:
        self._output = output
        self._time = time
        self._buffer: list[T] = []
        self._ended = False

    def give(self, record: T) -> None:
        """Send one record."""
        if self._ended:
            raise self._complaint("give")
        self._buffer.append(record)
        if len(self._buffer) >= BATCH_RECORDS:
            self.flush()

    def give_iterator(self, records: Iterable[T]) -> None:
        """Send the records of an iterable, which is read to its end."""
        for record in records:
            self.give(record)

    def give_batch(self, records: Iterable[T]) -> None:
        """Send the records of a list, or of another iterable. A list is copied."""
        if self._ended:
            raise self._complaint("give_batch")
        records = records if isinstance(records, list) else list(records)
        self.flush()
        for start in range(0, len(records), BATCH_RECORDS):
            self._output.ship(self._time, records[start : start + BATCH_RECORDS])

    def try_give(self, records: Iterable[T]) -> list[T]:
        """Send as many of the records as there is room for, in their order. Return the rest, to be given later.

        `records` is a list or another iterable; an iterator is read to its end. If records are left, the operator runs
        again as soon as there is room. Records given earlier go first, whether they fit or not. Cost: that of
        `Output.room` for each batch.
        """
        if self._ended:
            raise self._complaint("try_give")
        self.flush()
        return give_what_fits(records, self._output.room, lambda batch: self._output.ship(self._time, batch))

    def flush(self) -> None:
        """Ship the buffered records."""
        if self._buffer:
            buffer, self._buffer = self._buffer, []
            self._output.ship(self._time, buffer)

    def end(self) -> None:
        """Flush for the last time: the right to send may be gone when the operator runs again."""
        self.flush()
        self._ended = True

    def _complaint(self, verb: str) -> CapabilityError:
        return CapabilityError(
            f"{verb}: the session of {self._output.title} at time {self._time!r} ended when the operator returned; "
            "keep the capability and open a session each time the operator runs"
        )

    def __enter__(self) -> Session[T]:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.flush()
