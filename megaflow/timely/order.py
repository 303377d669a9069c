"""Logical times, their partial order, and what a path through the graph does to them.

A time is an `int` in the root scope and a `Product(outer, inner)` in a scope inside
another, where the outer part may be a `Product` again. Seen flat, a time at depth d is
d + 1 coordinates, outermost first, each at least 0.

Rules:
1. Times are compared only with `less_equal` and `less_than`: one time is at most another
   when each of its coordinates is. Two times may be incomparable.
2. Sorting by `coordinates` (lexicographic) extends that order to a total one; it is good for
   sorting and for work lists and means nothing else.
3. A `Summary` never lowers a coordinate it keeps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias


@dataclass(frozen=True, slots=True)
class Product:
    """A time in a nested scope: the time outside, then the round inside.

    >>> outer, inner = Product(3, 1)
    >>> (outer, inner)
    (3, 1)
    """

    outer: "Time"
    inner: int

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


Time: TypeAlias = int | Product


def less_equal(a: Time, b: Time) -> bool:
    """Tell whether each coordinate of `a` is at most that of `b`.

    Raises TypeError when the times belong to scopes of different depth.

    >>> less_equal(Product(1, 5), Product(2, 5)), less_equal(Product(1, 5), Product(2, 4))
    (True, False)
    """
    while isinstance(a, Product) and isinstance(b, Product):
        if a.inner > b.inner:
            return False
        a, b = a.outer, b.outer
    if isinstance(a, Product) or isinstance(b, Product):
        raise TypeError(f"{a!r} and {b!r} are times of scopes of different depth and cannot be compared")
    return a <= b


def less_than(a: Time, b: Time) -> bool:
    """Tell whether `a` is at most `b` and differs from it."""
    return a != b and less_equal(a, b)


def coordinates(time: Time) -> tuple[int, ...]:
    """Return the time as a flat tuple, outermost coordinate first.

    >>> coordinates(5), coordinates(Product(Product(1, 2), 3))
    ((5,), (1, 2, 3))
    """
    if not isinstance(time, Product):
        return (time,)
    inners = []
    while isinstance(time, Product):
        inners.append(time.inner)
        time = time.outer
    return (time, *reversed(inners))


def from_coordinates(values: tuple[int, ...]) -> Time:
    """Return the time that has these coordinates, at least one: the inverse of `coordinates`.

    >>> from_coordinates((1, 2, 3))
    Product(Product(1, 2), 3)
    """
    time: Time = values[0]
    for inner in values[1:]:
        time = Product(time, inner)
    return time


def minimum(depth: int) -> Time:
    """Return the least time of a scope `depth` levels below the root.

    >>> minimum(0), minimum(1)
    (0, Product(0, 0))
    """
    return from_coordinates((0,) * (depth + 1))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a path does to a time: add to the outer coordinates, forget the others, append constants.

    Applied to coordinates (t0, t1, …) it gives (t0 + adds[0], …, then tail); coordinates past
    `adds` are dropped. Raises ValueError when empty or negative.

    >>> Summary((0, 2)).apply(Product(7, 1))
    Product(7, 3)
    >>> Summary((0,), (0,)).apply(7)
    Product(7, 0)
    """

    adds: tuple[int, ...]  # added to the outermost coordinates; at least one
    tail: tuple[int, ...] = ()  # constants appended after them

    def __post_init__(self) -> None:
        if not self.adds or min(self.adds) < 0 or (self.tail and min(self.tail) < 0):
            raise ValueError(f"{self!r}: a summary keeps at least the outermost coordinate and never lowers one")

    def apply(self, time: Time) -> Time:
        """Return the time at the path's end. Raises TypeError for a time of too shallow a scope."""
        adds = self.adds
        if len(adds) == 1 and not self.tail and not isinstance(time, Product):
            return time + adds[0]
        values = coordinates(time)
        if len(values) < len(adds):
            raise TypeError(f"{self!r} needs a time with at least {len(adds)} coordinates, not {time!r}")
        return from_coordinates(tuple(t + add for t, add in zip(values, adds, strict=False)) + self.tail)

    def then(self, other: "Summary") -> "Summary":
        """Return the summary of this path followed by the other.

        >>> enter(0).then(feedback(1, 4)).then(leave(1)) == identity(0)
        True
        """
        kept, passed = len(self.adds), len(other.adds)
        if passed > kept + len(self.tail):
            raise TypeError(f"{other!r} cannot follow {self!r}, which gives only {kept + len(self.tail)} coordinates")
        adds = tuple(a + b for a, b in zip(self.adds, other.adds, strict=False))
        constants = tuple(a + b for a, b in zip(self.tail, other.adds[kept:], strict=False))
        return Summary(adds, constants + other.tail)


def summary_less_equal(a: Summary, b: Summary) -> bool:
    """Tell whether `a` maps every time to one at most where `b` maps it; both lead between the same depths.

    >>> summary_less_equal(Summary((0, 0)), Summary((0, 1))), summary_less_equal(Summary((0,), (3,)), Summary((0, 2)))
    (True, False)
    """
    length = len(a.adds) + len(a.tail)
    if length != len(b.adds) + len(b.tail):
        raise TypeError(f"{a!r} and {b!r} lead to scopes of different depth and cannot be compared")
    # A coordinate kept by `a` but set to a constant by `b` outgrows any constant; the other way
    # round it is least where the time's coordinate is 0.
    if len(a.adds) > len(b.adds):
        return False
    return all(x <= y for x, y in zip(a.adds + a.tail, b.adds + b.tail, strict=True))


def identity(depth: int) -> Summary:
    """Return the summary that leaves every time of this depth as it is."""
    return Summary((0,) * (depth + 1))


def enter(depth: int) -> Summary:
    """Return the summary of entering a scope from `depth`: t becomes (t, 0)."""
    return Summary((0,) * (depth + 1), (0,))


def leave(depth: int) -> Summary:
    """Return the summary of leaving a scope at `depth` for the one around it: (t, i) becomes t."""
    return Summary((0,) * depth)


def feedback(depth: int, advance: int) -> Summary:
    """Return the summary that advances the innermost coordinate of times of this depth."""
    return Summary((0,) * depth + (advance,))
