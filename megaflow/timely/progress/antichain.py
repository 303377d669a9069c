"""Antichains: sets of times of which none is at most another. A frontier is one.

`Antichain` is a plain set; `MutableAntichain` keeps counts and derives the frontier from them.
All times in one antichain are alike, so integer times make at most one element: the
code takes that case first, as it is nearly always the case.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from megaflow.errors import TimeError
from megaflow.timely.order import Time, less_equal, less_than, sort_key

_Elements = tuple[Time, ...]


class Antichain:
    """A set of mutually incomparable times, which stands for all times at or after one of them.

    The empty antichain is the frontier of a stream that has ended. Equality is that of sets.

    >>> from megaflow.timely.order import Product
    >>> Antichain([Product(1, 5), Product(2, 2), Product(2, 6)])
    Antichain([Product(1, 5), Product(2, 2)])
    """

    __slots__ = ("_elements",)
    __hash__ = None  # type: ignore[assignment]  # it can change

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: _Elements = ()  # incomparable, sorted by `sort_key`
        for time in times:
            self.insert(time)

    @property
    def elements(self) -> tuple[Time, ...]:
        """The times in the antichain, sorted by `sort_key`."""
        return self._elements

    def insert(self, time: Time) -> bool:
        """Add the time and drop the times that it makes redundant. Return False if the time itself is redundant."""
        if self.less_equal(time):
            return False
        kept = [element for element in self._elements if not less_equal(time, element)]
        self._elements = tuple(sorted([*kept, time], key=sort_key))
        return True

    def less_equal(self, time: Time) -> bool:
        """Tell whether some element is at most the time, so that the time may still appear.

        >>> Antichain([3]).less_equal(3), Antichain([3]).less_than(3), Antichain().less_equal(3)
        (True, False, False)
        """
        return _any_less_equal(self._elements, time)

    def less_than(self, time: Time) -> bool:
        """Tell whether some element is strictly before the time."""
        for element in self._elements:  # a loop, not any(): see `_any_less_equal`
            if less_than(element, time):
                return True
        return False

    def is_empty(self) -> bool:
        """Tell whether no further time may appear."""
        return not self._elements

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value: ask is_empty(), less_equal(time) or len()")

    def __eq__(self, other: object) -> bool:
        return self._elements == other._elements if isinstance(other, Antichain) else NotImplemented

    def __repr__(self) -> str:
        return f"Antichain({list(self._elements)!r})"

    def _check(self) -> None:
        assert self._elements == _minimal(self._elements), f"not an antichain in order: {self!r}"


class MutableAntichain:
    """Counts of times, and the frontier of those whose count is positive.

    Counts may be negative for a while, when a decrement overtakes its increment; such a time holds
    nothing back. An update that cannot move the frontier costs O(size of the frontier); one that can
    costs a pass over the counted times.

    >>> outstanding = MutableAntichain([(1, 1)])
    >>> outstanding.update_iter([(1, -1), (2, 7)]), outstanding.frontier
    ([(1, -1), (2, 1)], Antichain([2]))
    """

    __slots__ = ("_counts", "_elements")

    def __init__(self, updates: Iterable[tuple[Time, int]] = ()) -> None:
        self._counts: dict[Time, int] = {}  # time -> count, never zero, perhaps negative
        self._elements: _Elements = ()  # the minimal times with a positive count, sorted by `sort_key`
        self.update_iter(updates)

    @property
    def frontier(self) -> Antichain:
        """The minimal times with a positive count, as a value that later updates leave alone."""
        return _antichain(self._elements)

    def update_iter(self, updates: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply all updates and return how the frontier changed: −1 for each time that left, +1 for each new one."""
        counts, elements = self._counts, self._elements
        moved = False
        for time, delta in updates:
            before = counts.get(time, 0)
            after = before + delta
            if after:
                counts[time] = after
            else:
                counts.pop(time, None)
            # Only a count that crosses zero matters: upwards where no element is at most the time, downwards
            # at an element. Elements go stale once one has moved, but then the answer is known.
            if not moved and (before > 0) != (after > 0):
                moved = time in elements if before > 0 else not _any_less_equal(elements, time)
        return self._rebuild() if moved else []

    def _rebuild(self) -> list[tuple[Time, int]]:
        """Derive the frontier from the counts anew and return its changes."""
        old = self._elements
        new = self._elements = _minimal([time for time, count in self._counts.items() if count > 0])
        if old == new:
            return []
        changes = [(time, -1) for time in old if time not in new]
        changes += [(time, 1) for time in new if time not in old]
        return changes

    def count_for(self, time: Time) -> int:
        """Return the time's count, 0 if it has none."""
        return self._counts.get(time, 0)

    def counts(self) -> Iterator[tuple[Time, int]]:
        """Iterate over the times and their counts, none zero, in no particular order."""
        return iter(self._counts.items())

    def is_empty(self) -> bool:
        """Tell whether there is no count at all, positive or negative."""
        return not self._counts

    def __repr__(self) -> str:
        return f"MutableAntichain({list(self._counts.items())!r})"

    def _check(self) -> None:
        assert all(self._counts.values()), f"a zero count is kept: {self!r}"
        assert self._elements == _minimal([t for t, count in self._counts.items() if count > 0]), f"stale: {self!r}"


def single(time: Time) -> Antichain:
    """Return the antichain of one time; faster than building it.

    >>> single(3)
    Antichain([3])
    """
    return _antichain((time,))


def _antichain(elements: _Elements) -> Antichain:
    antichain = Antichain()
    antichain._elements = elements
    return antichain


def _any_less_equal(elements: Sequence[Time], time: Time) -> bool:
    """Tell whether some element is at most the time."""
    for element in elements:  # a loop, not any(): this is the hot path, and there is mostly one element
        if less_equal(element, time):
            return True
    return False


def _minimal(times: Sequence[Time]) -> _Elements:
    """Return the minimal ones among the times, sorted by `sort_key`."""
    if not times:
        return ()
    if type(times[0]) is int:
        return (min(times),)
    if len(times) == 1:
        return (times[0],)
    accepted: list[Time] = []
    ordered = sorted(times, key=sort_key)
    if not all(type(part) is int for part in sort_key(ordered[0])):
        _check_sorted(ordered)
    for time in ordered:
        if not _any_less_equal(accepted, time):
            accepted.append(time)
    return tuple(accepted)


def _check_sorted(times: list[Time]) -> None:
    """Raise TimeError where neighbours show that `<`, by which frontiers are found, is not as `Timestamp` says."""
    for a, b in pairwise(times):
        if not (sort_key(a) < sort_key(b) or a == b) or less_than(b, a):
            raise TimeError(
                f"{a!r} and {b!r} cannot be sorted: `<` of a class of times must order any two different times and "
                "agree with less_equal; see Timestamp"
            )
