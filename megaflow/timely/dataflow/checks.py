"""Checks that cost too much to be always on: MEGAFLOW_CHECK in the environment names them, with commas between.

`aliasing`: a fold that changes its state in place and gives the same object as an output gives several equal outputs,
for they are read later. An output has to stay what it was when it was given. This is how a change is found:
1. After each call of the fold for a key, what can change and is both in the key's state and in an output is kept, with
   the bytes that it is encoded to. An output of which the state has no part is safe from later calls.
2. After the next call for the key it is encoded again. Other bytes mean that it was changed: by the fold, or by who
   read it and did not make a copy. So a fold that gives the same object again and again, unchanged, is not accused.
   What a generator of outputs changes while it runs is found at its end.
3. What is in the state no longer is let go.
4. Two outputs of one call that are equal and have the same part of the state are the mistake, too: each stands for
   another moment of an object that went on changing.
Not found: a change of what cannot travel, and one that no further call for the key follows on this worker.
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
_NAMES: Final = (ALIASING,)
_CLOSED: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)  # what these refer to is the program, not data

Fold = TypeVar("Fold", bound=Callable[..., Any])


def wanted() -> frozenset[str]:
    """Return the checks that the environment asks for; raises BuildError for a name that is none."""
    names = frozenset(name.strip() for name in os.environ.get(SWITCH, "").split(",") if name.strip())
    for name in sorted(names.difference(_NAMES)):
        raise BuildError(f"{SWITCH}={os.environ[SWITCH]}: there is no check {name!r}; available: {', '.join(_NAMES)}")
    return names


def checked(operator: str, fold: Fold) -> Fold:
    """Return the fold itself, or one that raises ProgramError for aliasing as well, if that check is wanted.

    The fold's first argument is the key. Cost if it is wanted: linear in state and outputs, at each call.
    """
    if ALIASING not in wanted():
        return fold
    watched: Any = _Watched(operator, fold)
    return watched  # type: ignore[no-any-return]


class _Watched:
    """A fold, and what of its states has been given in outputs."""

    def __init__(self, operator: str, fold: Callable[..., Any]) -> None:
        self._operator = operator
        self._fold = fold
        self._given: dict[Any, dict[int, tuple[Any, bytes]]] = {}  # key -> id -> (object, what it was); none empty

    def __call__(self, key: Any, *arguments: Any) -> Any:
        result = self._fold(key, *arguments)
        match result:
            case [state, outputs] if isinstance(outputs, Iterable):
                check_outputs(self._operator, outputs)
                return state, self._watch(key, state, outputs)
        return result  # the loop that called says what is wrong with it

    def _watch(self, key: Any, state: Any, outputs: Iterable[Any]) -> list[Any]:
        """Look for changes of what was given before; remember what is given now; return the outputs."""
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
    """Return what can change of a value and what it refers to, however deep, by id. Cost: linear in all of that."""
    found: dict[int, Any] = {}
    left, seen = [value], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, _CLOSED):
            continue
        seen.add(id(part))
        hashing: object = type(part).__hash__
        if hashing is None or hashing is object.__hash__:  # what hashes by its contents has to leave them as they are
            found[id(part)] = part
        left += get_referents(part)
        if type(part).__module__ == "numpy":  # a view, whose memory is another array's: it does not refer to it
            left.append(getattr(part, "base", None))
    return found
