"""Accumulators: how the records of a window are accumulated, in parts that are combined later.

A window has one accumulation for each aggregate of its stream. Accumulations are plain values, never None, that travel
and are written with the key's state. An `Accumulator` makes one kind of them:
 1. `add` takes the records of a pane or session that came at one epoch. It may change and return its argument.
 2. `together` combines several accumulations, in the order of their panes or sessions, and changes none of them: a pane
    is part of several windows. The result shares no mutable object with the parts.
 3. `result` returns the value that is sent. It is called once for an accumulation, which is then forgotten.

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
    """Protocol of one kind of accumulation."""

    verb: str  # the method of the stream

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Return the accumulation with these records, at least one. `accumulated` is None for the first ones."""

    def together(self, parts: Sequence[Any]) -> Any:
        """Return the combination of several accumulations, at least one."""

    def result(self, accumulated: Any) -> Any:
        """Return the result of a window."""


class Count:
    """Number of records."""

    verb = "count"

    def add(self, accumulated: int | None, records: list[Stamped]) -> int:
        """Add the number of the records. Cost: O(1)."""
        return len(records) if accumulated is None else accumulated + len(records)

    def together(self, parts: Sequence[int]) -> int:
        """Return their sum."""
        return sum(parts)

    def result(self, accumulated: int) -> int:
        """Return it."""
        return accumulated


class Sum:
    """Sum of the values."""

    verb = "sum"

    def __init__(self, name: str) -> None:
        self._name = name  # the operator's

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Add the values. Raises ProgramError for a value that is not a number."""
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
    """Mean of the values, kept as their number and sum."""

    verb = "mean"

    def __init__(self, name: str) -> None:
        self._sum = Sum(name)
        self._sum.verb = self.verb

    def add(self, accumulated: tuple[int, Any] | None, records: list[Stamped]) -> tuple[int, Any]:
        """Add the values. Raises ProgramError for a value that is not a number."""
        count, total = accumulated or (0, None)
        return count + len(records), self._sum.add(total, records)

    def together(self, parts: Sequence[tuple[int, Any]]) -> tuple[int, Any]:
        """Return the number of values, and their sum."""
        return sum(count for count, _ in parts), self._sum.together([total for _, total in parts])

    def result(self, accumulated: tuple[int, Any]) -> Any:
        """Return the mean."""
        count, total = accumulated
        return total / count


class Extreme:
    """The least or the greatest value, the first of equal ones."""

    def __init__(self, verb: str, choose: Callable[..., Any], name: str) -> None:
        """`choose`: `min` or `max`."""
        self.verb = verb
        self._choose = choose
        self._name = name

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Choose among the values so far. Raises ProgramError for None and for values that cannot be compared."""
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
    """All values in the order of their timestamps; those of equal timestamps in order of arrival."""

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
    """Accumulation by functions of the user."""

    def __init__(
        self,
        verb: str,
        name: str,
        begin: Callable[[], Any] | None,
        add: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None,
    ) -> None:
        """`begin` makes the first accumulation; None: the first value is the accumulation.

        `merge` may be None for windows that never combine accumulations.
        """
        self.verb = verb
        self._name = name
        self._begin = begin
        self._add = add
        self._merge = merge

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Fold the values. Raises ProgramError if that returns None."""
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
    """All aggregates of a windowed stream. The list grows while the dataflow is built, and not afterwards.

    A list of accumulations has one of each, in this order.
    """

    def begin(self, records: list[Stamped]) -> list[Any]:
        """Return the accumulations of the first records."""
        return [each.add(None, records) for each in self]

    def add_to(self, accumulated: list[Any], records: list[Stamped]) -> None:
        """Add these records to the accumulations."""
        if len(accumulated) != len(self):
            raise ProgramError(
                f"a window of an earlier run has {len(accumulated)} aggregations, but the program now has "
                f"{len(self)}; give the windows the next version= and an upgrade=, or another name to start with "
                "empty windows"
            )
        for number, each in enumerate(self):
            accumulated[number] = each.add(accumulated[number], records)

    def together(self, parts: Sequence[list[Any]]) -> list[Any]:
        """Return the combination of several lists."""
        return [each.together(column) for each, column in zip(self, zip(*parts))]

    def results(self, accumulated: list[Any]) -> list[Any]:
        """Return the result of each."""
        return [each.result(part) for each, part in zip(self, accumulated)]


def by_reduction(name: str, f: Callable[[Any, Any], Any]) -> ByFunctions:
    """Return the accumulator of `reduce(f)`. Raises BuildError unless `f` is a function."""
    function(name, f, "the function of reduce")
    return ByFunctions("reduce", name, None, f, f)


def by_fold(
    name: str, init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any] | None, is_merged: bool
) -> ByFunctions:
    """Return the accumulator of `fold(init, add, merge)`. Raises BuildError.

    `is_merged`: the windows combine accumulations, so `merge` is required.
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
