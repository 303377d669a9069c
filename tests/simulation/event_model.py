"""Reference model of event time in plain Python: the outputs of folds with event timers and of windows, by epoch.

The model receives the records, the watermarks and the clock readings, each with its epoch. w(t) is the greatest
watermark at epochs before t. A record's bound is the greatest timestamp so far in its partition, less `out_of_order`.
At each epoch t each operator, in the order of the dataflow,
1. applies the epoch timers and the records of t, which see w(t);
2. closes t: w rises to the watermark commanded at t, and due timers fire until none is due. Then windows close.

The model keeps all keys in one place, keeps all records of a window, and computes sessions anew each time. So it shares
only the rules with the code under test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

NEVER, INFINITE = -(1 << 63), (1 << 63) - 1
SCALES = {"s": 1_000_000, "ms": 1_000, "us": 1}  # unit -> microseconds, except for datetimes
END = datetime.max.replace(tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Stamped: TypeAlias = tuple[int, Any, int]  # microseconds, (key, value), bound in microseconds


def in_unit(micros: int, unit: str) -> Any:
    """Return a time as programs see it."""
    if unit == "datetime":
        return END if micros == INFINITE else _EPOCH + timedelta(microseconds=micros)
    if micros == INFINITE:
        return float("inf")
    scale = SCALES[unit]
    return micros / scale if micros % scale else micros // scale


def micros_of(value: Any, unit: str) -> int:
    """Return a time of a program in microseconds."""
    if unit == "datetime":
        return int((value - _EPOCH) / timedelta(microseconds=1))
    return round(value * SCALES[unit])


@dataclass(frozen=True)
class Moment:
    """The watermarks and the clock of one epoch."""

    time: int
    before: int  # w(t)
    after: int  # w at its close
    clock: int | None  # the clock reading at this epoch
    greatest: int = NEVER  # the greatest known timestamp, if the watermark becomes infinite
    by_stop: bool = False  # whether a stop made it infinite, now or before


@dataclass
class PlainTimers:
    """Timers of a fold; the fold sets timers through this object."""

    unit: str
    time: int = 0
    key: Any = None
    seen: int = NEVER  # the watermark
    is_firing: bool = False
    ticked: bool = False  # whether the clock was read at this close
    clock: int = NEVER
    finite: int = NEVER  # the last watermark before the infinite one
    limit: int = NEVER  # the greatest timestamp known when the key's timers began to fire
    early: int = NEVER  # the greatest timestamp whose timer fired under the infinite watermark
    told: int = NEVER  # the clock at its last reading
    dropped: int = 0
    count: int = 0
    epochs: dict[int, list[tuple[Any, Any]]] = field(default_factory=lambda: defaultdict(list))
    events: list[tuple[int, int, Any, Any]] = field(default_factory=list)  # micros, order of setting, key, payload
    clocks: list[tuple[int, int, Any, Any]] = field(default_factory=list)
    unbegun: list[tuple[int, Any, Any]] = field(default_factory=list)  # micros, key, payload

    @property
    def watermark(self) -> Any:
        return None if self.seen == NEVER else in_unit(self.seen, self.unit)

    def at(self, time: int, payload: Any) -> None:
        assert time > self.time
        self.epochs[time].append((self.key, payload))

    def at_event(self, timestamp: Any, payload: Any) -> None:
        micros = micros_of(timestamp, self.unit)
        if not self._drops(micros <= self.limit):
            self.events.append((micros, self._next(), self.key, payload))

    def after(self, seconds: float, payload: Any) -> None:
        if not self._drops():
            self.unbegun.append((round(seconds * 1_000_000), self.key, payload))
            if self.ticked or self.clock == INFINITE:
                self.begin()

    def begin(self) -> None:
        """Start the delays of the timers that wait for a clock reading."""
        for micros, key, payload in sorted(self.unbegun, key=lambda each: each[0]):
            self.clocks.append((min(self.clock + micros, INFINITE), self._next(), key, payload))
        self.unbegun.clear()

    def due(self) -> Any:
        """Return a key whose timers must fire now, or None."""
        lines = (self.events, self.seen), (self.clocks, self.clock)
        return next((each[2] for timers, limit in lines for each in timers if each[0] <= limit), None)

    def first_of(self, key: Any) -> list[Any]:
        """Remove and return the payloads that are due for a key's first timestamp. Clock timers come last."""
        for timers, limit in ((self.events, self.seen), (self.clocks, self.clock)):
            mine = sorted(each[:2] + each[3:] for each in timers if each[0] <= limit and each[2] == key)
            if mine:
                timers[:] = [each for each in timers if (each[0], each[2]) != (mine[0][0], key)]
                if self.seen == INFINITE and timers is self.events:
                    self.early = max(mine[0][0], self.early)
                return [payload for micros, _, payload in mine if micros == mine[0][0]]
        return []

    def next_run(self) -> int:
        """Begin another run. Return the greatest timestamp whose timer fired early in the last one."""
        early, self.early = self.early, NEVER
        self.clock = self.told
        return early

    def begin_key(self, key: Any) -> None:
        """Note the latest timestamp for which a key may set timers while its timers fire."""
        self.limit = max([self.finite, *(micros for micros, _, other, _ in self.events if other == key)])

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _drops(self, is_known: bool = False) -> bool:
        drops = self.is_firing and self.seen == INFINITE and not is_known
        self.dropped += drops
        return drops


