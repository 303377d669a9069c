"""Event timers: what waits for the watermark or for the job's clock, of the bins that one worker owns.

A timer is set `at_event` for a timestamp, and due once the watermark has reached that; or `after` a while, and due once
the clock has gone on by so much since the first `Clock` that is not before the setting. `Watermark` and `Clock` are
commands, so each is at an epoch, the same for all workers. Write w(s) for the greatest watermark at times before s.

When they fire: at the *close* of a time t, after the records and engine timers of t, which see w(t). Then w rises to
what the commands at t say, and what is due fires, with outputs at t. So a fold may be called twice for a key at t.
What is set meanwhile and due fires at the same close, until nothing is. All of that is before anything at t + 1.

Why exactly once, at whoever owns the bin at t, and always at the same t
 1. *S knows each command in time.* F notes it here as it reads it, and an unread command at t holds every S's state
    frontier at t (`router`). So when S closes t it knows all commands at t, and has closed each time before t at which
    there is one (rule 2): `watermark` is then w(t), whatever else has been read.
 2. *Each S closes t.* F sends its own S a *marker* at t by the state output, as it reads the command, and holds nothing
    itself. S keeps it as a time at which something waits; as any such time it holds S's output from then on until t is
    closed. If F held t instead, S would wait for F, and F for S.
 3. *The owner fires.* S closes t when all bins that move at t are in, and none that moves then is still here (rules 2
    and 3 of `router`). Timers are kept by bin and leave with it, all of them: what is due at t is where the bin is.
 4. *Nothing is due twice or late.* After each close of S no timer is left that is due by what it knows. A bin is taken
    out for T when all before T is closed everywhere, so it brings no timer that is due before T.
 5. *A newcomer knows what it needs.* The first chunk of a bin that moves at T says w(T), and what commands there are at
    T: control has passed T where it comes from. All later commands the newcomer reads itself, before it knows a table.
    Its S applies nothing before it has a bin. (What tells F the routing would not do: it may come when S has closed T.)
    As with a marker, S closes T then: it has the right to, for the chunk is at T.
 6. *Nobody waits for ever.* What S holds at t waits for what leads to its inputs at t or before: never its own output,
    which leads to F's input for it alone, and that to nothing; nor a marker, which S takes as it arrives.
 7. *Chains need no second watermark.* What fires at t is sent at t, under what S holds there; the next operator closes
    t after that, by its data frontier, and so fires after it has applied it.
 8. *Checkpoints.* A cut at t has the timers that are not due by w(t), for it is made before anything of t. They are an
    append log; who recovers t drops those that w(t), and the clock then, have reached. Timers set `after` a while whose
    count has not begun are written by every cut, and count in no later one: then they have been written as begun. Their
    counts begin in the order of how long they are, as who recovers has them: under the infinite watermark all are due.
The first timer that a fold sets must not miss a watermark that was read before. So each operator with timed folds has
markers from the beginning; without commands, in a dataflow where nothing has timestamps, there are none. Aggregates
and folds by record have no timers, and no markers, unless their states last for a while only (`stateful_lasting`). In
nested scopes, whose times commands do not have, there are none.

In which order they fire, for one key
 9. Timers that are due fire by timestamp, then in the order of setting; timers by the clock fire last. There is one
    call for each timestamp. A timer that such a call sets, and that is due, takes its place among those that have not
    fired. So results do not depend on how many timestamps one watermark passes.
10. S calls all keys that have something due, each for its first timestamp, and then closes the time again (`pop`). Keys
    know nothing of each other, so this is the same as a loop inside each key, and the worker gets its turn in between.

The watermark is INFINITE when everything is to close: then timers `after` a while are due as well. A timer that a call
sets under it fires if its timestamp is not above the key's *limit*. That is the greatest timestamp known of the
job, or of the key's own timers as they begin to fire. Later ones are dropped and counted, as are all timers `after` a
while. Otherwise a fold that sets a timer whenever one fires would never end.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import UNBEGUN
from megaflow.megaphone.event_unit import INFINITE, NEVER
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.routing import Clock, Watermark
from megaflow.megaphone.timer_line import TimerLine
from megaflow.megaphone.timers import Timer
from megaflow.quick_dataclass import dataclass

EVENT: Final = 0
"""The line of timers that wait for the watermark."""
CLOCK: Final = 1
"""That of those that wait for the clock."""
AFTER: Final = UNBEGUN
"""That of those whose count is to begin with the next `Clock`; their microseconds are how long it is."""
LINES: Final = (EVENT, CLOCK, AFTER)

Heard: TypeAlias = tuple[int, int, int, int, int] | tuple[()]
"""Watermark, clock and greatest timestamp before a time, watermark and clock of its commands; (): none ever."""
Due: TypeAlias = list[tuple[int, int, int, Any]]
"""Timers of one key, as a heap: line, microseconds, order of setting, payload."""


@dataclass(slots=True)
class Early:
    """What the infinite watermark has closed, or fired, that no other one had."""

    windows: int = 0
    timers: int = 0  # for timestamps
    clock_timers: int = 0
    deadline: int = NEVER  # the greatest watermark that one of these would have waited for

    def fired(self, by_event: bool, micros: int, count: int) -> None:
        """Count timers for a timestamp, or for a moment of the clock."""
        if by_event:
            self.timers += count
            self.deadline = max(micros, self.deadline)
        else:
            self.clock_timers += count

    def closed(self, windows: int, deadline: int) -> None:
        """Count windows, the last of which would have closed at this watermark."""
        self.windows += windows
        self.deadline = max(deadline, self.deadline)


class EventTimers:
    """The event timers of one operator on one worker, and the watermark and clock that they wait for.

    F writes what is commanded, S all else; both run in one thread.
    """

    def __init__(self) -> None:
        self.is_heard = False  # whether S has timed folds, and so is sent markers; set by S as it is made
        self.watermark = NEVER  # w(t), t being the time that S closes next
        self.clock = NEVER  # likewise
        self.dropped = 0  # timers that were set while others fired, under the infinite watermark
        self.is_firing = False  # written by S
        self._coming: dict[int, tuple[int, int]] = {}  # time of commands, not closed -> watermark and clock; or NEVER
        self.ticked: int | None = None  # the last time that was closed and had a `Clock`
        self.greatest = NEVER  # timestamp that was known when all was to close; NEVER: none, or that is to come
        self.early = Early()  # what the infinite watermark alone has closed
        self.are_alarms = False  # whether these timers only wake who closes windows, and counts these; set by that
        self._by_event = TimerLine()
        self._by_clock = TimerLine()
        self._due: dict[Any, Due] = {}  # key -> what is to fire; none is empty
        self._limits: dict[Any, int] = {}  # key -> its limit; under the infinite watermark, of keys with something due
        self._left = 0  # of all in `_due`
        self._unbegun: dict[int, list[tuple[int, Any, Any]]] = {}  # bin -> (micros, key, payload), never empty

    # What is commanded -------------------------------------------------------------------

    def begin(self, watermark: int, clock: int) -> None:
        """Begin where an earlier run has ended."""
        self.watermark, self.clock = watermark, clock

    def read(self, time: int, command: Watermark | Clock) -> None:
        """Note a command, as F reads it."""
        match command:
            case Watermark(micros, greatest):
                self.greatest = max(greatest, self.greatest)
                self._note(time, micros, INFINITE if micros >= INFINITE else NEVER)
            case Clock(micros):
                self._note(time, NEVER, micros)

    def all_fire(self, time: FlatTime, bin: int) -> bool:
        """Tell whether a bin has timers, and a command at this time, or before, lets all of them fire."""
        there = self._coming.get(time, (NEVER, NEVER)) if isinstance(time, int) else (NEVER, NEVER)
        return max(self.watermark, there[0]) >= INFINITE and bool(self.of(bin))

    def _note(self, time: int, watermark: int, clock: int) -> None:
        before = self._coming.get(time, (NEVER, NEVER))
        self._coming[time] = max(watermark, before[0]), max(clock, before[1])

    def heard(self, time: int) -> Heard:
        """Return what a bin that moves at this time tells its new owner: rule 5. All before is closed."""
        known = (self.watermark, self.clock, self.greatest, *self._coming.get(time, (NEVER, NEVER)))
        return known if max(known) > NEVER else ()

    def hear(self, time: int, heard: Heard) -> bool:
        """Take that in where the bin arrives; return whether there are commands at this time, so it is to be closed."""
        if not heard:
            return False
        watermark, clock, greatest, *there = heard
        self.watermark, self.clock = max(watermark, self.watermark), max(clock, self.clock)
        self.greatest = max(greatest, self.greatest)
        if max(there) > NEVER:
            self._note(time, *there)
        return time in self._coming

    # What is set -------------------------------------------------------------------------

    def set_event(self, micros: int, bin: int, key: Any, payload: Any) -> Timer | None:
        """Set a timer for a watermark; return what a log is to have of it; None: it is dropped."""
        if self.is_firing and micros <= self.watermark:
            if micros > self._limits.get(key, INFINITE):
                self.dropped += 1
                return None
            self._fire_soon(EVENT, micros, self._by_event.next_order(), key, payload)
        else:
            self._by_event.add(micros, bin, key, payload)
        return (EVENT, micros), key, payload

    def set_after(self, time: int, micros: int, bin: int, key: Any, payload: Any) -> Timer | None:
        """Set a timer for so long after the first `Clock` at this time or later; return as `set_event` does.

        Return None as well if that has not come: `close` returns it when it does.
        """
        if self.is_firing and self.watermark >= INFINITE:
            self.dropped += 1
            return None
        if self.ticked == time or self.clock >= INFINITE:
            return self._begin(micros, bin, key, payload)
        self._unbegun.setdefault(bin, []).append((micros, key, payload))
        return None

    def _begin(self, micros: int, bin: int, key: Any, payload: Any) -> Timer:
        due = min(self.clock + micros, INFINITE)
        if self.is_firing and due <= self.clock:
            self._fire_soon(CLOCK, due, self._by_clock.next_order(), key, payload)
        else:
            self._by_clock.add(due, bin, key, payload)
        return (CLOCK, due), key, payload

    def _fire_soon(self, line: int, micros: int, order: int, key: Any, payload: Any) -> None:
        heappush(self._due.setdefault(key, []), (line, micros, order, payload))
        self._left += 1

    # What is due -------------------------------------------------------------------------

    def close(self, time: int) -> list[tuple[int, Timer]]:
        """Rise to what is commanded at a time, which S closes; return (bin, timer) of those whose count begins so."""
        watermark, clock = self._coming.pop(time, (NEVER, NEVER))
        if watermark >= INFINITE > self.watermark:
            self.greatest = max(self.watermark, self.greatest)
        self.watermark = max(watermark, self.watermark)
        if clock == NEVER:
            return []
        self.clock, self.ticked = max(clock, self.clock), time
        unbegun, self._unbegun = self._unbegun, {}
        in_order = ((bin, timer) for bin, each in unbegun.items() for timer in sorted(each, key=itemgetter(0)))
        return [(bin, self._begin(micros, bin, *rest)) for bin, (micros, *rest) in in_order]

    def is_due(self) -> bool:
        """Tell whether a timer is to fire now. Cost: O(1)."""
        return bool(self._left) or self._by_event.least() <= self.watermark or self._by_clock.least() <= self.clock

    def pop(self) -> dict[Any, list[Any]]:
        """Remove what each key has due for its first timestamp: key -> payloads, in the order of setting.

        Cost: linear in the keys with something due, and logarithmic in what is due of each.
        """
        if not self._left:
            self._limits = {}
        for line, timers, limit in ((EVENT, self._by_event, self.watermark), (CLOCK, self._by_clock, self.clock)):
            if timers.least() <= limit:
                self._gather(line, timers.pop(limit))
        found: dict[Any, list[Any]] = {}
        for key, due in self._due.items():
            line, micros, _, payload = heappop(due)
            payloads = found[key] = [payload]
            while due and due[0][:2] == (line, micros):
                payloads.append(heappop(due)[3])
            self._left -= len(payloads)
            if self.watermark >= INFINITE and not self.are_alarms:
                self.early.fired(line == EVENT, micros, len(payloads))
        self._due = {key: due for key, due in self._due.items() if due}
        return found

    def _gather(self, line: int, timers: Iterable[tuple[int, int, Any, Any]]) -> None:
        """Have these fire from now on; they come in order."""
        is_last = self.watermark >= INFINITE
        for micros, order, key, payload in timers:
            self._fire_soon(line, micros, order, key, payload)
            if is_last:
                least = micros if line == EVENT else NEVER
                self._limits[key] = max(least, self._limits.get(key, self.greatest))

    def count(self) -> tuple[int, int]:
        """Return how many timers wait for the watermark, and for the clock. Cost: linear in the bins with timers."""
        return self._by_event.count(), self._by_clock.count() + sum(map(len, self._unbegun.values()))

    @property
    def wants_clock(self) -> bool:
        """Whether a timer waits for the clock."""
        return bool(self._by_clock or self._unbegun)

    # What moves and is kept; as ((line, micros), key, payload) -----------------------------

    def of(self, bin: int) -> list[Timer]:
        """Return the timers of a bin, which stay: each line's in order."""
        lines = (self._by_event.of(bin), self._by_clock.of(bin), self._unbegun.get(bin, ()))
        return [((line, micros), *rest) for line, timers in enumerate(lines) for micros, *rest in timers]

    def take(self, bin: int) -> list[Timer]:
        """Remove the timers of a bin; return them. Cost: linear in them."""
        assert not self._left, f"bin {bin} leaves while timers fire"
        taken = self.of(bin)
        self._by_event.take(bin)
        self._by_clock.take(bin)
        self._unbegun.pop(bin, None)
        return taken

    def install(self, bin: int, timers: Iterable[Timer]) -> None:
        """Add timers that a bin has brought."""
        for (line, micros), *rest in timers:
            if line == AFTER:
                self._unbegun.setdefault(bin, []).append((micros, *rest))
            else:
                (self._by_event if line == EVENT else self._by_clock).add(micros, bin, *rest)

    def unbegun(self) -> list[tuple[int, Timer]]:
        """Return (bin, timer) of those whose count has not begun."""
        return [(bin, ((AFTER, micros), *rest)) for bin, each in self._unbegun.items() for micros, *rest in each]

    def waits(self, timer: Timer) -> bool:
        """Tell whether a timer that was set has not become due."""
        line, micros = timer[0]
        return bool(line == AFTER or micros > (self.watermark, self.clock)[line])

    def _check(self) -> None:
        self._by_event._check()
        self._by_clock._check()
        assert all(self._due.values()) and self._left == sum(map(len, self._due.values()))
        assert all(self._unbegun.values()), "an empty entry is kept"
