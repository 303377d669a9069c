"""Comparison of a job's results with the right ones: records, counts, rows, states, files of output.

A difference raises `WrongResult`. `tests/second_runs.py` never forgives it by a second run: a lost, doubled or wrong
record is a fault of megaflow, however rarely it comes. All else that a test of real processes checks, such as the words
of a message or that a job ends, is a plain `assert`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

SHOWN = 5  # differences of each kind


class WrongResult(AssertionError):
    """Records of a job are lost, doubled or wrong."""


@contextmanager
def comparing() -> Iterator[None]:
    """Raise `WrongResult` if an assertion in the block fails."""
    try:
        yield
    except AssertionError as error:
        raise WrongResult(*error.args) from error


def check_equal(found: Any, expected: Any, *more: object) -> None:
    """Raise `WrongResult` unless both are equal. `more` is printed as well, such as what the job printed.

    >>> check_equal(["a", "b", "b"], ["a", "b", "c"])
    Traceback (most recent call last):
    tests.results.WrongResult: 3 found, 3 expected; lost: 'c'; doubled or wrong: 'b'
    """
    if found != expected:
        raise WrongResult("\n".join([describe(found, expected), *map(str, more)]))


def describe(found: Any, expected: Any) -> str:
    """Return the difference of two unequal values in words: for collections, the elements that only one of them has.

    >>> describe({"a": 1, "b": 2}, {"a": 1, "b": 3})
    "2 found, 2 expected; lost: ('b', 3); doubled or wrong: ('b', 2)"
    >>> describe([2, 1], [1, 2])
    'the same 2 in another order: [2, 1], expected [1, 2]'
    >>> describe(3, 4)
    '3 found, 4 expected'
    """
    if not all(isinstance(value, list | tuple | set | frozenset | dict) for value in (found, expected)):
        return f"{shortened(repr(found))} found, {shortened(repr(expected))} expected"
    of_found, of_expected = (Counter(map(repr, elements(value))) for value in (found, expected))
    if of_found == of_expected:
        both = f"{shortened(repr(found))}, expected {shortened(repr(expected))}"
        return f"the same {of_found.total()} in another order: {both}"
    parts = [f"{of_found.total()} found, {of_expected.total()} expected"]
    for what, rest in (("lost", of_expected - of_found), ("doubled or wrong", of_found - of_expected)):
        if rest:
            more = f" and {rest.total() - SHOWN} more" if rest.total() > SHOWN else ""
            parts.append(f"{what}: {', '.join(map(shortened, sorted(rest.elements())[:SHOWN]))}{more}")
    return "; ".join(parts)


def elements(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, dict) else value


def shortened(text: str) -> str:
    return text if len(text) <= 1000 else f"{text[:500]} … {text[-500:]}"
