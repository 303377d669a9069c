"""The kinds of aggregates by key: counts, sums, folds, and the best values.

A `Counting` describes one kind. Each worker combines its values of a key and time in a `Combined` (`partial_results`).
S then merges the results of several workers and times (`aggregates`).

Counts, sums of ints, and the values that `ranking` chooses depend neither on the order of values nor on their grouping.
Sums of floats do, and results of the program's own functions may.

Numbers of numpy are added as Python numbers. Their own addition keeps the width of the first one: int32 wraps around,
and float16 overflows. Earlier versions of megaflow stored sums of such numbers as numpy's. Those are converted when
they are restored (`NamedForm`), so S merges only Python numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from copy import deepcopy
from decimal import Decimal
from functools import partial
from numbers import Number
from operator import add as plus
from typing import Any, Final

from megaflow.durable.restored import ANY_FORM, Form, NamedForm
from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.folds.partial_results import Combined
from megaflow.megaphone.folds.ranking import Ranking, Stamped, by_function, top_count
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.argument_checks import function
from megaflow.timely.dataflow.error_notes import raised_by_loop
from megaflow.timely.dataflow.folds import complain_about, not_a_key, require_pairs

_NUMBERS: Final = frozenset({int, float, bool, Decimal})  # and all other types that are a `Number`
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Counting:
    """The definition of one kind of aggregate."""

    verb: str  # the method
    begin: Callable[[str], Combined]  # the operator's name -> the beginning of a time, without records
    merge: Callable[[Any, Any], Any]  # two results of one key -> one; neither is changed
    form: Form = ANY_FORM


class ValueCounts(Combined):
    """The count of each record."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._counts = self._results = Counter[Any]()

    def add(self, batch: list[Any]) -> None:
        """Count a batch. Cost: that of `Counter.update`."""
        try:
            self._counts.update(batch)
        except TypeError as error:
            for record in batch:
                self._check(record, error)
            raise

    def _check(self, record: Any, error: TypeError) -> None:
        try:
            hash(record)
        except TypeError:
            raise ProgramError(f"{self._name}: the record {record!r:.200} {not_a_key(record)}") from error


class KeyCounts(ValueCounts):
    """The count of each key."""

    def add(self, batch: list[Any]) -> None:
        """Count a batch of pairs."""
        require_pairs(self._name, batch)
        try:
            self._counts.update([key for key, _ in batch])
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            raise


class Sums(Combined):
    """The sum of each key's values."""

    def add(self, batch: list[Any]) -> None:
        """Add up a batch of pairs."""
        sums = self._results
        find, kinds = sums.get, _NUMBERS
        require_pairs(self._name, batch)
        try:
            for key, value in batch:
                if type(value) not in kinds:
                    if not isinstance(value, Number):
                        raise ProgramError(
                            f"{self._name}: the value {value!r:.200} of key {key!r:.200} is a {type(value).__name__}, "
                            "but only numbers have a sum; map or filter the stream first, or use aggregate_by_key"
                        )
                    value = plain_number(value)
                sums[key] = find(key, 0) + value
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            if raised_by_loop(error):
                raise ProgramError(unlike(self._name, key, find(key), value)) from error
            raise


def plain_number(value: Any) -> Any:
    """Return Python's number for a numpy number, and any other value as it is."""
    kind = type(value)
    return value.item() if kind.__module__ == "numpy" and kind.__name__ != "timedelta64" else value


def unlike(name: str, key: Any, total: Any, value: Any) -> str:
    """Return the error text for a value that cannot be added to the sum of a key."""
    return (
        f"{name}: {value!r:.200}, a {type(value).__name__}, cannot be added to the sum of key {key!r:.200}, which is "
        f"{total!r:.200}, a {type(total).__name__}; map the stream to numbers of one type first"
    )


class Folds(Combined):
    """The accumulated value of each key, by a function of the program."""

    def __init__(self, name: str, begin: Callable[[], Any], add: Callable[[Any, Any], Any]) -> None:
        super().__init__(name)
        self._begin = begin
        self._add = add

    def add(self, batch: list[Any]) -> None:
        """Fold a batch of pairs."""
        results, begin, add, nothing = self._results, self._begin, self._add, _NOTHING
        find = results.get
        require_pairs(self._name, batch)
        try:
            for key, value in batch:
                before = find(key, nothing)
                result = add(begin() if before is nothing else before, value)
                if result is None:
                    raise ProgramError(is_none(self._name, f"add(accumulated, {value!r:.200})", key))
                results[key] = result
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            if raised_by_loop(error):
                raise ProgramError(
                    f"{self._name}: add is called as add(accumulated, value) and must return the new accumulated "
                    f"value; instead: {error}"
                ) from error
            raise


