"""Batch coalescer: sends small parts of batches for one worker as one message.

The more workers there are, the smaller are the parts that a batch is split into. A message costs its two ends as much
as a hundred records (measured: about 40 µs, half of it in the codec). So a small part is kept and joined with the parts
that follow, until there are enough records or until further delay would make it late.

Why nothing is lost, late or reordered
 1. A part is counted when it is taken to be kept, as produced at its target and against its target's credit. So it
    holds time back like a record under way, no matter when or by which worker the count is reported. Only the moment
    of sending changes.
 2. The parts of one channel for one worker leave in the order in which they were sent. A part of another time makes
    the earlier parts leave first, so each message still has one time.
 3. At the end of a step nothing is kept, unless an operator will run in the next step, which follows at once. So a
    worker never parks with kept records, and occasional records are not delayed. While a worker is busy, a step that
    ends HELD_SECONDS or more after the oldest part was kept sends all parts.
 4. A marker that must follow all records is sent after `depart` (see `leaver`).
 5. Only records of the DATA lane are kept. State, control and progress leave at once.
"""

from collections.abc import Callable
from typing import Any, Protocol

from megaflow.timely.order import Time

PART_RECORDS = 256  # a part of this size leaves at once: two workers split a batch of 700 into such parts
MESSAGE_RECORDS = 512  # joined parts of this size leave, before they exceed the size of a batch
HELD_SECONDS = 0.005


class Sender(Protocol):
    """Sending end of a channel."""

    def post(self, worker: int, time: Time, batch: Any) -> None:
        """Send a batch to another worker unchanged."""


class BatchCoalescer:
    """Parts that one dataflow keeps for other workers. Only the worker's thread writes it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = 0.0  # when the oldest part of `_kept` was kept, seconds
        self._kept: dict[tuple[Sender, int], tuple[Time, list[Any]]] = {}  # channel and worker -> parts, in order
        self._records: dict[tuple[Sender, int], int] = {}  # channel and worker -> records in its parts

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, sender: Sender, worker: int, time: Time, part: Any) -> None:
        """Send a part of a batch, now or later: a list, or an object with `copy` and `extend`. It is not changed."""
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
        """End a step. `busy`: the next step follows at once."""
        if self._kept and (not busy or self._now() - self._since >= HELD_SECONDS):
            self.depart()

    def depart(self) -> None:
        """Send all kept parts."""
        for way in list(self._kept):
            self._send(way)

    def clear(self) -> None:
        """Discard all parts: the dataflow is dropped."""
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
