"""Accumulators: what is made of a window's records, in parts that are put together.

A window has one accumulation for each of what its stream is aggregated to. They are plain values, never None, that
travel and are written with the key's state. An `Accumulator` says how one is made:
 1. `add` takes the records of a pane or session that came at one epoch; what it was given it may change and return.
 2. `together` makes one accumulation of several, in the order of their panes or sessions, and changes none of them: a
    pane is part of several windows. What can change in the result is in none of the parts.
 3. `result` gives what is sent. It is called once for an accumulation, after which the accumulation is forgotten.

Sums are added one value at a time, so floats are rounded as in a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from itertools import chain
from numbers import Number
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.aggregates import begins_with
from megaflow.timely.dataflow.error_notes import raised_by_loop, user_line
from megaflow.timely.dataflow.given import function
from megaflow.timely.dataflow.record_copies import copies_of

Stamped: TypeAlias = tuple[int, Any]  # a timestamp in microseconds, and a value

_NUMBERS: Final = frozenset({int, float, bool})  # and what else says that it is a Number
_TIMESTAMP: Final = itemgetter(0)


class Accumulator(Protocol):
    """How one kind of accumulation is made."""

    verb: str  # the method of the stream

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Return what there is with these records, at least one; `accumulated` is None if there was nothing."""

    def together(self, parts: Sequence[Any]) -> Any:
        """Return what several, at least one, are together."""

    def result(self, accumulated: Any) -> Any:
        """Return the result of a window."""


class Count:
    """How many records there are."""

    verb = "count"

    def add(self, accumulated: int | None, records: list[Stamped]) -> int:
        """Add how many there are. Cost: O(1)."""
        return len(records) if accumulated is None else accumulated + len(records)

    def together(self, parts: Sequence[int]) -> int:
        """Return their sum."""
        return sum(parts)

    def result(self, accumulated: int) -> int:
        """Return it."""
        return accumulated


class Sum:
    """The sum of the values."""

    verb = "sum"

    def __init__(self, name: str) -> None:
        self._name = name  # the operator's

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Add the values. Raises ProgramError for one that is no number."""
        total = 0 if accumulated is None else accumulated
        kinds = _NUMBERS
        for _, value in records:
            if type(value) not in kinds and not isinstance(value, Number):
                raise ProgramError(
                    f"{self._name}: the value {value!r:.200} is a {type(value).__name__}, but only numbers have a "
                    f"{self.verb}; map or filter the stream first, or use fold"
                )
            total = self._plus(total, value)
        return total

    def _plus(self, total: Any, value: Any) -> Any:
        try:
            return total + value
        except TypeError as error:
            raise ProgramError(
                f"{self._name}: {value!r:.200}, a {type(value).__name__}, cannot be added to {total!r:.200}, a "
                f"{type(total).__name__}; map the stream to numbers of one type first"
            ) from error

    def together(self, parts: Sequence[Any]) -> Any:
        """Return their sum."""
        return reduce(self._plus, parts)

    def result(self, accumulated: Any) -> Any:
        """Return it."""
        return accumulated


class Mean:
    """The mean of the values, from how many there are and their sum."""

    verb = "mean"

    def __init__(self, name: str) -> None:
        self._sum = Sum(name)
        self._sum.verb = self.verb

    def add(self, accumulated: tuple[int, Any] | None, records: list[Stamped]) -> tuple[int, Any]:
        """Add the values. Raises ProgramError for one that is no number."""
        count, total = accumulated or (0, None)
        return count + len(records), self._sum.add(total, records)

    def together(self, parts: Sequence[tuple[int, Any]]) -> tuple[int, Any]:
        """Return how many there are, and their sum."""
        return sum(count for count, _ in parts), self._sum.together([total for _, total in parts])

    def result(self, accumulated: tuple[int, Any]) -> Any:
        """Return the mean."""
        count, total = accumulated
        return total / count


class Extreme:
    """The least or the greatest value; of equal ones the first."""

    def __init__(self, verb: str, choose: Callable[..., Any], name: str) -> None:
        """`choose`: `min` or `max`."""
        self.verb = verb
        self._choose = choose
        self._name = name

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Choose among what there is. Raises ProgramError for values that cannot be compared, and for None."""
        values = [value for _, value in records]
        chosen = self.together(values if accumulated is None else [accumulated, *values])
        if chosen is None:
            raise ProgramError(
                f"{self._name}: the value None cannot be ordered; filter such records first, or use fold"
            )
        return chosen

    def together(self, parts: Sequence[Any]) -> Any:
        """Return the chosen one."""
        try:
            return self._choose(parts)
        except TypeError as error:
            if not raised_by_loop(error):
                raise
            kinds = ", ".join(sorted({type(part).__name__ for part in parts}))
            raise ProgramError(
                f"{self._name}: {self.verb} needs values that can be compared, but these are of types {kinds}: "
                f"{error}; map or filter the stream first"
            ) from error

    def result(self, accumulated: Any) -> Any:
        """Return it."""
        return accumulated


