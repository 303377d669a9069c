"""The effect of a path through the graph on times.

A `Summary` has a *step* for each coordinate of a time: an addend for an int; a tuple of steps for a tuple; a
`PathSummary` for a class of the program. For any coordinate, step 0 changes nothing.

Rules:
1. A step either is 0 or moves every time strictly forward. So a cycle advances time exactly if one of its steps is not
   0, and a check at build time holds for all times.
2. A summary never lowers a coordinate that it keeps.
3. A path may end some times: `PathSummary.results_in` returns None, and records at such a time go no farther.

Built-in steps keep rule 1 by their form. A `PathSummary` is checked whenever it is applied.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from megaflow.errors import TimeError
from megaflow.timely.order import Product, Time, alike, coordinates, from_coordinates, less_than


class PathSummary(Protocol):
    """Protocol of the effect of a path on times of the program's own class. A value, such as a frozen dataclass."""

    def results_in(self, time: Any, /) -> Any | None:
        """Return the time at the path's end for `time` at its start; None if nothing at `time` reaches the end.

        It must be monotone: a greater time never results in a lesser one.
        """

    def followed_by(self, other: Any, /) -> Any | None:
        """Return the summary of this path followed by the other; None if nothing reaches its end."""

    def less_equal(self, other: Any, /) -> bool:
        """Tell whether this summary maps every time to one at most where `other` maps it."""


Step: TypeAlias = Any  # an int, a tuple of steps, a Product of steps inside a tuple, or a PathSummary


@dataclass(frozen=True, slots=True)
class Summary:
    """What a path does to a time: a step for each of the outer coordinates, forget the others, append constants.

    Applied to coordinates (t0, t1, …) it gives (t0 + adds[0], …, then tail); coordinates past
    `adds` are dropped. Raises ValueError when empty or negative.

    >>> Summary((0, 2)).apply(Product(7, 1))
    Product(7, 3)
    >>> Summary((0,), (0,)).apply(7)
    Product(7, 0)
    """

    adds: tuple[Step, ...]  # for the outermost coordinates; at least one
    tail: tuple[int, ...] = ()  # constants appended after them

    def __post_init__(self) -> None:
        if not self.adds or any(type(each) is int and each < 0 for each in self.adds + self.tail):
            raise ValueError(f"{self!r}: a summary keeps at least the outermost coordinate and never lowers one")

    def apply(self, time: Time) -> Time | None:
        """Return the time at the path's end, None if nothing at `time` comes there.

        Raises TypeError for a time of too shallow a scope, TimeError for a PathSummary that does not advance it.
        """
        adds = self.adds
        if type(time) is int and len(adds) == 1 and not self.tail:
            return time + adds[0]  # type: ignore[no-any-return]
        values = coordinates(time)
        if len(values) < len(adds):
            raise TypeError(f"{self!r} needs a time with at least {len(adds)} coordinates, not {time!r}")
        results = tuple(_results_in(step, value) for step, value in zip(adds, values, strict=False))
        return None if None in results else from_coordinates(results + self.tail)

    def then(self, other: "Summary") -> "Summary | None":
        """Return the summary of this path followed by the other, None if nothing comes to its end.

        >>> enter(0).then(feedback(1, 4)).then(leave(1)) == identity(0)
        True
        """
        kept, passed = len(self.adds), len(other.adds)
        if passed > kept + len(self.tail):
            raise TypeError(f"{other!r} cannot follow {self!r}, which gives only {kept + len(self.tail)} coordinates")
        adds = tuple(_followed_by(a, b) for a, b in zip(self.adds, other.adds, strict=False))
        constants = tuple(a + b for a, b in zip(self.tail, other.adds[kept:], strict=False))
        return None if None in adds else Summary(adds, constants + other.tail)


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
    return all(_step_less_equal(x, y) for x, y in zip(a.adds + a.tail, b.adds + b.tail, strict=True))


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