class PlainFold:
    """Unary fold with timers."""

    def next_run(self) -> int:
        """Begin another run. Return the greatest timestamp that was reached early in the last one."""
        return self.timers.next_run()

    def __init__(self, fold: Callable[..., Any], unit: str) -> None:
        self._fold = fold
        self._states: dict[Any, Any] = {}
        self.timers = PlainTimers(unit)

    def times(self) -> Iterable[int]:
        """The epochs for which timers are set."""
        return self.timers.epochs.keys()

    def step(self, moment: Moment, records: list[Stamped]) -> list[Any]:
        """Return the outputs of an epoch."""
        timers, out = self.timers, list[Any]()
        timers.time, timers.seen, timers.ticked = moment.time, moment.before, False
        groups: dict[Any, list[Any]] = defaultdict(list)
        for key, value in (*timers.epochs.pop(moment.time, ()), *(record for _, record, _ in records)):
            groups[key].append(value)
        self._call(groups, out)
        timers.seen = moment.after
        timers.told = timers.told if moment.clock is None else moment.clock
        clock = INFINITE if moment.after == INFINITE else moment.clock
        if clock is not None:
            timers.clock, timers.ticked = max(clock, timers.clock), True
            timers.begin()
        if moment.before < INFINITE:
            timers.finite = max(moment.before, moment.greatest)
        timers.is_firing = True
        while (key := timers.due()) is not None:
            timers.begin_key(key)
            while values := timers.first_of(key):
                self._call({key: values}, out)
        timers.is_firing = False
        return out

    def _call(self, groups: dict[Any, list[Any]], out: list[Any]) -> None:
        for key, values in groups.items():
            self.timers.key = key
            state, outputs = self._fold(key, self.timers.time, values, self._states.pop(key, None), self.timers)
            if state is not None:
                self._states[key] = state
            out += outputs


class PlainLasting:
    """Fold record by record whose states expire: by the clock if `by_clock`, else by timestamps."""

    def __init__(self, fold: Callable[..., Any], ttl: int, by_clock: bool) -> None:
        self._fold = fold
        self._ttl = ttl
        self._by_clock = by_clock
        self._clock = NEVER
        self._states: dict[Any, tuple[int | None, Any]] = {}  # key -> (since when, state); None: since the next reading
        self.stamped: list[Stamped] = []  # the outputs of the last epoch, with the stamps of their records

    def next_run(self) -> int:
        """Return NEVER: this fold reaches nothing early."""
        return NEVER

    def times(self) -> Iterable[int]:
        """Return nothing: this fold sets no timers."""
        return ()

    def step(self, moment: Moment, records: list[Stamped]) -> list[Any]:
        """Return the outputs of an epoch."""
        out: list[Any] = []
        self.stamped = []
        reached = moment.before if moment.before < INFINITE else NEVER
        for micros, (key, value), bound in records:
            since, state = self._states.pop(key, (None, None))
            if not self._by_clock and since is not None and max(micros, bound, reached) - since >= self._ttl:
                since, state = None, None
            state, outputs = self._fold(key, value, state)
            out += outputs
            self.stamped += [(micros, output, bound) for output in outputs]
            if state is not None:
                last = micros if since is None else max(since, micros)
                self._states[key] = (None if self._by_clock else last, state)
        if moment.after < INFINITE:
            self._end(moment)
        return out

    def _end(self, moment: Moment) -> None:
        now = moment.after
        if self._by_clock:
            now = self._clock = max(self._clock, NEVER if moment.clock is None else moment.clock)
            if moment.clock is not None:
                self._states = {key: (now if t is None else t, state) for key, (t, state) in self._states.items()}
        self._states = {key: kept for key, kept in self._states.items() if kept[0] is None or kept[0] + self._ttl > now}


@dataclass(frozen=True)
class Windows:
    """Windows of one kind, in microseconds. Sessions have a `gap` and none of `size`, `every` and `offset`."""

    size: int = 0
    every: int = 0
    offset: int = 0
    gap: int = 0
    lateness: int = 0  # includes the lateness of the windows before these
    emit: str | None = None
    marks: bool = field(default=False, repr=False)  # the rest of a program is drawn by its repr

    def spans(self, micros: int) -> list[tuple[int, int]]:
        """Return all windows of a timestamp."""
        least = (micros - self.size - self.offset) // self.every * self.every + self.offset
        starts = range(least, micros + 1, self.every)
        return [(start, start + self.size) for start in starts if start <= micros < start + self.size]


