"""Checks that cost too much to be always on. MEGAFLOW_CHECK in the environment names them, separated by commas.

`aliasing`: a fold may change its state in place and return the same object as an output. Outputs are read later, so
several of them are then equal. An output must stay as it was when it was returned. The check finds a change as follows:
1. After each call of the fold for a key, it keeps every changeable object that is both in the key's state and in an
   output, with its encoded bytes. An output that shares nothing with the state is safe from later calls.
2. After the next call for the key, it encodes the object again. Other bytes mean a change, by the fold or by a reader
   that made no copy. So a fold that returns the same unchanged object again and again is not accused. A change that a
   generator of outputs makes while it runs is found at its end.
3. It drops objects that are no longer in the state.
4. Two equal outputs of one call that both contain a part of the state are also a mistake: each stands for another
   moment of an object that kept changing.
Not found: a change of an object that cannot travel, and a change after which this worker has no further call for the
key.

The check also finds states of two keys that share an object. A call for one key then changes the state of the other,
but only while both are on one worker. Such a change is found as follows:
5. After each call for a key, the check keeps its state, with the encoded bytes and the ids of its changeable parts. If
   the state of another key contains a part that this state has now or had before the call, the check encodes that other
   state again. Only calls for its own key may change a state, so other bytes are a mistake. If several other keys share
   a part, checking one of them is enough.
6. Two states may share an object that never changes: a move makes two equal objects of it.
Not found: an object that is shared only through a class or a global. It is not part of a state and does not travel.
"""

import os
from collections.abc import Callable, Iterable
from gc import get_referents
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final, TypeVar

from megaflow.errors import BuildError, CannotTravel, ProgramError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.folds import check_outputs

SWITCH: Final = "MEGAFLOW_CHECK"
ALIASING: Final = "aliasing"
_CLOSED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)  # these refer to the program, not to data

Fold = TypeVar("Fold", bound=Callable[..., Any])


def wanted() -> set[str]:
    """Return the checks that the environment asks for. Raises BuildError for an unknown name."""
    names = {*map(str.strip, os.environ.get(SWITCH, "").split(","))} - {""}
    for name in sorted(names - {ALIASING}):
        raise BuildError(f"{SWITCH}={os.environ[SWITCH]}: there is no check {name!r}; available: {ALIASING}")
    return names


def checked(operator: str, fold: Fold) -> Fold:
    """Return the fold itself or, if the check is wanted, a fold that also raises ProgramError for aliasing.

    The fold's first argument is the key. Cost if wanted: linear in state and outputs, at each call.
    """
    if ALIASING not in wanted():
        return fold
    watched: Any = _Watched(operator, fold)
    return watched  # type: ignore[no-any-return]


class _Watched:
    """A fold, and the parts of its states that were returned in outputs."""

    def __init__(self, operator: str, fold: Callable[..., Any]) -> None:
        self._operator = operator
        self._fold = fold
        self._given: dict[Any, dict[int, tuple[Any, bytes]]] = {}  # key -> id -> (object, its old bytes); none empty
        self._states: dict[Any, tuple[Any, bytes, list[int]]] = {}  # key -> state, its old bytes, ids of its parts
        self._owners: dict[int, dict[Any, None]] = {}  # id of a part -> keys whose states have it; none empty

    def __call__(self, key: Any, *arguments: Any) -> Any:
        result = self._fold(key, *arguments)
        match result:
            case [state, outputs] if isinstance(outputs, Iterable):
                check_outputs(self._operator, outputs)
                out = self._watch(key, state, outputs)
                self._compare_others(key, state)
                return state, out
        return result  # the calling loop reports what is wrong with it

    def _watch(self, key: Any, state: Any, outputs: Iterable[Any]) -> list[Any]:
        """Look for changes of objects returned before, remember those returned now, and return the outputs."""
        given = self._given.pop(key, {})
        self._compare(key, given)
        kept = _changeable(state)
        given = {id: each for id, each in given.items() if id in kept}
        out, seen = [], set[bytes]()
        for output in outputs:
            shared = _changeable(output).keys() & kept.keys()
            if shared and (encoded := _encoded(output)):
                if encoded in seen:
                    raise self._error(key, f"returned {output!r:.200} twice in one call")
                seen.add(encoded)
            for id in shared - given.keys():
                if encoded := _encoded(kept[id]):
                    given[id] = kept[id], encoded
            out.append(output)
        self._compare(key, given)
        if given:
            self._given[key] = given
        return out

    def _compare(self, key: Any, given: dict[int, tuple[Any, bytes]]) -> None:
        for part, was in given.values():
            if _encoded(part) != was:
                raise self._error(key, f"returned {decode(was)!r:.200} as an output or in one, and it is now "
                                       f"{part!r:.200}")

    def _compare_others(self, key: Any, state: Any) -> None:
        """Look for changes of the states that share a part with the state of a key. Then remember the key's state."""
        _, _, before = self._states.pop(key, (None, b"", []))
        for id in before:
            del self._owners[id][key]
            if not self._owners[id]:
                del self._owners[id]
        parts = [*_changeable(state)]
        for other in {next(iter(self._owners[id])): None for id in (*before, *parts) if id in self._owners}:
            theirs, was, _ = self._states[other]
            if was and _encoded(theirs) != was:
                raise ProgramError(
                    f"{self._operator}: the fold for key {key!r:.200} changed the state of key {other!r:.200} from "
                    f"{decode(was)!r:.200} to {theirs!r:.200}: both states have the same object, and a move would make "
                    "two of it. Make a new object for each key, as in state = [] if state is None else state, and copy "
                    f"what you take from a default, a global or a record ({SWITCH}={ALIASING} reports this)"
                )
        if parts:
            self._states[key] = state, _encoded(state), parts
            for id in parts:
                self._owners.setdefault(id, {})[key] = None

    def _error(self, key: Any, what: str) -> ProgramError:
        return ProgramError(
            f"{self._operator}: the fold for key {key!r:.200} {what}: a state that is changed in place also changes "
            "all outputs that contain it or a part of it. Return a copy, as in return state, [(key, list(state))] or "
            f"tuple(state), or make a new state in each call ({SWITCH}={ALIASING} reports this)"
        )


def _encoded(value: Any) -> bytes:
    try:
        return encode(value)
    except CannotTravel:
        return b""


def _changeable(value: Any) -> dict[int, Any]:
    """Return the changeable objects among a value and all it refers to, by id. Cost: linear in all of these."""
    found: dict[int, Any] = {}
    left, seen = [value], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, _CLOSED):
            continue
        seen.add(id(part))
        hashing: object = type(part).__hash__
        if hashing is None or hashing is object.__hash__:  # an object hashed by its contents must not change them
            found[id(part)] = part
        left += get_referents(part)
        if type(part).__module__ == "numpy":  # a view does not refer to the array that owns its memory
            left.append(getattr(part, "base", None))
    return found
