"""Timers of a stateful operator by time and key, and the handle with which a fold sets them.

A timer is (time, key, payload). It belongs to the bin of its key and moves with it. So it is due at the worker that
owns the bin at its time, whatever moves in between:
 1. S fires the timers of a time when the time is closed. By then each bin that moved at that time or before has
    arrived, and no bin that moves then is still here (`router`, rules 2 and 3).
 2. F takes a bin out for t when everything before t is applied. The bin then holds no timer before t, and all later
    timers leave with it. No timer stays, so a bin that returns cannot fire one again.
Records wait elsewhere: F has already sent them to the owner of their time, so they never move with a bin. Timers for
timestamps and by the job's clock, which the same handle sets, are kept apart: see `event_timers`.
"""

from collections.abc import Iterable, KeysView
from datetime import timedelta
from math import isfinite
from typing import Any, Protocol, TypeAlias

from megaflow.errors import ProgramError
from megaflow.megaphone.base.by_time import ByTime
from megaflow.megaphone.base.event_unit import GREATEST, NEVER, EventUnit, TimeUnit
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.timely.order import Product, Time, alike, coordinates, less_than

Timer: TypeAlias = tuple[FlatTime, Any, Any]  # time, key, payload


class TimerStore:
    """The timers of the bins that one worker owns, by time, bin and key.

    The payloads of one key and time stay in the order in which they were set. Costs depend on what is due or moves,
    never on the number of bins: there is no entry for a bin, or a time, without timers.

    Invariant: `_bins` names exactly the (bin, time) of `_times`.
    """

    def __init__(self) -> None:
        self._times: ByTime[dict[int, dict[Any, list[Any]]]] = ByTime(lambda time: {})  # bin -> key -> payloads
        self._bins: dict[int, set[FlatTime]] = {}  # bin -> its times; none empty

    def least(self) -> FlatTime | None:
        """Return the first time at which something is due, or None. Cost: logarithmic, amortised."""
        return self._times.least()

    def times(self) -> KeysView[FlatTime]:
        """Return the times at which something is due."""
        return self._times.keys()

    def count(self) -> int:
        """Return how many timers are set. Cost: linear in the keys with timers, by time."""
        return sum(len(payloads) for at in self._times.values() for keys in at.values() for payloads in keys.values())

    def add(self, time: FlatTime, bin: int, key: Any, payload: Any) -> None:
        """Set a timer."""
        bins = self._times[time]
        keys = bins.get(bin)
        if keys is None:
            keys = bins[bin] = {}
            self._bins.setdefault(bin, set()).add(time)
        keys.setdefault(key, []).append(payload)

    def has(self, time: FlatTime, bin: int, key: Any) -> bool:
        """Tell whether a key has a timer for a time. Cost: O(1)."""
        bins = self._times.get(time)
        return bins is not None and key in bins.get(bin, ())

    def pop(self, time: FlatTime) -> dict[int, dict[Any, list[Any]]]:
        """Remove what is due at a time: bin -> key -> payloads. Cost: linear in the bins with something due."""
        bins = self._times.take(time) or {}
        for bin in bins:
            times = self._bins[bin]
            times.discard(time)
            if not times:
                del self._bins[bin]
        return bins

    def of(self, bin: int) -> list[Timer]:
        """Return the timers of a bin, which stay. Cost: linear in them."""
        times = sorted(self._bins.get(bin, ()))
        found = ((time, self._times[time][bin]) for time in times)
        return [(time, key, payload) for time, keys in found for key, payloads in keys.items() for payload in payloads]

    def take(self, bin: int) -> list[Timer]:
        """Remove the timers of a bin; return them by time. Cost: linear in them, amortised."""
        taken: list[Timer] = []
        for time in sorted(self._bins.pop(bin, ())):
            bins = self._times[time]
            taken += [(time, key, payload) for key, payloads in bins.pop(bin).items() for payload in payloads]
            if not bins:
                self._times.take(time)
        return taken

    def install(self, bin: int, timers: Iterable[Timer]) -> None:
        """Add timers that a bin has brought."""
        for time, key, payload in timers:
            self.add(time, bin, key, payload)

    def _check(self) -> None:
        pairs = {(bin, time) for time, bins in self._times.items() for bin in bins}
        assert pairs == {(bin, time) for bin, times in self._bins.items() for time in times}
        assert all(self._times.values()) and all(self._bins.values()), "an empty entry is kept"
        assert all(payloads for bins in self._times.values() for keys in bins.values() for payloads in keys.values())
        self._times._check()


class Alarm(Protocol):
    """Receiver of timers: an operator, as the handle sees it."""

    @property
    def watermark(self) -> int:
        """The present watermark, in microseconds; NEVER: there is none."""

    def set_timer(self, time: FlatTime, key: Any, payload: Any) -> None:
        """Set a timer for a later time."""

    def set_event(self, micros: int, key: Any, payload: Any) -> None:
        """Set a timer for a watermark."""

    def set_after(self, micros: int, key: Any, payload: Any) -> None:
        """Set a timer for this long after now."""


