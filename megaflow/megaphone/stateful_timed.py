"""Operator S for folds that see a key's records of one time together, and may set timers: stateful_unary and _binary.

The fold is called once per key and time, when the time is closed: no data frontier is at most it, and neither is the
state frontier. So all its records are here, and each bin that moved at that time or before, with its timers, is in. A
time at which a key has a timer and no record counts as well. It is called once more for a key whose event timers fire
at that time: see `event_timers`.

What S keeps
 1. Records of times that are not closed, by time. They do not move with bins: F has sent them to the owner of their
    time, here, where their bin may still be under way to. A time may be without any: one for which a marker has come.
 2. Timers, in the store that it shares with F (`timers`). F takes those of a bin out with it.
 3. One capability of the output, at the least time of both; so there are few pointstamps, however many timers. (In a
    nested scope, one for each time: rule 5 of `flat_times`.) It is
    put right at the end of each run. To a later time it is downgraded. An earlier time comes only with a record or a
    chunk that this run has consumed, at or before that time, so a new one may be minted; and a fold sets timers for
    times after its own, at which it is still held.
 4. When F takes a bin out for t it takes its timers, and S holds too much until it runs again. No operator waits for
    that: the timers are at t or later, and so is what is held for them; S runs at the latest when the state frontier
    passes t, and before that nothing at t or later can be applied anywhere. Nor is anything missing: F holds t itself,
    by the state output's capability, since the command arrived, and then the chunks do.

Outputs carry the time of their records. Times are applied in order, a bounded number a run: a fold that sets a timer
whenever one is due would keep the worker for ever once all inputs have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from megaflow.megaphone.bin_trial import PAYLOAD
from megaflow.megaphone.by_time import ByTime
from megaflow.megaphone.event_unit import EventUnit, TimeUnit
from megaflow.megaphone.flat_times import FlatTime, unflattened
from megaflow.megaphone.stateful_core import Core
from megaflow.megaphone.timers import NestedTimers, Timers
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.checks import checked
from megaflow.timely.dataflow.folds import NO_OUTPUTS, check_outputs, complain_about

K = TypeVar("K")
W = TypeVar("W")
A = TypeVar("A")
R = TypeVar("R")

UnaryFold = Callable[[K, Any, list[Any], A | None, Timers], tuple[A | None, Iterable[R]]]
BinaryFold = Callable[[K, Any, list[Any], list[W], A | None, Timers], tuple[A | None, Iterable[R]]]
# The time is an int, in nested scopes a Product; lists of Any hold values and payloads, which may be of another type.

_TIMES_PER_RUN = 64
"""Times that are applied before other operators get their turn."""


class TimedFolds:
    """S on one worker: what waits for its time to be closed."""

    sets_timers = True  # else nobody has to tell it of watermarks

    def __init__(self, core: Core, fold: Callable[..., Any], unit: TimeUnit = EventUnit.SECONDS) -> None:
        self._core = core
        self._fold = checked(core.name, fold)
        self._data = core.data
        self._state = core.state
        self._output = core.output
        self._timers = core.store.timers
        self._events = core.store.events
        self._events.is_heard = self.sets_timers and not core.nested
        assert core.moments is not None, "it keeps a state"
        self._moments = core.moments
        kind = NestedTimers if core.nested else Timers
        self._handle = kind(core.name, self, unit)
        self._apply = self._apply_now if core.journal is None else self._apply_durably
        self._stash: ByTime[list[list[list[Any]]]] = ByTime(self._nothing)  # input -> batches in arrival order
        self._held: Capability | None = None  # at the least time of stash and timers; None: both are empty
        self._hold(self.waiting())  # for timers that it begins with; minted from the initial capability

    def _nothing(self, time: FlatTime) -> list[list[list[Any]]]:
        return [[] for _ in self._data]

    def run(self) -> None:
        """One invocation: install state, keep what has arrived, apply what is closed."""
        for time in self._core.install():
            self._stash[time]  # is made: the time is to be closed, whatever comes at it
        for number, data in enumerate(self._data):
            for arrived_at, batch in data.drain():
                self._stash[arrived_at][number].append(batch)
                self._core.waiting += len(batch)
        frontiers = [each.frontier for each in (*self._data, self._state)]
        left = _TIMES_PER_RUN
        while (time := self.waiting()) is not None and not any(frontier.less_equal(time) for frontier in frontiers):
            if not left:
                self._core.activate()
                break
            left -= 1
            if self._moments.registered:
                self._moments.before(time)
            self._apply(time)
            self._close(time)
        self._hold(time)

    def waiting(self) -> FlatTime | None:
        """The first time at which something waits."""
        due, kept = self._timers.least(), self._stash.least()
        return kept if due is None or (kept is not None and kept < due) else due

    def _apply_durably(self, time: FlatTime) -> None:
        journal = self._core.journal
        assert journal is not None
        journal.fire(time)
        self._apply_now(time)

    def _apply_now(self, time: FlatTime) -> None:
        inputs = self._stash.take(time) or self._nothing(time)
        core = self._core
        began = core.meter.now()
        out = self._outputs(time, inputs)
        records = self._records(inputs)
        core.meter.note(records, began)
        core.waiting -= len(records)
        self._send(time, out)

    def _send(self, time: FlatTime, out: list[Any]) -> None:
        for start in range(0, len(out), BATCH_RECORDS):
            self._output.ship(time, out[start : start + BATCH_RECORDS])

    def _records(self, inputs: Sequence[Iterable[list[Any]]]) -> Sequence[tuple[Any, Any]]:
        """All records of some batches, as the load counts them."""
        return list(chain.from_iterable(chain.from_iterable(inputs)))

    def _hold(self, least: FlatTime | None) -> None:
        """Hold the output's capability at this time, and no other."""
        held = self._held
        if least is None:
            if held is not None:
                held.release()
                self._held = None
        elif held is None:
            self._held = self._output.mint(least)
        elif held.time != least:
            assert isinstance(held.time, int)
            if held.time < least:
                held.downgrade(least)
            else:
                self._held = self._output.mint(least)
                held.release()

    def _close(self, time: FlatTime) -> None:
        """All of a time is applied: fire the event timers that are due. What that makes due has the time come again."""
        events, core = self._events, self._core
        begun = events.close(time)
        if core.journal is not None:
            for bin, timer in begun:
                core.journal.set_event(bin, timer)
        if not events.is_due():
            return
        if core.journal is not None:
            core.journal.fire_events()
        began = core.meter.now()
        events.is_firing = True
        out = self._call(time, [events.pop(), *({} for _ in self._data[1:])])
        events.is_firing = False
        core.meter.note((), began)
        self._send(time, out)
        if events.is_due():
            self._stash[time]  # is made anew

    # Where the handle has timers go -------------------------------------------------------

    @property
    def watermark(self) -> int:
        """As folds see it."""
        return self._events.watermark

    def set_timer(self, time: FlatTime, key: Any, payload: Any) -> None:
        """Set a timer of a key for a later time."""
        bin = self._bin_of(key, payload)
        self._timers.add(time, bin, key, payload)
        if self._core.journal is not None:
            self._core.journal.set_timer(bin, (time, key, payload))

    def set_event(self, micros: int, key: Any, payload: Any) -> None:
        """Set one for a watermark."""
        bin = self._bin_of(key, payload)
        timer = self._events.set_event(micros, bin, key, payload)
        if timer is not None and self._core.journal is not None:
            self._core.journal.set_event(bin, timer)

    def set_after(self, micros: int, key: Any, payload: Any) -> None:
        """Set one for so long after now."""
        bin = self._bin_of(key, payload)
        timer = self._events.set_after(self._handle.time, micros, bin, key, payload)
        if timer is not None and self._core.journal is not None:
            self._core.journal.set_event(bin, timer)

    def _bin_of(self, key: Any, payload: Any) -> int:
        self._core.try_travel(key, payload, PAYLOAD)
        return self._core.store.bin_of_key(key)

    # Calling the fold ---------------------------------------------------------------------

    def _outputs(self, time: FlatTime, inputs: Sequence[Iterable[list[Any]]]) -> list[Any]:
        """Apply the fold to the timers that are due and the batches of each input, by key; return its outputs."""
        return self._call(time, self._group(time, inputs))

    def _call(self, time: FlatTime, groups: Sequence[dict[Any, list[Any]]]) -> list[Any]:
        """Apply the fold to what each input has for a key, payloads in the first; return its outputs.

        One of the two loops that touch every key or record; the other is in `_group`, which says the order.
        """
        fold, timers, states, come_or_go = self._fold, self._handle, self._core.store.states, self._core.come_or_go
        out: list[Any] = []
        timers.time = at = unflattened(time)
        try:
            keys = groups[0] if len(groups) == 1 else dict.fromkeys(key for group in groups for key in group)
            if self._core.journal is not None:
                self._core.journal.touch(keys)
            for key in keys:
                before = states.get(key)
                timers.key = key
                records = [group.get(key) or [] for group in groups]
                state, outputs = fold(key, at, *records, before, timers)
                if before is None or state is None:
                    come_or_go(key, before, state)
                else:
                    states[key] = state
                if type(outputs) is not list and outputs is not NO_OUTPUTS:
                    check_outputs(self._core.name, outputs)
                out.extend(outputs)
        except (TypeError, ValueError) as error:
            given = "records" if len(groups) == 1 else "left, right"
            self._core.explain(error, f"fold(key, time, {given}, state, timers)", [])
            raise
        timers.time = None
        return out

    def _group(self, time: FlatTime, inputs: Sequence[Iterable[list[Any]]]) -> list[dict[Any, list[Any]]]:
        """For each input: key -> records, first of the keys with timers. Each list is the fold's own."""
        groups: list[defaultdict[Any, list[Any]]] = [defaultdict(list) for _ in inputs]
        for bin, due in self._timers.pop(time).items():
            assert bin in self._core.store.bins, f"a timer of bin {bin} is due at time {time}, but the bin is not here"
            groups[0].update(due)
        for group, batches in zip(groups, inputs, strict=True):
            for batch in batches:
                try:
                    for key, value in batch:
                        group[key].append(value)
                except (TypeError, ValueError) as error:
                    complain_about(batch, self._core.name, error)
                    raise
        return list(groups)


class NestedFolds(TimedFolds):
    """S on one worker in a nested scope: it holds a capability for each time at which something waits.

    One for the first would not do: see rule 5 of `flat_times`. Cost: each run looks at all those times.
    """

    def __init__(self, core: Core, fold: Callable[..., Any], unit: TimeUnit = EventUnit.SECONDS) -> None:
        self._rights: dict[FlatTime, Capability] = {}  # at the times of stash and timers
        super().__init__(core, fold, unit)

    def _hold(self, least: FlatTime | None) -> None:
        wanted = self._stash.keys() | self._timers.times()
        for time in self._rights.keys() - wanted:
            self._rights.pop(time).release()
        for time in wanted - self._rights.keys():
            self._rights[time] = self._output.mint(time)


def timed_folds(core: Core, fold: Callable[..., Any], unit: TimeUnit = EventUnit.SECONDS) -> TimedFolds:
    """Return the S of this kind for the scope of the operator; `unit`: that of its stream's timestamps."""
    return (NestedFolds if core.nested else TimedFolds)(core, fold, unit)
