"""Antichains: sets of times in which no time is at most another. A frontier is an antichain.

`Antichain` is a plain set. `MutableAntichain` keeps counts and derives the frontier from them. All times in one
antichain are of one kind, so an antichain of integers has at most one element. The code tests for integers first,
because they are by far the most common.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from megaflow.errors import TimeError
from megaflow.timely.order import Time, epoch_of, in_order, is_total, less_equal, less_than, sort_key

_Elements = tuple[Time, ...]


class Antichain:
    """A set of mutually incomparable times. It stands for all times at or after one of them.

    The empty antichain is the frontier of a stream that has ended. Two antichains are equal if their sets are.

    >>> from megaflow.timely.order import Product
    >>> Antichain([Product(1, 5), Product(2, 2), Product(2, 6)])
    Antichain([Product(1, 5), Product(2, 2)])
    """

    __slots__ = ("_elements",)
    __hash__ = None  # type: ignore[assignment]  # it can change

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: _Elements = ()  # incomparable, in the order of `in_order`
        for time in times:
            self.insert(time)

    @property
    def elements(self) -> tuple[Time, ...]:
        """The times in the antichain, in the order of `in_order`."""
        return self._elements

    def insert(self, time: Time) -> bool:
        """Add a time and drop the times that it makes redundant. Return False if the time itself is redundant."""
        if self.less_equal(time):
            return False
        kept = [element for element in self._elements if not less_equal(time, element)]
        self._elements = tuple(in_order([*kept, time])) if kept else (time,)
        return True

    def less_equal(self, time: Time) -> bool:
        """Return whether some element is at most the time, so that the time may still appear.

        >>> Antichain([3]).less_equal(3), Antichain([3]).less_than(3), Antichain().less_equal(3)
        (True, False, False)
        """
        return _any_less_equal(self._elements, time)

    def less_than(self, time: Time) -> bool:
        """Return whether some element is strictly before the time."""
        for element in self._elements:  # a loop, not any(): see `_any_less_equal`
            if less_than(element, time):
                return True
        return False

    def is_empty(self) -> bool:
        """Return whether no time may still appear."""
        return not self._elements

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value: ask is_empty(), less_equal(time) or len()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        mine, theirs = self._elements, other._elements  # times without `<` are in any order
        return mine == theirs or (len(mine) == len(theirs) > 1 and set(mine) == set(theirs))

    def __repr__(self) -> str:
        return f"Antichain({list(self._elements)!r})"

    def _check(self) -> None:
        assert self._elements == _minimal(self._elements), f"not an antichain in order: {self!r}"


class MutableAntichain:
    """Counts of times, and the frontier of the times whose count is positive.

    A count is negative for a while if a decrement arrives before its increment; such a time holds nothing back. An
    update that cannot move the frontier costs O(size of the frontier). Any other costs one pass over the counted times.

    >>> outstanding = MutableAntichain([(1, 1)])
    >>> outstanding.update_iter([(1, -1), (2, 7)]), outstanding.frontier
    ([(1, -1), (2, 1)], Antichain([2]))
    """

    __slots__ = ("_counts", "_elements")

    def __init__(self, updates: Iterable[tuple[Time, int]] = ()) -> None:
        self._counts: dict[Time, int] = {}  # time -> count, never zero, perhaps negative
        self._elements: _Elements = ()  # the minimal times with a positive count, in the order of `in_order`
        self.update_iter(updates)

    @property
    def frontier(self) -> Antichain:
        """The minimal times with a positive count, as a value that later updates do not change."""
        return _antichain(self._elements)

    def update_iter(self, updates: Iterable[tuple[Time, int]]) -> list[tuple[Time, int]]:
        """Apply all updates; return the changes of the frontier: −1 for each time that left, +1 for each new one."""
        counts, elements = self._counts, self._elements
        moved = False
        for time, delta in updates:
            before = counts.get(time, 0)
            after = before + delta
            if after:
                counts[time] = after
            else:
                counts.pop(time, None)
            # The frontier can move only if a count crosses zero: upwards, and no element is at most the time, or
            # downwards at an element. `elements` is stale after the first such update, but then `moved` is final.
            if not moved and (before > 0) != (after > 0):
                moved = time in elements if before > 0 else not _any_less_equal(elements, time)
        return self._rebuild() if moved else []

    def _rebuild(self) -> list[tuple[Time, int]]:
        """Compute the frontier from the counts; return its changes."""
        old = self._elements
        new = self._elements = _minimal([time for time, count in self._counts.items() if count > 0])
        if old == new:
            return []
        changes = [(time, -1) for time in old if time not in new]
        changes += [(time, 1) for time in new if time not in old]
        return changes

    def count_for(self, time: Time) -> int:
        """Return the count of the time, 0 if it has none."""
        return self._counts.get(time, 0)

    def counts(self) -> Iterator[tuple[Time, int]]:
        """Iterate over the times and their nonzero counts, in no particular order."""
        return iter(self._counts.items())

    def is_empty(self) -> bool:
        """Return whether there are no counts, positive or negative."""
        return not self._counts

    def __repr__(self) -> str:
        return f"MutableAntichain({list(self._counts.items())!r})"

    def _check(self) -> None:
        assert all(self._counts.values()), f"a zero count is kept: {self!r}"
        minimal = _minimal([t for t, count in self._counts.items() if count > 0])
        assert self.frontier == _antichain(minimal), f"stale: {self!r}"


def single(time: Time) -> Antichain:
    """Return the antichain of one time; faster than `Antichain([time])`.

    >>> single(3)
    Antichain([3])
    """
    return _antichain((time,))


def _antichain(elements: _Elements) -> Antichain:
    antichain = Antichain()
    antichain._elements = elements
    return antichain


def first_epoch(frontier: Antichain) -> int | None:
    """Return the only element of a frontier in the root scope of a dataflow with int times; None if it is empty.

    >>> first_epoch(Antichain([3])), first_epoch(Antichain())
    (3, None)
    """
    elements = frontier.elements
    return epoch_of(elements[0]) if elements else None


def _any_less_equal(elements: Sequence[Time], time: Time) -> bool:
    """Return whether some element is at most the time."""
    for element in elements:  # a loop, not any(): this is the hot path, and there is usually one element
        if less_equal(element, time):
            return True
    return False


def _minimal(times: Sequence[Time]) -> _Elements:
    """Return the minimal times, in the order of `in_order`."""
    if not times:
        return ()
    if type(times[0]) is int:
        return (min(times),)  # type: ignore[type-var]  # ints, as the first is one
    if len(times) == 1:
        return (times[0],)
    accepted: list[Time] = []
    key = sort_key(times[0])
    if all(type(part) is int for part in key):
        ordered = sorted(times, key=sort_key)
    else:
        ordered = in_order(times)
        if is_total(key):
            _check_sorted(ordered)
    for time in ordered:
        if not _any_less_equal(accepted, time):
            accepted.append(time)
    return tuple(accepted)


def _check_sorted(times: list[Time]) -> None:
    """Raise TimeError if two neighbours show that `<`, which finds frontiers, breaks the rules of `Timestamp`."""
    for a, b in pairwise(times):
        if not (sort_key(a) < sort_key(b) or a == b) or less_than(b, a):
            raise TimeError(
                f"{a!r} and {b!r} cannot be sorted: `<` of a class of times must order any two different times and "
                "agree with less_equal; see Timestamp"
            )
