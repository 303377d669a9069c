"""The journal of one stateful operator on one worker: what has changed, and when to cut.

A checkpoint at epoch t keeps the effects of all records before t and of none at t or later. F registers t as it reads
the command. Then the operator's share is *cut* here, at one logical time with all other workers, without a word to
them: whoever is about to do something of time x says `before(x)`, which cuts every registered t up to x.

Why each cut is exact
 1. Nothing at t or later is in. S says `before(x)` before it applies x, timers due at x included; F before it ships
    the bins that move at x; the installer before it adds a chunk of time x. Nothing else changes a bin.
 2. t is registered by then. An unread command at t holds each S's state frontier at t, and F ships at x, here or
    where a chunk comes from, only when all have read the commands up to x (rules 1 to 3 of `router`).
 3. All before t is in. S applies x only when nothing earlier is to come or waits. F takes a bin out for x, which is at
    t or later, when all before x is applied everywhere (rule 3 of `router`), so it is so where a chunk of x arrives.
    A worker that applies nothing cuts when no frontier of S is below t and nothing earlier waits there (`Core.keep`).
 4. So each bin is in one worker's piece. One that moves at x is with its old owner for t up to x, as it is shipped and
    installed after both have cut; with its new owner for t above x, as the chunks of x hold the state frontier at x.

What a cut writes follows `since`, the last checkpoint that is committed, whatever was abandoned in between
 5. What changed is kept by the interval between two cuts, until a later command's `since`, or `committed`, tells that
    the cut at its end is committed. A cut writes the union of what it has: keys, or None where a key is gone.
 6. A bin that came in these intervals is written whole: what it was before, and where, this worker does not know. A
    key of a bin that left is not written: who owns the bin writes it whole.
 7. Timers are an append log, so those set in these intervals are written; those of whole bins from the store. What was
    due before t has fired and is left out. Event timers likewise: rule 8 of `event_timers`.
A checkpoint at the end of all is cut when nothing more can happen: no frontier is left, and nothing waits. Timers for
later epochs have fired then, and event timers if everything closes. What was written of these is not to count: bins
that had any when the command came, or that came later, are written whole.
In a nested scope a checkpoint is at (t, 0), the first of all times with outer time t: see `flat_times`.
What is then still to be written of the cut, and how it stays as of t: see `unwritten`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Any, Final, TypeAlias

from megaflow.durable.restored import Heir, Restored
from megaflow.errors import BuildError, ProtocolError
from megaflow.megaphone.bases import Bases
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.flat_times import FlatTime, outermost
from megaflow.megaphone.moments import Moments
from megaflow.megaphone.routing import Checkpoint
from megaflow.megaphone.timers import Timer
from megaflow.megaphone.unwritten import CutSink, Piece, Unwritten


class Noting(Enum):
    """How S notes which keys change: see `stateful_durable`."""

    YOUNG = "in the young dict"
    SPARSE = "as a set"
    DENSE = "not at all"


LOOK_AGAIN: Final = 8
"""Of so many cuts in a row whose keys were not noted, the last is followed by an interval that is: a trial."""
TRIAL_KEYS: Final = 1 << 14
"""Of so many keys on a trial goes on in another way if this one does not pay: to merge them takes 3 ms."""


def choose(noting: Noting, cuts: int, touched: int, records: int, keys: int) -> Noting:
    """Return how to note the changes of the next interval; `cuts`: in a row that ended intervals noted so.

    `touched` of all `keys` have changed in the last interval, by so many records.

    >>> choose(Noting.YOUNG, 1, touched=20, records=1000, keys=25)
    <Noting.YOUNG: 'in the young dict'>
    >>> choose(Noting.YOUNG, 1, touched=600, records=1000, keys=1000)
    <Noting.DENSE: 'not at all'>
    """
    if noting is Noting.DENSE:  # touched keys were not counted, and are not more than records
        return Noting.YOUNG if cuts >= LOOK_AGAIN or 3 * records < keys else noting
    if 4 * touched <= records:
        return Noting.YOUNG if records else noting
    return Noting.DENSE if 3 * touched > keys else Noting.SPARSE


Restore: TypeAlias = Callable[[Heir, Collection[int]], Restored]
"""Operator, the bins that are wanted -> what is in them."""


@dataclass(slots=True)
class Durability:
    """Whether and how the stateful operators of one dataflow are durable: an extension of its graph."""

    sink: CutSink | None = None  # None: they are not
    spent: Callable[[], float] | None = None  # seconds of a processor, of the worker's thread; None: by the clock
    restore: Restore | None = None  # gives what each begins with; None: with nothing
    heirs: dict[str, Heir] = field(default_factory=dict)  # operators that keep something, by name

    def admit(self, heir: Heir, hears_commands: bool) -> None:
        """Note an operator with a state. Raises BuildError for one that cannot be durable."""
        name = heir.name
        if name in self.heirs:
            raise BuildError(
                f"{name}: another stateful operator has this name, and a durable job finds states by name; give each "
                "operator its own name="
            )
        if not hears_commands:
            raise BuildError(
                f"{name}: it has its own control=, which carries no checkpoints, so its state would not be durable; "
                "remove control="
            )
        self.heirs[name] = heir


@dataclass(slots=True)
class Interval:
    """What has changed between two cuts."""

    number: int | None = None  # of the cut at its end; None: it goes on
    keys: set[Any] = field(default_factory=set)  # of bins that did not come in it; the states may be gone
    young: Set[Any] = frozenset()  # keys of the young dict at its end
    dense: bool = False  # whether it may be any keys instead
    came: set[int] = field(default_factory=set)  # bins
    left: bool = False  # whether a bin did
    timers: list[tuple[int, Timer]] = field(default_factory=list)  # (bin, timer) that were set and are not known fired
    events: list[tuple[int, Timer]] = field(default_factory=list)  # likewise event timers, but for those not begun


class Journal(Moments):
    """What S, F and the installer of one operator tell of what they are about to do, and the cuts that follow."""

    def __init__(
        self, operator: str, store: BinStore, sink: CutSink, now: Callable[[], float], spent: Callable[[], float]
    ) -> None:
        """`now` gives seconds that never go back, `spent` those of a processor, which the pace of checkpoints follows.

        The bins that the store has are taken to be in a checkpoint.
        """
        super().__init__(operator, store)
        self._sink = sink
        self._now = now
        self._spent = spent
        self._at_end: tuple[FlatTime, Checkpoint] | None = None  # is to be cut when nothing more will happen
        self._firing: set[int] = set()  # bins with timers that were set before the end, and that will fire
        self._present = Interval()
        self.intervals = [self._present]  # since the last committed cut, oldest first; `remains` reads them, too
        self._committed = 0  # the last cut known to be; 0: none
        self._unwritten: Unwritten | None = None  # of the last cut
        self.seconds = 0.0  # of a processor that the last cut has taken up to now
        self.records = 0  # that were applied since the last cut; written by S
        self.young: dict[Any, Any] | None = None  # key -> state, newer than in the store; None: not noted so
        self._noting = Noting.SPARSE
        self._follows = False
        self._is_trial = False  # whether the way is yet to prove itself
        self._cuts = 0  # that ended intervals noted so
        self.bases = Bases(store)

    # When to cut ------------------------------------------------------------------------

    def register(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        """Note that F has read the command. Raises ProtocolError if it follows what is not known any more."""
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
        """Cut what is to be cut at the end, as nothing more will happen, and write all that is to be written."""
        if self._at_end is not None:
            self._cut(*self._at_end)
            self._at_end = None
        self.write(all=True)

    @property
    def is_busy(self) -> bool:
        """Whether something is registered and not come to, or cut and not written."""
        return bool(self.registered) or self._unwritten is not None

    def committed(self, number: int) -> None:
        """Note that a checkpoint is committed: what led to it need not be kept."""
        self._committed = max(number, self._committed)
        self.intervals = [each for each in self.intervals if each.number is None or each.number > self._committed]

    def _state(self, key: Any) -> Any:
        state = None if self.young is None else self.young.get(key)
        return super()._state(key) if state is None else state

    # What changes -----------------------------------------------------------------------

    @property
    def wants_keys(self) -> bool:
        """Whether S has to `touch` keys before it applies something to them; if not it may."""
        return self._noting is Noting.SPARSE or (self._unwritten is not None and self._unwritten.is_exposed)

    def touch(self, keys: Collection[Any]) -> None:
        """Note that S is about to apply something to these keys."""
        if self._unwritten is not None and self._unwritten.is_exposed:
            began = self._spent()
            self._unwritten.save(keys)
            self.seconds += self._spent() - began
        if self._noting is Noting.SPARSE:
            self._present.keys.update(keys)

    def come_or_go(self, key: Any) -> None:
        """Note that S, which uses the young dict, is about to add a key or to remove one."""
        assert self.young is not None
        self.young.pop(key, None)
        self._present.keys.add(key)

    def follow(self) -> None:
        """Let the way in which changes are noted depend on them: S asks for it, if it can, once it is made."""
        self._follows = True
        self._noting = Noting.DENSE  # if nothing is there the first checkpoint has all anyway
        self._note(choose(self._noting, 0, 0, 0, len(self._store.states)))
        self._cuts = LOOK_AGAIN

    def applying(self, records: int) -> None:
        """Note that S, which follows, is about to apply so many."""
        self.records += records
        if self._is_trial:
            self._try()

    def _note(self, noting: Noting) -> None:
        """Note the changes of the present interval, which begins, in this way."""
        self._is_trial = noting is Noting.YOUNG and self._noting is Noting.DENSE
        self._cuts = self._cuts + 1 if noting is self._noting else 0
        self._noting, self.records = noting, 0
        self.young = {} if noting is Noting.YOUNG else None
        self._present.dense = noting is Noting.DENSE

    def _try(self) -> None:
        """On a trial, go on in another way if the one so far does not pay."""
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
        """Have all states in the store."""
        if self.young:
            self._store.states.update(self.young)
            self._present.keys.update(self.young)
            self.young.clear()

    def _freeze(self) -> None:
        """Do so as the interval ends: the young dict stays as it is, to tell the keys."""
        if self.young:
            self._store.states.update(self.young)
            self._present.young, self.young = self.young.keys(), None

    def set_timer(self, bin: int, timer: Timer) -> None:
        """Note that a timer is set."""
        self._present.timers.append((bin, timer))

    def set_event(self, bin: int, timer: Timer) -> None:
        """Note that an event timer is set, or has begun to count."""
        self._present.events.append((bin, timer))

    def fire(self, time: FlatTime) -> None:
        """Note that the timers of a time are about to fire."""
        if self._unwritten is not None:
            self._unwritten.save_timers(time)

    def fire_events(self) -> None:
        """Note that the event timers that are due are about to fire."""
        if self._unwritten is not None:
            self._unwritten.save_events()

    def leaving(self, bin: int) -> None:
        """Note that a bin is about to be taken out: the store calls this."""
        self._merge()
        if self._unwritten is not None:
            self._unwritten.save_bin(bin)
        self._present.left = True

    def arriving(self, bin: int, keys: Collection[Any]) -> None:
        """Note that these keys of a bin are about to be added: the store calls this."""
        if self._unwritten is not None:
            self._unwritten.save(keys)
        self._present.came.add(bin)

    # Writing ----------------------------------------------------------------------------

    def write(self, is_idle: bool = True, all: bool = False) -> None:
        """Write a slice of what the last cut left, or all; `is_idle`: no record was applied since the last slice.

        S is run again if there is more.
        """
        if (rest := self._unwritten) is None:
            return
        spent = self._spent()
        rest.write_slice(is_idle)
        while all and not rest.is_written():
            rest.write_some()
        self.seconds += self._spent() - spent
        if rest.is_written():
            self._unwritten = None
            self._sink(rest.cut, None)
        else:
            self.wake()

    def _cut(self, time: FlatTime, checkpoint: Checkpoint) -> None:
        """Fix what is to be written. Cost: linear in the keys and timers that have changed, and a list of the bins."""
        self.write(all=True)  # an older cut has been abandoned, or soon will be: its turn is over
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
        cut = Piece(number, since, outermost(time), self._operator, tuple(sorted(store.bins)), checkpoint.at_end)
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
        self._unwritten = Unwritten(cut, store, keys, left, whole, timers, events, self._sink, self._now)
        self.seconds += self._spent() - began
        self.wake()
