"""A program as each simulated process has it: in a separate copy, as in real processes.

The functions of the program's modules are copied with the globals that they use. So a fold may keep values in a global
or in its closure, and other processes do not see them; the values are lost with the process. Objects `outside` of the
job are not copied: a fake database, or a list to which a sink appends. Classes are not copied either. If a program
cannot be pickled, all processes share it, and `is_shared` is true.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import cloudpickle

from megaflow.job.launcher.program.function_pickler import CodePickler
from megaflow.job.launcher.program.program_modules import source_of
from megaflow.testing.simulated_life import GivenApp


class CopiedProgram:
    """A dataflow function, and everything it refers to, as of the creation of this object."""

    def __init__(self, function: Callable[[Any], Any], outside: Iterable[object]) -> None:
        self._function = function
        self._outside = {id(each): each for each in outside}
        self.is_shared = False  # it cannot be pickled
        buffer = io.BytesIO()
        try:
            with _by_value():
                _Pickler(buffer, self._outside).dump(function)
        except Exception:  # objects may raise anything
            self.is_shared = True
        self._data = buffer.getvalue()

    def copy(self) -> Callable[[Any], Any]:
        """Return the function as a new process has it."""
        if self.is_shared:
            return self._function
        made: Callable[[Any], Any] = _Unpickler(io.BytesIO(self._data), self._outside).load()
        return made


class CopiedApp(GivenApp):
    """One process's copy."""

    def __init__(self, program: CopiedProgram) -> None:
        super().__init__(program.copy())


class _Pickler(CodePickler):
    def __init__(self, buffer: io.BytesIO, outside: dict[int, object]) -> None:
        super().__init__(buffer)
        self._outside = outside

    def persistent_id(self, obj: object) -> int | None:
        """Return the id by which an object that is not copied is found again; None for other objects."""
        if isinstance(obj, type):
            self._outside[id(obj)] = obj
        return id(obj) if id(obj) in self._outside else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, outside: dict[int, object]) -> None:
        super().__init__(buffer)
        self._outside = outside

    def persistent_load(self, pid: int) -> object:
        """Return the object itself."""
        return self._outside[pid]


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """Pickle functions of the program's own modules by value during the block."""
    taken: list[ModuleType] = []
    before = cloudpickle.list_registry_pickle_by_value()
    try:
        for name, module in [*sys.modules.items()]:
            if not isinstance(module, ModuleType) or module.__name__ != name or name in before:
                continue
            if name.partition(".")[0] not in ("megaflow", "__main__") and source_of(module):
                cloudpickle.register_pickle_by_value(module)
                taken.append(module)
        yield
    finally:
        for module in taken:
            cloudpickle.unregister_pickle_by_value(module)
