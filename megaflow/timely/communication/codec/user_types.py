"""The program's own classes in the codec: found by name, taken apart and filled without running their code.

A class may travel if it is defined under its own name at the top level of a module, or in a class there. The other side
finds it by that name in `sys.modules`, or among the names of a pickled function of the program (`add_names`). The
values in slots and in `__dict__` travel, so attributes set beside the fields of a dataclass also arrive.

Besides dataclasses, NamedTuples and enums, a peer may name a class and have it filled by fields only under these rules:
 1. It belongs to one of the program's own modules: a module with a file that is not Python's, not megaflow's and not in
    a folder where packages are installed; a module in the folder of the app (`add_folder`); `__main__` without a file;
    or the names that a pickled function has brought. The code that loads the program decides all of this. Nothing that
    arrives can.
 2. Its objects are nothing but their fields. It has no built-in base but object. No class in its MRO has a `__del__`,
    which would run when the object is freed, or one of the methods by which a class says that its fields are not all of
    its state: `__reduce__`, `__reduce_ex__`, `__getstate__`, `__setstate__`.
 3. Its metaclass is `type` or `ABCMeta`. Any other could run code when its class is looked at, so the class is refused
    before that.
 4. Descriptors that `__slots__` made put values into slots. All other values go into the `__dict__` that Python keeps,
    never by `setattr`. For a batch, `object.__setattr__` sets them if no class in the MRO has a data descriptor of that
    name, whose code is the only code that it could run. A name that the class uses for a method or a data descriptor (a
    property, for example) is refused: no object that the program has made holds such a value, and one that did would
    behave like no other.
"""

import dataclasses
import inspect
import os
import sys
from abc import ABCMeta
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from itertools import repeat
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, Final, Generic

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec import array_types, tags
from megaflow.timely.communication.codec.equal_shapes import ARITY_MAX, Column, count_of, for_each, take_dicts_apart

HOOKS: Final = ("__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")  # see rule 2
_FOREIGN_FOLDERS: Final = frozenset(("site-packages", "dist-packages"))
_SPARK: Final = frozenset(("pyspark", "py4j"))  # a path may also find them outside of those folders
_FOREIGN_ROOTS: Final = _SPARK.union(sys.stdlib_module_names)  # the app's folder may use names of Python's modules
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_…; a class statement sets the first and not the second

_vars_of_module: Final = vars(ModuleType)["__dict__"].__get__  # vars() would ask the object, which may run code
_vars_of_class: Final = vars(type)["__dict__"].__get__
_mro_of: Final = vars(type)["__mro__"].__get__

decoders: Final[dict[str, Callable[[Any], Any]]] = {}  # name of a registered class -> its decode
_names: Final[dict[str, Mapping[str, Any]]] = {}  # module -> names in it that a pickled function has brought
_folders: Final = {  # folder of modules -> whether they are the program's own
    os.path.realpath(os.path.dirname(os.__file__)): False,
    str(Path(__file__).resolve().parents[3]): False,  # megaflow's
}


def add_folder(path: str) -> None:
    """Declare that modules in and below this folder are the program's own, unless packages are installed in it."""
    path = os.path.realpath(path)
    if os.path.basename(path) not in _FOREIGN_FOLDERS:
        _folders.setdefault(path, True)


def add_names(function: Any, types: Mapping[str, type] = MappingProxyType({})) -> None:
    """Declare that the classes that an unpickled function refers to are the program's own, under its module's name.

    The function may be wrapped in a decorator that sets `__wrapped__`, a `partial`, a method, or a callable object. The
    classes in `types` are also declared, by their names there.
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        function = type(function).__call__
    if isinstance(function, FunctionType):
        _names[function.__module__] = ChainMap(function.__globals__, dict(types)) if types else function.__globals__


def find_class(module: str, qualname: str) -> type:
    """Return the class of that name in a module that is imported or is megaflow's. Raises ProtocolError otherwise."""
    first, *rest = qualname.split(".")
    names = _names.get(module)
    if names is None or first not in names:
        names = _vars_of(import_module(module) if module in tags.RECORD_MODULES else sys.modules.get(module))
    found: Any = names.get(first)
    for part in rest:
        found = _vars_of(found).get(part)
    if not issubclass(type(found), type):
        raise ProtocolError(
            f"a value of class {module}.{qualname} arrived, but this process has imported no such class; "
            "every process must import its module"
        )
    return found  # type: ignore[no-any-return]


def _vars_of(owner: object) -> Mapping[str, Any]:
    """Return what a module or class defines, without running its code: a module's `__getattr__` may import."""
    kind = type(owner)
    if issubclass(kind, ModuleType):
        return _vars_of_module(owner)  # type: ignore[no-any-return]
    return _vars_of_class(owner) if issubclass(kind, type) else {}


