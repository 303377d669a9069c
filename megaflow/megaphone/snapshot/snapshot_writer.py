"""The part of a cut that is still to be written while S goes on: written in slices, and always as of the cut.

The cut fixes the changed keys, the bins that are written whole, and the timers. A state is encoded when its turn comes.
S may replace it before that, or a fold may change it in place. So code that is about to touch a key calls `save` first:
then the key is written with its state as of the cut, or as gone.
 1. The changed keys are in collections that no longer change. They are not copied, because copying a million keys
    takes too long. For the same reason a bin gets a list of its keys only when its turn comes.
 2. A saved key is *kept*, with what is still to be written of it. If its state may change in place, the state is
    written at once and nothing is left. Otherwise the state is left, and is written after all others, in full runs. No
    other path writes a kept key.
 3. While a bin waits, each touched key is kept. If a touched key has no state and is not among the changed keys, it has
    come after the cut, and nothing of it is written.
 4. Before a bin is taken out, all of it is written, with its changed keys. No key of the bin is touched before the bin
    is back, so a changed key of it that is gone is still written as gone.
 5. Timers are copied at the cut. Payloads that are about to be given to a fold, which may change them, are written
    first.
The amount written at a time decides how long records wait, and how many keys are saved meanwhile and written in
addition. Measured, p99 of 50,000 records a second with a million keys on a crowded machine: 15 ms with this
SLICE_SHARE, 25 with 0.5, 40 with a millisecond after each batch and each run, and 9 without cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain, filterfalse, islice
from typing import Any, Final

from megaflow.durable.blocks import KEYS_PER_BLOCK, Block, BlockKind, pack, pack_timers
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.durability import CutSink, Piece
from megaflow.megaphone.base.event_timers import AFTER, LINES
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.base.timers import Timer

RUN_BYTES: Final = 1 << 16
"""Aim for the states of one run of keys, estimated from the last run: less than a millisecond to encode."""
SLICE_SHARE: Final = 0.3
"""Share of the time since a cut that its slices may take while records are applied."""
SLICE_SECONDS: Final = 0.002
"""Longest time of a slice, except for finishing a block, even if the cut has had little time so far."""
_WRITTEN: Final = object()  # of a kept key nothing is left to write
_FIXED: Final = frozenset((int, str, float, bool, bytes, type(None)))  # types of values that do not change in place


class SnapshotWriter:
    """The part of one operator's cut that is left to write."""

    def __init__(
        self,
        cut: Piece,
        store: BinStore,
        changed: Sequence[Set[Any]],
        some_left: bool,
        bins: Iterable[int],
        timers: list[Timer],
        events: list[Timer],
        sink: CutSink,
        now: Callable[[], float],
    ) -> None:
        """`changed`: keys; `some_left`: some of them may be of bins that are not here. `bins` are written whole.

        Takes over the lists `timers` and `events`; `events` has the timers for timestamps and for the clock.
        """
        self.cut = cut
        self._store = store
        self._changed = [keys for keys in changed if keys]
        rest = _each_once(self._changed, store.in_order) if self._changed else None
        self._rest: Iterator[Any] | None = rest  # None: all are written
        self._here = frozenset(cut.bins) if some_left else None  # bins whose changed keys are written; None: all
        self._bins: dict[int, list[Any] | None] = dict.fromkeys(bins)  # -> keys not written; None: not begun
        self._kept: dict[Any, Any] = {}  # key -> what is still to be written; None: that the key is gone
        self._timers = timers
        self._timers.sort(key=lambda timer: timer[0])
        self._timers.reverse()  # the last is due first, and was set first of those due then
        self._events: dict[int, list[Timer]] = {line: [] for line in LINES}  # -> timers; the last is due first
        events.sort(key=lambda timer: timer[0])
        while events:
            timer = events.pop()
            self._events[timer[0][0]].append(timer)
        self._sink = sink
        self._run = 1  # number of keys in the next run
        self._now = now
        self._made_at = now()
        self._seconds = 0.0  # that slices have taken so far

    @property
    def is_exposed(self) -> bool:
        """Whether keys must be saved before they are touched."""
        return self._rest is not None or bool(self._bins)

    def is_written(self) -> bool:
        """Tell whether nothing is left."""
        return not (self._timers or any(self._events.values()) or self.is_exposed or self._kept)

    def write_slice(self, is_idle: bool) -> None:
        """Write while the cut has had less than its share of the time; `is_idle`: write at least one block.

        So a record hardly waits for the cut, and a job that is always busy still completes its checkpoints.
        """
        began = now = self._now()
        end = began + min(SLICE_SECONDS, SLICE_SHARE * (began - self._made_at) - self._seconds)
        if is_idle or end >= began:
            self.write_some()
            while (now := self._now()) < end and not self.is_written():
                self.write_some()
        self._seconds += now - began

    def write_some(self) -> None:
        """Write one block, if anything is left. Cost: about RUN_BYTES, or one key."""
        if self._timers:
            self._write_timers(self._timers)
        elif (events := next(filter(None, self._events.values()), None)) is not None:
            self._write_timers(events, BlockKind.EVENTS)
        elif self._rest is not None:
            self._write_changed(self._rest)
        elif self._bins:
            self._write_bin(next(iter(self._bins)))
        elif self._kept:
            run = [self._kept.popitem() for _ in range(min(self._run, len(self._kept)))]
            run = [pair for pair in run if pair[1] is not _WRITTEN]
            self._write_delta([key for key, _ in run], [state for _, state in run])

    def save(self, keys: Iterable[Any]) -> None:
        """Keep the states that these keys had at the cut, as they are about to change. Cost: linear in the keys."""
        if not self.is_exposed:
            return
        fresh = (keys if type(keys) is set else set(keys)).difference(self._kept)
        if not self._bins:
            self._keep(self._of_changed(fresh))
            return
        here = self._store.states.keys() & fresh
        if len(here) < len(fresh):
            absent = fresh - here
            self._kept.update(dict.fromkeys(self._store.in_order(absent), _WRITTEN))
            self._kept.update(dict.fromkeys(self._of_changed(absent)))
        self._keep(here)

    def save_bin(self, bin: int) -> None:
        """Write everything that is left of a bin that is about to go."""
        if not self.is_exposed:
            return  # its changed keys are written or kept, even if one has come back since
        self._keep(self._of_changed(set(self._store.bins[bin]).difference(self._kept)))
        while bin in self._bins:
            self._write_bin(bin)

    def save_timers(self, time: FlatTime) -> None:
        """Write the timers that are due at this time or before, and are about to fire."""
        while self._timers and self._timers[-1][0] <= time:
            self._write_timers(self._timers)

    def save_events(self) -> None:
        """Write the event timers that are due and about to fire; their count may have begun only now."""
        waits = self._store.events.waits
        for line, events in self._events.items():
            while events and (line == AFTER or not waits(events[-1])):
                self._write_timers(events, BlockKind.EVENTS)

    def _of_changed(self, keys: Set[Any]) -> Set[Any]:
        """Return those of the keys that may still have to be written as changed."""
        found = set[Any]().union(*(changed & keys for changed in self._changed))
        return found if self._here is None else set(filter(self._was_here, found))

    def _was_here(self, key: Any) -> bool:
        return self._here is None or self._store.bin_of_key(key) in self._here

    def _keep(self, unordered: Set[Any]) -> None:
        """Keep the states of keys; write at once those that may change in place."""
        keys = [*self._store.in_order(unordered)]
        states = [*map(self._store.states.get, keys)]
        if are_fixed(states):
            self._kept.update(zip(keys, states, strict=True))
            return
        begin = 0
        while begin < len(keys):
            end = begin + self._run
            self._write_delta(keys[begin:end], states[begin:end])
            begin = end
        self._kept.update(dict.fromkeys(keys, _WRITTEN))

    def _write_changed(self, rest: Iterator[Any]) -> None:
        """Write the next changed keys with their states."""
        run = [*islice(rest, self._run)]
        if len(run) < self._run:
            self._rest = None
        keys = [*filterfalse(self._kept.__contains__, run)]
        if self._here is not None:
            keys = [*filter(self._was_here, keys)]
        self._write_delta(keys, [*map(self._store.states.get, keys)])

    def _write_delta(self, keys: Sequence[Any], states: Sequence[Any]) -> None:
        if keys:
            self._send(pack(BlockKind.DELTA, self.cut.operator, None, keys, states))

    def _write_bin(self, bin: int) -> None:
        """Write the next run of a whole bin; the first run even if it is empty."""
        keys = self._bins[bin]
        if keys is None:
            keys = list(self._store.bins[bin])
        run = [*filterfalse(self._kept.__contains__, keys[-self._run :])]
        del keys[-self._run :]
        states = [*map(self._store.states.__getitem__, run)]
        self._send(pack(BlockKind.BIN, self.cut.operator, bin, run, states))
        if keys:
            self._bins[bin] = keys
        else:
            del self._bins[bin]

    def _write_timers(self, timers: list[Timer], kind: BlockKind = BlockKind.TIMERS) -> None:
        """Write the timers that are due first, in the order in which they were set."""
        run = [timers.pop() for _ in range(min(self._run, len(timers)))]
        self._send(pack_timers(self.cut.operator, None, run, kind))

    def _send(self, block: Block) -> None:
        if block.count:
            size = len(block.keys) + len(block.states)
            self._run = max(1, min(KEYS_PER_BLOCK, 2 * self._run, block.count * RUN_BYTES // size))
        self._sink(self.cut, block)


def _each_once(collections: Sequence[Set[Any]], in_order: Callable[[Iterable[Any]], Iterable[Any]]) -> Iterator[Any]:
    """Yield each key that is in any of the collections once."""
    found: list[Iterator[Any]] = []
    for number, keys in enumerate(collections):
        rest = iter(in_order(keys))
        for earlier in collections[:number]:
            rest = filterfalse(earlier.__contains__, rest)
        found.append(rest)
    return chain.from_iterable(found)


def are_fixed(states: Sequence[Any]) -> bool:
    """Tell whether none of these states can change in place: all are plain values, or tuples of plain values.

    >>> are_fixed([1, "a", (2.5, None)]), are_fixed([1, ([],)]), are_fixed([{}])
    (True, False, False)
    """
    kinds = set(map(type, states))
    if tuple in kinds:
        kinds.remove(tuple)
        kinds.update(map(type, chain.from_iterable(state for state in states if type(state) is tuple)))
    return kinds <= _FIXED
