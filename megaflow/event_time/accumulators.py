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

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import reduce
from itertools import chain
from numbers import Number
from operator import itemgetter
from typing import Any, Final

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.folds.combining import begins_with, plain_number
from megaflow.megaphone.folds.ranking import Ranking, Stamped, by_function, top_count
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import function
from megaflow.timely.dataflow.error_notes import user_line
from megaflow.timely.dataflow.record_copies import copies_of

_NUMBERS: Final = frozenset({int, float, bool})  # and what else says that it is a Number
_TIMESTAMP: Final = itemgetter(0)


class Accumulator(ABC):
    """One kind of accumulation."""

    verb: str  # the method of the stream

    @abstractmethod
    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Return the accumulation with these records, at least one. `accumulated` is None for the first ones."""

    @abstractmethod
    def together(self, parts: Sequence[Any]) -> Any:
        """Return the combination of several accumulations, at least one."""

    def result(self, accumulated: Any) -> Any:
        """Return the result of a window: the accumulation itself, unless a subclass makes another value of it."""
        return accumulated


class Count(Accumulator):
    """Number of records."""

    verb = "count"

    def add(self, accumulated: int | None, records: list[Stamped]) -> int:
        """Add the number of the records. Cost: O(1)."""
        return len(records) if accumulated is None else accumulated + len(records)

    def together(self, parts: Sequence[int]) -> int:
        """Return their sum."""
        return sum(parts)


class Sum(Accumulator):
    """Sum of the values."""

    verb = "sum"

    def __init__(self, name: str) -> None:
        self._name = name  # the operator's

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Add the values. Raises ProgramError for a value that is not a number."""
        total = 0 if accumulated is None else plain_number(accumulated)  # an older version may have stored numpy's
        kinds = _NUMBERS
        for _, value in records:
            if type(value) not in kinds:
                if not isinstance(value, Number):
                    raise ProgramError(
                        f"{self._name}: the value {value!r:.200} is a {type(value).__name__}, but only numbers have a "
                        f"{self.verb}; map or filter the stream first, or use fold"
                    )
                value = plain_number(value)
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
        return reduce(self._plus, map(plain_number, parts))


class Mean(Sum):
    """Mean of the values, kept as their number and sum."""

    verb = "mean"

    def add(self, accumulated: tuple[int, Any] | None, records: list[Stamped]) -> tuple[int, Any]:
        """Add the values. Raises ProgramError for a value that is not a number."""
        count, total = accumulated or (0, None)
        return count + len(records), super().add(total, records)

    def together(self, parts: Sequence[tuple[int, Any]]) -> tuple[int, Any]:
        """Return the number of values, and their sum."""
        return sum(count for count, _ in parts), super().together([total for _, total in parts])

    def result(self, accumulated: tuple[int, Any]) -> Any:
        """Return the mean."""
        count, total = accumulated
        return total / count


class Extreme(Accumulator):
    """The least or the greatest value."""

    def __init__(self, ranking: Ranking[Any]) -> None:
        """`ranking`: of one value, which ranks by itself."""
        self.verb = ranking.verb
        self._ranking = ranking

    def add(self, accumulated: Any, records: list[Stamped]) -> Any:
        """Choose among the values so far. Raises ProgramError for None and for values that cannot be compared."""
        if accumulated is None:
            return self._ranking.best([value for _, value in records])
        if len(records) == 1:  # mostly
            return self._ranking.better(accumulated, records[0][1])
        return self._ranking.best([accumulated, *[value for _, value in records]])

    def together(self, parts: Sequence[Any]) -> Any:
        """Return the chosen one."""
        return self._ranking.best(parts)


class Best(Accumulator):
    """The best values by a function of the program, with their timestamps, best first."""

    def __init__(self, ranking: Ranking[Any], is_one: bool) -> None:
        """`is_one`: the result is the only value, not a list."""
        self.verb = ranking.verb
        self._ranking = ranking
        self._is_one = is_one

    def add(self, accumulated: list[Stamped] | None, records: list[Stamped]) -> list[Stamped]:
        """Put in the records. Raises ProgramError for a value that has no rank."""
        kept = [] if accumulated is None else accumulated
        self._ranking.take(kept, records)
        return kept

    def together(self, parts: Sequence[list[Stamped]]) -> list[Stamped]:
        """Return the best of all."""
        kept = list(parts[0])
        for part in parts[1:]:
            self._ranking.take(kept, part)
        return kept

    def result(self, accumulated: list[Stamped]) -> Any:
        """Return the value, or the list of the values."""
        return accumulated[0][1] if self._is_one else [value for _, value in accumulated]


class Collect(Accumulator):
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


@dataclass(eq=False, repr=False)
class ByFunctions(Accumulator):
    """Accumulation by functions of the user."""

    verb: str
    _name: str  # the operator's
    _begin: Callable[[], Any] | None  # makes the first accumulation; None: the first value is the accumulation
    _add: Callable[[Any, Any], Any]
    _merge: Callable[[Any, Any], Any] | None  # may be None for windows that never combine accumulations

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


def extreme(name: str, verb: str, by: Any, greatest: bool) -> Accumulator:
    """Return the accumulator of `min(by)` or `max(by)`. Raises BuildError unless `by` is a function or None."""
    if by is None:
        return Extreme(Ranking(name, verb, 1, None, greatest))
    return Best(Ranking(name, f"{verb} by", 1, by_function(name, by), greatest), is_one=True)


def best(name: str, n: int, by: Any) -> Best:
    """Return the accumulator of `top(n, by)`. Raises BuildError.

    The verb contains `n`, because a window in a store that has kept fewer values cannot give more.
    """
    count = top_count(f"top of {name}", n)
    return Best(Ranking(name, f"top {count}", count, by_function(name, by), greatest=True), is_one=False)


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
