"""`@dataclass(frozen=True, slots=True)`, made in a tenth of the time: for records of which a program imports hundreds.

Python's own decorator writes six methods of each class as source and compiles them, 0.6 ms a class (3.11); a launcher
and its worker import two hundred such classes each, one after the other, before they do anything. Here all methods but
`__init__` are functions that the classes share, and `__init__` is compiled when the first object is made: most classes
never have one in most processes. What the methods do is the same: equality, order of evaluation and hash of the fields
as a tuple, `FrozenInstanceError` where a field is set or deleted, `fields` and `replace` of `dataclasses`, copies and
pickles. Two things differ: there is no base class, and equality costs 0.15 microseconds more, so what is compared for
each change of progress has Python's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from operator import attrgetter
from sys import modules
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, slots: bool) -> Callable[[type], type]:
        """Return a decorator that makes a class a frozen dataclass with slots; both arguments must be True."""
        assert frozen and slots, "for any other dataclass there is Python's own decorator"
        return _make


def _make(cls: type) -> Any:
    made: Any = _dataclass(init=False, repr=False, eq=False, slots=True)(cls)  # compiles nothing
    made.__dataclass_params__.frozen = True  # or no frozen dataclass could be derived from it
    assert len(cls.__mro__) == 2, f"{cls.__qualname__} has a base class"
    assert all(each.init and each.compare and not each.kw_only for each in fields(made)), cls.__qualname__
    values = _values_of(made)

    def compile_init(self: Any, *given: Any, **named: Any) -> None:
        made.__init__ = _init_of(made)
        made.__init__(self, *given, **named)

    def hash_of(self: Any) -> int:
        return hash(values(self))

    methods = {"__init__": compile_init, "__eq__": _equality_of(values), "__hash__": hash_of} | _SHARED
    for name, method in methods.items():
        assert name not in vars(cls), f"{cls.__qualname__} has its own {name}"
        setattr(made, name, method)
    return made


def _values_of(made: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function from an object to the tuple of its fields."""
    names = [field.name for field in fields(made)]
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda self: (getattr(self, names[0]),)) if names else lambda self: ()


def _equality_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, Any], Any]:
    def is_equal(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return is_equal


_EQUALITY: Final = _equality_of(tuple).__code__


def compares_fields(equality: object) -> bool:
    """Tell whether this `__eq__` is of a class that was made here."""
    return getattr(equality, "__code__", None) is _EQUALITY


def _init_of(made: Any) -> Any:
    """Compile the `__init__` of a class in its own module, as Python's own decorator does."""
    named: dict[str, Any] = {"_set": object.__setattr__}
    parameters, lines = ["self"], []
    for field in fields(made):
        name, value = field.name, field.name
        if field.default is not MISSING:
            named[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not MISSING:
            named[f"_make_{name}"] = field.default_factory
            named["_MISSING"] = MISSING
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        else:
            parameters.append(name)
        lines.append(f"  _set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append("  self.__post_init__()")
    body = "\n".join(lines) or "  pass"
    source = f"def _outer({', '.join(named)}):\n def __init__({', '.join(parameters)}):\n{body}\n return __init__"
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


_SHARED: Final = {
    "__repr__": _repr,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getstate__": _state,
    "__setstate__": _restore,
}
