"""Operator S of stateful_state_machine with `ttl`: a key without a record for that long loses its state.

Commands measure the time. So each state goes at one logical time, whatever worker then owns its bin, in every run with
the same records and commands at the same times:
 - On a plain stream the job's clock counts, from the first `Clock` at or after the time of the key's last record. It is
   as if each record had set a timer `after` a delay, and only the last one counted.
 - On a stream with timestamps event time counts, from the greatest of the key's timestamps since it has a state.

On a stream with timestamps a record does not find a state that has lasted for `ttl` by the latest of three times: the
record's timestamp, its bound (`record_bounds`) and the watermark of all epochs before. A watermark then frees the
memory of states that no record finds. As long as no partition is idle or new, the watermark is not ahead of a record's
bound, so the watermark's speed changes nothing. A resumed run begins with the last watermark, which holds from its
first record.

The operator gets markers, as operators with event timers do, and holds the times that it has to close. So the rules of
`event_timers` on which worker fires, and when, also hold here. But the store has no timer, neither for a record nor for
a key:
 1. Each state is stored with its *start* (`Lasting`), the microsecond since which it has lasted. The start moves with
    the state, and checkpoints have it.
 2. The start determines when to look at a key. So S can make alarms, one for each key, where a state comes to be: in
    the fold, with a bin or from a checkpoint. A record sets none. If an alarm finds that the key has had a record, S
    sets it anew.
 3. A state that counts from the next `Clock` has no start yet. It gets one when that `Clock` comes, once for all
    records in between. A bin has such states for T only if no `Clock` has come since their records, at times before T.
    So its next owner counts from the same `Clock`.
 4. When all lines are read no state goes: a run that continues with more lines finds each state, as old as it is.
S also closes a time without a command if a state has come that is too old already.

Cost over a fold without `ttl`: a pair for each record, and for each key some 200 bytes. A worker that closes a time
does everything that is due then at once, which takes about a microsecond a key.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from megaflow.durable.restored import BY_CLOCK, BY_EVENTS, bare
from megaflow.errors import BuildError
from megaflow.event_time.record_bounds import apart
from megaflow.megaphone.base.bin_trial import STATE
from megaflow.megaphone.base.event_unit import INFINITE, NEVER
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.folds.stateful import StateMachine
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.timely.dataflow.folds import NO_OUTPUTS, Fold, check_outputs

Lasting: TypeAlias = tuple[int | None, Any]  # microseconds since when (None: since the next command), and the state


class Alarms:
    """The next moment to look at each key, one for each key.

    Invariant: each (micros, key) of `_set` is in `_heap`, whose length is at most twice that of `_set` plus eight.
    """

    def __init__(self) -> None:
        self._set: dict[Any, int] = {}  # key -> microseconds
        self._heap: list[tuple[int, int, Any]] = []  # (microseconds, order, key); some entries are outdated
        self._order = 0  # of the next entry: keys need not be comparable

    def __len__(self) -> int:
        return len(self._set)

    def set(self, micros: int, key: Any) -> None:
        """Set an alarm for a key, unless it has an earlier one. Cost: logarithmic, amortised."""
        if self._set.get(key, INFINITE) > micros:
            self._set[key] = micros
            heappush(self._heap, (micros, self._order, key))
            self._order += 1
            self._trim()

    def cancel(self, key: Any) -> None:
        """Cancel the alarm of a key. Cost: constant, amortised."""
        if self._set.pop(key, None) is not None:
            self._trim()

    def least(self) -> int:
        """Return when the first alarm is due, or an earlier outdated one; INFINITE + 1 if there is none."""
        return self._heap[0][0] if self._heap else INFINITE + 1

    def pop(self, limit: int) -> list[Any]:
        """Remove the alarms that are due by `limit`; return their keys."""
        found = []
        while self._heap and self._heap[0][0] <= limit:
            micros, _, key = heappop(self._heap)
            if self._set.get(key) == micros:
                del self._set[key]
                found.append(key)
        return found

    def keep(self, keys: Collection[Any]) -> None:
        """Cancel the alarms of all keys except these."""
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


class TtlMachine(StateMachine):
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
        self._barrier_actions.bare = partial(bare, kind)
        self._closing: set[FlatTime] = set()  # times of the stash that S has to close
        self._alarms = Alarms()
        self._unbegun: dict[Any, None] = {}  # keys whose states count from the next command; some may be gone
        self._arrived(core.store.states)

    def _install(self) -> None:
        for time in self._core.install():
            self._close_later(time)

    def _close_later(self, time: FlatTime) -> None:
        self._stash[time]  # makes an entry, which holds the time until it is closed
        self._closing.add(time)

    def _arrived(self, states: dict[Any, Lasting]) -> None:
        """Set alarms for states that have come with a bin."""
        for key, (since, _) in states.items():
            self._watch(key, since)

    def _watch(self, key: Any, since: int | None) -> None:
        if since is None:
            self._unbegun[key] = None
        else:
            self._alarms.set(since + self._ttl, key)

    # Closing a time -----------------------------------------------------------------------

    def _is_done(self, time: FlatTime) -> bool:
        """Close a time that is to be closed, unless more may come at it; tell whether nothing is left to do at it."""
        if time not in self._closing:
            return True
        if self._data.frontier.less_equal(time) or self._state.frontier.less_equal(time):
            return False
        if self._barrier_actions.registered:
            self._barrier_actions.before(time)
        self._closing.discard(time)
        self._events.close(time)
        now = self._events.watermark if self._by_events else self._events.clock
        if NEVER < now < INFINITE:
            if self._by_events or self._events.ticked == time:
                self._begin(now)
            self._end(now)
        return True

    def _begin(self, now: int) -> None:
        """Let the states that count from the next command count from now."""
        keys, self._unbegun = self._unbegun, {}
        put = self._about_to_change(keys)
        for key in keys:
            kept: Lasting | None = self._barrier_actions.state_of(key)
            if kept is not None and kept[0] is None:
                put[key] = (now, kept[1])
                self._alarms.set(now + self._ttl, key)

    def _end(self, now: int) -> None:
        """Forget the states that have lasted long enough."""
        over = []
        for key in self._alarms.pop(now):
            kept: Lasting | None = self._barrier_actions.state_of(key)
            if kept is None or kept[0] is None:
                continue  # it has left with its bin, or its count is still to begin
            if kept[0] + self._ttl > now:
                self._alarms.set(kept[0] + self._ttl, key)
            else:
                over.append(key)
        self._about_to_change(over)
        for key in over:
            self._have(key, self._barrier_actions.state_of(key), None, None)
        if len(self._alarms) > 2 * len(self._store.states) + 8:  # keys of bins that have left
            self._alarms.keep(self._store.states.keys())

    # Where states are ---------------------------------------------------------------------

    def _about_to_change(self, keys: Collection[Any]) -> dict[Any, Any]:
        """Note that these keys are about to change; return the dict for their new states."""
        journal = self._journal
        if journal is None or not keys:
            return self._store.states
        journal.applying(len(keys))
        if journal.wants_keys:
            journal.touch(keys)
        return self._store.states if journal.young is None else journal.young

    def _have(self, key: Any, kept: Lasting | None, since: int | None, state: Any) -> None:
        """Add a key with its state and watch it; if `state` is None, remove it and its alarm."""
        core = self._core
        if state is None:
            core.come_or_go(key, kept, None)
            self._alarms.cancel(key)
            self._unbegun.pop(key, None)
            return
        core.try_travel(key, state, STATE)
        core.come_or_go(key, kept, (since, state))
        self._watch(key, since)

    def _outputs(self, time: FlatTime, batch: list[Any]) -> list[Any]:
        """Apply the fold to a batch as any S does; states are stored with their starts."""
        fold, have, by_events, unbegun = self._fold, self._have, self._by_events, self._unbegun
        journal, states = self._journal, self._store.states
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
