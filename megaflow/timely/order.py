"""Logical times and their partial order.

A time is an `int` unless the dataflow chooses another kind. Any partial order will do: a tuple of times, ordered
lexicographically as Python compares tuples, a `Product(outer, inner)` of times, or a class of the program that follows
`Timestamp`. In a nested scope a time is `Product(outer time, round)`, where the outer part may be a `Product` again.
Seen flat, a time is the coordinates of its products, outermost first.

Rules:
1. Times are compared only with `less_equal` and `less_than`: one product is at most another when each of its
   coordinates is. Two times may be incomparable.
2. Sorting by `sort_key` extends that order to a total one. Use it only for sorting and for work lists; it has no other
   meaning.
3. A class of times need not have `<`. Then its keys are ordered partially, like its times, and `sorted` and `heapq`
   would give wrong results, because they rely on a total order. `in_order` and `pop_first` take a minimal time: one
   that no other is before. `min` finds such a time. It replaces the time that it keeps by an earlier one. A time that
   it passed over is not before the kept one. So it is not before a replacement either, because the order is transitive.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop
from inspect import signature
from typing import Any, NoReturn, Protocol, Self, TypeAlias, TypeVar

from megaflow.errors import BuildError

K = TypeVar("K")
T = TypeVar("T")

_NO_ORDER = vars(object)["__lt__"]  # the method of a class that does not define `<`


class Timestamp(Protocol):
    """Protocol of a class of times, for `worker.dataflow(timestamp=YourClass)`.

    Times are immutable values, equal and hashed by their content, which the codec sends between processes. A frozen
    dataclass has all of that. If the class also has `<`, sorting is many times faster. Then `<` must be a total order
    that extends `less_equal`. `order=True` of a dataclass gives one if sorting its fields extends `less_equal` (sets
    are not sorted by `<`). A `PathSummary` states the effect of a loop on such times.
    """

    @classmethod
    def minimum(cls) -> Self:
        """Return the time that is at most all others."""

    def less_equal(self, other: Any, /) -> bool:
        """Return whether this time is at most `other`. The relation is reflexive, antisymmetric and transitive."""


@dataclass(frozen=True, slots=True)
class Product:
    """A pair of times, ordered coordinate by coordinate: in a nested scope, the outer time and the round.

    >>> outer, inner = Product(3, 1)
    >>> (outer, inner)
    (3, 1)
    """

    outer: "Time"
    inner: Any  # a time; in a nested scope the round, an int

    def __iter__(self) -> Iterator["Time"]:
        yield self.outer
        yield self.inner

    def __repr__(self) -> str:
        return f"Product({self.outer!r}, {self.inner!r})"

    def _refuse(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self!r} and {other!r} cannot be compared with <, <=, > or >=: times in nested scopes are "
            "partially ordered; use less_equal(a, b) or less_than(a, b) from megaflow.timely"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _refuse


Time: TypeAlias = int | Product | tuple[Any, ...] | Timestamp


def less_equal(a: Time, b: Time) -> bool:
    """Return whether `a` is at most `b`. Compares products by each coordinate, tuples by the first differing part.

    Raises TypeError if the times are of different kinds, or belong to scopes of different depth.

    >>> less_equal(Product(1, 5), Product(2, 5)), less_equal(Product(1, 5), Product(2, 4)), less_equal((1, 5), (2, 4))
    (True, False, True)
    """
    if type(a) is int and type(b) is int:
        return a <= b
    while type(a) is Product and type(b) is Product:
        if not less_equal(a.inner, b.inner):
            return False
        a, b = a.outer, b.outer
    if type(a) is Product or type(b) is Product:
        raise TypeError(f"{a!r} and {b!r} cannot be compared: times of different kinds, or scopes of different depth")
    if type(a) is tuple and type(b) is tuple and len(a) == len(b):
        return next((less_equal(x, y) for x, y in zip(a, b, strict=True) if x != y), True)
    if type(a) is type(b) and hasattr(a, "less_equal"):
        return bool(a.less_equal(b))
    if any(isinstance(each, tuple) or hasattr(each, "less_equal") for each in (a, b)):
        raise TypeError(f"{a!r} and {b!r} are times of different kinds and cannot be compared")
    return bool(a <= b)  # type: ignore[operator]  # other numbers, such as numpy's


def less_than(a: Time, b: Time) -> bool:
    """Return whether `a` is at most `b` and differs from it."""
    return a != b and less_equal(a, b)


def alike(a: Time, b: Time) -> bool:
    """Return whether two times are of one kind, so that they can be compared.

    >>> alike(3, 4), alike(Product(1, 2), Product((1, 2), 3)), alike((1, 2), (3, 4))
    (True, False, True)
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, Product) and isinstance(b, Product):
        return alike(a.inner, b.inner) and alike(a.outer, b.outer)
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(alike, a, b))
    return True


def epoch_of(time: Time) -> int:
    """Return a time of the root scope of a dataflow with int times."""
    assert isinstance(time, int), "it is in the root scope"
    return time