def is_none(name: str, call: str, key: Any) -> str:
    """Return the error text for a function that has returned None for a key."""
    return (
        f"{name}: {call} returned None for key {key!r:.200}; it must return the accumulated value, because None "
        "means that the key has none"
    )


class Bests(Combined):
    """The best values of each key."""

    def __init__(self, name: str, best: BestValues) -> None:
        super().__init__(name)
        self._best = best

    def add(self, batch: list[Any]) -> None:
        """Take in a batch of pairs."""
        require_pairs(self._name, batch)
        groups: defaultdict[Any, list[Any]] = defaultdict(list)
        try:
            for pair in batch:
                groups[pair[0]].append(pair[1])
        except (TypeError, ValueError) as error:
            complain_about(batch, self._name, error)
            raise
        results, best = self._results, self._best
        for key, values in groups.items():
            chosen = results[key] = best.of_values(results.get(key), values)
            if chosen is None:
                raise ProgramError(
                    f"{self._name}: the value None of key {key!r:.200} would be the result, but None means that a key "
                    "has none; filter such values out first"
                )


class BestValues:
    """Rule for the state of a key: its best value, or a list of its best values, best first."""

    def __init__(self, ranking: Ranking[Any], is_one: bool) -> None:
        self._ranking = ranking
        self._is_one = is_one

    def of_values(self, before: Any, values: list[Any]) -> Any:
        """Return the best of the values and of those kept before, if any. Neither argument is changed."""
        if self._is_one:
            return self._ranking.best(values if before is None else [before, *values])
        return self.merge(before or [], values)

    def merge(self, one: Any, other: Any) -> Any:
        """Return the best of what two parts have kept. Neither is changed."""
        if self._is_one:
            return self._ranking.better(one, other)
        kept: list[Stamped] = [(0, value) for value in one]
        self._ranking.take(kept, [(0, value) for value in other])
        return [value for _, value in kept]


COUNT_BY_VALUE: Final = Counting("count_by_value", ValueCounts, plus, NamedForm("counts"))
COUNT_BY_KEY: Final = Counting("count_by_key", KeyCounts, plus, NamedForm("counts"))
SUM_BY_KEY: Final = Counting("sum_by_key", Sums, plus, NamedForm("sums of Python numbers", "sums", plain_number))


def fold_by_key(init: Any, add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any]) -> Counting:
    """Return the aggregate by a program's functions. Raises BuildError for a wrong function or `init`."""
    verb = "aggregate_by_key"
    function(verb, add, "add")
    function(verb, merge, "merge")
    begin = begins_with(verb, init)
    return Counting(verb, partial(Folds, begin=begin, add=add), merge)


def begins_with(verb: str, init: Any) -> Callable[[], Any]:
    """Return a function that makes a key's first value, a copy of `init`. Raises BuildError if it cannot be copied."""
    if callable(init):
        raise BuildError(
            f"{verb}: init must be a value, not a function, because each key starts with a copy of it: pass 0, [] or "
            "{}"
        )
    try:
        is_shared = deepcopy(init) is init
    except Exception as error:
        raise BuildError(f"{verb}: init={init!r:.200} cannot be copied for each key: {error}") from error
    return (lambda: init) if is_shared else partial(deepcopy, init)


def extreme_by_key(verb: str, by: Any, greatest: bool) -> Counting:
    """Return the aggregate that keeps the least or greatest value. Raises BuildError for a wrong `by`."""
    ranking: Ranking[Any] = Ranking(verb, "max" if greatest else "min", 1, by_function(verb, by), greatest)
    return _best_by_key(verb, ranking, True, verb if by is None else f"{verb} by")


def top_by_key(n: Any, by: Any) -> Counting:
    """Return the aggregate that keeps the `n` greatest values. Raises BuildError.

    The form contains `n`, because a store that has kept fewer values of a key cannot supply more.
    """
    verb, count = "top_by_key", top_count("top_by_key", n)
    ranking: Ranking[Any] = Ranking(verb, "top", count, by_function(verb, by), greatest=True)
    return _best_by_key(verb, ranking, False, f"{verb} {count}")


def _best_by_key(verb: str, ranking: Ranking[Any], is_one: bool, form: str) -> Counting:
    best = BestValues(ranking, is_one)
    return Counting(verb, partial(Bests, best=best), best.merge, NamedForm(form))
