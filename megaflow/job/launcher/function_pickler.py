"""Pickle the dataflow function of a program: by its name where the workers can import it, otherwise by value.

cloudpickle rebuilds a function from the parts of its code object and chooses the file name itself; from version 3.1.3
on that is `<dynamic-code>`. Tracebacks in the workers would then have no file and no source line. So:

1. Code objects travel by `marshal`, which keeps `co_filename` and every nested code object as compiled. It asks for the
   same minor version of Python at both ends: workers on this machine run the launcher's own interpreter, and
   `spark/worker_jobs` compares the versions of those on executors.
2. Everything else is cloudpickle's, through its public `Pickler` and pickle's own `dispatch_table`.
"""

import contextlib
import inspect
import io
import marshal
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle

from megaflow.errors import UsageError
from megaflow.job.spec import PickledFunction, WithTypes
from megaflow.spark.shipping import INSTALLED
from megaflow.timely.communication.codec.encode import Registration, of_main


def pickle_by_value(value: Any) -> bytes:
    """Return `value` pickled; `pickle.loads` restores it in a process that can import cloudpickle."""
    buffer = io.BytesIO()
    CodePickler(buffer).dump(value)
    return buffer.getvalue()


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    return marshal.loads, (marshal.dumps(code),)


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with code objects as they were compiled."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)


def check_function(function: object) -> None:
    """Raise UsageError for what cannot be called with a flow alone."""
    what = f"{function!r:.80}"
    if callable(function):
        try:
            signature = inspect.signature(function)
        except ValueError:  # of a function that says nothing about itself
            return
        try:
            signature.bind(None)
            return
        except TypeError:
            what = f"{getattr(function, '__name__', what)}{signature}"
    raise UsageError(f"The dataflow must be a function of one argument, the flow, as in dataflow(flow), not {what}.")


def pickle_app(function: Callable[..., Any], with_types: bool = False) -> PickledFunction:
    """Return a function as it travels to the worker processes.

    A function that they can import is pickled by its name, any other (from a notebook, a script, a test) with all that
    it refers to; and `with_types`, the classes that its module has, so that workers know those of the items.
    """
    check_function(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = "" if module is None else source_of(module)
    types = own_types(module) if with_types and module is not None else {}
    if module is None or module.__name__ == "__main__" or can_import(module):  # cloudpickle sees to __main__
        return PickledFunction(pickled(function, types, of_main), tuple(sys.path), name, file)
    cloudpickle.register_pickle_by_value(module)
    try:
        return PickledFunction(pickled(function, types, of_main), tuple(sys.path), name, file)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def pickled(
    function: Callable[..., Any], types: Mapping[str, type], registered: Mapping[type, Registration]
) -> bytes:
    """Return a function with classes; without `types` if they cannot be pickled.

    Raises UsageError for a registration that cannot be pickled.
    """
    for known in (types, {}):
        if known or registered:
            with contextlib.suppress(Exception):  # whatever their authors have them raise
                return pickle_by_value(WithTypes(function, known, registered))
    alone = pickle_by_value(function)
    for kind, registration in registered.items():
        try:
            pickle_by_value((kind, registration))
        except Exception as error:
            raise UsageError(
                f"The registration of {kind.__qualname__} cannot be sent to the workers: {type(error).__name__}: "
                f"{error}. Give megaflow.register functions that refer only to what can be pickled."
            ) from error
    return alone


def own_types(module: ModuleType) -> dict[str, type]:
    """Return the classes that a module has which are the program's own, by their names there."""
    homes = {name: sys.modules.get(each.__module__) for name, each in vars(module).items() if isinstance(each, type)}
    own = (name for name, home in homes.items() if home is module or (home is not None and source_of(home)))
    return {name: vars(module)[name] for name in own}


def source_of(module: ModuleType) -> str:
    """Return a module's file, or the folder of the package that has it; "" for one that is installed, or has none."""
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = getattr(package, "__path__", None)
    found: str | None = next(iter(folders), None) if folders else getattr(module, "__file__", None)
    if found is None or package.__name__ in sys.stdlib_module_names or not INSTALLED.isdisjoint(Path(found).parts):
        return ""
    return os.path.abspath(found)


def can_import(module: ModuleType) -> bool:
    """Return whether another process with this sys.path finds this very module under its name."""
    path = None
    names = module.__name__.split(".")
    for length in range(1, len(names) + 1):
        name = ".".join(names[:length])
        found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and (not spec.has_location or spec.origin == getattr(module, "__file__", None))
