"""Loading of the user's dataflow function, from a file, a module or a pickle."""

import contextlib
import importlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from megaflow.durable.commits import Fingerprint
from megaflow.errors import UsageError
from megaflow.job.program_code import digest_of
from megaflow.job.script_logging import take_over
from megaflow.job.spec import AppFile, ModuleChange, PickledFunction, WithTypes
from megaflow.job.worker.process.source_record import SourceRecord
from megaflow.python_executable import VARIABLE as PYTHON
from megaflow.timely.communication.codec import user_types
from megaflow.timely.communication.codec.encode import register


class App:
    """The user's function; the first worker of the process that asks for it loads it."""

    def __init__(self, app: AppFile | PickledFunction) -> None:
        self._app = app
        self._lock = Lock()
        self._function: Callable[[Any], Any] | None = None
        self._record = SourceRecord(app.folder) if isinstance(app, AppFile) else None

    def function(self) -> Callable[[Any], Any]:
        """Return the function. Raises the errors of its module, and UsageError if the module has no such function."""
        with self._lock:
            if self._function is None:
                self._function = load(self._app, self._record)
            return self._function

    def fingerprint(self, args: Sequence[str]) -> Fingerprint | None:
        """Return the code that this process has run so far, with these arguments; None for a pickled function."""
        if isinstance(self._app, PickledFunction) or self._record is None:
            return None
        return Fingerprint(self._app.name, tuple(map(str, args)), dict(self._record.digests))


def load(app: AppFile | PickledFunction, record: SourceRecord | None = None) -> Callable[[Any], Any]:
    """Run the user's module or unpickle the function; return the function.

    The module may import its neighbours, as if it were run by `python FILE`: its folder comes first in the path. A
    worker has imported all that it needs by now. So a neighbour of the same name cannot break it: `import` returns the
    loaded module. `record` notes the source of the module, and of its neighbours that are loaded from then on.
    """
    if isinstance(app, PickledFunction):
        has_own_path = app.elsewhere or PYTHON in os.environ  # this Python is not the launcher's
        sys.path[:] = [*app.path, *(sys.path if has_own_path else ())]
        for library in app.libraries:
            with contextlib.suppress(ImportError):  # not installed here; perhaps no value needs it
                importlib.import_module(library)
        if not app.elsewhere:  # elsewhere, files are copies from the start of the job
            check_files(app.files)
        made: Callable[[Any], Any] | WithTypes = pickle.loads(app.data)  # the pickle names cloudpickle if it needs it
        types: Mapping[str, type] = {}
        if isinstance(made, WithTypes):
            for cls, (encode, decode) in made.registered.items():
                register(cls) if encode is None or decode is None else register(cls, encode, decode)
            types = made.types
            for change in made.changes:
                apply(change)
            made = made.function
        user_types.add_names(made, types)
        if app.logs:
            take_over(app.logs)
        return made
    path = Path(app.path)
    sys.path.insert(0, app.root)
    user_types.add_folder(app.folder)
    if record is not None:
        record.install()
    module = importlib.import_module(app.module) if app.module else load_file(path, record)
    if app.module and not os.path.samefile(module.__file__ or "/", path):
        raise UsageError(
            f"{app.module!r} is already the name of another module, {module.__file__}. Name the file instead: {path}"
        )
    function = getattr(module, app.function, None)
    if not callable(function):
        raise UsageError(f"{app.path} has no function {app.function!r} that takes the flow.")
    found: Callable[[Any], Any] = function
    return found


def check_files(files: Iterable[tuple[str, str]]) -> None:
    """Raise UsageError if a module's file has changed since the job started."""
    for file, known in files:
        if digest_of(Path(file)) != known:
            raise UsageError(
                f"{os.path.basename(file)} has changed since the job started. A worker that starts now would run other "
                "code than the job does. Restore the file, or start the job again."
            )


def apply(change: ModuleChange) -> None:
    """Set a module's variable to its value in the launcher's process; a container keeps its identity."""
    holder: Any = importlib.import_module(change.module)
    for part in filter(None, change.holder.split(".")):
        holder = getattr(holder, part)
    current, value = getattr(holder, change.name, None), change.value
    if isinstance(current, dict | set) and type(current) is type(value):
        current.clear()
        current.update(value)
    elif isinstance(current, list) and type(current) is type(value):
        current[:] = value
    else:
        setattr(holder, change.name, value)


def load_file(path: Path, record: SourceRecord | None) -> ModuleType:
    """Run a file as a module with the file's name."""
    name = module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is not a Python file. Its name must end in .py.")
    if record is not None:
        record.note_loads(spec)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the decoder also looks there, for the types of records
    spec.loader.exec_module(module)
    return module


def module_name(stem: str) -> str:
    """Return the module name for a file: its own name, unless another module already has it.

    >>> module_name("an app that nobody imports"), module_name("json")
    ('an app that nobody imports', 'megaflow_app_json')
    """
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"megaflow_app_{stem}" if taken else stem
