"""The program's own classes, as the codec meets them: found by name, taken apart and filled without running their code.

A class may travel when it is a dataclass, NamedTuple or enum that stands at the top level of a module (or in a class
there) under its own name: the other side then finds it by the same name in `sys.modules`. What travels is what the
object stores, slots and `__dict__`, so attributes set beside the fields arrive too.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any, Final

from megaflow.errors import CannotTravel, ProtocolError

decoders: Final[dict[str, Callable[[Any], Any]]] = {}  # name of a registered class -> its decode


def find_class(module: str, qualname: str) -> type:
    """Return the class of that name in a module that is already imported; raises ProtocolError if there is none."""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if found is None:
            break
        found = vars(found).get(part)  # not getattr: a module's __getattr__ may import
    if not isinstance(found, type):
        raise ProtocolError(
            f"a value of class {module}.{qualname} arrived, but this process has imported no such class; "
            "every process must import its module"
        )
    return found


def check_findable(cls: type) -> None:
    """Raise CannotTravel unless another process can find the class by its name."""
    try:
        found = find_class(cls.__module__, cls.__qualname__)
    except ProtocolError:
        found = None
    if found is not cls:
        raise CannotTravel(
            f"a value of {describe(cls)} cannot travel between processes, because its class cannot be found by that "
            "name: define the class at the top level of a module"
        )


def describe(cls: type) -> str:
    """Return how errors name the class."""
    return f"type {cls.__module__}.{cls.__qualname__}"


def is_named_tuple(cls: type) -> bool:
    """Tell whether `tuple.__new__(cls, values)` rebuilds the class's values."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_plain_dataclass(cls: type) -> bool:
    """Tell whether this is a dataclass that stores nothing but slots and a `__dict__`: not one built upon list, say."""
    if not dataclasses.is_dataclass(cls):
        return False
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the objects of a dataclass keep their values."""

    cls: type
    slots: dict[str, MemberDescriptorType]  # name -> the descriptor that reads and writes it
    fields: frozenset[str]  # what each object must have

    def take_apart(self, value: Any) -> tuple[list[str], list[Any]]:
        """Return the names and values of all that the object stores."""
        names, values = [], []
        for name, member in self.slots.items():
            try:
                values.append(member.__get__(value))
            except AttributeError:  # an empty slot
                continue
            names.append(name)
        beside = getattr(value, "__dict__", {})
        names.extend(beside)
        values.extend(beside.values())
        if not self.fields.issubset(names):
            missing = ", ".join(sorted(self.fields.difference(names)))
            raise CannotTravel(f"a value of {describe(self.cls)} cannot travel: it stores no value for {missing}")
        return names, values

    def fill(self, names: Sequence[str], values: Sequence[Any]) -> Any:
        """Return a new object that stores these values; raises ProtocolError where they do not fit the class."""
        if len(names) != len(values) or not self.fields.issubset(names):
            raise ProtocolError(f"a value of {describe(self.cls)} arrived with other fields than this process knows")
        result: Any = object.__new__(self.cls)
        for name, value in zip(names, values):
            member = self.slots.get(name)
            if member is not None:
                member.__set__(result, value)
            else:
                result.__dict__[name] = value
        return result


@lru_cache(maxsize=1024)
def storage_of(cls: type) -> Storage:
    """Describe where a class keeps its values; `is_plain_dataclass` holds for it."""
    slots = {
        name: member
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
    return Storage(cls, slots, frozenset(field.name for field in dataclasses.fields(cls)))
