"""What is still to be written of a cut, while S goes on: in slices, and always as of the cut.

Fixed at the cut are a set of changed keys, the bins that are written whole, and timers. A state is encoded when its
turn comes, and a fold may change it in place before. So whoever touches a key first has it saved (`save`): then its
state, or that it is gone, is as of the cut.
 1. A changed key is among `_keys` until it is written or saved.
 2. A whole bin has no list of its keys until its turn comes: a list of all would take too long. So each key that is
    touched while a bin waits is noted, and saved as a changed key is, if it has a state; one without has come after
    the cut, or is saved already. When its turn comes a bin is written without the keys that were touched.
 3. Before a bin is taken out all of it is written, with its changed keys. No key of it is touched before it is back,
    so a changed key of it that is gone is still written as gone.
 4. Timers are copied at the cut. Payloads that are about to be given to a fold, which may change them, are written
    first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import KEYS_PER_BLOCK, Block, BlockKind, pack, pack_timers
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.timers import Timer

RUN_BYTES: Final = 1 << 16
"""A run of keys is as long as the last one says that its states will take this: less than a millisecond to encode."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one operator on one worker keeps for one checkpoint: all before `time` of its bins."""

    number: int  # of the checkpoint
    since: int | None  # number of the committed one that the deltas follow; None: all bins are written whole
    time: int  # in a nested scope the outer one
    operator: str
    bins: tuple[int, ...]  # owned at the cut, sorted
    at_end: bool = False  # all that ever happens is before the cut, whatever its time


CutSink: TypeAlias = Callable[[Piece, Block | None], None]
"""Takes the blocks of each cut as they are made; None: that was the last one of it."""


class Unwritten:
    """What is left to write of one operator's cut."""

    def __init__(
        self,
        cut: Piece,
        store: BinStore,
        keys: set[Any],
        bins: Iterable[int],
        timers: list[Timer],
        sink: CutSink,
    ) -> None:
        """`keys` that have changed, of bins that are here; `bins` to be written whole. Owns `keys` and `timers`."""
        self.cut = cut
        self._operator = cut.operator
        self._store = store
        self._keys = keys
        self._bins: dict[int, list[Any] | None] = dict.fromkeys(bins)  # -> keys not written; None: not begun
        self._touched: set[Any] = set()  # since the cut, while bins waited
        self._timers = timers
        self._timers.sort(key=lambda timer: timer[0])
        self._timers.reverse()  # the last is due first, and was set first of those due then
        self._sink = sink
        self._run = 1  # keys that the next run may have

    def is_written(self) -> bool:
        """Tell whether nothing is left."""
        return not (self._timers or self._keys or self._bins)

    def write_some(self) -> None:
        """Write one block, if anything is left. Cost: about RUN_BYTES, or one key."""
        if self._timers:
            self._write_timers()
        elif self._keys:
            self._write_keys([self._keys.pop() for _ in range(min(self._run, len(self._keys)))])
        elif self._bins:
            self._write_bin(next(iter(self._bins)))

    def save(self, keys: Collection[Any]) -> None:
        """Write what these keys were at the cut, as they are about to change. Cost: linear in them."""
        found = self._keys.intersection(keys)
        self._keys -= found
        if self._bins:
            touched = set(keys) - self._touched
            self._touched |= touched
            found |= self._store.states.keys() & touched
        self._write_all(found)

    def save_bin(self, bin: int) -> None:
        """Write all that is left of a bin, as it is about to go."""
        found = self._keys.intersection(self._store.bins[bin])
        self._keys -= found
        self._write_all(found)
        while bin in self._bins:
            self._write_bin(bin)

    def save_timers(self, time: FlatTime) -> None:
        """Write the timers that are due at this time or before, as they are about to fire."""
        while self._timers and self._timers[-1][0] <= time:
            self._write_timers()

    def _write_all(self, keys: Iterable[Any]) -> None:
        rest = list(keys)
        while rest:
            self._write_keys([rest.pop() for _ in range(min(self._run, len(rest)))])

    def _write_keys(self, keys: list[Any]) -> None:
        """Write changed keys with their states."""
        self._send(pack(BlockKind.DELTA, self._operator, None, keys, list(map(self._store.states.get, keys))))

    def _write_bin(self, bin: int) -> None:
        """Write the next run of a whole bin; its first even if it is empty."""
        states = self._store.states
        keys = self._bins[bin]
        if keys is None:
            keys = list(self._store.bins[bin])
        run = [key for key in keys[-self._run :] if key not in self._touched]
        del keys[-self._run :]
        self._send(pack(BlockKind.BIN, self._operator, bin, run, [states[key] for key in run]))
        if keys:
            self._bins[bin] = keys
            return
        del self._bins[bin]
        if not self._bins:
            self._touched.clear()

    def _write_timers(self) -> None:
        """Write those that are due first, in the order in which they were set."""
        run = [self._timers.pop() for _ in range(min(self._run, len(self._timers)))]
        self._send(pack_timers(self._operator, None, run))

    def _send(self, block: Block) -> None:
        if block.count:
            size = len(block.keys) + len(block.states)
            self._run = max(1, min(KEYS_PER_BLOCK, 2 * self._run, block.count * RUN_BYTES // size))
        self._sink(self.cut, block)
