"""Values to bytes: the lowered tree, packed in one call; also the registration of classes by the program."""

import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgpack

from megaflow.errors import CannotTravel, UsageError
from megaflow.timely.communication.codec import tags, user_types
from megaflow.timely.communication.codec.lowering import BUILT_IN, forget, lower, lower_as, lower_shared
from megaflow.timely.communication.codec.tags import Node

T = TypeVar("T")

Registration: TypeAlias = tuple[Callable[[Any], object] | None, Callable[[Any], Any] | None]  # encode, decode

of_main: Final[dict[type, Registration]] = {}
"""Classes that a script or notebook has registered as `__main__`, which other processes do not run."""


def encode(value: object, *, shared: bool = False) -> bytes:
    """Return bytes from which `decode` rebuilds the value. Raises CannotTravel with a type that cannot travel.

    With `shared`, here and in `decode`, an object that the value refers to several times stays one. Otherwise it is
    copied.
    """
    try:
        tree = lower_shared(value) if shared else lower(value)
    except RecursionError as error:
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is nested too deeply to travel") from error
    try:
        packed: bytes = msgpack.packb(tree, default=_lower_big_int, strict_types=True, unicode_errors="surrogatepass")
    except ValueError as error:  # more than 4 GiB in one piece
        raise CannotTravel(f"a value of {user_types.describe(type(value))} is too large to travel") from error
    return packed


def _lower_big_int(value: int) -> Node:
    """Lower an int beyond 64 bits, the only kind of value in the tree that msgpack cannot pack."""
    return [tags.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


@overload
def register(cls: type[Any]) -> None: ...
@overload
def register(cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None: ...
def register(
    cls: type[T], encode: Callable[[T], object] | None = None, decode: Callable[[Any], T] | None = None
) -> None:
    """Let values of exactly this class travel, as keys, states and records.

    `encode` turns a value into one that can travel, and `decode` turns it back. Without them, an object of the class
    travels as its fields, or as the result of its `__getstate__` if it has one. It is made again without `__init__`, by
    its `__setstate__` if it has one. So a program can let a class of a library travel. The contents of its objects must
    be able to travel as well. Each process must register the class, under the same name, before the first value is
    sent: call this at the top level of the program. The workers of `megaflow.run` also register what the script or
    notebook that calls it has registered. Raises UsageError for a class that needs the two functions.
    """
    if not isinstance(cls, type):
        raise UsageError(f"register({cls!r:.200}): give a class")
    if cls in BUILT_IN:
        raise UsageError(f"register({cls.__name__}): values of {user_types.describe(cls)} can already travel")
    given: Registration = (encode, decode)
    if encode is None or decode is None:
        why = "only one function is given" if encode or decode else user_types.why_not_by_state(cls)
        if why is not None:
            raise UsageError(f"register({cls.__name__}): {why}; give both, register({cls.__name__}, encode, decode)")
        encode, decode = by_state(cls)
    if sys._getframe(1).f_globals.get("__name__") == "__main__":
        of_main[cls] = given
    name = f"{cls.__module__}.{cls.__qualname__}"
    user_types.decoders[name] = decode
    lower_as(cls, name, encode)


def by_state(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how to take apart and remake the objects of a class that the program has registered and so trusts.

    Uses `__getstate__` and `__setstate__` like pickle if the class has either of them, otherwise the fields.
    """
    storage = user_types.storage_of(cls)
    if not (user_types.has_own(cls, "__getstate__") or user_types.has_own(cls, "__setstate__")):
        return storage.take_apart, lambda parts: storage.fill(*parts)

    def make(state: Any) -> Any:
        result: Any = object.__new__(cls)
        if state is not None and user_types.has_own(cls, "__setstate__"):
            result.__setstate__(state)
        elif state is not None:
            beside, slots = state if isinstance(state, tuple) else (state, None)  # as object.__getstate__ returns it
            for name, value in {**(beside or {}), **(slots or {})}.items():
                object.__setattr__(result, name, value)
        return result

    return lambda value: value.__getstate__(), make


def forget_replaced() -> None:
    """Forget each class that its module has defined again, as a notebook cell does when it runs again.

    A value of the old class is refused from then on: other processes would make it a value of the new class, which may
    have other methods. Call this when a job starts. Costs one look-up for each class whose values were encoded.
    """

    def is_gone(cls: type) -> bool:
        found = user_types.namesake(cls)
        return found is not None and found is not cls

    for cls in forget(is_gone):
        of_main.pop(cls, None)
