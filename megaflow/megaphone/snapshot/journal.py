"""The journal of one stateful operator on one worker: which keys have changed, and when to cut.

A checkpoint at epoch t keeps the effects of all records before t and of none at t or later. F registers t as it reads
the command. This module then *cuts* the operator's share, at the same logical time as all other workers, without a
message to them. Code that is about to do something at time x calls `before(x)`, which cuts every registered t up to x.

Why each cut is exact
 1. Nothing at t or later is in. S calls `before(x)` before it applies x, including timers due at x. F calls it before
    it ships the bins that move at x, and the installer before it adds a chunk of time x. Nothing else changes a bin.
 2. t is registered by then. An unread command at t holds each S's state frontier at t. F ships at x, here or at a
    chunk's source, only when all have read the commands up to x (rules 1 to 3 of `router`).
 3. All before t is in. S applies x only when nothing earlier can come or waits. F takes a bin out for x, which is at t
    or later, when everything before x is applied everywhere (rule 3 of `router`). So everything before x is also
    applied at the worker where a chunk of x arrives. A worker that applies nothing cuts when no frontier of S is below
    t and nothing earlier waits there (`Core.keep`).
 4. So each bin is in one worker's piece. A bin that moves at x is with its old owner for t up to x, because it is
    shipped and installed after both have cut. It is with its new owner for t above x, because the chunks of x hold the
    state frontier at x.

A cut writes the changes since `since`, the last committed checkpoint, whatever checkpoints were abandoned in between
 5. The interval between two cuts keeps what changed. It stays until a later command's `since`, or `committed`, reports
    that the cut at its end is committed. A cut writes the union of the kept intervals: keys with states, or with None
    if a key is gone.
 6. A bin that came in these intervals is written whole, because this worker does not know what the bin contained
    before, or where. A key of a bin that left is not written: the bin's owner writes the bin whole.
 7. Timers are an append log. A cut writes the timers that were set in these intervals; for whole bins it writes the
    timers in the store. Timers that were due before t have fired and are left out. Event timers likewise: rule 8 of
    `event_timers`.
The checkpoint at the end is cut when nothing more can happen: no frontier is left, and nothing waits. By then timers
for later epochs have fired, and so have event timers if everything closes. Earlier checkpoints may have written these
timers, and those entries must not count. So bins that had such timers when the command came, or that came later, are
written whole.
In a nested scope a checkpoint is at (t, 0), the first of all times with outer time t: see `flat_times`.
`snapshot_writer` holds the part of a cut that is still to be written, and keeps it as of t.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final

from megaflow.errors import ProtocolError
from megaflow.megaphone.base.barrier_actions import BarrierActions
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.durability import CutSink, Piece
from megaflow.megaphone.base.flat_times import FlatTime, outermost
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.megaphone.base.timers import Timer
from megaflow.megaphone.snapshot.full_snapshots import FullSnapshots
from megaflow.megaphone.snapshot.snapshot_writer import SnapshotWriter


class Noting(Enum):
    """How S notes which keys change: see `stateful`."""

    YOUNG = "in the young dict"
    SPARSE = "as a set"
    DENSE = "not at all"


LOOK_AGAIN: Final = 8
"""After this many cuts in a row whose intervals noted no keys, the next interval notes them, as a trial."""
TRIAL_KEYS: Final = 1 << 14
"""A trial with this many keys is given up unless it pays. To merge this many takes 3 ms."""


def choose(noting: Noting, cuts: int, touched: int, records: int, keys: int) -> Noting:
    """Return how to note the changes of the next interval.

    `noting`: how the last intervals noted them; `cuts`: how many intervals in a row did so. In the last interval this
    many `records` have changed `touched` of all `keys`.

    >>> choose(Noting.YOUNG, 1, touched=20, records=1000, keys=25)
    <Noting.YOUNG: 'in the young dict'>
    >>> choose(Noting.YOUNG, 1, touched=600, records=1000, keys=1000)
    <Noting.DENSE: 'not at all'>
    """
    if noting is Noting.DENSE:  # touched keys were not counted; there are at most as many as records
        return Noting.YOUNG if cuts >= LOOK_AGAIN or 3 * records < keys else noting
    if 4 * touched <= records:
        return Noting.YOUNG if records else noting
    return Noting.DENSE if 3 * touched > keys else Noting.SPARSE


@dataclass(slots=True)
class Interval:
    """The changes between two cuts."""

    number: int | None = None  # of the cut at its end; None: it is the present interval
    keys: set[Any] = field(default_factory=set)  # of bins that did not come in it; the states may be gone
    young: Set[Any] = frozenset()  # keys of the young dict at its end
    dense: bool = False  # whether any keys may have changed, because none were noted
    came: set[int] = field(default_factory=set)  # bins that came in it
    left: bool = False  # whether a bin left
    timers: list[tuple[int, Timer]] = field(default_factory=list)  # (bin, timer) that were set and may not have fired
    events: list[tuple[int, Timer]] = field(default_factory=list)  # event timers likewise, without those not begun


class Journal(BarrierActions):
    """The reports of S, F and the installer of one operator before each change, and the cuts that follow from them."""

    def __init__(
        self, operator: str, store: BinStore, sink: CutSink, now: Callable[[], float], spent: Callable[[], float]
    ) -> None:
        """`now` returns seconds that never go back; `spent` returns processor seconds, which pace the checkpoints.

        The journal assumes that a checkpoint has the bins that are in the store.
        """
        super().__init__(operator, store)
        self._sink = sink
        self._now = now
        self._spent = spent
        self._at_end: tuple[FlatTime, Checkpoint] | None = None  # to be cut when nothing more will happen
        self._firing: set[int] = set()  # bins with timers that were set before the end, and that will fire
        self._present = Interval()
        self.intervals = [self._present]  # since the last committed cut, oldest first; `retained_bins` also reads them
        self._committed = 0  # the last cut that is known to be committed; 0: none
        self._writer: SnapshotWriter | None = None  # of the last cut
        self.seconds = 0.0  # processor seconds that the last cut has taken so far
        self.records = 0  # applied since the last cut; written by S
        self.windowed: Callable[[], tuple[int, int]] = lambda: (0, 0)  # set when the operator is built
        self.young: dict[Any, Any] | None = None  # key -> state, newer than in the store; None: no young dict is used
        self._noting = Noting.SPARSE
        self._follows = False
        self._is_trial = False  # whether the young dict is on trial
        self._cuts = 0  # in a row whose intervals were noted in this way
        self.bases = FullSnapshots(store)

    # When to cut ------------------------------------------------------------------------

    def register(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        """Note that F has read the command. Raises ProtocolError if it builds on changes that were already dropped."""
        if checkpoint.since is not None and checkpoint.since < self._committed:
            raise ProtocolError(
                f"control of {self._operator}: {checkpoint} at time {time} follows checkpoint {checkpoint.since}, "
                f"but {self._committed} is the newest committed one"
            )
        if checkpoint.at_end:
            self._at_end, store = (time, checkpoint), self._store
            self._firing = {bin for bin in store.bins if store.timers.of(bin) or store.events.all_fire(time, bin)}
        else:
            self.registered.append((time, checkpoint))
        self.wake()

    def finish(self) -> None:
        """Make the cut at the end, if there is one, and write everything that is left, because no run follows."""
        if self._at_end is not None:
            self._cut(*self._at_end)
            self._at_end = None
        self.write(all=True)

    @property
    def is_busy(self) -> bool:
        """Whether a registered command is not carried out, or a cut is not completely written."""
        return bool(self.registered) or self._writer is not None

    def committed(self, number: int) -> None:
        """Note that a checkpoint is committed, and drop the intervals that led to it."""
        self._committed = max(number, self._committed)
        self.intervals = [each for each in self.intervals if each.number is None or each.number > self._committed]

    def state_of(self, key: Any) -> Any:
        state = None if self.young is None else self.young.get(key)
        return super().state_of(key) if state is None else state

    # What changes -----------------------------------------------------------------------

    @property
    def wants_keys(self) -> bool:
        """Whether S must `touch` keys before it applies anything to them; otherwise it may."""
        return self._noting is Noting.SPARSE or (self._writer is not None and self._writer.is_exposed)

    def touch(self, keys: Collection[Any]) -> None:
        """Note that S is about to apply records or timers to these keys."""
        if self._writer is not None and self._writer.is_exposed:
            began = self._spent()
            self._writer.save(keys)
            self.seconds += self._spent() - began
        if self._noting is Noting.SPARSE:
            self._present.keys.update(keys)

    def come_or_go(self, key: Any) -> None:
        """Note that S is about to add or remove a key. Without the young dict, there is nothing to note."""
        if self.young is not None:
            self.young.pop(key, None)
            self._present.keys.add(key)

    def follow(self) -> None:
        """Let the way of noting changes depend on the changes. S calls this once it is made, if it can follow."""
        self._follows = True
        self._noting = Noting.DENSE  # if there are no keys yet, the first checkpoint has all of them anyway
        self._note(choose(self._noting, 0, 0, 0, len(self._store.states)))
        self._cuts = LOOK_AGAIN

    def applying(self, records: int) -> None:
        """Note that S, which follows, is about to apply this many records."""
        self.records += records
        if self._is_trial:
            self._try()

    def _note(self, noting: Noting) -> None:
        """Begin the present interval, and note its changes in this way."""
        self._is_trial = noting is Noting.YOUNG and self._noting is Noting.DENSE
        self._cuts = self._cuts + 1 if noting is self._noting else 0
        self._noting, self.records = noting, 0
        self.young = {} if noting is Noting.YOUNG else None
        self._present.dense = noting is Noting.DENSE

    def _try(self) -> None:
        """On a trial, change the way of noting if the present one does not pay."""
        touched = len(self._present.keys) + len(self.young or ())
        if touched < TRIAL_KEYS:
            return
        noting = choose(Noting.SPARSE, 0, touched, self.records, len(self._store.states))
        if noting is not Noting.SPARSE:
            self._is_trial = False
        if noting is not Noting.YOUNG and self.young is not None:
            self._merge()
            self.young, self._noting = None, Noting.SPARSE
        if noting is Noting.DENSE:
            self._noting, self._cuts, self._present.dense = noting, 0, True

    def _merge(self) -> None:
        """Put all states into the store."""
        if self.young:
            self._store.states.update(self.young)
            self._present.keys.update(self.young)
            self.young.clear()

    def _freeze(self) -> None:
        """Put all states into the store as the interval ends. The young dict stays, as a record of its keys."""
        if self.young:
            self._store.states.update(self.young)
            self._present.young, self.young = self.young.keys(), None

    def set_timer(self, bin: int, timer: Timer) -> None:
        """Note that a timer is set."""
        self._present.timers.append((bin, timer))

    def set_event(self, bin: int, timer: Timer) -> None:
        """Note that an event timer is set, or that its count has begun."""
        self._present.events.append((bin, timer))

    def fire(self, time: FlatTime) -> None:
        """Note that the timers of a time are about to fire."""
        if self._writer is not None:
            self._writer.save_timers(time)

    def fire_events(self) -> None:
        """Note that the event timers that are due will fire now."""
        if self._writer is not None:
            self._writer.save_events()

    def leaving(self, bin: int) -> None:
        """Note that a bin is about to be taken out. The store calls this."""
        self._merge()
        if self._writer is not None:
            self._writer.save_bin(bin)
        self._present.left = True

    def arriving(self, bin: int, keys: Collection[Any]) -> None:
        """Note that these keys of a bin are about to be added. The store calls this."""
        if self._writer is not None:
            self._writer.save(keys)
        self._present.came.add(bin)

    # Writing ----------------------------------------------------------------------------

    def write(self, is_idle: bool = True, all: bool = False) -> None:
        """Write a slice of the last cut, or all that is left; `is_idle`: no record was applied since the last slice.

        If more is left, S runs again.
        """
        if (rest := self._writer) is None:
            return
        spent = self._spent()
        rest.write_slice(is_idle)
        while all and not rest.is_written():
            rest.write_some()
        self.seconds += self._spent() - spent
        if rest.is_written():
            self._writer = None
            self._sink(rest.cut, None)
        else:
            self.wake()

    def _cut(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        """Fix the contents of a cut. Cost: linear in the keys and timers that have changed, and a list of the bins."""
        self.write(all=True)  # an older cut has been abandoned, or soon will be
        began, self.seconds = self._spent(), 0.0
        self._freeze()
        number, since, store = checkpoint.number, checkpoint.since, self._store
        if since is not None:
            self.committed(since)
        self._present.number = number
        changed, last, self._present = self.intervals.copy(), self._present, Interval()
        self.intervals.append(self._present)
        if self._follows:
            last.dense = last.dense and self.records > 0
            touched = len(last.keys) + len(last.young)
            self._note(choose(self._noting, self._cuts, touched, self.records, len(store.states)))
        owned, windowed = tuple(sorted(store.bins)), self.windowed()
        cut = Piece(number, since, outermost(time), self._operator, owned, checkpoint.at_end, windowed)
        for each in changed:
            each.timers = [entry for entry in each.timers if entry[1][0] >= time and not checkpoint.at_end]
            each.events = [entry for entry in each.events if store.events.waits(entry[1])]
        keys = [part for each in changed for part in (each.keys, each.young)]
        count = sum(map(len, keys))
        is_dense = any(each.dense for each in changed) or self.bases.are_better(count)
        if since is None or is_dense:
            keys, whole = [], self.bases.all()
        else:
            came = set[int]().union(*(each.came for each in changed))
            whole = dict.fromkeys(bin for bin in cut.bins if bin in came)
            is_idle = not (came or count or any(each.timers or each.events for each in changed))
            whole.update(self.bases.due(count, is_idle))
            whole.update(dict.fromkeys(bin for bin in cut.bins if bin in self._firing))
        set_since = [timer for each in changed for bin, timer in each.timers if bin in store.bins and bin not in whole]
        timers = [*set_since, *(timer for bin in whole for timer in store.timers.of(bin))]
        logged = chain(store.events.unbegun(), *(each.events for each in changed))
        events_since = [timer for bin, timer in logged if bin in store.bins and bin not in whole]
        events = [*events_since, *(timer for bin in whole for timer in store.events.of(bin))]
        left = any(each.left for each in changed)
        self._writer = SnapshotWriter(cut, store, keys, left, whole, timers, events, self._sink, self._now)
        self.seconds += self._spent() - began
        self.wake()
