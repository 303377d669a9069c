"""Taking a bin apart: chunks of bounded size, and the ledger of what moved.

A bin travels as one or more chunks on F's state output, all at the time of its
reconfiguration, in order. The first chunk makes the bin at its new owner, even when it is
empty; the last says that it is whole, and the new owner writes the ledger row.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from megaflow.bins import BinStore
from megaflow.timely.communication.codec import encode

CHUNK_BYTES = 1 << 20
"""A chunk's keys and states are cut when they reach about this size on the wire."""
_KEYS_PER_SAMPLE = 256
"""How many pairs are measured at a time, at most: one encoding call for many keys."""
_LEDGER_ROWS = 10_000
"""The newest rows that are kept until somebody takes them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a bin under way."""

    bin: int
    source: int  # worker
    first: bool
    last: bool
    taken_at: float  # wall-clock seconds when F took the bin out
    bytes: int  # of the pairs, encoded
    pairs: list[tuple[Any, Any]]  # (key, state)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A bin that has changed its owner and is whole there."""

    bin: int
    time: int
    source: int  # worker
    target: int  # worker
    bytes: int  # of keys and states, encoded
    keys: int
    seconds: float  # from taken out to whole again


def chunks(bin: int, pairs: list[tuple[Any, Any]], source: int, taken_at: float) -> Iterator[Chunk]:
    """Cut a bin's (key, state) pairs into chunks of about CHUNK_BYTES; at least one, even for an empty bin.

    A single pair is never cut; the wire splits what is larger than a frame.
    """
    start = position = size = 0
    step = 1
    while position < len(pairs):
        sample = pairs[position : position + step]
        measured = len(encode(sample))
        size += measured
        position += len(sample)
        step = max(1, min(_KEYS_PER_SAMPLE, 2 * step, step * CHUNK_BYTES // (8 * measured)))  # overshoot: an eighth
        if size >= CHUNK_BYTES and position < len(pairs):
            yield Chunk(bin, source, start == 0, False, taken_at, size, pairs[start:position])
            start, size = position, 0
    yield Chunk(bin, source, start == 0, True, taken_at, size, pairs[start:])


class Installer:
    """Puts arriving chunks into the store of their new owner and keeps the ledger."""

    def __init__(self, store: BinStore, worker: int, wall: Callable[[], float]) -> None:
        self._store = store
        self._worker = worker
        self._wall = wall
        self._sizes: dict[int, tuple[int, int]] = {}  # bin under way -> (bytes, keys) so far
        self.ledger: deque[LedgerRow] = deque(maxlen=_LEDGER_ROWS)  # drained by the operator's view

    def install(self, time: int, chunk: Chunk) -> None:
        """Add a chunk's pairs; the last chunk of a bin writes its ledger row. Cost: O(pairs)."""
        assert chunk.first != (chunk.bin in self._sizes), "the chunks of a bin arrive in order"
        size, keys = self._sizes.pop(chunk.bin, (0, 0))
        size += chunk.bytes
        keys += len(chunk.pairs)
        self._store.install(chunk.bin, chunk.pairs)
        if not chunk.last:
            self._sizes[chunk.bin] = (size, keys)
            return
        seconds = max(0.0, self._wall() - chunk.taken_at)
        self.ledger.append(LedgerRow(chunk.bin, time, chunk.source, self._worker, size, keys, seconds))
