"""Check that a changed program still gives an operator keys of a stored kind.

With keys of another kind (a tuple instead of a str, a text instead of a number) every key would start without state,
and the old states would stay forever. Only the records show which keys a program uses, so the check runs with the job:
 1. Each worker compares the kinds of the keys that it routes with those in the store, until one matches.
 2. If none matches before a checkpoint is cut, the job ends. So no effect of the other keys becomes durable, and the
    earlier program can resume from the store.
 3. The check applies to a program that has changed, up to its first checkpoint. An operator may have keys of several
    kinds: one key of a stored kind is enough. A new version declares that the states are different, so nothing is
    checked then.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from numbers import Number
from typing import Any, Final

from megaflow.durable.blocks import OF_TIMERS, Block, keys_of
from megaflow.errors import ProgramError
from megaflow.timely.communication.codec.class_names import are_texts

_ALIKE: Final = (str, bytes, frozenset, datetime, timedelta)  # a key of a subclass equals one of these
_OF_NUMPY: Final = {"datetime64": "datetime", "timedelta64": "timedelta"}  # these equal their counterparts in Python


def kind_of(key: Any) -> str:
    """Return the kind of a key: keys that may be equal are of one kind.

    >>> kind_of("a"), kind_of(1), kind_of(2.5), kind_of(("a", (1, None)))
    ('str', 'number', 'number', '(str, (number, NoneType))')
    """
    if isinstance(key, tuple):
        return f"({', '.join(map(kind_of, key))})"
    name = type(key).__qualname__
    if name in _OF_NUMPY:
        return _OF_NUMPY[name]
    if isinstance(key, Number):
        return "number"
    return next((base.__name__ for base in _ALIKE if isinstance(key, base)), name)


def kinds_of(keys: Iterable[Any]) -> frozenset[str]:
    """Return the kinds of keys. Cost: linear; next to nothing except for tuples."""
    by_type: dict[type, Any] = {}
    kinds: set[str] = set()
    for key in keys:
        if isinstance(key, tuple):
            kinds.add(kind_of(key))
        else:
            by_type.setdefault(type(key), key)
    return frozenset(kinds.union(map(kind_of, by_type.values())))


def kinds_in(block: Block) -> frozenset[str]:
    """Return the kinds of the keys in a block."""
    if block.kind in OF_TIMERS or not block.count:
        return frozenset()
    return frozenset(("str",)) if are_texts(block.keys) else kinds_of(keys_of(block))


class KeyKinds:
    """Kinds of the keys of one operator on one worker. One writer: the worker's thread."""

    def __init__(self, operator: str, kept: frozenset[str]) -> None:
        """`kept`: the kinds that the store has."""
        self._operator = operator
        self._kept = kept
        self._other: set[str] = set()  # kinds of the keys so far
        self.is_settled = False  # whether a key of a stored kind was seen

    def note(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        """Note the keys of some records; return whether the check is settled."""
        kinds = kinds_of(key for key, _ in pairs)
        self.is_settled = self.is_settled or not self._kept.isdisjoint(kinds)
        self._other |= kinds
        return self.is_settled

    def check(self) -> None:
        """Raise ProgramError if there were keys, but none of a stored kind."""
        if self._other and not self.is_settled:
            raise ProgramError(
                f"The keys of operator {self._operator!r} in the store are of type {_listed(self._kept)}, but all "
                f"keys since are of type {_listed(self._other)}, so no key would find its state. Give the operator "
                "keys of the old type again. To start with other keys, give it another name= and give up the old "
                f"states with --drop-state {self._operator}, or give the next version= and upgrade=f(key, state, "
                "version)."
            )


def _listed(kinds: Iterable[str]) -> str:
    return " or ".join(sorted(kinds))
