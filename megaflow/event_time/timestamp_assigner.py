"""Source of event time: the operators `event_time`, which give each record its timestamp and know the greatest.

A record's timestamp is a stamp in microseconds beside it (`operators.stamped`). The operator reads the results of the
program's function in the stream's unit (`stream_unit`).

The progress of event time is known by *partition*: a file, a partition of a source, a query of Spark. So an operator
must see the records of one partition apart from those of others. As soon as there is such an operator, sources name the
partition of each batch (`timely.dataflow.partition_tag`). Only stateless operators that stay on the worker may stand
between the operator and its inputs. A source never mixes partitions in a batch, and those operators turn a batch into
batches of the same partition. Behind an exchange, or a state, the partition is lost; the build refuses such an
operator.

A batch's tag consists of its partition's kind and identity. The operator keeps the running maximum of each partition
that is read here, until the partition is read to its end or handed back. The bounds at its records follow from the
maximum (`record_bounds`), and records below it are counted by how far they are below (`lateness`). For files, which are
many in some jobs, the operator also keeps the first timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.event_time.lateness import LatenessHistogram
from megaflow.event_time.windows import Length, length_of
from megaflow.megaphone.base.event_inputs import NAME, EventTimes, EventTimeSpec
from megaflow.megaphone.base.event_unit import GREATEST, LEAST, NEVER, UNITS
from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.timely.dataflow import argument_checks
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.operators import stamped
from megaflow.timely.dataflow.partition_tag import Tagged, followed

T = TypeVar("T")

_WITH_FIRST: Final = "split"  # the kind of partition that is a file, or a piece of one
_IN_NO_ORDER: Final = "spark"  # the kind that all workers read at once


class FunctionStamper(Generic[T]):
    """Base of the stampers, which give each record the timestamp that a function of the program returns for it."""

    _what = "record"  # in errors

    def __init__(self, title: str, timestamp: Callable[[T], Any], unit: StreamUnit) -> None:
        """`title`: its name and the line that declares it."""
        self.timestamp = timestamp
        self._title = title
        self._unit = unit
        self._fast: Callable[[Any, T], int] | None = None  # instead of `_stamp`, once the unit is known, for numbers

    def _stamping(self) -> Callable[[Any, T], int]:
        """Return the function that makes microseconds of what the program's function has returned for a record."""
        known = self._unit.known
        if self._fast is None and known is not None and known.scale:
            self._fast = of_numbers(known.scale, self._stamp)
        return self._fast or self._stamp

    def _stamp(self, given: Any, record: T) -> int:
        """Return a timestamp in microseconds. Raises ProgramError, which shows the record."""
        try:
            return self._unit.micros(given)
        except ValueError as error:
            raise ProgramError(
                f"{self._title}: no timestamp for the {self._what} {record!r:.200}: {error}{self._others()}"
            ) from None

    def _others(self) -> str:
        """Return the end of the text of that error."""
        return ""


