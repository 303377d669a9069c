"""Differences between imported modules in the launcher's memory and the files that workers will import.

A worker imports the modules of a program from their files. If the script sets `rates.RATE = 7`, replaces a function, or
edits a file without a reload, the worker would see other values than the script. So the launcher compiles the files of
the modules that the flow reaches (`reached_names`), without running them, and compares.

1. A variable was changed if its value in memory is not the literal, function or class that the file binds. The launcher
   sends the value, and each worker sets it after its imports. If the value cannot be pickled, the job is refused. But
   if the file sets the variable to None, such a value is left alone, because each process fills in its own.
2. A function of the module's file is refused if the file now has other code for it. The file was edited after the
   import, and nothing shows which version the user means. But if the file is unchanged since the process started, a
   decorator such as typeguard's has rewritten the code. It will do the same in workers.
3. Variables that the flow itself or an import may change are left alone: counters, caches, registries, lazy
   connections. Each worker has its own. A function may run in a worker if its name is used by reached code, by the top
   level of a reached module, or by another function that may run there.
4. A worker that starts later, after a loss or to join, could import files that were edited meanwhile. So each worker
   first checks that its files are the files that were compared here.
5. Values that a file computes are not compared, because only running the file would show them. But if such a value is a
   function of the script, the script has put it there, so it is sent. Modules without source are not compared. Neither
   are modules from a loader other than Python's own, because that loader may rewrite them.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, Generic

from megaflow.errors import UsageError
from megaflow.job.launcher.program import source_bindings as bindings
from megaflow.job.launcher.program.program_modules import MAIN, is_from_source, may_be_edited
from megaflow.job.launcher.program.reached_names import PLAIN, Reach
from megaflow.job.launcher.program.source_bindings import Definition, Imported, Literal, Meaning, ModuleSource
from megaflow.job.made_anew import is_cached, travels_by_value
from megaflow.job.spec import ModuleChange

CONTAINERS = (dict, list, set)
BYTES_MAX = 1 << 20  # of a file that is compared; longer ones are data, and take seconds to compile


def compare(
    function: Callable[..., Any], pickle: Callable[[Any], object]
) -> tuple[tuple[ModuleChange, ...], tuple[tuple[str, str], ...]]:
    """Compare the modules that a dataflow function reaches with their files.

    Returns the values that workers set in the modules that they import, and path and digest of each compared file. A
    value can be sent if `pickle` does not raise for it. Raises UsageError by rules 1 and 2.
    """
    reach, sources = Reach(function), _Sources()
    for each in reach.functions:
        _check_code(each, sources)
    found = []
    for module, holder, name, value, source in _named(reach, sources):
        names, meant, home = _resolved(source, f"{holder}.{name}" if holder else name, sources)
        if _differs(meant, value, home):
            found.append((ModuleChange(module, holder, name, value), {name, *names}, meant))
    own = _OwnChanges(reach, sources) if found else None
    sent = (
        _as_sent(change, meant, pickle)
        for change, names, meant in found
        if own is not None and not own.may_change(names, meant, change.value)
    )
    changes = tuple(change for change in sent if change is not None)
    compared = sources.read.items()
    files = tuple((os.path.abspath(str(sys.modules[name].__file__)), each.digest) for name, each in compared)
    return changes, files


def _as_sent(change: ModuleChange, meant: Meaning, pickle: Callable[[Any], object]) -> ModuleChange | None:
    """Return a change with the value to pickle; None if the variable is left alone. Raises UsageError by rule 1."""
    made = _sendable(change.value)
    try:
        pickle(made)
    except Exception as error:  # objects may raise anything
        if meant == Literal(None):
            return None
        raise _unsendable(change, error) from None
    return ModuleChange(change.module, change.holder, change.name, made)


class _Sources:
    """The files of modules, read at most once each."""

    def __init__(self) -> None:
        self.read: dict[str, ModuleSource] = {}
        self._left: set[str] = set()

    def of(self, name: str) -> ModuleSource | None:
        """Return the parsed file of a module; None for a module that is not compared. Raises UsageError."""
        if name not in self.read and name not in self._left:
            module, found = sys.modules.get(name), None
            if type(module) is ModuleType and is_from_source(module):
                found = self._read(module)
            if found is None:
                self._left.add(name)
            else:
                self.read[name] = found
        return self.read.get(name)

    def _read(self, module: ModuleType) -> ModuleSource | None:
        file = str(module.__file__)
        try:
            if os.path.getsize(file) > BYTES_MAX:
                return None
            return bindings.read_source(file, module.__package__ or "")
        except OSError:  # the import in the worker gives a better error
            return None
        except (SyntaxError, ValueError) as error:
            raise UsageError(
                f"{os.path.basename(file)} was changed after this program imported it, and workers cannot import it: "
                f"{type(error).__name__}: {error}. Correct the file."
            ) from None


class _OwnChanges:
    """The names that workers may change by themselves; see rule 3."""

    def __init__(self, reach: Reach, sources: _Sources) -> None:
        for module, _ in reach.variables:
            sources.of(module)
        every = [code for source in sources.read.values() for codes in source.codes.values() for code in codes]
        runs = [*reach.codes, *(code for source in sources.read.values() for code in source.codes[bindings.MODULE])]
        self._sources = sources
        self._names: set[str] = set()
        self._stored: set[str] = set()
        seen: set[int] = set()
        while runs:
            for code in bindings.run_with(runs.pop()):
                seen.add(id(code))
                self._names |= bindings.loaded_names(code)
                self._stored |= bindings.stored_names(code)
            every = [each for each in every if id(each) not in seen]
            runs += [each for each in every if each.co_name in self._names]
            every = [each for each in every if each.co_name not in self._names]

    def may_change(self, names: set[str], meant: Meaning, value: Any) -> bool:
        """Return whether a worker may change a variable of these names, or the container that it holds."""
        if names & self._stored:
            return True
        if not isinstance(meant, Literal) or type(value) not in CONTAINERS:
            return False
        every = self._sources.read.values()
        changers = {each for source in every for name in names for each in source.changers.get(name, ())}
        return bindings.MODULE in changers or not self._names.isdisjoint(changers)


def _named(reach: Reach, sources: _Sources) -> Iterator[tuple[str, str, str, Any, ModuleSource]]:
    """Yield (module, class, name, value, source) of each variable that the flow reaches in compared files."""
    for (module, name), value in reach.variables.items():
        if (source := sources.of(module)) is not None:
            yield module, "", name, value, source
    for cls in reach.classes:
        source = sources.of(cls.__module__)
        if source is None or type(cls) is not type or travels_by_value(cls):
            continue
        if bindings.meaning(source, cls.__qualname__) != Definition(type, cls.__qualname__):
            continue  # a decorator may have changed it
        if any("__init_subclass__" in vars(base) for base in cls.__mro__[1:-1] if base is not Generic):
            continue  # it may have changed what the class body binds
        for name, value in vars(cls).items():
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            is_bound = f"{cls.__qualname__}.{name}" in source.names
            if type(inner) is FunctionType or (type(inner) in (*PLAIN, *CONTAINERS, tuple) and is_bound):
                yield cls.__module__, cls.__qualname__, name, inner, source


def _resolved(source: ModuleSource, qualname: str, sources: _Sources) -> tuple[set[str], Meaning, ModuleSource]:
    """Follow a name through imports; return its names on the way, its meaning, and the file that binds it."""
    names, meant = set[str](), bindings.meaning(source, qualname)
    while isinstance(meant, Imported) and meant.name not in names:
        names.add(meant.name)
        other = sources.of(meant.module)
        source, meant = (source, None) if other is None else (other, bindings.meaning(other, meant.name))
    return names, meant, source


def _differs(meant: Meaning, value: Any, source: ModuleSource) -> bool:
    """Return whether a variable's value certainly differs from what its file, `source`, binds."""
    match meant:
        case Literal(constant):
            return not bindings.is_same(constant, value)
        case Definition(kind, qualname):
            if kind is not FunctionType:
                return isinstance(value, type) and value.__qualname__ != qualname
            if type(value) is not FunctionType or not _is_home(value):
                return True
            own = value.__code__.co_qualname  # IPython's reload makes up a name that is not in the file
            return own != qualname and own in source.codes
    return type(value) is FunctionType and value.__globals__.get("__name__") == MAIN


