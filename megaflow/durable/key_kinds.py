"""Whether a program that has changed still gives an operator keys of the kind that the store has.

With other keys (a tuple in the place of a str, a text in the place of a number) every key would begin anew, and the old
states would stay for good. Only the records show which keys a program gives, so this is found while the job runs:
 1. Each worker compares the kinds of the keys that it routes with those in the store, until one is of such a kind.
 2. If none is when a checkpoint is cut, the job ends. So nothing that follows from the other keys becomes durable, and
    the program as it was before goes on with the store.
 3. This is asked of a program that has changed, up to its first checkpoint. An operator may have keys of several kinds:
    one that has come before is enough. A new version says that the states are others, so nothing is asked then.
"""

from collections.abc import Iterable
from numbers import Number
from typing import Any, Final

from megaflow.durable.blocks import OF_TIMERS, Block, keys_of
from megaflow.errors import ProgramError
from megaflow.timely.communication.codec.class_names import are_texts

_ALIKE: Final = (str, bytes, frozenset)  # a key of a subclass equals one of these


def kind_of(key: Any) -> str:
    """Return the kind of a key: keys that may be equal are of one kind.

    >>> kind_of("a"), kind_of(1), kind_of(2.5), kind_of(("a", (1, None)))
    ('str', 'number', 'number', '(str, (number, NoneType))')
    """
    if isinstance(key, tuple):
        return f"({', '.join(map(kind_of, key))})"
    if isinstance(key, Number):
        return "number"
    return next((base.__name__ for base in _ALIKE if isinstance(key, base)), type(key).__qualname__)


def kinds_of(keys: Iterable[Any]) -> frozenset[str]:
    """Return the kinds of keys. Cost: linear in them; but for tuples next to nothing."""
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
    """The kinds of the keys of one operator on one worker. One writer: the worker's thread."""

    def __init__(self, operator: str, kept: frozenset[str]) -> None:
        """`kept`: the kinds that the store has."""
        self._operator = operator
        self._kept = kept
        self._other: set[str] = set()  # that have come
        self.is_settled = False  # whether a key of a kind that the store has has come

    def note(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        """Note the keys of some records; tell whether it is settled."""
        kinds = kinds_of(key for key, _ in pairs)
        self.is_settled = self.is_settled or not self._kept.isdisjoint(kinds)
        self._other |= kinds
        return self.is_settled

    def check(self) -> None:
        """Raise ProgramError if keys have come, and none of a kind that the store has."""
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
