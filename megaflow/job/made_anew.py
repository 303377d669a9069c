"""Objects of a program that each worker process makes anew: caches, locks, generic functions, compiled formats.

A program that is pickled by value (see `megaflow.job.launcher.program.function_pickler`) may refer to such objects.
Pickle refuses them, or writes a name that workers do not have.

1. A cache arrives empty, a lock unlocked, and a thread-local without values. Each worker process has its own, as if it
   had run the script. A function and its cache may refer to each other: pickle then finds the one that was made first.
2. Objects that connect threads of one process are refused, although they could be copied with such locks: the copy of
   a queue or an event would never hear from the original.
3. Objects of importable modules are not made anew: they travel by name. So do the functions of `random`, which are
   methods of a hidden object: with copies of its state, all workers would draw the same numbers.
"""

import concurrent.futures
import functools
import queue
import random
import struct
import sys
import threading
import typing
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final

import cloudpickle

Parts = tuple[Any, ...]  # the result of a reducer

_OF_CACHES: Final = frozenset((*functools.WRAPPER_ASSIGNMENTS, "__wrapped__", "__type_params__", "cache_parameters"))
_GENERIC_CODE: Final = functools.singledispatch(lambda value: None).__code__  # type: ignore[attr-defined]
_CACHE: Final = type(functools.cache(len))
_ALIAS: Final[Any] = getattr(typing, "TypeAliasType", None)  # new in Python 3.12
_DICE: Final = random.random.__self__  # type: ignore[attr-defined]
_REFUSED: Final = (
    threading.Thread, threading.Event, threading.Condition, threading.Semaphore, threading.Barrier, queue.Queue,
    concurrent.futures.Executor,
)  # fmt: skip


def is_generic(value: object) -> bool:
    """Return whether `functools.singledispatch` made this function."""
    return isinstance(value, FunctionType) and value.__code__ is _GENERIC_CODE


def is_cached(value: object) -> bool:
    """Return whether `functools.cache` or `lru_cache` made this function."""
    return type(value) is _CACHE


def reduced(value: Any) -> Parts | None:
    """Return the parts from which pickle makes the value, like `__reduce__`. None if pickle needs no help.

    Raises TypeError for an object that rule 2 refuses, and for one that workers could not find by its name.
    """
    kind = type(value)
    if issubclass(kind, _REFUSED):
        raise TypeError(f"cannot pickle '{kind.__qualname__}' object")
    if (reduce := _REDUCERS.get(kind)) is not None:
        return reduce(value)
    is_named = isinstance(getattr(value, "__module__", None), str) and not isinstance(value, type)
    if not is_named or value.__module__ == kind.__module__ or not travels_by_value(value):
        return None
    if is_generic(value):
        return functools.singledispatch, (value.registry[object],), dict(value.registry), None, None, _register
    if (reduce := _NAMED_REDUCERS.get(kind)) is not None:
        return reduce(value)
    is_others = isinstance(value, FunctionType) or kind in cloudpickle.Pickler.dispatch_table
    if not is_others and isinstance(value.__reduce_ex__(4), str):
        raise TypeError(f"cannot pickle '{kind.__qualname__}' object of the module {value.__module__!r}")
    return None


def travels_by_value(value: Any) -> bool:
    """Return whether a worker cannot import the object by its name."""
    module = value.__module__
    if not isinstance(module, str):  # the code was run in a dict without a name
        return True
    names = module.split(".")
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if any(".".join(names[: length + 1]) in by_value for length in range(len(names))):
        return True
    found: Any = sys.modules.get(module)
    for part in getattr(value, "__qualname__", getattr(value, "__name__", "")).split("."):
        found = getattr(found, part, None)
    return found is not value


def _with_cache(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    return _ALIAS(name, value, type_params=parameters)


def _register(generic: Any, registry: Mapping[type, Callable[..., Any]]) -> None:
    for kind, function in registry.items():
        generic.register(kind, function)


def _attributes_of(made: Any) -> dict[str, Any]:
    return {name: each for name, each in vars(made).items() if name not in ("lock", "_method_cache")}


def _of_method(method: Any) -> Parts | None:
    is_of_random = method.__self__ is _DICE and getattr(random, method.__name__, None) == method
    return (getattr, (random, method.__name__)) if is_of_random else None


def _of_cache(value: Any) -> Parts:
    attributes = {name: each for name, each in vars(value).items() if name not in _OF_CACHES}
    return _with_cache, (value.__wrapped__, value.cache_parameters()), attributes or None


_REDUCERS: Final[dict[type, Callable[[Any], Parts | None]]] = {
    type(threading.Lock()): lambda lock: (threading.Lock, ()),
    type(threading.RLock()): lambda lock: (threading.RLock, ()),
    BuiltinMethodType: _of_method,
    MethodType: _of_method,
    threading.local: lambda local: (threading.local, ()),
    struct.Struct: lambda format: (struct.Struct, (format.format,)),
    functools.cached_property: lambda made: (functools.cached_property, (made.func,), _attributes_of(made)),
    functools.singledispatchmethod: lambda made: (functools.singledispatchmethod, (made.func,), _attributes_of(made)),
}
_NAMED_REDUCERS: Final[dict[type, Callable[[Any], Parts]]] = {
    _CACHE: _of_cache,
    typing.NewType: lambda made: (typing.NewType, (made.__name__, made.__supertype__), vars(made)),
    typing.ParamSpec: lambda made: (typing.ParamSpec, (made.__name__,)),
    typing.TypeVarTuple: lambda made: (typing.TypeVarTuple, (made.__name__,)),
    _ALIAS: lambda made: (_alias, (made.__name__, made.__value__, made.__type_params__)),
}  # of objects that have a module and a name
