"""Values of equal shape as columns, and back. A column lists what all the values have at one place.

Only C code handles single elements. Functions that take values apart return None if the shapes differ. That of dicts
first compares three of them, to fail early. Received columns are checked before any value is made from them.
"""

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import setitem
from typing import Any, Final, TypeAlias

from megaflow.errors import ProtocolError

Column: TypeAlias = Sequence[Any]

ARITY_MAX: Final = 64  # a wider value would make many short columns


def take_tuples_apart(values: Sequence[Collection[Any]]) -> list[Column] | None:
    """Return the columns of tuples or lists of one length; None if the lengths differ or are not 1 to ARITY_MAX."""
    if not 0 < len(values[0]) <= ARITY_MAX:
        return None
    try:
        return list(zip(*values, strict=True))
    except ValueError:  # of different lengths
        return None


def take_dicts_apart(values: Sequence[dict[Any, Any]]) -> tuple[list[str], list[Column]] | None:
    """Return the keys and their columns, for two or more dicts with the same str keys in the same order; else None.

    >>> take_dicts_apart([{"a": 1, "b": 2}, {"a": 3, "b": 4}])
    (['a', 'b'], [(1, 3), (2, 4)])
    >>> take_dicts_apart([{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    """
    keys = [*values[0]]
    if not 0 < len(keys) <= ARITY_MAX or not keys == [*values[1]] == [*values[-1]]:
        return None
    met = [*chain.from_iterable(values)]
    # Compare the type exactly: a member of an enum may equal a str.
    if met != keys * len(values) or [*map(type, met)] != [str] * len(met):
        return None
    columns = take_tuples_apart([*map(dict.values, values)])
    return None if columns is None else (keys, columns)


def count_of(columns: Sequence[Column]) -> int:
    """Return the number of rows in columns. Raises ProtocolError if the lengths differ or there is no column."""
    lengths = {*map(len, columns)}
    if len(lengths) != 1:
        raise ProtocolError(f"{len(columns)} columns of {len(lengths)} lengths arrived")
    return lengths.pop()


def make_dicts(keys: Sequence[str], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Return a dict for each row of the columns. `keys` are str, one for each column."""
    keys = [*map(sys.intern, keys)]  # interned like keys written in a program; raises TypeError for other types
    first = dict.fromkeys(keys)
    if len(first) != len(columns):
        raise ProtocolError(f"dicts of {len(columns)} values arrived with {len(first)} keys")
    made: list[dict[str, Any]] = [*map(dict.copy, repeat(first, count_of(columns)))]
    for key, column in zip(keys, columns):  # twice as fast as dict(zip(keys, row))
        for_each(setitem, made, repeat(key), column)
    return made


def for_each(function: Callable[..., object], *arguments: Iterable[Any]) -> None:
    """Call a function with the first element of each argument, then with the second of each, and so on."""
    deque(map(function, *arguments), 0)


def make_lists(lengths: Sequence[int], flat: list[Any]) -> list[list[Any]]:
    """Return lists of these lengths, which divide the elements of one list in turn.

    >>> make_lists([2, 0, 1], ["a", "b", "c"])
    [['a', 'b'], [], ['c']]
    """
    if (lengths and ({*map(type, lengths)} != {int} or min(lengths) < 0)) or sum(lengths) != len(flat):
        raise ProtocolError(f"{len(lengths)} lists arrived with {len(flat)} elements, which do not match their lengths")
    return [flat[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