def _is_home(function: FunctionType) -> bool:
    """Return whether a function was compiled from the file of the module whose globals it has."""
    return function.__code__.co_filename == function.__globals__.get("__file__")


def _check_code(function: FunctionType, sources: _Sources) -> None:
    source = sources.of(function.__globals__.get("__name__", ""))
    if source is None or not _is_home(function):
        return
    code = function.__code__
    others = (each for several in source.codes.values() for each in several if each.co_name == code.co_name)
    is_there = any(bindings.is_same_code(code, each) for each in chain(source.codes.get(code.co_qualname, ()), others))
    if not is_there and may_be_edited(code.co_filename):
        raise UsageError(
            f"{os.path.basename(code.co_filename)} was changed after this program imported it: {code.co_qualname!r}, "
            "which the dataflow uses, is not what workers would import. Reload the module with importlib.reload, or "
            "restart the program."
        )


def _sendable(value: Any) -> Any:
    """Return a value that pickle sends by value: a function that bears another's name would be sent by that name."""
    if is_cached(value) and not travels_by_value(value):
        return functools.lru_cache(**value.cache_parameters())(_sendable(value.__wrapped__))
    if type(value) is not FunctionType or travels_by_value(value):
        return value
    home = sys.modules.get(value.__module__)
    if home is not None and value.__globals__ is vars(home) and value.__code__.co_qualname == value.__qualname__:
        return value
    made = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    made.__dict__.update(value.__dict__)
    made.__kwdefaults__, made.__module__, made.__qualname__ = value.__kwdefaults__, MAIN, value.__qualname__
    made.__doc__ = value.__doc__
    return made


def _unsendable(change: ModuleChange, error: Exception) -> UsageError:
    kind, name = type(change.value), f"{change.holder}.{change.name}".lstrip(".")
    return UsageError(
        f"The program has changed {name!r} of the module {change.module!r}, and the new value, an object of type "
        f"'{kind.__module__}.{kind.__qualname__}', cannot be sent to the workers: {type(error).__name__}: "
        f"{str(error).rstrip('.')}. Set it in the dataflow function, which each worker calls."
    )
