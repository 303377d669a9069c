"""Gathering: small parts of batches for one worker leave as one message.

The more workers there are the smaller are the parts that a batch is split into, and a message costs its two ends as
much as a hundred records do (measured: some 40 µs, of which the codec takes half). So a small part is kept, and joined
with the parts that come after it, until there are enough, or until it would be late.

Why nothing is lost, late, or in another order
 1. What is kept is counted, as produced at its target and against its credit, when it is taken: it holds time back
    like a record under way, whoever tells the count and whenever. Only the moment at which it leaves is another.
 2. The parts of one channel for one worker leave in the order in which they were sent. One of another time lets those
    before it leave first, so a message has one time, as ever.
 3. At the end of a step nothing is kept unless an operator is to run in the next, which follows at once. So nobody
    parks with records in his hands, and what comes now and then is not late at all. While a worker is busy, a step ends
    with nothing kept for longer than HELD_SECONDS.
 4. A marker that has to come behind all records is sent after `depart` (see `leaver`).
 5. Records of the DATA lane alone are kept. State, control and progress leave as they come.
"""

from collections.abc import Callable
from typing import Any, Protocol

from megaflow.timely.order import Time

PART_RECORDS = 256  # a part that is as large leaves at once: two workers cut a batch of 700 into such
MESSAGE_RECORDS = 512  # and so does what has come together, before it gets larger than a batch should be
HELD_SECONDS = 0.005


class Sender(Protocol):
    """The sending end of a channel."""

    def post(self, worker: int, time: Time, batch: Any) -> None:
        """Send a batch to another worker as it is."""


class Gathering:
    """What one dataflow of one worker keeps for others. One writer: the worker's thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0  # when the first of `_kept` was kept, seconds
        self._kept: dict[tuple[Sender, int], tuple[Time, list[Any]]] = {}  # channel and worker -> parts, in order
        self._records: dict[tuple[Sender, int], int] = {}  # likewise -> records in them

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, sender: Sender, worker: int, time: Time, part: Any) -> None:
        """Send a part of a batch, now or later: a list, or what has its `copy` and `extend`. It is not changed."""
        way, records = (sender, worker), len(part)
        kept = self._kept.get(way)
        if kept is not None and kept[0] != time:
            self._send(way)
            kept = None
        if kept is None:
            if records >= PART_RECORDS:
                sender.post(worker, time, part)
                return
            if not self._kept:
                self._since = self._now()
            self._kept[way], self._records[way] = (time, [part]), records
            return
        kept[1].append(part)
        self._records[way] += records
        if self._records[way] >= MESSAGE_RECORDS:
            self._send(way)

    def settle(self, busy: bool) -> None:
        """End a step; `busy`: the next one follows at once."""
        if self._kept and (not busy or self._now() - self._since >= HELD_SECONDS):
            self.depart()

    def depart(self) -> None:
        """Send all that is kept."""
        for way in list(self._kept):
            self._send(way)

    def clear(self) -> None:
        """Forget all: the dataflow is dropped."""
        self._kept.clear()
        self._records.clear()

    def _send(self, way: tuple[Sender, int]) -> None:
        time, parts = self._kept.pop(way)
        del self._records[way]
        batch = parts[0]
        if len(parts) > 1:
            batch = batch.copy()
            for part in parts[1:]:
                batch.extend(part)
        sender, worker = way
        sender.post(worker, time, batch)
