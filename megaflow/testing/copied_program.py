"""A program as each simulated process has it: a copy of its own, as real processes have.

The functions of the program's modules are copied with the globals that they use. So other processes do not see what a
fold keeps in a global, or in what it closes over, and it is lost with its process. What is `outside` of the job is not
copied: a fake database, or a list that a sink appends to. Classes are not copied either. All processes share a program
that cannot be pickled; then `is_shared` is true.
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

from megaflow.job.launcher.function_pickler import CodePickler, source_of
from megaflow.testing.simulated_life import GivenApp


class CopiedProgram:
    """A dataflow function, and what it refers to, as of when this is made."""

    def __init__(self, function: Callable[[Any], Any], outside: Iterable[object]) -> None:
        self._function = function
        self._outside = {id(each): each for each in outside}
        self.is_shared = False  # it cannot be pickled
        buffer = io.BytesIO()
        try:
            with _by_value():
                _Pickler(buffer, self._outside).dump(function)
        except Exception:  # whatever the authors of objects have them raise
            self.is_shared = True
        self._data = buffer.getvalue()

    def copy(self) -> Callable[[Any], Any]:
        """Return the function as a new process has it."""
        if self.is_shared:
            return self._function
        made: Callable[[Any], Any] = _Unpickler(io.BytesIO(self._data), self._outside).load()
        return made


class CopiedApp(GivenApp):
    """The copy of one process."""

    def __init__(self, program: CopiedProgram) -> None:
        super().__init__(program.copy())


class _Pickler(CodePickler):
    def __init__(self, buffer: io.BytesIO, outside: dict[int, object]) -> None:
        super().__init__(buffer)
        self._outside = outside

    def persistent_id(self, obj: object) -> int | None:
        """Return what an object is found again by that is not copied."""
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
    """Have functions of modules that are the program's own pickled by value."""
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