def check_findable(cls: type) -> None:
    """Raise CannotTravel unless another process can find the class by its name."""
    if (found := namesake(cls)) is cls:
        return
    again = "that class was defined again after the value was made: make the value again"
    remedy = array_types.remedy(cls) or "define the class at the top level of a module"
    why = f"its class cannot be found by that name: {remedy}" if found is None else again
    raise CannotTravel(f"a value of {describe(cls)} cannot travel between processes, because {why}")


def namesake(cls: type) -> type | None:
    """Return the class that now has this class's name: this class itself, unless it was defined again."""
    try:
        return find_class(cls.__module__, cls.__qualname__)
    except ProtocolError:
        return None


def describe(cls: type) -> str:
    """Return the name of the class for error messages."""
    module, name = (type.__getattribute__(cls, each) for each in ("__module__", "__qualname__"))  # not the metaclass's
    return f"type {module}.{name}"


def is_named_tuple(cls: type) -> bool:
    """Return whether `tuple.__new__(cls, values)` rebuilds the class's values."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


@lru_cache(maxsize=1024)
def is_plain_dataclass(cls: type) -> bool:
    """Return whether this is a dataclass whose objects store only slots and a `__dict__`; one built on list does not.

    It must not have a `__del__` either, because that would run when an object is freed, even one from a peer.
    """
    if not has_own(cls, "__dataclass_fields__") or has_own(cls, "__del__"):
        return False
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def why_not_by_fields(cls: type) -> str | None:
    """Return why no peer may have objects of this class made by their fields: rules 1 to 3; None if it may."""
    if type(cls) not in (type, ABCMeta):
        return f"its metaclass is {type(cls).__qualname__}"
    return _why_not_by_fields(cls)


@lru_cache(maxsize=1024)
def _why_not_by_fields(cls: type) -> str | None:
    if not _is_own(cls):
        return "its class is not in a module of the program"
    return built_in_base(cls) or next((f"its class has {hook}" for hook in HOOKS if has_own(cls, hook)), None)


def built_in_base(cls: type) -> str | None:
    """Return why an object is more than its fields, which is a built-in base other than object; None if it is not."""
    for base in cls.__mro__:
        if base not in (object, Generic) and base.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) != _HEAP_TYPE:
            return f"its base {base.__qualname__} stores more than fields"
    return None


def has_own(cls: type, name: str) -> bool:
    """Return whether the class, or a base other than object, defines this name."""
    return any(name in _vars_of_class(base) for base in _mro_of(cls) if base is not object)


def _is_own(cls: type) -> bool:
    """Return whether the class is one of the program's own: rule 1."""
    name, first = cls.__module__, cls.__qualname__.partition(".")[0]
    if first in _names.get(name, ()):
        return True
    module = sys.modules.get(name)
    file = _vars_of(module).get("__file__")
    if type(file) is not str:
        return name == "__main__" and module is not None
    file = within = os.path.realpath(file)
    foreign = _FOREIGN_ROOTS
    for folder in sorted(_folders, key=len, reverse=True):  # the innermost one decides
        if file.startswith(folder + os.sep):
            if not _folders[folder]:
                return False
            within, foreign = file[len(folder) :], _SPARK
            break
    return name.partition(".")[0] not in foreign and _FOREIGN_FOLDERS.isdisjoint(within.split(os.sep))


