"""Operator S for folds that take a key's records of one time together, and may set timers: stateful_unary and _binary.

S calls the fold once per key and time, when the time is closed: neither a data frontier nor the state frontier is at or
before it. So all records of the time are here, and each bin that moved at that time or before is in, with its timers. A
time at which a key has a timer and no record counts as well. S calls the fold once more for a key whose event timers
fire at that time: see `event_timers`.

What S keeps
 1. Records of times that are not closed, by time. They do not move with bins: F has sent them to the worker that owns
    their bin at their time, and that bin may still be under way to this worker. A time may have no records if a marker
    has come for it.
 2. Timers, in the store that it shares with F (`timers`). F takes the timers of a bin out with it.
 3. One capability of the output, at the earliest time of its records and timers. So there are few pointstamps, however
    many timers there are. (In a nested scope S has one for each time: rule 5 of `flat_times`.) S adjusts the capability
    at the end of each run. For a later time S downgrades it. An earlier time comes only with a record or a chunk that
    this run has consumed, at or before that time, so S may mint a new capability. A fold sets timers for times after
    its own, and S still holds the fold's time then.
 4. When F takes a bin out for t it takes its timers, and S holds too much until it runs again. No operator waits for
    that. The timers are at t or later, and so is what S holds for them. S runs at the latest when the state frontier
    passes t, and before that no worker can apply anything at t or later. The timers are still covered: F has held t, by
    the state output's capability, since the command arrived, and then the chunks hold it.

Outputs carry the time of their records. S applies times in order, a bounded number in each run. Otherwise a fold that
sets a timer whenever one is due would keep the worker forever once all inputs have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from megaflow.megaphone.base.bin_trial import PAYLOAD
from megaflow.megaphone.base.by_time import ByTime
from megaflow.megaphone.base.event_unit import EventUnit, TimeUnit
from megaflow.megaphone.base.flat_times import FlatTime, unflattened
from megaflow.megaphone.base.timers import NestedTimers, Timer, Timers
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.checks import checked
from megaflow.timely.dataflow.folds import NO_OUTPUTS, A, K, R, check_outputs, complain_about

W = TypeVar("W")

UnaryFold = Callable[[K, Any, list[Any], A | None, Timers], tuple[A | None, Iterable[R]]]
BinaryFold = Callable[[K, Any, list[Any], list[W], A | None, Timers], tuple[A | None, Iterable[R]]]
# The time is an int, in nested scopes a Product. Lists of Any hold values and payloads, whose types may differ.

_TIMES_PER_RUN = 64
"""Number of times to apply before other operators get their turn."""


class TimedFolds:
    """S on one worker: records and timers that wait until their time is closed."""

    sets_timers = True  # otherwise S needs no watermarks

    def __init__(
        self, core: Core, fold: Callable[..., Any], unit: TimeUnit = EventUnit.SECONDS,
        fired_by: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        """`unit`: that of the stream's timestamps.

        `fired_by`: the sort key of the outputs of event timers that fire together; None: they are not sorted.
        """
        self._core = core
        self._fold = checked(core.name, fold)
        self._data = core.data
        self._state = core.state
        self._output = core.output
        self._timers = core.store.timers
        self._events = core.store.events
        self._events.is_heard = self.sets_timers and not core.nested
        assert core.barrier_actions is not None, "it keeps a state"
        self._barrier_actions = core.barrier_actions
        kind = NestedTimers if core.nested else Timers
        self._handle = kind(core.name, self, unit)
        self._fired_by = fired_by
        self._apply = self._apply_now if core.journal is None else self._apply_durably
        self._stash: ByTime[list[list[list[Any]]]] = ByTime(self._nothing)  # input -> batches in arrival order
        self._held: Capability | None = None  # at the earliest time of stash and timers; None: both are empty
        self._rights: dict[FlatTime, Capability] = {}  # in a nested scope: at all times of stash and timers
        self._hold = self._hold_each if core.nested else self._hold_least
        self._hold(self.waiting())  # for restored timers; minted from the initial capability

    def _nothing(self, time: FlatTime) -> list[list[list[Any]]]:
        return [[] for _ in self._data]

    def run(self) -> None:
        """Run once: install state, stash what has arrived, apply the times that are closed."""
        for time in self._core.install():
            self._stash[time]  # makes an entry: S has to close this time, whatever comes at it
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
            if self._barrier_actions.registered:
                self._barrier_actions.before(time)
            self._apply(time)
            self._close(time)
        self._hold(time)

    def waiting(self) -> FlatTime | None:
        """Return the first time at which something waits, or None."""
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
        """Return all records of some batches, for the load meter."""
        return list(chain.from_iterable(chain.from_iterable(inputs)))

    def _hold_least(self, least: FlatTime | None) -> None:
        """Hold the output's capability at this time only."""
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

    def _hold_each(self, least: FlatTime | None) -> None:
        """Hold a capability at each time at which something waits. Cost: each run looks at all those times.

        One for the first time would not do in a nested scope: see rule 5 of `flat_times`.
        """
        wanted = self._stash.keys() | self._timers.times()
        for time in self._rights.keys() - wanted:
            self._rights.pop(time).release()
        for time in wanted - self._rights.keys():
            self._rights[time] = self._output.mint(time)

    def _close(self, time: FlatTime) -> None:
        """Fire the event timers that are due after a time is applied. If these make more due, the time comes again."""
        events, core = self._events, self._core
        for bin, timer in events.close(time):
            self._note(bin, timer)
        if not events.is_due():
            return
        if core.journal is not None:
            core.journal.fire_events()
        began = core.meter.now()
        events.is_firing = True
        out = self._call(time, [events.pop(), *({} for _ in self._data[1:])])
        events.is_firing = False
        if self._fired_by is not None:
            out.sort(key=self._fired_by)
        core.meter.note((), began)
        self._send(time, out)
        if events.is_due():
            self._stash[time]  # makes the entry anew

    # What the handle calls to set timers --------------------------------------------------

    @property
    def watermark(self) -> int:
        """The watermark as folds see it."""
        return self._events.watermark

    def set_timer(self, time: FlatTime, key: Any, payload: Any) -> None:
        """Set a timer of a key for a later time."""
        bin = self._bin_of(key, payload)
        self._timers.add(time, bin, key, payload)
        if self._core.journal is not None:
            self._core.journal.set_timer(bin, (time, key, payload))

    def set_event(self, micros: int, key: Any, payload: Any) -> None:
        """Set a timer of a key for a watermark."""
        bin = self._bin_of(key, payload)
        self._note(bin, self._events.set_event(micros, bin, key, payload))

    def set_after(self, micros: int, key: Any, payload: Any) -> None:
        """Set a timer of a key for this long after now."""
        bin = self._bin_of(key, payload)
        self._note(bin, self._events.set_after(self._handle.time, micros, bin, key, payload))

    def _note(self, bin: int, timer: Timer | None) -> None:
        """Note an event timer for the next checkpoint; None: it was dropped, or its count has not begun."""
        if timer is not None and self._core.journal is not None:
            self._core.journal.set_event(bin, timer)

    def _bin_of(self, key: Any, payload: Any) -> int:
        self._core.try_travel(key, payload, PAYLOAD)
        return self._core.store.bin_of_key(key)

    # Calling the fold ---------------------------------------------------------------------

    def _outputs(self, time: FlatTime, inputs: Sequence[Iterable[list[Any]]]) -> list[Any]:
        """Apply the fold to the due timers and the batches of each input, by key; return its outputs."""
        return self._call(time, self._group(time, inputs))

    def _call(self, time: FlatTime, groups: Sequence[dict[Any, list[Any]]]) -> list[Any]:
        """Apply the fold to what each input has for a key, with payloads in the first input; return its outputs.

        This is one of the two loops that touch every key or record. The other is in `_group`, which defines the order.
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
        """Return key -> records for each input; keys with timers come first. The fold may keep each list."""
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
