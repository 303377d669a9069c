"""A bin cut into chunks of bounded size, the parcels that carry them, and the ledger of the bins that moved.

A bin consists of keys with their states and timers. It travels as one or more chunks on F's state output, in order, all
at the time of its reconfiguration. The first chunk creates the bin at its new owner, even if the chunk is empty. The
last chunk marks the bin as whole, and the new owner writes the ledger row. F encodes the contents of a chunk once,
which also measures them. The wire carries these bytes as they are, and the new owner decodes them as it installs them.
A state that refers to one object twice still does so at its new owner. Consecutive small chunks travel together, as a
parcel: see `bin_transfer`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from megaflow.megaphone.base.bin_trial import PAYLOAD, STATE, check_pairs
from megaflow.megaphone.base.bins import BinStore, Taken
from megaflow.megaphone.base.event_timers import Heard
from megaflow.megaphone.base.flat_times import FlatTime, outermost
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

CHUNK_BYTES = 1 << 20
"""A chunk is complete when its contents reach about this size on the wire."""
_ITEMS_PER_RUN = 256
"""Largest number of pairs or timers that one call encodes."""
_LEDGER_ROWS = 10_000
"""Largest number of rows kept until they are taken; the newest rows stay."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a bin that is under way."""

    bin: int
    source: int  # worker
    first: bool
    last: bool
    taken_at: float  # wall-clock seconds when F took the bin out
    size: int  # bytes of the pairs and timers
    keys: int
    pairs: list[bytes]  # runs of (key, state), each encoded
    timers: list[bytes]  # runs of timers, likewise
    awaited: bool = False  # whether the source waits for a report that this is installed
    events: list[bytes] = field(default_factory=list)  # runs of event timers, likewise
    heard: Heard = ()  # in the first chunk: the watermark and clock


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A bin that is whole at its new owner."""

    bin: int
    time: int
    source: int  # worker
    target: int  # worker
    bytes: int  # of keys, states and timers, encoded
    keys: int
    seconds: float  # from the moment it was taken out until it was whole again


def chunks(bin: int, taken: Taken, source: int, taken_at: float, name: str = "", heard: Heard = ()) -> Iterator[Chunk]:
    """Cut the contents of a bin into chunks of about CHUNK_BYTES; at least one chunk, even for an empty bin.

    A single pair or timer is never cut; the wire splits anything larger than a frame. Lazy: a caller that sends each
    chunk before it asks for the next one never holds the bin twice. Raises CannotTravel with `name`, the operator's,
    and the key and state that cannot travel. That happens only if they came after the trial of the move, or if the move
    was not requested from a job's coordinator.
    """
    first, size, keys = True, 0, 0
    pairs, timers, events = parts = _no_runs()
    for run, count, part in _runs(taken, name):
        if size >= CHUNK_BYTES:
            yield Chunk(bin, source, first, False, taken_at, size, keys, pairs, timers, False, events, heard)
            first, size, keys, heard = False, 0, 0, ()
            pairs, timers, events = parts = _no_runs()
        parts[part].append(run)
        size += len(run)
        keys += count if part == 0 else 0
    yield Chunk(bin, source, first, True, taken_at, size, keys, pairs, timers, False, events, heard)


def _no_runs() -> tuple[list[bytes], list[bytes], list[bytes]]:
    return [], [], []


def _runs(taken: Taken, name: str) -> Iterator[tuple[bytes, int, int]]:
    """Yield the pairs, the timers and the event timers, encoded in runs of about an eighth of a chunk at most.

    Each run comes with the number of its items, and with their kind: 0 for pairs, 1 for timers, 2 for event timers.
    """
    queues: tuple[Iterable[Any], ...] = taken.pairs, taken.timers, taken.events
    for part, queue in enumerate(queues):
        items, step = iter(queue), 1
        while run := list(islice(items, step)):
            try:
                encoded = encode(run, shared=True)
            except Exception:
                pairs = [timer[1:] for timer in run] if part else run
                check_pairs(name, pairs, PAYLOAD if part else STATE, show=True)
                raise
            yield encoded, len(run), part
            step = max(1, min(_ITEMS_PER_RUN, 2 * step, step * CHUNK_BYTES // (8 * len(encoded))))


class Freight:
    """Chunks of the bins that move at one time, still to be sent to one worker, and the parcels under way to it.

    Invariant: the parcels under way have at most CHUNK_BYTES in total, or there is only one.
    """

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        """`chunks`: at least one; they are drawn when they are needed, one of them ahead."""
        self._chunks = chunks
        self.next = next(chunks, None)  # None: all chunks are taken; written by `pop`
        self._under_way: deque[int] = deque()  # sizes of the awaited parcels, in the order in which they were sent

    def pop(self) -> list[Chunk]:
        """Take the next parcel: one chunk, or several of an eighth of CHUNK_BYTES in total; empty if it must wait.

        All parcels except the last are awaited. While the new owner installs one parcel, the next one is made and sent.
        With parcels of an eighth of what may be under way, both workers stay busy, and neither is busy for long at a
        time.
        """
        parcel: list[Chunk] = []
        size = 0
        room = CHUNK_BYTES - sum(self._under_way) if self._under_way else None  # None: no limit
        while self.next is not None and (not parcel or size + self.next.size <= CHUNK_BYTES // 8):
            if room is not None and size + self.next.size > room:
                break
            parcel.append(self.next)
            size += self.next.size
            self.next = next(self._chunks, None)
        if parcel and self.next is not None:
            parcel[-1] = replace(parcel[-1], awaited=True)
            self._under_way.append(size)
        return parcel

    def installed(self) -> None:
        """Note that the oldest awaited parcel is installed."""
        self._under_way.popleft()


@dataclass(slots=True)
class Installer:
    """The receiving end: puts chunks into the new owner's store, keeps the ledger, and reports to F of the worker."""

    store: BinStore
    worker: int
    wall: Callable[[], float]
    installed: Callable[[FlatTime, Chunk], None]  # a method of F, called with each chunk and its time
    _sizes: dict[int, tuple[int, int]] = field(default_factory=dict)  # bin under way -> (bytes, keys) so far
    ledger: deque[LedgerRow] = field(default_factory=lambda: deque(maxlen=_LEDGER_ROWS))  # the operator's view takes it

    def install(self, time: FlatTime, chunk: Chunk) -> bool:
        """Add the contents of a chunk; the last chunk of a bin writes its ledger row. Cost: O(pairs and timers).

        Return whether S has to close the chunk's time, whatever else comes at it: rule 5 of `event_timers`.
        """
        assert chunk.first != (chunk.bin in self._sizes), "the chunks of a bin arrive in order"
        size, keys = self._sizes.pop(chunk.bin, (0, 0))
        size += chunk.size
        keys += chunk.keys
        parts = (map(partial(decode, shared=True), runs) for runs in (chunk.pairs, chunk.timers, chunk.events))
        self.store.install(chunk.bin, *map(chain.from_iterable, parts))
        is_marked = self.store.events.hear(time, chunk.heard)
        if chunk.last:
            seconds = max(0.0, self.wall() - chunk.taken_at)
            self.ledger.append(LedgerRow(chunk.bin, outermost(time), chunk.source, self.worker, size, keys, seconds))
        else:
            self._sizes[chunk.bin] = (size, keys)
        self.installed(time, chunk)
        return is_marked
