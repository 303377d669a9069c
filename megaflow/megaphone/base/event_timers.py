"""Event timers: timers that wait for the watermark or for the job's clock, in the bins that one worker owns.

A fold sets a timer `at_event` for a timestamp; it is due once the watermark has reached that timestamp. Or it sets a
timer `after` a delay; it is due once the clock has advanced by that delay since the first `Clock` at the time of
setting or later. `Watermark` and `Clock` are commands, so each has an epoch, the same for all workers. Write w(s) for
the greatest watermark at times before s.

Timers fire at the *close* of a time t, after the records and engine timers of t, which see w(t). Then w rises to what
the commands at t say, and S fires what is due, with outputs at t. So S may call a fold twice for a key at t. A timer
that is set meanwhile and is due fires at the same close, until none is due. All of that happens before anything later
than t.

Why each timer fires exactly once, at the worker that owns the bin at t, and always at the same t
 1. *S knows each command in time.* F notes a command here as it reads it, and an unread command at t holds every S's
    state frontier at t (`router`). So when S closes t it knows all commands at t, and has closed each earlier time that
    has a command (rule 2). `watermark` is then w(t), whatever else has been read.
 2. *Each S closes t.* As F reads the command, it sends its own S a *marker* at t by the state output, and holds nothing
    itself. S keeps the marker as a time at which something waits. Like any such time it holds S's output from then on
    until t is closed. If F held t instead, S would wait for F, and F for S.
 3. *The owner fires.* S closes t when all bins that move to it at t are in, and none that leaves at t is still here
    (rules 2 and 3 of `router`). Timers are kept by bin, and all of them leave with it. So the worker that has the bin
    at t has the timers that are due at t.
 4. *No timer is due twice or late.* After each close S has no timer left that is due by what it knows. A bin is taken
    out for T when everything before T is closed everywhere, so it brings no timer that is due before T.
 5. *A newcomer knows what it needs.* The first chunk of a bin that moves at T carries w(T) and the commands at T,
    because control has passed T at its source. The newcomer reads all later commands itself, before it knows a table,
    and its S applies nothing before it has a bin. (The message that gives F the routing would not do, because it may
    come when S has closed T.) As after a marker, S closes T then; it has the right to, because the chunk is at T.
 6. *No operator waits forever.* What S holds at t waits only for pointstamps that lead to its inputs at t or before.
    So it never waits for S's own output: that leads back only to F's input for it, and that input leads nowhere. Nor
    does it wait for a marker, because S takes a marker as it arrives.
 7. *Chains need no second watermark.* Outputs of timers that fire at t are sent at t, under what S holds there. The
    next operator's data frontier makes it close t after that, so it fires after it has applied these outputs.
 8. *Checkpoints.* A cut at t has the timers that are not due by w(t), because it is made before anything of t. They are
    an append log; a recovery at t drops the timers that w(t), and the clock then, have reached. Every cut writes the
    timers `after` a delay whose count has not begun. Such an entry counts only for its own cut; a later cut has the
    timer as begun, or writes it again. Their counts begin in the order of their delays, which is the order in which a
    recovery has them; under the infinite watermark all of them are due.
The first timer that a fold sets must not miss a watermark that was read before. So each operator with timed folds gets
markers from the start. In a dataflow where nothing has timestamps there are no commands, and so no markers. Aggregates
and folds by record have no timers and get no markers, unless their states last only for a while (`state_ttl`).
Operators in nested scopes get none either, because commands do not have the times of nested scopes.

The order in which timers fire, for one key
  9. Timers that are due fire by timestamp, then in the order of setting; timers by the clock fire last. There is one
     call for each timestamp. A timer that such a call sets, and that is due, takes its place among those that have not
     fired. So results do not depend on how many timestamps one watermark passes.
 10. S calls the fold for all keys that have something due, each for its first timestamp, and then closes the time again
     (`pop`). Keys are independent of each other, so this equals a loop inside each key, and the worker gets its turn in
     between.

The watermark is INFINITE when everything is to close: then timers `after` a delay are due as well. A timer that a call
sets under it fires if its timestamp is not above the key's *limit*. The limit is the greater of two timestamps: the
greatest known in the job, and the greatest among the key's own timers when they begin to fire. Later timers are
dropped and counted, and so are all timers `after` a delay. Otherwise a fold that sets a timer whenever one fires would
never end.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final, TypeAlias

from megaflow.durable.blocks import UNBEGUN
from megaflow.megaphone.base.event_unit import INFINITE, NEVER
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.megaphone.base.timer_line import TimerLine
from megaflow.megaphone.base.timers import Timer
from megaflow.quick_dataclass import dataclass

EVENT: Final = 0
"""The line of timers that wait for the watermark."""
CLOCK: Final = 1
"""The line of timers that wait for the clock."""
AFTER: Final = UNBEGUN
"""The line of timers whose count begins with the next `Clock`; their microseconds are the delay."""
LINES: Final = (EVENT, CLOCK, AFTER)

Heard: TypeAlias = tuple[int, int, int, int, int, bool] | tuple[()]
"""Watermark, clock and greatest timestamp before a time; watermark and clock of the commands at it; `by_stop`.