class TimestampAssigner(FunctionStamper[T]):
    """Stamper of one stream's records on one worker; keeps the greatest timestamp of each tag."""

    def __init__(self, title: str, timestamp: Callable[[T], Any], unit: StreamUnit, out_of_order: int = 0) -> None:
        """`out_of_order`: microseconds by which a record may be below the running maximum but not below its bound."""
        super().__init__(title, timestamp, unit)
        self._met: set[Any] = set()  # tags of files from which records have come
        self._first: int | None = None  # timestamp of the first record of the present batch, for a new file
        self._firsts: dict[Any, int] = {}  # tag -> its first timestamp, until taken
        self._out_of_order = out_of_order
        self.running: dict[Any, int] = {}  # tag -> greatest timestamp so far, of partitions that are read here
        self._late: dict[Any, LatenessHistogram] = {}  # tag -> counts of its records below that maximum, until taken
        self._fresh: dict[Any, int] = {}  # tag -> maximum, if records have come since it was last taken
        self._cuts: dict[int, dict[Any, int] | None] = {}  # epoch -> maxima before it; None: nothing of it has come

    def begin(self, batch: list[Any]) -> tuple[Callable[[Any, T], int], int, Callable[[int, int], int]]:
        """Begin with a batch, or with the batch from which it was made.

        Return three things: a function that turns the program's result into a timestamp, the running maximum, and a
        function that makes the stamp of a timestamp below that maximum.
        """
        greatest = NEVER
        below: Callable[[int, int], int] = as_it_is
        if type(batch) is Tagged:
            tag = batch.tag
            if tag[0] != _IN_NO_ORDER:
                greatest, below = self.running.get(tag, NEVER), self._counting(tag, self._out_of_order)
            if self._is_new(tag):
                self._first = None
                return self._stamp_first, greatest, below
        return self._stamping(), greatest, below

    def end(self, time: Any, batch: list[Any], greatest: int, has_come: bool) -> None:
        """Note the running maximum after a batch; `has_come`: whether the batch had a record."""
        if not has_come or type(batch) is not Tagged:
            return
        tag = batch.tag
        if self._is_new(tag):
            assert self._first is not None, "a record has come"
            self._met.add(tag)
            self._firsts[tag] = self._first
        for cut, kept in self._cuts.items():
            if kept is None and time >= cut:
                self._cuts[cut] = dict(self.running)
        self.running[tag] = self._fresh[tag] = max(greatest, self.running.get(tag, NEVER))
        if (late := self._late.get(tag)) is not None:
            late.settle()

    def take(self) -> tuple[dict[Any, int], dict[Any, int], list[tuple[Any, tuple[tuple[int, int], ...], int]]]:
        """Return the running maxima of the tags from which records have come since the last call.

        Also return the first timestamps of new files, and the counts of records below the maxima.
        """
        maxima, firsts, late = self._fresh, self._firsts, []
        if maxima:
            self._fresh, self._firsts = {}, {}
        for tag in maxima:
            seen = self._late.get(tag)
            if seen is not None and seen.counts:
                late.append((tag, *seen.take()))
            if tag not in self.running:
                self._late.pop(tag, None)
        return maxima, firsts, late

    def bound(self, tag: Any) -> int:
        """Return the bound of the next records of a partition that is in `running`."""
        return self.running[tag] - self._out_of_order

    def begin_with(self, tag: Any, maximum: int | None) -> None:
        """Begin with a partition that another worker may have read in part; None: it has no maximum yet."""
        self.forget(tag)
        if maximum is not None:
            self.running[tag] = maximum

    def forget(self, tag: Any) -> None:
        """Forget a partition that will send no further records."""
        self.running.pop(tag, None)
        if tag not in self._fresh:  # otherwise its counts are still to be taken
            self._late.pop(tag, None)

    def cut(self, time: int) -> None:
        """Keep the running maxima as they are before the first batch of this epoch or later; none has come yet."""
        self._cuts[time] = None

    def at_cut(self, time: int) -> dict[Any, int]:
        """Return these maxima, once. If no such batch has come, they are the present ones."""
        kept = self._cuts.pop(time, None)
        return dict(self.running) if kept is None else kept

    def _counting(self, tag: Any, slack: int) -> Callable[[int, int], int]:
        seen = self._late.get(tag)
        if seen is None:
            seen = self._late[tag] = LatenessHistogram()
        return seen.counting(slack)

    def _is_new(self, tag: Any) -> bool:
        return tag[0] == _WITH_FIRST and tag not in self._met

    def _stamp_first(self, given: Any, record: T) -> int:
        micros = self._stamp(given, record)
        if self._first is None:
            self._first = micros
        return micros

    def _others(self) -> str:
        shared = self._unit.titles
        return "" if shared == self._title else f" (the streams of {shared} were combined)"


def as_it_is(micros: int, maximum: int) -> int:
    """Return a timestamp below the maximum as its stamp."""
    return micros


def of_numbers(scale: int, otherwise: Callable[[Any, T], int]) -> Callable[[Any, T], int]:
    """Return a function that turns ints and floats, in units of `scale` microseconds, into microseconds.

    It passes all other values to `otherwise`.

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


def event_time(
    port: Port[T], timestamp: Callable[[T], Any], out_of_order: Length, unit: str | None, name: str,
    advances: bool = False,
) -> tuple[Port[stamped.Stamped[T]], StreamUnit]:
    """Give each record of a port its timestamp; return the port of pairs, and their unit. Raises BuildError."""
    where = user_line()
    argument_checks.function(name, timestamp, "timestamp")
    late = length_of(argument_checks.name(name, "an event_time"), "out_of_order", out_of_order, is_length=False)
    if late < 0:
        raise BuildError(
            f"{name} ({where}): out_of_order, by how much a record may be late, cannot be {out_of_order!r}; use 0 for "
            "in-order records"
        )
    if unit is not None and unit not in UNITS:
        words = ", ".join(map(repr, UNITS))
        raise BuildError(f"{name} ({where}): unit must be one of {words}, not {argument_checks.shown(unit)}")
    times = port.scope.graph.extension(EventTimes)
    if name in times.operators:
        if name != NAME:
            raise BuildError(f"{name} ({where}): another event_time already has this name; give each its own")
        name = next(each for n in range(2, len(times.operators) + 3) if (each := f"{NAME}_{n}") not in times.operators)
    title = f"{name} ({where})"
    counted = StreamUnit(None if unit is None else UNITS[unit], title)
    clock = TimestampAssigner(title, timestamp, counted, late)
    times.operators[name] = EventTimeSpec(late, followed(port, times.inputs, title), counted, clock, advances)
    return stamped.with_stamps(port, name, clock), counted
