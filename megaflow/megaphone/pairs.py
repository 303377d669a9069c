"""Columns of pairs: how records with a key travel from F to an S on another worker.

A list of tuples is taken apart into columns by the codec and put together again, only for S to take each tuple apart.
So F makes the columns itself, as it splits a batch, and S iterates over them: no tuple is made that outlives its turn
(measured: a third of what a record costs on its way). Whoever reads a batch of F's need not know: columns have a
length, a truth value and an order like a list of pairs, and slices of them are lists of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.values import register


class Pairs(Sequence[tuple[Any, Any]]):
    """(key, value) pairs, as two lists of one length. Whoever makes it fills the lists; then they stay as they are.

    >>> pairs = Pairs(["a", "b"], [1, 2])
    >>> list(pairs), len(pairs), pairs[0], pairs[1:]
    ([('a', 1), ('b', 2)], 2, ('a', 1), [('b', 2)])
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[Any], values: list[Any]) -> None:
        self.keys = keys
        self.values = values

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.keys, self.values)  # not strict: that costs, and one length is promised

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(zip(self.keys[index], self.values[index], strict=True))
        return self.keys[index], self.values[index]

    def __repr__(self) -> str:
        return f"Pairs({self.keys!r}, {self.values!r})"


def _restore(columns: Any) -> Pairs:
    match columns:
        case [list() as keys, list() as values] if len(keys) == len(values):
            return Pairs(keys, values)
    raise ProtocolError("columns of pairs that are not two lists of one length")


register(Pairs, lambda pairs: [pairs.keys, pairs.values], _restore)