@dataclass(frozen=True, slots=True)
class Storage:
    """The places where the objects of a class keep their values."""

    cls: type
    slots: dict[str, MemberDescriptorType]  # name -> the descriptor that reads and writes it
    beside: GetSetDescriptorType | None  # gives the `__dict__`; None if there is none
    fields: frozenset[str]  # names that each object must have
    barred: frozenset[str]  # names that no `__dict__` may have
    computed: frozenset[str]  # names whose setting runs code of the class, without slots

    def take_apart(self, value: Any) -> tuple[list[str], list[Any]]:
        """Return the names and values of everything that the object stores."""
        names, values = [], []
        for name, member in self.slots.items():
            try:
                values.append(member.__get__(value))
            except AttributeError:  # an empty slot
                continue
            names.append(name)
        beside: dict[str, Any] = {} if self.beside is None else self.beside.__get__(value)
        names.extend(beside)
        values.extend(beside.values())
        if not self.fields.issubset(names):
            missing = ", ".join(sorted(self.fields.difference(names)))
            raise CannotTravel(f"a value of {describe(self.cls)} cannot travel: it stores no value for {missing}")
        if wrong := [name for name in beside if type(name) is not str or name in self.barred]:
            raise CannotTravel(
                f"a value of {describe(self.cls)} cannot travel: its attribute {wrong[0]!r} hides an attribute of "
                "the class; rename it"
            )
        return names, values

    def take_all_apart(self, values: Sequence[Any]) -> tuple[list[str], list[Column]] | None:
        """Return the names that all objects store and their columns; None if the objects may differ or not travel."""
        try:
            columns: list[Column] = [[*map(member.__get__, values)] for member in self.slots.values()]
        except AttributeError:  # an empty slot
            return None
        names = list(self.slots)
        if self.beside is not None and any(dicts := [*map(self.beside.__get__, values)]):
            apart = take_dicts_apart(dicts)
            if apart is None or not self.barred.isdisjoint(apart[0]):
                return None
            names += apart[0]
            columns += apart[1]
        return (names, columns) if 0 < len(names) <= ARITY_MAX and self.fields.issubset(names) else None

    def fill(self, names: Sequence[str], values: Sequence[Any], beside_fields: int | None = None) -> Any:
        """Return a new object that stores these values. Raises ProtocolError if they do not fit the class.

        `beside_fields` is how many of the names are no fields of a dataclass; None if the encoder did not say.
        """
        if len(names) != len(values) or not self._has(names, beside_fields):
            known, given = ", ".join(sorted(self.fields)), ", ".join(map(str, names))
            raise ProtocolError(
                f"a value of {describe(self.cls)} has other fields than its class in this process: it has "
                f"{given:.200}; the class has {known:.200}"
            )
        result: Any = object.__new__(self.cls)
        beside: dict[str, Any] | None = None if self.beside is None else self.beside.__get__(result)
        for name, value in zip(names, values):
            member = self.slots.get(name)
            if member is not None:
                member.__set__(result, value)
            elif beside is None or type(name) is not str or name in self.barred:
                raise self._no_such(name)
            else:
                beside[sys.intern(name)] = value
        return result

    def _has(self, names: Sequence[str], beside_fields: int | None) -> bool:
        """Return whether the names include all fields, and no field that the class no longer has."""
        return self.fields.issubset(names) and beside_fields in (None, len(names) - len(self.fields))

    def fill_all(
        self, names: Sequence[str], columns: Sequence[Column], beside_fields: int | None = None
    ) -> list[Any]:
        """Return new objects that store these columns. Raises ProtocolError if they do not fit the class.

        Attributes are set as such, so an object gets a `__dict__` only when code asks for it.
        """
        is_plain = self._has(names, beside_fields) and self.computed.isdisjoint(names)
        if len(names) != len(columns) or not is_plain:
            return [self.fill(names, values, beside_fields) for values in zip(*columns, strict=True)]
        made: list[Any] = [*map(object.__new__, repeat(self.cls, count_of(columns)))]
        for name, column in zip(names, columns):
            member = self.slots.get(name)
            if member is not None:
                for_each(member.__set__, made, column)
            elif self.beside is None or name in self.barred:
                raise self._no_such(name)
            else:
                for_each(object.__setattr__, made, repeat(sys.intern(name)), column)
        return made

    def _no_such(self, name: object) -> ProtocolError:
        return ProtocolError(f"an object of {describe(self.cls)} arrived with a field {name!r:.100}")


@lru_cache(maxsize=1024)
def storage_of(cls: type) -> Storage:
    """Return where a class without a built-in base other than object keeps its values."""
    defined: dict[str, Any] = {}
    slots: dict[str, MemberDescriptorType] = {}
    beside = None
    for base in reversed(cls.__mro__):
        names = _vars_of_class(base)
        defined.update(names)
        slots.update((name, each) for name, each in names.items() if isinstance(each, MemberDescriptorType))
        if isinstance(names.get("__dict__"), GetSetDescriptorType):
            beside = names["__dict__"]
    computed = frozenset(name for name, each in defined.items() if _is_computed(each)).difference(slots)
    if dataclasses.is_dataclass(cls):
        fields = frozenset(field.name for field in dataclasses.fields(cls))
        return Storage(cls, slots, beside, fields, frozenset(), computed)
    barred = frozenset(name for name, each in defined.items() if _is_fixed(each))
    return Storage(cls, slots, beside, frozenset(), barred, computed)


def _is_fixed(attribute: object) -> bool:
    """Return whether objects of a class with this attribute have none of their own under its name."""
    kind = type(attribute)
    methods = (FunctionType, classmethod, staticmethod, *map(type, (object.__init__, object.__dir__, object.__new__)))
    return kind in methods or _is_computed(attribute)


def _is_computed(attribute: object) -> bool:
    """Return whether setting an attribute of this name runs code, a setter's, if the class has this one."""
    return hasattr(type(attribute), "__set__") or hasattr(type(attribute), "__delete__")


def why_not_by_state(cls: type) -> str | None:
    """Return why a class needs two functions to be registered; None if `by_state` is enough."""
    reduces = (f"its class has {hook}" for hook in ("__reduce__", "__reduce_ex__") if has_own(cls, hook))
    return built_in_base(cls) or next(reduces, None)
