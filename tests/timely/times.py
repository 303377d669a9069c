"""Times other than ints, for tests: numbers ordered by divisibility, and the steps of a loop on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from megaflow.timely import Product, Time

LARGEST = 4096


@dataclass(frozen=True, slots=True, order=True)
class Divisor:
    """A number of at least 1, less than or equal to all its multiples; sorting numbers extends this order."""

    number: int

    @classmethod
    def minimum(cls) -> Divisor:
        return cls(1)

    def less_equal(self, other: Divisor, /) -> bool:
        return other.number % self.number == 0


@dataclass(frozen=True, slots=True)
class Times:
    """Path that multiplies, up to the largest number."""

    factor: int
    largest: int = LARGEST

    def results_in(self, time: Any, /) -> Any:
        result = time.number * self.factor
        return type(time)(result) if result <= self.largest else None

    def followed_by(self, other: Times, /) -> Times | None:
        factor = self.factor * other.factor
        return Times(factor, self.largest) if factor <= self.largest else None

    def less_equal(self, other: Times, /) -> bool:
        return other.factor % self.factor == 0


@dataclass(frozen=True, slots=True)
class Unsorted:
    """A number like a `Divisor`, of a class without `<`."""

    number: int

    @classmethod
    def minimum(cls) -> Unsorted:
        return cls(1)

    def less_equal(self, other: Unsorted, /) -> bool:
        return other.number % self.number == 0


LEASTS: tuple[Time, ...] = (
    0,
    (0, 0),
    Product(0, 0),
    Divisor(1),
    (0, Divisor(1)),
    Product((0, 0), Divisor(1)),
    ((0, Product(0, 0)), 0),
    (),
    Unsorted(1),
    (0, Unsorted(1)),
    Product(Unsorted(1), Divisor(1)),
)
"""The least times of several kinds: total and partial orders, products and tuples of them."""


def times_like(least: Time) -> st.SearchStrategy[Any]:
    """Draw small times of a kind."""
    if isinstance(least, Product):
        return st.builds(Product, times_like(least.outer), times_like(least.inner))
    if isinstance(least, tuple):
        return st.tuples(*map(times_like, least))
    return st.integers(0, 3) if least == 0 else st.sampled_from([1, 2, 3, 4, 6, 12]).map(type(least))


def steps_like(least: Time) -> st.SearchStrategy[Any]:
    """Draw steps of times of a kind, including those that change nothing."""
    if isinstance(least, Product):
        return st.builds(Product, steps_like(least.outer), steps_like(least.inner))
    if isinstance(least, tuple):
        return st.tuples(*map(steps_like, least))
    return st.sampled_from([0, 0, 1, 2]) if least == 0 else st.sampled_from([0, 0, Times(2), Times(3), Times(6)])