(): none has come yet.
"""
Due: TypeAlias = list[tuple[int, int, int, Any]]
"""Timers of one key, as a heap: line, microseconds, order of setting, payload."""


@dataclass(slots=True)
class Early:
    """Counts of what only the infinite watermark has closed or fired."""

    windows: int = 0
    timers: int = 0  # for timestamps
    clock_timers: int = 0
    deadline: int = NEVER  # the greatest finite watermark that one of these would have waited for

    def fired(self, by_event: bool, micros: int, count: int) -> None:
        """Count timers for a timestamp, or for a moment of the clock."""
        if by_event:
            self.timers += count
            self.deadline = max(micros, self.deadline)
        else:
            self.clock_timers += count

    def closed(self, windows: int, deadline: int) -> None:
        """Count windows. `deadline`: the watermark at which the last of them would have closed."""
        self.windows += windows
        self.deadline = max(deadline, self.deadline)


class EventTimers:
    """The event timers of one operator on one worker, and the watermark and clock that they wait for.

    F writes the commands, S everything else; both run in one thread.
    """

    def __init__(self) -> None:
        self.is_heard = False  # whether S has timed folds, and so receives markers; set by S as it is made
        self.watermark = NEVER  # w(t), where t is the time that S closes next
        self.clock = NEVER  # likewise
        self.dropped = 0  # timers that were set while others fired, under the infinite watermark
        self.is_firing = False  # written by S
        self._coming: dict[int, tuple[int, int]] = {}  # time of commands, not closed -> watermark and clock; or NEVER
        self.ticked: int | None = None  # the last closed time that had a `Clock`
        self.greatest = NEVER  # timestamp that was known when all was to close; NEVER: none, or it is still to come
        self.by_stop = False  # whether a stop, not the end of the input, makes the watermark infinite, now or later
        self.early = Early()  # what only the infinite watermark has closed
        self.are_alarms = False  # whether these timers only wake an operator that counts its windows; set by it
        self._by_event = TimerLine()
        self._by_clock = TimerLine()
        self._due: dict[Any, Due] = {}  # key -> timers that are to fire; none is empty
        self._limits: dict[Any, int] = {}  # key -> its limit; under the infinite watermark, of keys with something due
        self._left = 0  # number of timers in `_due`
        self._unbegun: dict[int, list[tuple[int, Any, Any]]] = {}  # bin -> (micros, key, payload), never empty

    # Commands ----------------------------------------------------------------------------

    def read(self, time: int, command: Watermark | Clock) -> None:
        """Note a command, as F reads it."""
        match command:
            case Watermark(micros, greatest, by_stop):
                self.greatest = max(greatest, self.greatest)
                self.by_stop |= by_stop
                self._note(time, micros, INFINITE if micros >= INFINITE else NEVER)
            case Clock(micros):
                self._note(time, NEVER, micros)

    def all_fire(self, time: FlatTime, bin: int) -> bool:
        """Tell whether a bin has timers, and a command at this time or before makes all of them fire."""
        there = self._coming.get(time, (NEVER, NEVER)) if isinstance(time, int) else (NEVER, NEVER)
        return max(self.watermark, there[0]) >= INFINITE and bool(self.of(bin))

    def _note(self, time: int, watermark: int, clock: int) -> None:
        before = self._coming.get(time, (NEVER, NEVER))
        self._coming[time] = max(watermark, before[0]), max(clock, before[1])

    def heard(self, time: int) -> Heard:
        """Return what the new owner of a bin that moves at this time must know: rule 5. All before is closed."""
        known = (self.watermark, self.clock, self.greatest, *self._coming.get(time, (NEVER, NEVER)))
        return (*known, self.by_stop) if max(known) > NEVER else ()

    def hear(self, time: int, heard: Heard) -> bool:
        """Take over what a bin has brought; return whether this time has commands, so that S must close it."""
        if not heard:
            return False
        watermark, clock, greatest, *there, by_stop = heard
        self.watermark, self.clock = max(watermark, self.watermark), max(clock, self.clock)
        self.greatest = max(greatest, self.greatest)
        self.by_stop |= by_stop
        if max(there) > NEVER:
            self._note(time, *there)
        return time in self._coming

    # Setting timers ----------------------------------------------------------------------

    def set_event(self, micros: int, bin: int, key: Any, payload: Any) -> Timer | None:
        """Set a timer for a watermark; return the entry for the log, or None if the timer is dropped."""
        if self.is_firing and micros <= self.watermark:
            if micros > self._limits.get(key, INFINITE):
                self.dropped += 1
                return None
            self._fire_soon(EVENT, micros, self._by_event.next_order(), key, payload)
        else:
            self._by_event.add(micros, bin, key, payload)
        return (EVENT, micros), key, payload

    def set_after(self, time: int, micros: int, bin: int, key: Any, payload: Any) -> Timer | None:
        """Set a timer for this delay after the first `Clock` at this time or later; return as `set_event` does.

        Also return None if that `Clock` has not come yet: `close` returns the entry when it does.
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

    # Timers that are due -----------------------------------------------------------------

    def close(self, time: int) -> list[tuple[int, Timer]]:
        """Rise to the commands at a time, which S closes; return (bin, timer) for each timer whose count begins."""
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

        Cost: linear in the keys with something due, and logarithmic in the number of timers that each has due.
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
        """Let these timers fire from now on; they come in order."""
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

    # Timers that move or are kept, as ((line, micros), key, payload) -----------------------

    def of(self, bin: int) -> list[Timer]:
        """Return the timers of a bin, which stay, each line in its order."""
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
        """Return (bin, timer) for each timer whose count has not begun."""
        return [(bin, ((AFTER, micros), *rest)) for bin, each in self._unbegun.items() for micros, *rest in each]

    def waits(self, timer: Timer) -> bool:
        """Tell whether a timer that was set is not yet due."""
        line, micros = timer[0]
        return bool(line == AFTER or micros > (self.watermark, self.clock)[line])

    def _check(self) -> None:
        self._by_event._check()
        self._by_clock._check()
        assert all(self._due.values()) and self._left == sum(map(len, self._due.values()))
        assert all(self._unbegun.values()), "an empty entry is kept"