@dataclass(frozen=True)
class Result:
    """A closed window of a key, its early result, or the early result of a session that now has other bounds."""

    key: Any
    start: int
    end: int
    records: tuple[Stamped, ...]  # values without keys, in the order of arrival
    is_final: bool = True
    is_removed: bool = False

    @property
    def kind(self) -> str:
        """Return its kind, as marks name it."""
        return "removed" if self.is_removed else "final" if self.is_final else "early"


class PlainWindows:
    """All windows of all keys."""

    def next_run(self) -> int:
        """Begin another run. Return the greatest watermark that a window closed early would have waited for."""
        early, self._early = self._early, NEVER
        return early

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._aligned: dict[Any, dict[tuple[int, int], list[Stamped]]] = defaultdict(dict)
        self._sessions: dict[Any, list[Stamped]] = defaultdict(list)  # records of open sessions
        self._early = NEVER

    def times(self) -> Iterable[int]:
        """Return nothing: windows set no timers for epochs."""
        return ()

    def step(self, moment: Moment, records: list[Stamped]) -> tuple[list[Result], list[Stamped]]:
        """Return the results and the late records of an epoch."""
        out, late = list[Result](), list[Stamped]()
        groups: dict[Any, list[Stamped]] = defaultdict(list)
        for micros, (key, value), bound in records:
            groups[key].append((micros, value, bound))
        for key, given in groups.items():
            for some in [[each] for each in given] if self._windows.emit == "every" else [given]:
                found, behind = self._take(key, some, moment.before)
                late += [(micros, (key, value), bound) for micros, value, bound in behind]
                if self._windows.emit is not None:
                    out += [replace(each, is_final=False) for each in found]
        closed = self._close(moment.after)
        if moment.after == INFINITE and moment.by_stop:
            closed = [replace(each, is_final=False) for each in closed]
        return out + closed, late

    def _take(self, key: Any, records: list[Stamped], watermark: int) -> tuple[list[Result], list[Stamped]]:
        """Add records; return the windows that changed, and the late records."""
        if self._windows.gap:
            return self._take_into_sessions(key, records, watermark)
        spans, late, changed = self._aligned[key], [], set()
        for record in records:
            limit = _furthest(record, watermark)
            taking = [span for span in self._windows.spans(record[0]) if limit < span[1] + self._windows.lateness]
            for span in taking:
                spans.setdefault(span, []).append(record)
            changed.update(taking)
            if not taking:
                late.append(record)
        return [Result(key, *span, tuple(spans[span])) for span in sorted(changed)], late

    def _take_into_sessions(
        self, key: Any, records: list[Stamped], watermark: int
    ) -> tuple[list[Result], list[Stamped]]:
        late = [record for record in records if record[0] + self._windows.lateness < _furthest(record, watermark)]
        taken = [record for record in records if record not in late]
        before = self._runs(key)
        self._sessions[key] += taken
        now = self._runs(key)
        changed = [run for run in now if any(run.start <= each[0] < run.end for each in taken)]
        if self._windows.marks:
            kept = {(run.start, run.end) for run in now}
            gone = [replace(run, is_removed=True) for run in before if (run.start, run.end) not in kept]
            changed = gone + changed
        return changed, late

    def _runs(self, key: Any) -> list[Result]:
        """Return the sessions of a key."""
        kept = self._sessions[key]
        runs: list[list[int]] = []
        for micros in sorted(micros for micros, *_ in kept):
            if runs and micros - runs[-1][-1] < self._windows.gap:
                runs[-1].append(micros)
            else:
                runs.append([micros])
        bounds = [(run[0], run[-1]) for run in runs]
        return [
            Result(key, first, last + self._windows.gap, tuple(each for each in kept if first <= each[0] <= last))
            for first, last in bounds
        ]

    def _close(self, watermark: int) -> list[Result]:
        closed: list[Result] = []
        for key, spans in self._aligned.items():
            for span in [span for span in spans if span[1] + self._windows.lateness <= watermark]:
                closed.append(Result(key, *span, tuple(spans.pop(span))))
        for key, kept in self._sessions.items():
            due = [run for run in self._runs(key) if run.end + self._windows.lateness <= watermark]
            for run in due:
                kept[:] = [record for record in kept if not run.start <= record[0] < run.end]
            closed += due
        if watermark == INFINITE:
            self._early = max([self._early, *(each.end + self._windows.lateness for each in closed)])
        return closed


def _furthest(record: Stamped, watermark: int) -> int:
    """Return how far event time has advanced for a record."""
    return record[2] if watermark == INFINITE else max(record[2], watermark)
