"""A bin cut into chunks of bounded size, the parcels that they are sent in, and the ledger of the bins that moved.

A bin, which is keys with their states and timers, travels as one or more chunks on F's state output, all at the time of
its reconfiguration, in order. The first chunk makes the bin at its new owner, even when it is empty; the last says that
it is whole, and the new owner writes the ledger row. What is in a chunk is encoded once, which measures it, too; the
wire carries these bytes as they are, and the new owner decodes them as it installs them. A state that refers to one
object twice does so there, too. Chunks that follow one another
and are small travel together, as a parcel: see `bin_transfer`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import partial
from itertools import chain, islice
from typing import Any

from megaflow.megaphone.bin_trial import PAYLOAD, STATE, check_pairs
from megaflow.megaphone.bins import BinStore, Taken
from megaflow.megaphone.event_timers import Heard
from megaflow.megaphone.flat_times import FlatTime, outermost
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

CHUNK_BYTES = 1 << 20
"""A chunk is cut when what is in it reaches about this size on the wire."""
_ITEMS_PER_RUN = 256
"""How many pairs or timers are encoded at a time, at most: one call for many."""
_LEDGER_ROWS = 10_000
"""The newest rows that are kept until they are taken."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a bin under way."""

    bin: int
    source: int  # worker
    first: bool
    last: bool
    taken_at: float  # wall-clock seconds when F took the bin out
    size: int  # bytes of the pairs and timers
    keys: int
    pairs: list[bytes]  # runs of (key, state), each encoded
    timers: list[bytes]  # runs of timers, likewise
    awaited: bool = False  # whether the source waits to hear that this is installed
    events: list[bytes] = field(default_factory=list)  # runs of event timers, likewise
    heard: Heard = ()  # of the first chunk: what the watermark is


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A bin that has changed its owner and is whole there."""

    bin: int
    time: int
    source: int  # worker
    target: int  # worker
    bytes: int  # of keys, states and timers, encoded
    keys: int
    seconds: float  # from taken out to whole again


def chunks(bin: int, taken: Taken, source: int, taken_at: float, name: str = "", heard: Heard = ()) -> Iterator[Chunk]:
    """Cut what was in a bin into chunks of about CHUNK_BYTES; at least one, even for an empty bin.

    A single pair or timer is never cut; the wire splits what is larger than a frame. Lazy: a caller that sends
    each chunk before it asks for the next never has the bin twice. Raises CannotTravel with `name`, the operator's, and
    the key and state that cannot: none could when the move was asked for, or it was not asked of a job's coordinator.
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
    """The pairs, the timers and the event timers, encoded in runs of about an eighth of a chunk at most.

    With each how many are in it, and 0, 1 or 2 for what they are.
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
    """The chunks still to be sent to one worker of the bins that move at one time, and the parcels under way to it.

    Invariant: all parcels under way are of CHUNK_BYTES together, or it is one.
    """

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        """`chunks`: at least one; they are drawn when they are needed, and one ahead."""
        self._chunks = chunks
        self.next = next(chunks, None)  # None: all has been taken; written by `pop`
        self._under_way: deque[int] = deque()  # sizes of the parcels that are awaited, in the order of sending

    def pop(self) -> list[Chunk]:
        """Take the next parcel: one chunk, or several that are an eighth of CHUNK_BYTES together; none if it must wait.

        All parcels but the last are awaited. While the new owner installs one the next is made and sent: an eighth of
        what may be under way keeps both workers busy, and neither for long at a time.
        """
        parcel: list[Chunk] = []
        size = 0
        room = CHUNK_BYTES - sum(self._under_way) if self._under_way else None  # None: anything
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
        """Note that the oldest parcel that was awaited is installed."""
        self._under_way.popleft()


class Installer:
    """The receiving end: puts chunks into the store of their new owner, keeps the ledger, and tells F of the worker."""

    def __init__(
        self, store: BinStore, worker: int, wall: Callable[[], float], installed: Callable[[FlatTime, Chunk], None]
    ) -> None:
        """`installed`: F's; called with each chunk and its time."""
        self._store = store
        self._worker = worker
        self._wall = wall
        self._installed = installed
        self._sizes: dict[int, tuple[int, int]] = {}  # bin under way -> (bytes, keys) so far
        self.ledger: deque[LedgerRow] = deque(maxlen=_LEDGER_ROWS)  # drained by the operator's view

    def install(self, time: FlatTime, chunk: Chunk) -> bool:
        """Add what a chunk brings; the last chunk of a bin writes its ledger row. Cost: O(pairs and timers).

        Return whether its time is to be closed, whatever else comes at it: rule 5 of `event_timers`.
        """
        assert chunk.first != (chunk.bin in self._sizes), "the chunks of a bin arrive in order"
        size, keys = self._sizes.pop(chunk.bin, (0, 0))
        size += chunk.size
        keys += chunk.keys
        parts = (map(partial(decode, shared=True), runs) for runs in (chunk.pairs, chunk.timers, chunk.events))
        self._store.install(chunk.bin, *map(chain.from_iterable, parts))
        is_marked = self._store.events.hear(time, chunk.heard)
        if chunk.last:
            seconds = max(0.0, self._wall() - chunk.taken_at)
            self.ledger.append(LedgerRow(chunk.bin, outermost(time), chunk.source, self._worker, size, keys, seconds))
        else:
            self._sizes[chunk.bin] = (size, keys)
        self._installed(time, chunk)
        return is_marked
