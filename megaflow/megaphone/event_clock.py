"""Where event time comes from: the operators `event_time`, which give each record its timestamp and know the greatest.

A record's timestamp is a stamp in microseconds beside it (`operators.stamped`). What the program's function gives is
read in the operator's unit; if the program names none the first record on a worker decides between seconds and
datetimes, and all others there must be of its kind.

How far event time is, is known by *partition*: a file, a partition of a source, a query of Spark. So an operator must
see what comes of one partition apart from what comes of others. A source says of each batch which one it is of
(`timely.dataflow.origin`), as soon as there is such an operator. It stands behind its inputs with nothing but stateless
operators in between that stay on the worker; a source never mixes partitions in a batch, and those operators make
batches of batches. Behind an exchange, or a state, nobody could tell any more: that is refused when the dataflow is
built.

An origin is what kind of partition it is and which. Of each partition that is read here the running maximum is kept,
from which the bounds at its records follow (`record_bounds`), until the partition is read to its end or handed back.
How far records are below it is counted (`lateness`). Of files, of which a job has so many, the first timestamp is of
use as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from datetime import datetime, timedelta
from itertools import chain
from math import isfinite
from typing import Any, Final, Generic, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.event_unit import GREATEST, INFINITE, LEAST, NEVER, UNITS, EventUnit
from megaflow.megaphone.lateness import LatenessHistogram
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow import given
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import stamped
from megaflow.timely.dataflow.origin import Traced, followed

T = TypeVar("T")

NAME: Final = "event_time"
_WITH_FIRST: Final = "split"  # the kind of partition that is a file, or a piece of one
_IN_NO_ORDER: Final = "spark"  # the kind that is read by all workers at once
_NO_BOUND: Final = INFINITE - NEVER  # slack, so that no timestamp is below its bound
_MICROSECOND: Final = timedelta(microseconds=1)


class StreamUnit:
    """In what the timestamps of a stream are counted, on one worker: said by the program, or by the first of them."""

    def __init__(self, known: EventUnit | None = None, title: str = "") -> None:
        self.known = known  # None: no timestamp has come yet; written once
        self.title = title  # the name and line of the `event_time` that it is of
        self._alike = [self]  # those that are the same, of streams that were put together

    def agree(self, others: Iterable[StreamUnit]) -> None:
        """Have these be the same as this one, whichever is known first.

        Raises BuildError if they cannot be: where no unit was said numbers are seconds.
        """
        alike = list(dict.fromkeys(chain(self._alike, *(each._alike for each in others))))
        words = sorted({each._word for each in alike})
        known = {each.known for each in alike} - {None}
        if len(known) > 1 or (len(words) > 1 and known & {EventUnit.MILLISECONDS, EventUnit.MICROSECONDS}):
            which = ", ".join(f"{each.title} in {each._word}" for each in alike)
            several = " and ".join(words)
            raise BuildError(
                f"concat ({user_line()}): the timestamps of these streams have different units, {several}: {which}; "
                "give them one unit"
            )
        for each in alike:
            each._alike = alike
            each.known = next(iter(known), None)

    @property
    def _word(self) -> str:
        return "seconds or datetimes" if self.known is None else self.known.plural

    @property
    def titles(self) -> str:
        """The names and lines of all whose timestamps are in it."""
        return " and ".join(dict.fromkeys(each.title for each in self._alike))

    def micros(self, value: Any) -> int:
        """Return a time in microseconds; if it is the first, it decides. Raises ValueError with the reason."""
        if self.known is not None:
            return self.known.micros(value)
        unit = EventUnit.DATETIME if isinstance(value, datetime) else EventUnit.SECONDS
        micros = unit.micros(value)
        self.learn(unit)
        return micros

    def learn(self, unit: EventUnit) -> None:
        """Know it, from a timestamp or from another worker. Raises ProgramError if it is known to be another."""
        if self.known not in (None, unit):
            raise ProgramError(
                f"{self.titles}: timestamps are {unit.plural} on one worker, but {self._word} on another; a stream "
                'needs one kind of timestamps: choose it with unit="datetime" or unit="s"'
            )
        for each in self._alike:
            each.known = unit

    def value(self, micros: int) -> Any:
        """Return a time as the program knows it, in seconds as long as the unit is not known."""
        return (self.known or EventUnit.SECONDS).value(micros)


IN_SECONDS: Final = StreamUnit(EventUnit.SECONDS)


class EventClock(Generic[T]):
    """What stamps the records of one stream on one worker, and keeps the greatest timestamp of each origin."""

    def __init__(self, title: str, timestamp: Callable[[T], Any], unit: StreamUnit, out_of_order: int = 0) -> None:
        """`out_of_order`: microseconds that a record may be below the running maximum without being below its bound."""
        self.timestamp = timestamp
        self._title = title  # its name and where it is declared
        self._unit = unit
        self._fast: Callable[[Any, T], int] | None = None  # instead of `_stamp`, once the unit is known, for numbers
        self._met: set[Any] = set()  # origins of records that have come, of those whose first one is to be known
        self._first: int | None = None  # timestamp of the first record of the present batch, whose origin is such a one
        self._firsts: dict[Any, int] = {}  # origin -> that, until it is taken
        self._out_of_order = out_of_order
        self.running: dict[Any, int] = {}  # origin -> greatest timestamp so far, of what is read here
        self._late: dict[Any, LatenessHistogram] = {}  # origin -> of its records that were below that, until taken
        self._fresh: dict[Any, int] = {}  # origin -> that, of those of which records have come, until it is taken
        self._cuts: dict[int, dict[Any, int] | None] = {}  # epoch -> maxima before it; None: nothing of it has come

    def begin(self, batch: list[Any]) -> tuple[Callable[[Any, T], int], int, Callable[[int, int], int]]:
        """Begin with a batch, or with what it was made of.

        Return what makes timestamps of what the program gives, the running maximum, and what makes stamps of timestamps
        below that.
        """
        greatest = NEVER
        below: Callable[[int, int], int] = _as_it_is
        if type(batch) is Traced:
            origin = batch.origin
            if origin[0] != _IN_NO_ORDER:
                greatest, below = self.running.get(origin, NEVER), self._counting(origin, self._out_of_order)
            if self._is_new(origin):
                self._first = None
                return self._stamp_first, greatest, below
        known = self._unit.known
        if self._fast is None and known is not None and known.scale:
            self._fast = of_numbers(known.scale, self._stamp)
        return self._fast or self._stamp, greatest, below

    def end(self, time: Any, batch: list[Any], greatest: int, has_come: bool) -> None:
        """Take note of the running maximum behind a batch; `has_come`: whether it had a record."""
        if not has_come or type(batch) is not Traced:
            return
        origin = batch.origin
        if self._is_new(origin):
            assert self._first is not None, "a record has come"
            self._met.add(origin)
            self._firsts[origin] = self._first
        if self._cuts:
            self._keep(time)
        self.running[origin] = self._fresh[origin] = max(greatest, self.running.get(origin, NEVER))
        if (late := self._late.get(origin)) is not None:
            late.settle()

    def take(self) -> tuple[dict[Any, int], dict[Any, int], list[tuple[Any, tuple[tuple[int, int], ...], int]]]:
        """Return running maxima of origins of which records have come since the last call.

        And the first timestamps, of files not met before, and what was counted of records below the maxima.
        """
        maxima, firsts, late = self._fresh, self._firsts, []
        if maxima:
            self._fresh, self._firsts = {}, {}
        for origin in maxima:
            seen = self._late.get(origin)
            if seen is not None and seen.counts:
                late.append((origin, *seen.take()))
            if origin not in self.running:
                self._late.pop(origin, None)
        return maxima, firsts, late

    def begin_with(self, origin: Any, maximum: int | None) -> None:
        """Begin with a partition, of which another worker may have seen a part; None: nothing was seen of it."""
        self.forget(origin)
        if maximum is not None:
            self.running[origin] = maximum

    def forget(self, origin: Any) -> None:
        """Forget a partition of which no record will come."""
        self.running.pop(origin, None)
        if origin not in self._fresh:  # or what was counted is still to be taken
            self._late.pop(origin, None)

    def cut(self, time: int) -> None:
        """Keep the running maxima as they are when the first batch of this epoch or later comes, which none has."""
        self._cuts[time] = None

    def at_cut(self, time: int) -> dict[Any, int]:
        """Return them, once; as they are, if no such batch has come."""
        kept = self._cuts.pop(time, None)
        return dict(self.running) if kept is None else kept

    def _keep(self, time: Any) -> None:
        for cut, kept in self._cuts.items():
            if kept is None and time >= cut:
                self._cuts[cut] = dict(self.running)

    def _counting(self, origin: Any, slack: int) -> Callable[[int, int], int]:
        seen = self._late.get(origin)
        if seen is None:
            seen = self._late[origin] = LatenessHistogram()
        return seen.counting(slack)

    def _is_new(self, origin: Any) -> bool:
        return origin[0] == _WITH_FIRST and origin not in self._met

    def _stamp_first(self, given: Any, record: T) -> int:
        micros = self._stamp(given, record)
        if self._first is None:
            self._first = micros
        return micros

    def _stamp(self, given: Any, record: T) -> int:
        """Return a timestamp in microseconds. Raises ProgramError, which has the record."""
        try:
            return self._unit.micros(given)
        except ValueError as error:
            shared = self._unit.titles
            others = "" if shared == self._title else f" (the streams of {shared} were combined)"
            raise ProgramError(f"{self._title}: no timestamp for the record {record!r:.200}: {error}{others}") from None


def _as_it_is(micros: int, maximum: int) -> int:
    return micros


def of_numbers(scale: int, otherwise: Callable[[Any, T], int]) -> Callable[[Any, T], int]:
    """Return what makes microseconds of ints and floats, `scale` of them in one; of all else `otherwise` does.

    >>> stamp = of_numbers(1000, lambda given, record: -1)
    >>> stamp(7, None), stamp(0.5, None), stamp(True, None), stamp(float("nan"), None), stamp(10**20, None)
    (7000, 500, -1, -1, -1)
    """
    least, greatest = -(-LEAST // scale), GREATEST // scale  # as local variables: measured, a third of the time

    def stamp(given: Any, record: T) -> int:
        if type(given) is int and least <= given <= greatest:
            return given * scale
        if type(given) is float and least <= given <= greatest:
            return round(given * scale)
        return otherwise(given, record)

    return stamp


@dataclass(frozen=True, slots=True)
class EventTimeSpec:
    """One operator `event_time`: the same on all workers, but for the unit while that is not known."""

    out_of_order: int  # microseconds that a record may come after a later one of its partition, and is not late
    follows: tuple[str, ...]  # the inputs that its records come from, in the order of their names
    unit: StreamUnit
    clock: EventClock[Any]  # of this worker
    advances: bool = False  # whether event time follows the clock while all partitions are idle


@dataclass(eq=False)
class EventTimes:
    """What a dataflow has to do with event time, on one worker; an extension of its graph."""

    operators: dict[str, EventTimeSpec] = field(default_factory=dict)  # name -> the operator
    inputs: dict[tuple[int, int], str] = field(default_factory=dict)
    """Node and output that carry an input of the job -> its name; written by whoever builds the sources."""


def event_time(
    port: Port[T], timestamp: Callable[[T], Any], out_of_order: float | timedelta, unit: str | None, name: str,
    advances: bool = False,
) -> tuple[Port[stamped.Stamped[T]], StreamUnit]:
    """Give each record of a port its timestamp; return the port of pairs, and their unit. Raises BuildError."""
    where = user_line()
    given.function(name, timestamp, "timestamp")
    late = _micros_late(f"{given.name(name, 'an event_time')} ({where})", out_of_order)
    if unit is not None and unit not in UNITS:
        words = ", ".join(map(repr, UNITS))
        raise BuildError(f"{name} ({where}): unit must be one of {words}, not {given.shown(unit)}")
    times = port.scope.graph.extension(EventTimes)
    if name in times.operators:
        if name != NAME:
            raise BuildError(f"{name} ({where}): another event_time already has this name; give each its own")
        name = next(each for n in range(2, len(times.operators) + 3) if (each := f"{NAME}_{n}") not in times.operators)
    title = f"{name} ({where})"
    counted = StreamUnit(None if unit is None else UNITS[unit], title)
    clock = EventClock(title, timestamp, counted, late)
    times.operators[name] = EventTimeSpec(late, followed(port, times.inputs, title), counted, clock, advances)
    return stamped.with_stamps(port, name, clock), counted


def _micros_late(title: str, seconds: float | timedelta) -> int:
    """Return a duration in microseconds. Raises BuildError unless it is one of at least 0."""
    if isinstance(seconds, timedelta):
        micros = seconds // _MICROSECOND
    elif type(seconds) in (int, float) and isfinite(seconds) and abs(seconds) <= GREATEST:
        micros = round(seconds * 1_000_000)
    else:
        raise BuildError(
            f"{title}: out_of_order must be a number of seconds or a timedelta, not {given.shown(seconds)}"
        )
    if micros < 0:
        raise BuildError(
            f"{title}: out_of_order, by how much a record may be late, cannot be {seconds!r}; use 0 for in-order "
            "records"
        )
    return micros


def carries(port: Port[Any], input: str) -> None:
    """Note that a port carries an input of the job."""
    port.scope.graph.extension(EventTimes).inputs[port.node, port.output] = input
