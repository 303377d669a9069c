"""What is still to be written of a cut, while S goes on: in slices, and always as of the cut.

Fixed at the cut are the changed keys, the bins that are written whole, and timers. A state is encoded when its turn
comes, and S may replace it before, or a fold change it in place. So whoever touches a key first has it saved (`save`):
then its state, or that it is gone, is as of the cut.
 1. The changed keys stand in collections that nobody changes any more, since to copy a million keys takes too long. No
    bin has a list of its keys until its turn comes.
 2. A key that is saved is *kept*, with what is still to be written of it: nothing, if its state may change in place,
    which is written at once; else the state, which is written after all others, in full runs. Nobody else writes it.
 3. While a bin waits each key that is touched is kept. One that has no state and had not changed has come after the
    cut.
 4. Before a bin is taken out all of it is written, with its changed keys. No key of it is touched before it is back,
    so a changed key of it that is gone is still written as gone.
 5. Timers are copied at the cut. Payloads that are about to be given to a fold, which may change them, are written
    first.
How much is written at a time decides how long records wait (p99 of 50,000 a second with a million keys, on a crowded
machine: 15 ms with this SLICE_SHARE, 25 with 0.5, 40 with a millisecond after each batch and each run; 9 without cuts),
and how many keys are saved meanwhile and written besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain, filterfalse, islice
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import KEYS_PER_BLOCK, Block, BlockKind, pack, pack_timers
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.event_timers import AFTER, LINES
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.timers import Timer
from megaflow.quick_dataclass import dataclass

RUN_BYTES: Final = 1 << 16
"""A run of keys is as long as the last one says that its states will take this: less than a millisecond to encode."""
SLICE_SHARE: Final = 0.3
"""Of the time since a cut, which its slices may have taken when another one begins, while records are applied."""
SLICE_SECONDS: Final = 0.002
"""That a slice may take, and the block that it has begun, however little the cut has had so far."""
_WRITTEN: Final = object()  # what is still to be written of a key that is kept: nothing
_FIXED: Final = frozenset((int, str, float, bool, bytes, type(None)))  # types of values that do not change in place


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
        changed: Sequence[Set[Any]],
        some_left: bool,
        bins: Iterable[int],
        timers: list[Timer],
        events: list[Timer],
        sink: CutSink,
        now: Callable[[], float],
    ) -> None:
        """`changed`: keys; `some_left`: perhaps of bins that are not here. `bins` are written whole.

        Owns `timers` and `events`, those for timestamps and by the clock.
        """
        self.cut = cut
        self._operator = cut.operator
        self._store = store
        self._changed = [keys for keys in changed if keys]
        self._in_order = store.in_order
        rest = _each_once(self._changed, store.in_order) if self._changed else None
        self._rest: Iterator[Any] | None = rest  # None: all written
        self._here = frozenset(cut.bins) if some_left else None  # bins whose changed keys are written; None: all
        self._bins: dict[int, list[Any] | None] = dict.fromkeys(bins)  # -> keys not written; None: not begun
        self._kept: dict[Any, Any] = {}  # key -> what is still to be written; None: that it is gone
        self._timers = timers
        self._timers.sort(key=lambda timer: timer[0])
        self._timers.reverse()  # the last is due first, and was set first of those due then
        self._events: dict[int, list[Timer]] = {line: [] for line in LINES}  # -> timers; the last is due first
        events.sort(key=lambda timer: timer[0])
        while events:
            timer = events.pop()
            self._events[timer[0][0]].append(timer)
        self._sink = sink
        self._run = 1  # keys that the next run may have
        self._now = now
        self._made_at = now()
        self._seconds = 0.0  # that slices have taken

    @property
    def is_exposed(self) -> bool:
        """Whether keys have to be saved before they are touched."""
        return self._rest is not None or bool(self._bins)

    def is_written(self) -> bool:
        """Tell whether nothing is left."""
        return not (self._timers or any(self._events.values()) or self.is_exposed or self._kept)

    def write_slice(self, is_idle: bool) -> None:
        """Write for as long as the cut has had less than its share of the time; `is_idle`: one block at least.

        So a record hardly waits for it, and a job that is always busy has its checkpoints nevertheless.
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
        """Keep what these keys were at the cut, as they are about to change. Cost: linear in them."""
        if not self.is_exposed:
            return
        fresh = (keys if type(keys) is set else set(keys)).difference(self._kept)
        if not self._bins:
            self._keep(self._of_changed(fresh))
            return
        here = self._store.states.keys() & fresh
        if len(here) < len(fresh):
            absent = fresh - here
            self._kept.update(dict.fromkeys(self._in_order(absent), _WRITTEN))
            self._kept.update(dict.fromkeys(self._of_changed(absent)))
        self._keep(here)

    def save_bin(self, bin: int) -> None:
        """Write all that is left of a bin, as it is about to go."""
        if not self.is_exposed:
            return  # its changed keys are written or kept, also if one has come back since
        self._keep(self._of_changed(set(self._store.bins[bin]).difference(self._kept)))
        while bin in self._bins:
            self._write_bin(bin)

    def save_timers(self, time: FlatTime) -> None:
        """Write the timers that are due at this time or before, as they are about to fire."""
        while self._timers and self._timers[-1][0] <= time:
            self._write_timers(self._timers)

    def save_events(self) -> None:
        """Write the event timers that are due, as they are about to fire; they may have begun to count just now."""
        waits = self._store.events.waits
        for line, events in self._events.items():
            while events and (line == AFTER or not waits(events[-1])):
                self._write_timers(events, BlockKind.EVENTS)

    def _of_changed(self, keys: Set[Any]) -> Set[Any]:
        """Those of the keys that were to be written as changed, and may be still."""
        found = set[Any]().union(*(changed & keys for changed in self._changed))
        return found if self._here is None else set(filter(self._was_here, found))

    def _was_here(self, key: Any) -> bool:
        return self._here is None or self._store.bin_of_key(key) in self._here

    def _keep(self, unordered: Set[Any]) -> None:
        """Keep the states of keys; write those at once that may change."""
        keys = [*self._in_order(unordered)]
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
            self._send(pack(BlockKind.DELTA, self._operator, None, keys, states))

    def _write_bin(self, bin: int) -> None:
        """Write the next run of a whole bin; its first even if it is empty."""
        keys = self._bins[bin]
        if keys is None:
            keys = list(self._store.bins[bin])
        run = [*filterfalse(self._kept.__contains__, keys[-self._run :])]
        del keys[-self._run :]
        states = [*map(self._store.states.__getitem__, run)]
        self._send(pack(BlockKind.BIN, self._operator, bin, run, states))
        if keys:
            self._bins[bin] = keys
        else:
            del self._bins[bin]

    def _write_timers(self, timers: list[Timer], kind: BlockKind = BlockKind.TIMERS) -> None:
        """Write those that are due first, in the order in which they were set."""
        run = [timers.pop() for _ in range(min(self._run, len(timers)))]
        self._send(pack_timers(self._operator, None, run, kind))

    def _send(self, block: Block) -> None:
        if block.count:
            size = len(block.keys) + len(block.states)
            self._run = max(1, min(KEYS_PER_BLOCK, 2 * self._run, block.count * RUN_BYTES // size))
        self._sink(self.cut, block)


def _each_once(collections: Sequence[Set[Any]], in_order: Callable[[Iterable[Any]], Iterable[Any]]) -> Iterator[Any]:
    """Return the keys that are in any of the collections."""
    found: list[Iterator[Any]] = []
    for number, keys in enumerate(collections):
        rest = iter(in_order(keys))
        for earlier in collections[:number]:
            rest = filterfalse(earlier.__contains__, rest)
        found.append(rest)
    return chain.from_iterable(found)


def are_fixed(states: Sequence[Any]) -> bool:
    """Tell whether none of these states can change in place: they are plain values, or tuples of such.

    >>> are_fixed([1, "a", (2.5, None)]), are_fixed([1, ([],)]), are_fixed([{}])
    (True, False, False)
    """
    kinds = set(map(type, states))
    if tuple in kinds:
        kinds.remove(tuple)
        kinds.update(map(type, chain.from_iterable(state for state in states if type(state) is tuple)))
    return kinds <= _FIXED
