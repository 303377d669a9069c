"""Path summaries: the effect of a path through the graph on times.

A `Summary` has a *step* for each coordinate of a time: an addend for an int; a tuple of steps for a tuple; a
`PathSummary` for a class of the program. For any coordinate, step 0 changes nothing.

Rules:
1. A step is 0 or moves every time strictly forward. So a cycle advances time exactly if one of its steps is not 0, and
   a check at build time holds for all times.
2. A summary never lowers a coordinate that it keeps.
3. A path may stop some times: if `PathSummary.results_in` returns None, nothing at that time reaches the path's end.

Built-in steps keep rule 1 by their form. A `PathSummary` is checked whenever it is applied. The engine only applies
summaries; `megaflow.testing.reference` composes and compares them.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from megaflow.errors import TimeError
from megaflow.timely.order import Product, Time, alike, coordinates, from_coordinates, less_than


class PathSummary(Protocol):
    """Protocol of the effect of a path on times of the program's own class. A value, such as a frozen dataclass."""

    def results_in(self, time: Any, /) -> Any | None:
        """Return the time at the path's end for `time` at its start. None if nothing at `time` reaches the end.

        It must be monotone: a greater time never results in a lesser one.
        """

    def followed_by(self, other: Any, /) -> Any | None:
        """Return the summary of this path followed by the other. None if nothing reaches its end."""

    def less_equal(self, other: Any, /) -> bool:
        """Return whether this summary maps every time to a time at most as great as `other` does."""


Step: TypeAlias = Any  # an int, a tuple of steps, a Product of steps inside a tuple, or a PathSummary


@dataclass(frozen=True, slots=True)
class Summary:
    """Effect of a path on a time: add a step to each outer coordinate, drop the others, append constants.

    Coordinates (t0, t1, …) become (t0 + adds[0], …, then tail). Coordinates past `adds` are dropped. Raises ValueError
    if it is empty or negative.
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
        """Return the time at the path's end, or None if nothing at `time` reaches it.

        Raises TypeError for a time with too few coordinates, and TimeError for a PathSummary that does not advance it.
        """
        adds = self.adds
        if type(time) is int and len(adds) == 1 and not self.tail:
            return time + adds[0]  # type: ignore[no-any-return]
        values = coordinates(time)
        if len(values) < len(adds):
            raise TypeError(f"{self!r} needs a time with at least {len(adds)} coordinates, not {time!r}")
        results = tuple(_results_in(step, value) for step, value in zip(adds, values, strict=False))
        return None if None in results else from_coordinates(results + self.tail)


def identity(depth: int) -> Summary:
    """Return the summary that leaves every time of this depth unchanged."""
    return Summary((0,) * (depth + 1))


def enter(depth: int) -> Summary:
    """Return the summary of entering a scope from `depth`: t becomes (t, 0)."""
    return Summary((0,) * (depth + 1), (0,))


def leave(depth: int) -> Summary:
    """Return the summary of leaving a scope at `depth` for its parent: (t, i) becomes t."""
    return Summary((0,) * depth)


def feedback(depth: int, advance: int) -> Summary:
    """Return the summary that advances the innermost coordinate of times of this depth."""
    return Summary((0,) * depth + (advance,))


def advancing(step: Step, least: Time) -> Summary:
    """Return the summary of a step of times whose least is `least`. 0 is the identity.

    Raises ValueError with a description of a valid step.

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
    """Return a step of one coordinate. 0 if it changes nothing."""
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
    if type(step).__repr__ is vars(object)["__repr__"]:  # workers compare its repr
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
