"""Sums of signed changes."""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ChangeBatch(Generic[T]):
    """Sum of changes for each item. Items whose changes cancel are dropped.

    Iteration follows the order in which the items were last changed.

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
        total = sums.pop(item, 0) + delta  # usually the item is new or cancels: one look-up fewer than get and set
        if total:
            sums[item] = total

    def extend(self, changes: Iterable[tuple[T, int]]) -> None:
        """Add all these changes."""
        sums = self._sums
        for item, delta in changes:
            total = sums.pop(item, 0) + delta
            if total:
                sums[item] = total

    def absorb(self, other: "ChangeBatch[T]") -> None:
        """Add all changes of the other batch, and empty it."""
        if self._sums:
            self.extend(other._sums.items())
            other._sums.clear()
        else:
            self._sums, other._sums = other._sums, self._sums

    def drain(self) -> list[tuple[T, int]]:
        """Return the nonzero sums and empty the batch."""
        changes = list(self._sums.items())
        self._sums.clear()
        return changes

    def is_empty(self) -> bool:
        """Return whether all changes so far cancel."""
        return not self._sums

    def __len__(self) -> int:
        return len(self._sums)

    def __iter__(self) -> Iterator[tuple[T, int]]:
        return iter(self._sums.items())

    def __repr__(self) -> str:
        return f"ChangeBatch({list(self._sums.items())!r})"

    def _check(self) -> None:
        assert all(self._sums.values()), f"a zero sum is kept: {self!r}"
