"""The objects that a dataflow function reaches in its program's modules, and how workers get them: by name or by value.

The walk follows what pickle follows. Where pickle writes a name, the walk continues in the module of that name.

1. An object is reached *by name* through a module that workers import: they get it as the module's file creates it. All
   other objects travel by value, as they are in memory. An object may be reached in both ways.
2. The walk enters only the program's modules. Library modules are the same in workers. The walk passes through library
   objects that hold functions, such as `functools.partial` and wrappers.
3. The walk looks up a name in every module that the function names: if a function names the module `rates` and an
   attribute `RATE`, it reaches `rates.RATE`, whatever object has that attribute. So the walk may find more than the
   flow uses. It does not see `getattr(rates, name)`.
4. The walk runs no code of the program: it asks for the type, not for `__class__`, and for attributes in `__dict__`.
"""

import inspect
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, Final

from megaflow.job.launcher.program.program_modules import is_imported, is_own
from megaflow.job.launcher.program.source_bindings import codes_in, globals_of
from megaflow.job.launcher.program.unsendable import HOLDERS, attributes_of, closure_of
from megaflow.job.made_anew import is_cached, is_generic, travels_by_value

PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes))
_SERIES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)
Part = tuple[Any, bool]  # an object, and whether it is reached by name


class Reach:
    """Everything reached, in the order of the walk."""

    def __init__(self, function: Any) -> None:
        """Walk from the dataflow function."""
        self.codes: list[CodeType] = []  # of all functions
        self.functions: list[FunctionType] = []  # reached by name
        self.variables: dict[tuple[str, str], Any] = {}  # reached by name: (module, variable) -> value
        self.classes: list[type] = []  # reached by name
        met: dict[tuple[int, bool], Any] = {}  # keeps each object alive, so no other gets its id
        waiting: deque[Part] = deque([(function, False)])
        while waiting:
            value, by_name = waiting.popleft()
            if (id(value), by_name) not in met:
                met[id(value), by_name] = value
                waiting += (part for part in self._parts(value, by_name) if type(part[0]) not in PLAIN)

    def _parts(self, value: Any, by_name: bool) -> Iterable[Part]:
        kind = type(value)
        if kind is FunctionType:
            return self._of_function(value, by_name or not travels_by_value(value))
        if issubclass(kind, type):
            return self._of_class(value, by_name or not travels_by_value(value))
        if kind in HOLDERS:
            return ((getattr(value, name), by_name) for name in HOLDERS[kind])
        if is_cached(value):
            return ((value.__wrapped__, by_name or not travels_by_value(value)),)
        contents = _contents(kind, value)
        home = sys.modules.get(kind.__module__)
        if home is not None and is_own(home):
            return ((each, by_name) for each in (kind, *contents, *(each for _, each in attributes_of(value))))
        if contents:
            return ((each, by_name) for each in contents)
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        return () if wrapped is None or issubclass(kind, ModuleType) else ((wrapped, by_name),)

    def _of_function(self, function: FunctionType, by_name: bool) -> Iterator[Part]:
        if is_generic(function):
            yield from ((each, by_name) for each in function.registry.values())  # type: ignore[attr-defined]
        yield from ((each, by_name) for _, each in closure_of(function))
        yield from ((each, by_name) for each in (function.__defaults__, function.__kwdefaults__, vars(function)))
        own = function.__globals__
        home = sys.modules.get(own.get("__name__", ""))
        if home is None or not is_own(home):
            return
        self.codes += codes_in(function.__code__)
        if by_name:
            self.functions.append(function)
        names = dict.fromkeys(globals_of(function.__code__))
        for name in names:
            if name in own:
                yield self._variable(home, name) if by_name and own is vars(home) else (own[name], False)
        used = {name for code in codes_in(function.__code__) for name in code.co_names}
        for module in _modules(used, own):
            yield from (self._variable(module, name) for name in sorted(used & vars(module).keys()))

    def _variable(self, module: ModuleType, name: str) -> Part:
        value = vars(module)[name]
        self.variables.setdefault((module.__name__, name), value)
        return value, True

    def _of_class(self, cls: type, by_name: bool) -> Iterator[Part]:
        home = sys.modules.get(cls.__module__)
        if home is not None and is_own(home):
            if by_name:
                self.classes.append(cls)
            yield from ((each, by_name) for name, each in {**vars(cls)}.items() if name != "__dict__")
            yield from ((base, by_name) for base in cls.__bases__)


def _contents(kind: type, value: Any) -> list[Any]:
    """Return the contents of a container, for a dict its keys and values; nothing for other objects."""
    if issubclass(kind, dict | MappingProxyType):
        pairs = dict.items(value) if issubclass(kind, dict) else value.items()
        return [each for pair in [*pairs] for each in pair if type(each) not in PLAIN]
    series = next((each for each in _SERIES if issubclass(kind, each)), None)
    return [] if series is None else [each for each in [*series.__iter__(value)] if type(each) not in PLAIN]


def _modules(used: set[str], own: dict[str, Any]) -> list[ModuleType]:
    """Return the program's modules that a function names: by its variables, by its imports, in packages that it names.

    `used` are the names in the function's code, `own` its globals.
    """
    package = own.get("__package__") or ""
    found = [own.get(name) for name in used]
    found += [sys.modules.get(name) for dotted in used for name in (dotted, f"{package}.{dotted}")]
    modules: dict[str, ModuleType] = {}
    while found:
        module = found.pop()
        if type(module) is ModuleType and module.__name__ not in modules and is_imported(module):
            modules[module.__name__] = module
            found += [vars(module).get(name) for name in used]
    return [modules[name] for name in sorted(modules)]
