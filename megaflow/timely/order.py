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
"""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any, NoReturn, Protocol, Self, TypeAlias

from megaflow.errors import BuildError


class Timestamp(Protocol):
    """Protocol of a class of times, for `worker.dataflow(timestamp=YourClass)`.

    Times are immutable values, equal and hashed by their content, which the codec sends between processes. A frozen
    dataclass with `order=True` has all of that. It also has `<`, if sorting its fields extends `less_equal` (sets are
    not sorted by `<`). A `PathSummary` states the effect of a loop on such times.
    """

    @classmethod
    def minimum(cls) -> Self:
        """Return the time that is at most all others."""

    def less_equal(self, other: Any, /) -> bool:
        """Tell whether this time is at most `other`. The relation is reflexive, antisymmetric and transitive."""

    def __lt__(self, other: Any, /) -> bool:
        """Tell which time comes first in some total order that extends `less_equal`. Used for sorting only."""


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
    """Tell whether `a` is at most `b`. Compares products by each coordinate, tuples by the first part that differs.

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
    return bool(a <= b)  # type: ignore[operator]  # other numbers, numpy's say


def less_than(a: Time, b: Time) -> bool:
    """Tell whether `a` is at most `b` and differs from it."""
    return a != b and less_equal(a, b)


def alike(a: Time, b: Time) -> bool:
    """Tell whether two times are of one kind, so that they can be compared.

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


def coordinates(time: Time) -> tuple[Time, ...]:
    """Return what the time's products are made of, outermost first; a time that is no product is one coordinate.

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
    """Return the time that has these coordinates, at least one: the inverse of `coordinates`.

    >>> from_coordinates((1, 2, 3))
    Product(Product(1, 2), 3)
    """
    time: Time = values[0]
    for inner in values[1:]:
        time = Product(time, inner)
    return time


def sort_key(time: Time) -> tuple[Any, ...]:
    """Return what to sort times by, one entry for each coordinate: equal times have equal keys, others do not."""
    if type(time) is int:
        return (time,)
    return tuple(part if type(part) is int else _part_key(part) for part in coordinates(time))


def _part_key(part: Time) -> Any:
    if type(part) is tuple:
        return tuple(map(_part_key, part))
    return sort_key(part) if isinstance(part, Product) else part


def least_of(timestamp: Any) -> Time:
    """Return the least time of a kind: of `int`, of a class, or of what is the least time already.

    Raises BuildError, saying what is missing, for what gives no times.

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
    if kind in (Product, tuple) and (parts := tuple(least)):
        for part in parts:
            _check_least(part)
    elif kind is int:
        if least != 0:
            raise BuildError(f"timestamp: the least int time is 0, not {least!r}")
    elif isinstance(least, type):
        raise BuildError(
            f"timestamp: a tuple or Product must contain the least time, such as 0, not a class: {least.__name__}"
        )
    elif not hasattr(kind, "less_equal") or kind.__lt__ is vars(object)["__lt__"] or kind.__hash__ is None:
        raise BuildError(
            f"timestamp: {least!r} is not a least time; give int, a tuple or Product of these, or a class with "
            "minimum(), less_equal(other), < and a hash (a frozen dataclass with order=True has the last two)"
        )
    elif not least.less_equal(least):
        raise BuildError(f"timestamp: {least!r} is not at most itself; less_equal must be reflexive")
