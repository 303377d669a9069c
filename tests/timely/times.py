"""Times of other kinds than ints, for tests: numbers ordered by divisibility, with what a loop does to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from megaflow.timely import Product, Time

LARGEST = 4096


@dataclass(frozen=True, slots=True, order=True)
class Divisor:
    """A number of at least 1, at most all its multiples; sorting numbers extends that."""

    number: int

    @classmethod
    def minimum(cls) -> Divisor:
        return cls(1)

    def less_equal(self, other: Divisor, /) -> bool:
        return other.number % self.number == 0


@dataclass(frozen=True, slots=True)
class Times:
    """The path that multiplies, up to the largest number."""

    factor: int
    largest: int = LARGEST

    def results_in(self, time: Divisor, /) -> Divisor | None:
        result = time.number * self.factor
        return Divisor(result) if result <= self.largest else None

    def followed_by(self, other: Times, /) -> Times | None:
        factor = self.factor * other.factor
        return Times(factor, self.largest) if factor <= self.largest else None

    def less_equal(self, other: Times, /) -> bool:
        return other.factor % self.factor == 0


LEASTS: tuple[Time, ...] = (
    0,
    (0, 0),
    Product(0, 0),
    Divisor(1),
    (0, Divisor(1)),
    Product((0, 0), Divisor(1)),
    ((0, Product(0, 0)), 0),
)
"""The least times of several kinds: total and partial orders, products and tuples of them."""


def times_like(least: Time) -> st.SearchStrategy[Any]:
    """Some small times of a kind."""
    if isinstance(least, Product):
        return st.builds(Product, times_like(least.outer), times_like(least.inner))
    if isinstance(least, tuple):
        return st.tuples(*map(times_like, least))
    return st.integers(0, 3) if least == 0 else st.sampled_from([1, 2, 3, 4, 6, 12]).map(Divisor)


def steps_like(least: Time) -> st.SearchStrategy[Any]:
    """Some steps of times of a kind, those that change nothing included."""
    if isinstance(least, Product):
        return st.builds(Product, steps_like(least.outer), steps_like(least.inner))
    if isinstance(least, tuple):
        return st.tuples(*map(steps_like, least))
    return st.sampled_from([0, 0, 1, 2]) if least == 0 else st.sampled_from([0, 0, Times(2), Times(3), Times(6)])
