"""The user's dataflow function in a worker process: how it is loaded, and the `Flow` that it is given."""

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from megaflow.control.packed_rows import names_text
from megaflow.durable.commits import Fingerprint
from megaflow.errors import BuildError, UsageError
from megaflow.job.spec import AppFile, PickledFunction
from megaflow.job.worker.row_inputs import RowInputs, select_input, shape_of
from megaflow.job.worker.source_record import SourceRecord
from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.communication.codec import user_types


class Flow:
    """What a dataflow function is given, on each worker: the lines or rows, its arguments, the engine underneath.

    args        what followed `--` on the command line: a list of str; in `megaflow.run`, `args=`
    worker      the worker that calls the function: its `index`, how many `peers` it has, its `log`
    scope       where streams begin that are no lines or rows, by `to_stream(iterable)` or `source(name, build)`
    control     the stream of the commands that move bins; stateful operators take it by default

    The job ends when its lines do, and all other streams that begin at `scope`. `megaflow control stop` and Ctrl-C end
    the lines early. Either way what was read is finished and the timers that are left are due, in the order of their
    times, however late those are.
    """

    def __init__(
        self,
        worker: Worker,
        scope: Scope,
        control: Stream[Numbered],
        args: Sequence[str],
        read: Callable[[], Stream[Any]],
        inputs: RowInputs | None = None,
    ) -> None:
        """`read` builds the source of lines or rows; it is called at most once. `inputs`: of rows."""
        self.worker = worker
        self.scope = scope
        self.control = control
        self.args: list[Any] = list(args)
        self._read = read
        self._inputs = RowInputs() if inputs is None else inputs
        self._lines: Stream[str] | None = None
        self._source: Stream[Any] | None = None  # of rows; of batches of them, with their input's name, if are several
        self._rows: dict[str, Stream[Any]] = {}

    def lines(self) -> Stream[str]:
        """Return the lines of the job, without their ends. Called twice: the same stream.

        The lines of a file are on one worker at a time, in order, unless it is read `?unordered`.
        """
        if self._inputs.names:
            raise BuildError(
                f"the dataflow reads lines, and the job was given the rows {names_text(self._inputs.names)}: read them "
                f"by flow.rows({self._inputs.names[0]!r}), or give lines"
            )
        if self._lines is None:
            self._lines = self._read()
        return self._lines

    def rows(self, name: str, *, as_: type | str = tuple, timestamps: str = "micros") -> Stream[Any]:
        """Return the rows of the DataFrame that the job was given under this name. Called twice: the same stream.

        They are bound outside, by `--rows NAME=spark:FORMAT:PATH` or `megaflow.run(dataflow, rows={"NAME": frame})`.
        `as_`: each row is a tuple of its columns, or a dict (`as_=dict`), or a NamedTuple of the program's, whose
        fields are the columns, in any order (`as_=Order`). Values are ints, floats, bools, strs, bytes, Decimals; an
        array is a list, a map a dict, a nested row a tuple; null is None. A timestamp is an int of microseconds since
        1970 in UTC, a date an int of days since then; with `timestamps="datetime"` they are an aware datetime in UTC
        (a timestamp without a time zone a naive one) and a date, which takes far longer. The rows of a partition of
        a batch are on one worker, in order. Raises BuildError for a name that the job was not given.
        """
        self._inputs.read(name, shape_of(name, as_, timestamps))
        if name not in self._rows:
            if self._source is None:
                self._source = self._read()
            several = self._inputs.are_several
            self._rows[name] = self._source.flat_map(select_input(name)) if several else self._source
        return self._rows[name]

    def check_read(self, has_lines: bool) -> None:
        """Raise BuildError unless all is read that the job was given; `has_lines`: lines, or rows."""
        self._inputs.check_read()
        if has_lines and self._lines is None and self._source is None:
            raise BuildError("the dataflow function never called flow.lines(), so its lines would never be read")


def build_flow(function: Callable[[Any], Any], flow: Flow, has_lines: bool) -> Stream[Any]:
    """Call the user's function; return its output. Raises BuildError unless that is a Stream, and all lines are read.

    `has_lines`: there are some to read.
    """
    stream = function(flow)
    if not isinstance(stream, Stream):
        raise BuildError(f"the dataflow function must return its output, a Stream; it returned {stream!r:.80}")
    flow.check_read(has_lines)
    return stream


class App:
    """The user's function, made by the first worker of the process that asks for it."""

    def __init__(self, app: AppFile | PickledFunction) -> None:
        self._app = app
        self._lock = Lock()
        self._function: Callable[[Any], Any] | None = None
        self._record = SourceRecord(os.path.dirname(app.path)) if isinstance(app, AppFile) else None

    def function(self) -> Callable[[Any], Any]:
        """Return it. Raises what its module raises when it is run, UsageError if there is no such function."""
        with self._lock:
            if self._function is None:
                self._function = load(self._app, self._record)
            return self._function

    def fingerprint(self, args: Sequence[str]) -> Fingerprint | None:
        """Return what this process runs by now, with these arguments; None of a pickled function."""
        if isinstance(self._app, PickledFunction) or self._record is None:
            return None
        name = f"{os.path.basename(self._app.path)}:{self._app.function}"
        return Fingerprint(name, tuple(map(str, args)), dict(self._record.digests))


def load(app: AppFile | PickledFunction, record: SourceRecord | None = None) -> Callable[[Any], Any]:
    """Run the user's module or unpickle the function; return the function.

    The module may import its neighbours, as if it were run by `python FILE`: its folder comes first in the path. By now
    all that a worker needs is imported, so a neighbour of the same name cannot break it; `import` gives the module that
    is loaded already. `record` notes which source of the module and its neighbours is loaded, from then on.
    """
    if isinstance(app, PickledFunction):
        sys.path[:] = app.path
        made: Callable[[Any], Any] = pickle.loads(app.data)  # which names cloudpickle where it needs it
        user_types.add_names(made)
        return made
    path = Path(app.path)
    sys.path.insert(0, str(path.parent))
    user_types.add_folder(str(path.parent))
    name = module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{app.path!r} is not a Python file: its name must end in .py")
    if record is not None:
        record.install()
        record.note_loads(spec)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # also for the decoder, which looks there for the types of records
    spec.loader.exec_module(module)
    function = getattr(module, app.function, None)
    if not callable(function):
        raise UsageError(f"{app.path} has no function {app.function!r} that takes the flow")
    found: Callable[[Any], Any] = function
    return found


def module_name(stem: str) -> str:
    """Return the name for the module of a file, its own unless another module has that already.

    >>> module_name("an app that nobody imports"), module_name("json")
    ('an app that nobody imports', 'megaflow_app_json')
    """
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"megaflow_app_{stem}" if taken else stem
