"""Aggregates of a windowed stream: one method for each, all of them on one operator.

Streams are above this module, so subclasses give the types of the results: see `megaflow.stream`.
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
    """Methods of a windowed stream of (key, V). Each returns a stream of (key, Window, result).

    The streams have type `Counts` for ints, `Values` for values of type V, `Means` for numbers, `Lists` for lists of V;
    `Records` are (key, V).
    """

    def __init__(self, windowed: WindowedPort, stream: Callable[[Port[Any]], Any]) -> None:
        """`stream` makes a stream with timestamps of a port of pairs."""
        self._windowed = windowed
        self._stream = stream

    def count(self) -> Counts:
        """Count the values of each window: (key, Window, count)."""
        made: Counts = self._results(Count())
        return made

    def sum(self) -> Values:
        """Sum the values of each window: (key, Window, sum). Values must be numbers."""
        made: Values = self._results(Sum(self._windowed.name))
        return made

    def min(self) -> Values:
        """Find the least value of each window, the first of equal ones: (key, Window, value)."""
        made: Values = self._results(Extreme("min", min, self._windowed.name))
        return made

    def max(self) -> Values:
        """Find the greatest value of each window, the first of equal ones: (key, Window, value)."""
        made: Values = self._results(Extreme("max", max, self._windowed.name))
        return made

    def mean(self) -> Means:
        """Compute the mean of the values of each window: (key, Window, mean). Values must be numbers."""
        made: Means = self._results(Mean(self._windowed.name))
        return made

    def collect(self) -> Lists:
        """Collect the values of each window by timestamp, then in order of arrival: (key, Window, list of values)."""
        made: Lists = self._results(Collect())
        return made

    def reduce(self, f: Callable[[V, V], V]) -> Values:
        """Reduce the values of each window to one with `f(a, b)`, which may change neither: (key, Window, value).

        The result should not depend on the order of the values, nor on how they are grouped.
        """
        made: Values = self._results(by_reduction(self._windowed.name, f))
        return made

    def late(self) -> Records:
        """Return the records that were late for all their windows, which leave them out."""
        made: Records = self._stream(self._windowed.late())
        return made

    def _results(self, accumulator: Any) -> Any:
        return self._stream(self._windowed.aggregated(accumulator))

    def _folded(self, init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any] | None) -> Any:
        return self._results(by_fold(self._windowed.name, init, add, merge, self._windowed.is_merged))