class Timers:
    """Handle with which a fold sets timers for its present key, during the call.

    Timers cannot be canceled. Instead, a fold checks its state when it is called, and does nothing if the timer no
    longer matters. For a session, the state has `last`, the greatest timestamp of its records. Each record that makes
    it greater sets `timers.at_event(last + gap, last)`. The session ends if the payload of a timer equals `last`, or
    with a record at `last + gap` or later, because several records may come in one call. Sort the records of a call. If
    records may be out of order by more than the gap, use `window(session(gap))` instead.
    """

    __slots__ = ("_alarm", "_name", "_unit", "key", "time")

    def __init__(self, name: str, alarm: Alarm, unit: TimeUnit = EventUnit.SECONDS) -> None:
        """`unit`: the unit of timestamps."""
        self.key: Any = None  # the key of the present call of the fold; written by the operator
        self.time: Any = None  # its time, an int or, in a nested scope, a Product; None: there is no call
        self._name = name
        self._alarm = alarm
        self._unit = unit

    @property
    def watermark(self) -> Any:
        """Progress of event time, in the unit of the timestamps: later records should not be before it.

        None before the first watermark. When all lines are read it is the float `inf`, or the last datetime. It is the
        same for all records of one time. When timers of `at_event` or `after` fire, it has risen already.
        """
        micros = self._alarm.watermark
        return None if micros <= NEVER else self._unit.value(micros)

    def at(self, time: Time, payload: Any) -> None:
        """Call the fold again for the present key at a later time, with `payload`.

        In a nested scope the time is a Product. No coordinate may be less than that of the present time, and one must
        be greater. `Product(t, i + 1)` is the next round, `Product(t + 1, i)` the earliest allowed time at t + 1.

        In `megaflow run` a time is the number of an epoch, and not a clock: load decides how long an epoch lasts.
        Raises ProgramError unless `time` is later than the present time.
        """
        self._check_called("at", time)
        present = self.time
        if type(time) is not int or time <= present:
            raise ProgramError(
                f"{self._name}: timers.at({time!r}, …) for key {self.key!r}, at time {present}: a timer's time must "
                f"be an int greater than the present time; use timers.at({present + 1}, …) or later, and do at once "
                "what is due now"
            )
        self._alarm.set_timer(time, self.key, payload)

    def at_event(self, timestamp: Any, payload: Any) -> None:
        """Call the fold again for the present key with `payload`, once the watermark reaches `timestamp`.

        That is a separate call, after the records of a time. There is one call per timestamp, in the order of
        timestamps. Payloads for the same timestamp come together, in the order in which they were set. If the watermark
        has already reached the timestamp, the timer fires when the present time is over. If the fold sets it during a
        call for another such timer, it fires in its place among the timers that are still to fire.

        At the end of a job that closes everything, the watermark is infinite. A timer that is set while others fire
        then fires if it is not later than the greatest of the key's timers and the job's timestamps. Later
        timers are dropped, and the job reports how many.

        `timestamp` is in the unit of the stream's timestamps; on a stream without timestamps, a number of seconds.
        Raises ProgramError for an invalid timestamp.
        """
        self._check_called("at_event", timestamp)
        try:
            micros = self._unit.micros(timestamp)
        except ValueError as error:
            raise ProgramError(
                f"{self._name}: timers.at_event({timestamp!r:.200}, …) for key {self.key!r:.200}: {error}"
            ) from None
        self._alarm.set_event(micros, self.key, payload)

    def after(self, seconds: float | timedelta, payload: Any) -> None:
        """Call the fold again for the present key with `payload`, after the job has run for this long.

        It works as `at_event`, by the job's own clock. That clock stops with the job: the rest of the wait counts after
        a resume. Expect a tenth of a second more or less. At the end of a job that closes everything, the timer is due
        at once; a timer that is set while others fire is dropped. Raises ProgramError for an invalid length of time.
        """
        self._check_called("after", seconds)
        length = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if type(length) not in (int, float) or not isfinite(length) or not 0 <= length <= GREATEST // 1_000_000:
            raise ProgramError(
                f"{self._name}: timers.after({seconds!r:.200}, …) for key {self.key!r:.200}: give a number of "
                "seconds or a timedelta of at least 0"
            )
        self._alarm.set_after(round(length * 1_000_000), self.key, payload)

    def _check_called(self, verb: str, given: object) -> None:
        if self.time is None:
            raise ProgramError(
                f"{self._name}: timers.{verb}({given!r:.200}, …) was called after the fold returned; set timers during "
                "the call, or in the generator of outputs that it returns"
            )


class NestedTimers(Timers):
    """The handle in a nested scope, where a right to send at a time extends to times not less as products."""

    __slots__ = ()

    def at(self, time: Time, payload: Any) -> None:
        """Call the fold again at a later time, with `payload`: see `Timers.at`."""
        super()._check_called("at", time)
        present = self.time
        if not alike(time, present) or not less_than(present, time):
            raise ProgramError(
                f"{self._name}: timers.at({time!r}, …) for key {self.key!r}, at time {present!r}: a timer's time "
                "must have the form of the present time, no coordinate less and one greater; use, for example, "
                f"timers.at({Product(present.outer, present.inner + 1)!r}, …)"
            )
        self._alarm.set_timer(coordinates(time), self.key, payload)

    def _check_called(self, verb: str, given: object) -> None:
        super()._check_called(verb, given)
        raise ProgramError(
            f"{self._name}: timers.{verb}({given!r:.200}, …) for key {self.key!r:.200}: a nested scope has no "
            "watermark and no clock; use timers.at, or set the timer in an operator outside the loop"
        )