class Collect:
    """All values in the order of their timestamps; of equal timestamps in the order in which they came."""

    verb = "collect"

    def add(self, accumulated: list[Stamped] | None, records: list[Stamped]) -> list[Stamped]:
        """Keep the records. Cost: linear in them."""
        if accumulated is None:
            return list(records)
        accumulated += records
        return accumulated

    def together(self, parts: Sequence[list[Stamped]]) -> list[Stamped]:
        """Return them all."""
        return list(chain.from_iterable(parts))

    def result(self, accumulated: list[Stamped]) -> list[Any]:
        """Return the values."""
        return [value for _, value in sorted(accumulated, key=_TIMESTAMP)]


class ByFunctions:
    """What functions of the user's make of the values."""

    def __init__(
        self,
        verb: str,
        name: str,
        begin: Callable[[], Any] | None,
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None,
    ) -> None:
        """`begin`: what makes the first accumulation; None: it is the first value. `merge` may be None for windows
        of which nothing is put together."""
        self.verb = verb
        self._name = name
        self._begin = begin
        self._add = add
        self._merge = merge

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Fold the values. Raises ProgramError if that gives None."""
        values = [value for _, value in records]
        if accumulated is None and self._begin is None:
            [accumulated], values = copies_of(values[:1]), values[1:]  # the function may change it, and others have it
            self._check(accumulated, f"the first value, {accumulated!r:.200},")
        elif accumulated is None:
            assert self._begin is not None
            accumulated = self._begin()
        add = self._add
        for value in values:
            accumulated = add(accumulated, value)
            if accumulated is None:
                self._check(None, f"the function, given {value!r:.200},")
        return accumulated

    def together(self, parts: Sequence[Any]) -> Any:
        """Merge them; a copy of the only one."""
        merged, *others = parts
        if not others:
            return deepcopy(merged)
        assert self._merge is not None, "said when the dataflow is built"
        for part in others:
            before, merged = merged, self._merge(merged, part)
            if merged is None:
                self._check(merged, f"merge({before!r:.99}, {part!r:.99})")
        return deepcopy(merged) if any(merged is part for part in parts) else merged

    def _check(self, accumulated: Any, call: str) -> None:
        if accumulated is None:
            raise ProgramError(
                f"{self._name}: {call} returned None to {self.verb}; it must return the accumulated value, because "
                "None means that there is none"
            )

    def result(self, accumulated: Any) -> Any:
        """Return it."""
        return accumulated


class Accumulators(list[Accumulator]):
    """All that a windowed stream is aggregated to: it grows while the dataflow is built, and not afterwards.

    A list of accumulations has one of each, in this order.
    """

    def begin(self, records: list[Stamped]) -> list[Any]:
        """Return what there is of the first records."""
        return [each.add(None, records) for each in self]

    def add_to(self, accumulated: list[Any], records: list[Stamped]) -> None:
        """Add these records to what there is."""
        if len(accumulated) != len(self):
            raise ProgramError(
                f"a window of an earlier run has {len(accumulated)} aggregations, but the program now has "
                f"{len(self)}; give the windows the next version= and an upgrade=, or another name to start with "
                "empty windows"
            )
        for number, each in enumerate(self):
            accumulated[number] = each.add(accumulated[number], records)

    def together(self, parts: Sequence[list[Any]]) -> list[Any]:
        """Return what several lists are together."""
        return [each.together(column) for each, column in zip(self, zip(*parts))]

    def results(self, accumulated: list[Any]) -> list[Any]:
        """Return the result of each."""
        return [each.result(part) for each, part in zip(self, accumulated)]


def by_reduction(name: str, f: Callable[[Any, Any], Any]) -> ByFunctions:
    """Return the accumulator of `reduce(f)`. Raises BuildError for what is no function."""
    function(name, f, "the function of reduce")
    return ByFunctions("reduce", name, None, f, f)


def by_fold(
    name: str, init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any] | None, is_merged: bool
) -> ByFunctions:
    """Return the accumulator of `fold(init, add, merge)`. Raises BuildError.

    `is_merged`: whether the windows put accumulations together, so that it cannot be without `merge`.
    """
    function(name, add, "add")
    if merge is not None:
        function(name, merge, "merge")
    elif is_merged:
        raise BuildError(
            f"{name} ({user_line()}): fold needs merge(a, b) here, which combines two accumulated values: sliding "
            "windows consist of panes, and sessions can merge; only tumbling windows need none"
        )
    return ByFunctions("fold", name, begins_with("fold", init), add, merge)