def coordinates(time: Time) -> tuple[Time, ...]:
    """Return the parts of the time's products, outermost first. A time that is not a product is one coordinate.

    >>> coordinates(5), coordinates(Product(Product(1, 2), 3)), coordinates(Product((1, 2), 3))
    ((5,), (1, 2, 3), ((1, 2), 3))
    """
    if not isinstance(time, Product):
        return (time,)
    inners = []
    while isinstance(time, Product):
        inners.append(time.inner)
        time = time.outer
    return (time, *reversed(inners))


def from_coordinates(values: tuple[Time, ...]) -> Time:
    """Return the time with these coordinates, at least one. The inverse of `coordinates`.

    >>> from_coordinates((1, 2, 3))
    Product(Product(1, 2), 3)
    """
    time: Time = values[0]
    for inner in values[1:]:
        time = Product(time, inner)
    return time


@dataclass(frozen=True, slots=True)
class PartialKey:
    """Sort key of a time whose class has no `<`. Keys are ordered like the times, so two may be incomparable."""

    time: Any

    def __lt__(self, other: "PartialKey") -> bool:
        return less_than(self.time, other.time)


def sort_key(time: Time) -> tuple[Any, ...]:
    """Return the sort key of a time, with one entry per coordinate. Keys are equal exactly if the times are.

    Keys may be partially ordered: see `is_total`.
    """
    if type(time) is int:
        return (time,)
    return tuple(part if type(part) is int else _part_key(part) for part in coordinates(time))


def _part_key(part: Time) -> Any:
    if type(part) is tuple:
        return tuple(map(_part_key, part))
    if isinstance(part, Product):
        return sort_key(part)
    return PartialKey(part) if type(part).__lt__ is _NO_ORDER else part  # type: ignore[operator]


def is_total(key: tuple[Any, ...]) -> bool:
    """Return whether any two keys like this one are comparable, so that `sorted` and `heapq` may use them.

    >>> is_total(sort_key(Product((1, 2), 3)))
    True
    """
    if len(key) == 1 and type(key[0]) is int:  # the usual case
        return True
    return all(is_total(part) if type(part) is tuple else type(part) is not PartialKey for part in key)


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return key -> its values. Keys and values keep the order of the pairs.

    >>> grouped([("b", 1), ("a", 2), ("b", 3)])
    {'b': [1, 3], 'a': [2]}
    """
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def in_order(items: Iterable[T], key: Callable[[T], tuple[Any, ...]] = sort_key) -> list[T]:  # type: ignore[assignment]
    """Return the items so that none comes after a greater one. They are sorted if the keys of their times are total.

    >>> in_order([Product(2, 1), Product(1, 3), Product(1, 2)])
    [Product(1, 2), Product(1, 3), Product(2, 1)]
    """
    left = list(items)
    if len(left) < 2 or is_total(key(left[0])):
        return sorted(left, key=key)
    keyed = [(key(item), item) for item in left]
    return [_pop_minimal(keyed, lambda pair: pair[0])[1] for _ in left]


def pop_first(total: bool) -> Callable[[list[Any]], Any]:
    """Return a function that removes a minimal item from a list. If the order is `total`, the list is a heap."""
    return heappop if total else _pop_minimal


def _pop_minimal(items: list[Any], key: Callable[[Any], Any] = lambda item: item) -> Any:
    keys = [key(item) for item in items]
    return items.pop(min(range(len(items)), key=keys.__getitem__))


def least_of(timestamp: Any) -> Time:
    """Return the least time of a kind, given as `int`, a class, or the least time itself.

    Raises BuildError, which names what is missing, if `timestamp` is not a kind of times.

    >>> least_of(int), least_of(Product((0, 0), 0))
    (0, Product((0, 0), 0))
    """
    if timestamp is int:
        return 0
    if isinstance(timestamp, type):
        if timestamp in (Product, tuple):
            example = "Product(0, 0)" if timestamp is Product else "(0, 0)"
            raise BuildError(f"timestamp={timestamp.__name__}: give the least time, such as {example}")
        kind: Any = timestamp
        try:
            signature(kind.minimum).bind()
        except (AttributeError, TypeError, ValueError):
            raise BuildError(
                f"timestamp={timestamp.__name__}: a class of times has a class method minimum(), without parameters "
                "(@classmethod; def minimum(cls)); see Timestamp"
            ) from None
        timestamp = kind.minimum()
    _check_least(timestamp)
    return timestamp  # type: ignore[no-any-return]


def _check_least(least: Any) -> None:
    kind = type(least)
    if kind in (Product, tuple):  # () is the only time of its kind
        for part in tuple(least):
            _check_least(part)
    elif kind is int:
        if least != 0:
            raise BuildError(f"timestamp: the least int time is 0, not {least!r}")
    elif isinstance(least, type):
        raise BuildError(
            f"timestamp: a tuple or Product must contain the least time, such as 0, not a class: {least.__name__}"
        )
    elif not hasattr(kind, "less_equal") or kind.__hash__ is None:
        raise BuildError(
            f"timestamp: {least!r} is not a least time; give int, a tuple or Product of these, or a class with "
            "minimum(), less_equal(other) and a hash (a frozen dataclass has one)"
        )
    elif not least.less_equal(least):
        raise BuildError(f"timestamp: {least!r} is not at most itself; less_equal must be reflexive")
