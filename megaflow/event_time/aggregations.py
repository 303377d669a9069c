"""What a windowed stream can be aggregated to: one method for each, all of them on one operator.

Streams are above this module, so what their types are is said by who derives from it: see `megaflow.stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from megaflow.event_time.accumulators import Collect, Count, Extreme, Mean, Sum, by_fold, by_reduction
from megaflow.event_time.windowed import WindowedPort
from megaflow.timely.dataflow.graph import Port

V = TypeVar("V")
Counts = TypeVar("Counts")
Values = TypeVar("Values")
Means = TypeVar("Means")
Lists = TypeVar("Lists")
Records = TypeVar("Records")


class Aggregations(Generic[V, Counts, Values, Means, Lists, Records]):
    """The methods of a windowed stream of (key, V). Each gives a stream of (key, Window, result): of type `Counts` for
    ints, `Values` for values of type V, `Means` for numbers, `Lists` for lists of V; `Records` are (key, V)."""

    def __init__(self, windowed: WindowedPort, stream: Callable[[Port[Any]], Any]) -> None:
        """`stream` makes a stream with timestamps of a port of pairs."""
        self._windowed = windowed
        self._stream = stream

    def count(self) -> Counts:
        """(key, Window, how many values it has)."""
        made: Counts = self._results(Count())
        return made

    def sum(self) -> Values:
        """(key, Window, the sum of the values), which must be numbers."""
        made: Values = self._results(Sum(self._windowed.name))
        return made

    def min(self) -> Values:
        """(key, Window, the least value), of equal ones the first."""
        made: Values = self._results(Extreme("min", min, self._windowed.name))
        return made

    def max(self) -> Values:
        """(key, Window, the greatest value), of equal ones the first."""
        made: Values = self._results(Extreme("max", max, self._windowed.name))
        return made

    def mean(self) -> Means:
        """(key, Window, the mean of the values), which must be numbers."""
        made: Means = self._results(Mean(self._windowed.name))
        return made

    def collect(self) -> Lists:
        """(key, Window, the list of the values), by timestamp; values of one timestamp in the order of arrival."""
        made: Lists = self._results(Collect())
        return made

    def reduce(self, f: Callable[[V, V], V]) -> Values:
        """(key, Window, what is left of the values), by `f(a, b)`, which makes one of two and may change neither.

        The result should not depend on their order, nor on how they are grouped.
        """
        made: Values = self._results(by_reduction(self._windowed.name, f))
        return made

    def late(self) -> Records:
        """The records that were late for all their windows, which leave them out."""
        made: Records = self._stream(self._windowed.late())
        return made

    def _results(self, accumulator: Any) -> Any:
        return self._stream(self._windowed.aggregated(accumulator))

    def _folded(self, init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any] | None) -> Any:
        return self._results(by_fold(self._windowed.name, init, add, merge, self._windowed.is_merged))
