"""`@dataclass(…)`, made in a tenth of the time: for the hundreds of classes that a program imports.

Python's own decorator writes three to six methods of each class as source and compiles them, 0.3 to 0.6 ms a class
(3.11); a launcher and its worker import two to three hundred such classes each, one after the other, before they do
anything. Here all methods but `__init__` are functions that the classes share, and `__init__` is compiled when the
first object is made: most classes never have one in most processes. What the methods do is the same: equality and hash
of the fields as a tuple, `FrozenInstanceError` where a field of a frozen one is set or deleted, `fields` and `replace`
of `dataclasses`, copies and pickles. Equality costs 0.15 microseconds more, so what is compared for each change of
progress has Python's own; so has what uses `InitVar`. Python's own compares field by field from 3.13 on, which makes a
difference for what does not equal itself: NaN.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from functools import partial
from operator import attrgetter
from sys import modules
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
    ) -> Callable[[type], type]:
        """Return a decorator that makes a class a dataclass, as Python's own does."""
        return partial(_make, frozen=frozen, slots=slots, eq=eq, shown=repr)


def _make(cls: type, frozen: bool, slots: bool, eq: bool, shown: bool) -> Any:
    made: Any = _dataclass(init=False, repr=False, eq=False, slots=slots)(cls)  # compiles nothing
    made.__dataclass_params__.frozen = frozen  # or no frozen dataclass could be derived from it

    def compile_init(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = _init_of(made, frozen)
        made.__init__(self, *given, **named)

    methods: dict[str, Any] = {"__init__": compile_init}
    if shown:
        methods["__repr__"] = _repr
    if eq:
        values = _values_of(made)
        methods |= {"__eq__": _equality_of(values), "__hash__": _hash_of(values) if frozen else None}
    if frozen:
        methods |= {"__setattr__": _set, "__delattr__": _delete}
    if frozen and slots:
        methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        assert name not in vars(cls), f"{cls.__qualname__} has its own {name}"
        setattr(made, name, method)
    return made


def _values_of(made: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function from an object to the tuple of its fields that are compared."""
    names = [field.name for field in fields(made) if field.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda self: (getattr(self, names[0]),)) if names else lambda self: ()


def _equality_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return is_equal


def _hash_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    return lambda self: hash(values(self))


_EQUALITY: Final = _equality_of(tuple).__code__


def compares_fields(equality: object) -> bool:
    """Tell whether this `__eq__` is of a class that was made here."""
    return getattr(equality, "__code__", None) is _EQUALITY


def _init_of(made: Any, frozen: bool) -> Any:
    """Compile the `__init__` of a class in its own module, as Python's own decorator does."""
    named: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    positional, by_name = ["self"], list[str]()
    lines: list[str] = []
    for field in fields(made):
        name, value, default, initial = field.name, field.name, "", ""
        if field.default is not MISSING:
            named[f"_default_{name}"] = field.default
            default, initial = f"=_default_{name}", f"_default_{name}"
        elif field.default_factory is not MISSING:
            named[f"_make_{name}"] = field.default_factory
            default, initial = "=_MISSING", f"_make_{name}()"
            value = f"{initial} if {name} is _MISSING else {name}"
        if field.init:
            (by_name if field.kw_only else positional).append(f"{name}{default}")
        elif not initial:
            continue  # `__post_init__` sets it
        else:
            value = initial
        lines.append(f"  _set(self, {name!r}, {value})" if frozen else f"  self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("  self.__post_init__()")
    parameters = ", ".join([*positional, "*", *by_name] if by_name else positional)
    body = "\n".join(lines) or "  pass"
    source = f"def _outer({', '.join(named)}):\n def __init__({parameters}):\n{body}\n return __init__"
    made_there: dict[str, Any] = {}
    exec(source, vars(modules[made.__module__]), made_there)
    init = made_there["_outer"](**named)
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