def advancing(step: Step, least: Time) -> Summary:
    """Return the summary of a step of times whose least is `least`; 0 is the identity.

    Raises ValueError with what a step of such times is.

    >>> advancing(Product((0, 1), 2), Product((0, 0), 0))
    Summary(adds=((0, 1), 2), tail=())
    """
    return Summary(_steps(step, least))


def _steps(step: Step, least: Time) -> tuple[Step, ...]:
    """Return a step for each coordinate."""
    if isinstance(least, Product):
        if _is_zero(step):
            step = Product(0, 0)
        if not isinstance(step, Product):
            raise ValueError(f"a Product of steps, as times are like {least!r}")
        return (*_steps(step.outer, least.outer), _checked(step.inner, least.inner))
    return (_checked(step, least),)


def _checked(step: Step, least: Time) -> Step:
    """Return a step of one coordinate, 0 if it changes nothing."""
    if _is_zero(step):
        return 0
    if type(least) is int:
        if type(step) is not int or step < 0:
            raise ValueError("an int of at least 0")
        return step
    if isinstance(least, Product | tuple) and type(step) is type(least):
        parts, leasts = tuple(step), tuple(least)
        if len(parts) == len(leasts):
            checked = [_checked(part, each) for part, each in zip(parts, leasts, strict=True)]
            if all(map(_is_zero, checked)):
                return 0
            return Product(checked[0], checked[1]) if isinstance(least, Product) else tuple(checked)
    if type(least) in (Product, tuple) or isinstance(step, type) or any(not hasattr(step, name) for name in _METHODS):
        what = "with a step for each part" if type(least) in (Product, tuple) else "or a PathSummary of such times"
        raise ValueError(f"0 or, as times are like {least!r}, a {type(least).__name__} {what}")
    if type(step).__repr__ is vars(object)["__repr__"]:  # workers compare how it is shown
        raise ValueError(f"and a {type(step).__name__} must be shown by what it holds, as a dataclass is")
    try:
        _results_in(step, least)
    except TimeError as error:
        raise ValueError(f"0 or a PathSummary that strictly advances every time: {error}") from None
    return step


_METHODS = ("results_in", "followed_by", "less_equal")


def _is_zero(step: Step) -> bool:
    return type(step) is int and step == 0


def _results_in(step: Step, time: Any) -> Any:
    """Return the coordinate at the path's end, or None."""
    if type(step) is int:
        return time + step if step else time
    if type(step) is tuple or isinstance(step, Product):
        parts: list[Any] = [_results_in(each, part) for each, part in zip(step, time, strict=True)]
        if None in parts:
            return None
        return tuple(parts) if type(step) is tuple else Product(parts[0], parts[1])
    result = step.results_in(time)
    if result is not None and not (alike(time, result) and less_than(time, result)):
        raise TimeError(f"{step!r}.results_in({time!r}) gave {result!r}, which is not after {time!r}")
    return result


def _followed_by(a: Step, b: Step) -> Step | None:
    if _is_zero(a) or _is_zero(b):
        return b if _is_zero(a) else a
    if type(a) is int:
        return a + b
    if type(a) is tuple or isinstance(a, Product):
        parts: list[Any] = [_followed_by(x, y) for x, y in zip(a, b, strict=True)]
        if None in parts:
            return None
        return tuple(parts) if type(a) is tuple else Product(parts[0], parts[1])
    return a.followed_by(b)


def _step_less_equal(a: Step, b: Step) -> bool:
    if type(a) is int and type(b) is int:
        return a <= b
    if _is_zero(a) or _is_zero(b):
        return _is_zero(a)
    if isinstance(a, Product):
        return _step_less_equal(a.outer, b.outer) and _step_less_equal(a.inner, b.inner)
    if type(a) is not tuple:
        return bool(a.less_equal(b))
    for x, y in zip(a, b, strict=True):
        if x == y:
            continue
        if type(x) is int and type(y) is int:
            return bool(x < y)  # for every time the first part that differs is this one
        if not _step_less_equal(x, y):
            return False  # where it is, what comes after decides only for the times at which both give the same
    return True
