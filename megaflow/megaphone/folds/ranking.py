"""The order in which `min`, `max` and `top` choose values: the same however the values come and are grouped.

 1. A value ranks by what the program's function `by` returns for it; without `by`, by itself.
 2. Of values that rank equally, the one with the earlier timestamp comes first (on streams without timestamps, all have
    the same one). If these are also equal, the value whose encoding is less comes first. So the order is total: values
    that it does not separate are equal in all that travels. So the best n of all values are the best n among the best n
    of each part. Neither the division into parts nor their order matters, and no state has more than n values.
 3. NaN, and a rank that contains NaN, comes before all others, for `min` as for `max`. So a result shows NaN if one
    came. NaN compares with nothing, so otherwise the result would depend on the order.
 4. None and sets are refused: None stands for no value, and sets are ordered by inclusion, which leaves most of them
    unordered. A rank that cannot be compared with another is also refused.
Ranks are computed anew when parts are combined, and are not part of a state. So they need not travel, and a program
that changes `by` ranks what a store has kept as it ranks new values.

Two values of one encoding may still differ if they contain a set, whose order is that of a process. This may change
which of several values that rank equally is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from math import isfinite
from typing import Any, Final, Generic, TypeAlias, TypeVar

from megaflow.errors import BuildError, ProgramError
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.argument_checks import function, shown
from megaflow.timely.dataflow.error_notes import raised_by_loop, user_line
from megaflow.timely.dataflow.folds import has_nan

V = TypeVar("V")
Stamped: TypeAlias = tuple[int, Any]
"""A timestamp in microseconds, or a number that all values share; and a value."""

_ONE_FORM: Final = frozenset({int, str, bytes, bool, date})
"""Types without NaN whose equal values have the same encoding."""
_QUICK: Final = frozenset({int, float, str})
"""Types in which only equal values and NaN have no order."""
_REALS: Final = frozenset({int, float, bool})
_NOTHING: Final = object()


class _First:
    """The rank of NaN, before all others."""

    __slots__ = ("_least",)

    def __init__(self, least: bool) -> None:
        """`least`: other ranks come in rising order, so this one is less than all of them."""
        self._least = least

    def __lt__(self, other: object) -> bool:
        return self._least and other is not self

    def __gt__(self, other: object) -> bool:
        return not self._least and other is not self


class Ranking(Generic[V]):
    """The best values of an aggregate, best first."""

    def __init__(self, title: str, verb: str, count: int, by: Callable[[V], Any] | None, greatest: bool) -> None:
        """`title`: the operator's name; `count`: values to keep; `greatest`: the best value has the greatest rank."""
        self.verb = verb
        self._title = title
        self._count = count
        self._by = by
        self._greatest = greatest
        self._choose: Callable[[Sequence[V]], V] = max if greatest else min  # type: ignore[assignment]
        self._first = _First(least=not greatest)

    def take(self, accumulated: list[Stamped], items: Iterable[Stamped]) -> None:
        """Add items to `accumulated`, the best items so far, which is changed.

        Raises ProgramError for a value that has no rank. An item that is not kept costs its rank and a comparison;
        every other item also costs a binary search.
        """
        by, count, greatest = self._by, self._count, self._greatest
        worst = self._rank(accumulated[-1][1]) if len(accumulated) == count else _NOTHING
        for item in items:
            value = item[1]
            rank = value if by is None else by(value)
            if type(rank) not in _ONE_FORM:
                rank = self._judged(rank, value)
            try:
                if worst is not _NOTHING and (rank < worst if greatest else worst < rank):
                    continue
            except (TypeError, ValueError) as error:
                raise self._refusal(error, rank, value, worst) from error
            accumulated.insert(self._place(accumulated, rank, item), item)
            if len(accumulated) > count:
                del accumulated[count:]
            if len(accumulated) == count:
                worst = self._rank(accumulated[-1][1])

    def best(self, values: Sequence[V]) -> V:
        """Return the best of values without timestamps. Cost without `by`: usually a few passes in C."""
        kind = type(values[0])
        if self._by is None:
            if [*map(type, values)].count(kind) == len(values):
                if kind in _ONE_FORM:
                    return self._choose(values)
                if kind is float and (chosen := self._choose(values)) and isfinite(sum(values)):  # type: ignore[arg-type]
                    return chosen  # neither NaN, nor one of 0.0 and -0.0
            elif _REALS.issuperset(map(type, values)):
                chosen = self._choose(values)
                if values.count(chosen) == 1 and _is_finite(values):  # not one of 1 and 1.0
                    return chosen
        kept: list[Stamped] = []
        self.take(kept, [(0, value) for value in values])
        return kept[0][1]  # type: ignore[no-any-return]

    def better(self, one: V, other: V) -> V:
        """Return the better of two values without timestamps."""
        kind: Any = type(one)
        if self._by is None and kind is type(other) and kind in _QUICK:
            if one < other:  # type: ignore[operator]
                return other if self._greatest else one
            if other < one:  # type: ignore[operator]
                return one if self._greatest else other
        return self.best([one, other])

    def _rank(self, value: Any) -> Any:
        rank = value if self._by is None else self._by(value)
        return rank if type(rank) in _ONE_FORM else self._judged(rank, value)

    def _judged(self, rank: Any, value: Any) -> Any:
        """Return a rank if, by itself, it can be compared. Raises ProgramError."""
        if type(rank) is float:
            return rank if rank == rank else self._first
        if rank is None or isinstance(rank, (set, frozenset)):
            what = f"the value {value!r:.200}"
            if self._by is not None:
                what = f"by= returned {rank!r:.200} for {what}, which"
            why = "" if rank is None else ", because sets are ordered by inclusion only"
            raise ProgramError(
                f"{self._title}: {what} cannot be ordered{why}; filter such values out before {self.verb}, or let by= "
                "return something else"
            )
        return self._first if has_nan(rank) else rank

    def _place(self, accumulated: list[Stamped], rank: Any, item: Stamped) -> int:
        """Return the index at which an item of this rank belongs. Cost: logarithmic."""
        low, high = 0, len(accumulated)
        while low < high:
            middle = (low + high) // 2
            other = accumulated[middle]
            theirs = self._rank(other[1])
            better, worse = (theirs, rank) if self._greatest else (rank, theirs)
            try:
                is_before = True if better < worse else False if worse < better else self._wins_tie(item, other)
            except (TypeError, ValueError) as error:
                raise self._refusal(error, rank, item[1], theirs) from error
            if is_before:
                high = middle
            else:
                low = middle + 1
        return low

    @staticmethod
    def _wins_tie(item: Stamped, other: Stamped) -> bool:
        return item[0] < other[0] if item[0] != other[0] else encode(item[1]) < encode(other[1])

    def _refusal(self, error: Exception, rank: Any, value: Any, theirs: Any) -> Exception:
        """Return the error to raise for a failed comparison: the same one if a method of the program raised it."""
        if not raised_by_loop(error):
            return error
        of_what = "" if self._by is None else f", which by= returned for {value!r:.200},"
        return ProgramError(
            f"{self._title}: {self.verb} cannot compare {rank!r:.200} of type {type(rank).__name__}{of_what} with "
            f"{theirs!r:.200} of type {type(theirs).__name__}: {error}; map the stream to values of one type first"
        )


def _is_finite(values: Sequence[Any]) -> bool:
    """Tell whether all these numbers are finite; large ones may also give False."""
    try:
        return isfinite(sum(values))
    except OverflowError:
        return False


def by_function(verb: str, by: Any) -> Callable[[Any], Any] | None:
    """Return `by=` of an aggregate. Raises BuildError unless it is a function or None."""
    return None if by is None else function(verb, by, "by")


def top_count(verb: str, count: Any) -> int:
    """Return the number of values that a `top` keeps. Raises BuildError unless it is an int of at least 1."""
    if type(count) is not int or count < 1:
        raise BuildError(f"{verb} ({user_line()}): n must be an int of at least 1, not {shown(count)}")
    return count
