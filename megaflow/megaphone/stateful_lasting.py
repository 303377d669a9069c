"""Operator S of stateful_state_machine with `ttl`: a key that has had no record for so long loses its state.

How long is measured by what is commanded, so each state goes at one time, whoever owns its bin then, in every run with
the same records and commands at the same times:
 - on a plain stream by the job's clock, from the first `Clock` at or after the time of the key's last record. So it is
   as if each record had set a timer `after` a while, and only the last one counted;
 - on a stream with timestamps by event time, from the greatest of the key's timestamps since it has a state.

On a stream with timestamps a record finds no state that has lasted for `ttl` until the latest of three: the record's
timestamp, its bound (`record_bounds`) and the watermark of all epochs before. A watermark then frees the memory of
states that no record finds. As long as no partition is idle or new, the watermark is not ahead of a record's bound, so
its speed changes nothing. A run that resumes begins with the last watermark, which holds from its first record.

It has markers as operators with event timers have, and holds the times that it is to close: what `event_timers` says of
who fires, and when, holds here. But there is no timer in the store, neither for a record nor for a key:
 1. Beside a state stands since when it has lasted (`Lasting`). It moves with the state, and checkpoints have it.
 2. When to look at a key follows from that. So alarms, one a key, are made where a state comes to be, in the fold, with
    a bin or from a checkpoint; a record sets none. An alarm that finds that the key has had a record is set anew.
 3. A state that has lasted since the next `Clock` only has no number yet. It gets it as the next one comes, once for
    all records in between. A bin has such states for T only if no `Clock` has come since their records, at times before
    T; so whoever owns it next counts from the same one.
 4. When all lines are read nothing goes: a run that goes on with more lines finds each state, as old as it is.
Times with no command are closed, too, where a state has come that is too old already.

Cost over a fold without `ttl`: a pair for each record, and for each key some 200 bytes. A worker that closes a time
does what is due then at once, about a microsecond a key.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from megaflow.durable.restored import BY_CLOCK, BY_EVENTS, bare
from megaflow.errors import BuildError
from megaflow.megaphone.bin_trial import STATE
from megaflow.megaphone.event_unit import INFINITE, NEVER
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.record_bounds import apart
from megaflow.megaphone.stateful import Fold, StateMachine
from megaflow.megaphone.stateful_core import Core
from megaflow.megaphone.stateful_durable import DurableMachine
from megaflow.timely.dataflow.folds import NO_OUTPUTS, check_outputs

Lasting: TypeAlias = tuple[int | None, Any]  # microseconds since when, None: since the next command; and the state


class Alarms:
    """When to look at which key, once for each key.

    Invariant: each (micros, key) of `_set` is in `_heap`, which has at most twice as many entries and eight.
    """

    def __init__(self) -> None:
        self._set: dict[Any, int] = {}  # key -> microseconds
        self._heap: list[tuple[int, int, Any]] = []  # (microseconds, order, key), some of which are gone
        self._order = 0  # of the next one: keys need not compare

    def __len__(self) -> int:
        return len(self._set)

    def set(self, micros: int, key: Any) -> None:
        """Have a key looked at when this has come, or before, if it is to be. Cost: logarithmic, amortised."""
        if self._set.get(key, INFINITE) > micros:
            self._set[key] = micros
            heappush(self._heap, (micros, self._order, key))
            self._order += 1
            self._trim()

    def cancel(self, key: Any) -> None:
        """Do not have it looked at. Cost: constant, amortised."""
        if self._set.pop(key, None) is not None:
            self._trim()

    def least(self) -> int:
        """Return when the first is due, or what was due before that and is gone; INFINITE + 1 if there is none."""
        return self._heap[0][0] if self._heap else INFINITE + 1

    def pop(self, limit: int) -> list[Any]:
        """Remove what is due by now; return the keys."""
        found = []
        while self._heap and self._heap[0][0] <= limit:
            micros, _, key = heappop(self._heap)
            if self._set.get(key) == micros:
                del self._set[key]
                found.append(key)
        return found

    def keep(self, keys: Collection[Any]) -> None:
        """Cancel those of all keys but these."""
        self._set = {key: micros for key, micros in self._set.items() if key in keys}
        self._trim()

    def _trim(self) -> None:
        if len(self._heap) > 2 * len(self._set) + 8:
            self._heap = [(micros, order, key) for order, (key, micros) in enumerate(self._set.items())]
            self._order = len(self._heap)
            heapify(self._heap)

    def _check(self) -> None:
        assert {(micros, key) for key, micros in self._set.items()} <= {(micros, key) for micros, _, key in self._heap}
        assert len(self._heap) <= 2 * len(self._set) + 8, "the heap is full of what is gone"


class LastingMachine(StateMachine):
    """S on one worker. States are `Lasting`; values, on a stream with timestamps, are pairs of timestamp and value."""

    def __init__(self, core: Core, fold: Fold[Any, Any, Any, Any], kind: str, ttl: int) -> None:
        """`kind`: BY_CLOCK or BY_EVENTS; `ttl` in microseconds. Raises BuildError in a nested scope."""
        super().__init__(core, fold)
        if core.nested:
            raise BuildError(
                f"{core.name}: ttl= needs a watermark or a clock, and a nested scope has neither; keep such states "
                "in an operator outside the loop"
            )
        self._ttl = ttl
        self._by_events = kind == BY_EVENTS
        self._store = core.store
        self._events = core.store.events
        self._events.is_heard = True
        core.lasts_by_clock = kind == BY_CLOCK
        core.store.arrived = self._arrived
        self._moments.bare = partial(bare, kind)
        self._closing: set[FlatTime] = set()  # times of the stash that are to be closed
        self._alarms = Alarms()
        self._unbegun: dict[Any, None] = {}  # keys whose states last since the next command; some may be gone
        self._arrived(core.store.states)

    def _install(self) -> None:
        for time in self._core.install():
            self._close_later(time)

    def _close_later(self, time: FlatTime) -> None:
        self._stash[time]  # is made: it is held until it is closed
        self._closing.add(time)

    def _arrived(self, states: dict[Any, Lasting]) -> None:
        """Have states looked at that have come with a bin."""
        for key, (since, _) in states.items():
            self._watch(key, since)

    def _watch(self, key: Any, since: int | None) -> None:
        if since is None:
            self._unbegun[key] = None
        else:
            self._alarms.set(since + self._ttl, key)

    # What has come to its time ------------------------------------------------------------

    def _is_done(self, time: FlatTime) -> bool:
        """Close a time that is to be closed, if nothing of it is to come; tell whether nothing of it is left."""
        if time not in self._closing:
            return True
        if self._data.frontier.less_equal(time) or self._state.frontier.less_equal(time):
            return False
        if self._moments.registered:
            self._moments.before(time)
        self._closing.discard(time)
        self._events.close(time)
        now = self._events.watermark if self._by_events else self._events.clock
        if NEVER < now < INFINITE:
            if self._by_events or self._events.ticked == time:
                self._begin(now)
            self._end(now)
        return True

    def _begin(self, now: int) -> None:
        """Have states last since now that were to last since the next command."""
        keys, self._unbegun = self._unbegun, {}
        put = self._about_to_change(keys)
        for key in keys:
            kept = self._kept(key)
            if kept is not None and kept[0] is None:
                put[key] = (now, kept[1])
                self._alarms.set(now + self._ttl, key)

    def _end(self, now: int) -> None:
        """Forget the states that have lasted long enough."""
        over = []
        for key in self._alarms.pop(now):
            kept = self._kept(key)
            if kept is None or kept[0] is None:
                continue  # it has left with its bin, or is to begin
            if kept[0] + self._ttl > now:
                self._alarms.set(kept[0] + self._ttl, key)
            else:
                over.append(key)
        self._about_to_change(over)
        for key in over:
            self._have(key, self._kept(key), None, None)
        if len(self._alarms) > 2 * len(self._store.states) + 8:  # keys of bins that have left
            self._alarms.keep(self._store.states.keys())

    # Where states are ---------------------------------------------------------------------

    def _kept(self, key: Any) -> Lasting | None:
        """What is kept of a key, in the young dict or not: see `stateful_durable`."""
        journal = self._core.journal
        kept: Lasting | None = None if journal is None or journal.young is None else journal.young.get(key)
        return self._store.states.get(key) if kept is None else kept

    def _about_to_change(self, keys: Collection[Any]) -> dict[Any, Any]:
        """Note that these keys are about to change; return where new states of theirs are to be put."""
        journal = self._core.journal
        if journal is None or not keys:
            return self._store.states
        journal.applying(len(keys))
        if journal.wants_keys:
            journal.touch(keys)
        return self._store.states if journal.young is None else journal.young

    def _have(self, key: Any, kept: Lasting | None, since: int | None, state: Any) -> None:
        """Have a key among the states, or not, and watched, or not."""
        core, journal = self._core, self._core.journal
        if journal is not None and journal.young is not None:
            journal.come_or_go(key)
        if state is None:
            core.come_or_go(key, kept, None)
            self._alarms.cancel(key)
            self._unbegun.pop(key, None)
            return
        core.try_travel(key, state, STATE)
        core.come_or_go(key, kept, (since, state))
        self._watch(key, since)

    def _outputs(self, time: FlatTime, batch: list[Any]) -> list[Any]:
        """Apply the fold to a batch, as that of any S does; states have since when they last beside them."""
        fold, have, by_events, unbegun = self._fold, self._have, self._by_events, self._unbegun
        journal, states = self._core.journal, self._store.states
        young = states if journal is None or journal.young is None else journal.young
        find, find_old = young.get, states.get
        since: int | None = None
        reached = self._events.watermark if by_events and self._events.watermark < INFINITE else NEVER
        limit, ttl = NEVER, self._ttl
        out: list[Any] = []
        extend = out.extend
        try:
            for key, value in batch:
                kept = find(key)
                if kept is None:
                    kept = find_old(key)
                if by_events:
                    since, value = value
                    limit = since
                    if since > INFINITE:
                        since, limit = apart(since)
                    if limit < reached:
                        limit = reached
                before = None
                if kept is not None:
                    was, before = kept
                    if by_events and was is not None:
                        if limit - was >= ttl:
                            before = None
                        elif was > since:
                            since = was
                state, outputs = fold(key, value, before)
                if kept is None or state is None:
                    have(key, kept, since, state)
                else:
                    young[key] = (since, state)
                    if since is None and kept[0] is not None:
                        unbegun[key] = None
                if outputs is not NO_OUTPUTS:
                    if type(outputs) is not list:
                        check_outputs(self._core.name, outputs)
                    extend(outputs)
        except (TypeError, ValueError, LookupError) as error:
            self._core.explain(error, "fold(key, value, state)", batch)
            raise
        if by_events and self._alarms.least() <= self._events.watermark < INFINITE:
            self._close_later(time)
        return out


class DurableLasting(LastingMachine, DurableMachine):
    """The same in a durable job."""


def lasting_machine(core: Core, fold: Fold[Any, Any, Any, Any], kind: str, ttl: int) -> LastingMachine:
    """Return the S of this kind for the job of the operator: see `LastingMachine`."""
    return (LastingMachine if core.journal is None else DurableLasting)(core, fold, kind, ttl)
