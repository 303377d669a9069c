"""Random draws of the example programs: the same numbers on every machine and every worker."""

from collections.abc import Iterator
from itertools import islice


def numbers() -> Iterator[int]:
    """Numbers below 2^31, without end, from a linear congruential generator that starts at 1.

    >>> list(islice(numbers(), 3))
    [908834774, 1093944153, 1392341196]
    """
    state = 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33


def pairs(count: int, below: int) -> list[tuple[int, int]]:
    """Draw `count` pairs of numbers below a bound: the edges of a graph, or the keys and values of a table."""
    drawn = numbers()
    return [(left % below, right % below) for left, right in islice(zip(drawn, drawn), count)]
