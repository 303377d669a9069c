"""Pickle the dataflow function of a program: by its name where the workers can import it, otherwise by value.

cloudpickle rebuilds a function from the parts of its code object and chooses the file name itself. From version 3.1.3
that name is `<dynamic-code>`, so tracebacks in the workers would have no file and no source line. Therefore:

1. Code objects travel by `marshal`, which keeps `co_filename` and every nested code object as compiled. It needs the
   same minor version of Python at both ends. Workers on this machine run the launcher's own interpreter, and
   `spark/worker_jobs` compares the versions of workers on executors.
2. `megaflow.job.made_anew` lists the objects that a worker creates afresh, such as caches and locks.
3. cloudpickle does everything else, through its public `Pickler` and pickle's own hooks.
"""

import contextlib
import inspect
import io
import marshal
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from megaflow.errors import UsageError
from megaflow.job.launcher.program.changed_modules import compare
from megaflow.job.launcher.program.program_modules import can_import, own_types, source_of
from megaflow.job.launcher.program.unsendable import unsendable
from megaflow.job.made_anew import reduced
from megaflow.job.nested_start import check_start
from megaflow.job.script_logging import capture
from megaflow.job.spec import ModuleChange, PickledFunction, WithTypes
from megaflow.timely.communication.codec.array_types import LIBRARIES
from megaflow.timely.communication.codec.encode import Registration, forget_replaced, of_main


def pickle_by_value(value: Any) -> bytes:
    """Return `value` pickled; `pickle.loads` restores it in a process that can import cloudpickle."""
    buffer = io.BytesIO()
    CodePickler(buffer).dump(value)
    return buffer.getvalue()


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler of cloudpickle that keeps code objects as they were compiled."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: lambda code: (marshal.loads, (marshal.dumps(code),))}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Any:
        """Return how to rebuild an object; pickle calls this for each object of a type that it does not know."""
        parts = reduced(obj)
        return super().reducer_override(obj) if parts is None else parts


def check_function(function: object) -> None:
    """Raise UsageError if an object cannot be called with a flow as its only argument."""
    what = f"{function!r:.80}"
    if callable(function):
        try:
            signature = inspect.signature(function)
        except ValueError:  # of a function without a signature, such as some builtins
            return
        try:
            signature.bind(None)
            return
        except TypeError:
            what = f"{getattr(function, '__name__', what)}{signature}"
    raise UsageError(f"The dataflow must be a function of one argument, the flow, as in dataflow(flow), not {what}.")


def pickle_app(function: Callable[..., Any], with_types: bool = False) -> PickledFunction:
    """Return a function in the form that travels to the worker processes.

    A function that workers can import is pickled by its name. Any other function (from a notebook, a script, a test) is
    pickled with everything that it refers to. `with_types` adds the classes of its module, so that workers know the
    classes of items. Raises UsageError if a part cannot be sent, and for a job that would start again in each worker.
    """
    check_function(function)
    forget_replaced()
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = "" if module is None else source_of(module)
    types = own_types(module) if with_types and module is not None else {}
    is_by_name = module is not None and module.__name__ != "__main__" and can_import(module)
    check_start(module.__name__ if module is not None and is_by_name else "")
    taken = contextlib.ExitStack()
    if module is not None and module.__name__ != "__main__" and not is_by_name:  # cloudpickle handles __main__
        cloudpickle.register_pickle_by_value(module)
        taken.callback(cloudpickle.unregister_pickle_by_value, module)
    with taken:
        changes, files = compare(function, pickle_by_value)
        data, logs = pickled(function, types, of_main, changes), capture(pickle_by_value)
    libraries = tuple(name for name in LIBRARIES if name in sys.modules)
    return PickledFunction(data, tuple(sys.path), name, file, logs=logs, libraries=libraries, files=files)


def pickled(
    function: Callable[..., Any],
    types: Mapping[str, type],
    registered: Mapping[type, Registration],
    changes: tuple[ModuleChange, ...] = (),
) -> bytes:
    """Return a pickled function with classes and changes of modules; without `types` if they cannot be pickled.

    Raises UsageError for a function or a registration that cannot be pickled.
    """
    for known in (types, {}):
        if known or registered or changes:
            with contextlib.suppress(Exception):  # objects may raise anything
                return pickle_by_value(WithTypes(function, known, registered, changes))
    try:
        alone = pickle_by_value(WithTypes(function, {}, {}, changes) if changes else function)
    except Exception as error:
        raise unsendable(function, pickle_by_value, error) from None
    for kind, registration in registered.items():
        try:
            pickle_by_value((kind, registration))
        except Exception as error:
            raise UsageError(
                f"The registration of {kind.__qualname__} cannot be sent to the workers: {type(error).__name__}: "
                f"{error}. Give megaflow.register functions that refer only to what can be pickled."
            ) from error
    return alone
