"""Signed changes, summed as they come."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ChangeBatch(Generic[T]):
    """A sum of changes per item, in which changes that cancel leave nothing behind.

    Iteration goes in the order in which the items were changed last.

    >>> batch: ChangeBatch[str] = ChangeBatch()
    >>> batch.extend([("a", 1), ("b", 2), ("a", -1)])
    >>> batch.drain(), batch.is_empty()
    ([('b', 2)], True)
    """

    __slots__ = ("_sums",)

    def __init__(self, changes: Iterable[tuple[T, int]] = ()) -> None:
        self._sums: dict[T, int] = {}  # item -> sum, never zero
        self.extend(changes)

    def update(self, item: T, delta: int) -> None:
        """Add `delta` to the item's sum."""
        sums = self._sums
        total = sums.pop(item, 0) + delta  # mostly it is new, or cancels: one look-up less than get and set
        if total:
            sums[item] = total

    def extend(self, changes: Iterable[tuple[T, int]]) -> None:
        """Add all the changes."""
        sums = self._sums
        for item, delta in changes:
            total = sums.pop(item, 0) + delta
            if total:
                sums[item] = total

    def absorb(self, other: "ChangeBatch[T]") -> None:
        """Add all of the other's changes, and empty it."""
        if self._sums:
            self.extend(other._sums.items())
            other._sums.clear()
        else:
            self._sums, other._sums = other._sums, self._sums

    def drain(self) -> list[tuple[T, int]]:
        """Return the sums that are not zero and empty the batch."""
        changes = list(self._sums.items())
        self._sums.clear()
        return changes

    def is_empty(self) -> bool:
        """Tell whether all changes so far cancel."""
        return not self._sums

    def __len__(self) -> int:
        return len(self._sums)

    def __iter__(self) -> Iterator[tuple[T, int]]:
        return iter(self._sums.items())

    def __repr__(self) -> str:
        return f"ChangeBatch({list(self._sums.items())!r})"

    def _check(self) -> None:
        assert all(self._sums.values()), f"a zero sum is kept: {self!r}"
