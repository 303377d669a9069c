"""The user's dataflow function in a worker process: how it is loaded, and its argument `Flow`."""

import importlib.util
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from megaflow.connect.source_protocol import Source
from megaflow.durable.commits import Fingerprint
from megaflow.errors import BuildError, UsageError
from megaflow.job.csv_format import Csv
from megaflow.job.followed_files import ONLY_FOLLOWED
from megaflow.job.json_format import JsonLines
from megaflow.job.record_format import LINES, RecordFormat, Skip
from megaflow.job.spec import AppFile, PickledFunction, WithTypes
from megaflow.job.worker.named_inputs import NamedInputs, select_input, shape_of
from megaflow.job.worker.output import NamedOutputs
from megaflow.job.worker.source_record import SourceRecord
from megaflow.megaphone.event_clock import carries
from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream, WindowedStream
from megaflow.timely.communication.codec import user_types
from megaflow.timely.communication.codec.encode import register

T = TypeVar("T")

OnError: TypeAlias = Literal["raise", "skip"]
"""What becomes of a record that cannot be parsed: the job ends with an error, or goes on without it."""

ON_ERROR: Final = ("raise", "skip")


class Flow:
    """The argument of a dataflow function, on each worker: its lines or rows, its arguments, and the engine.

    args        the arguments after `--` on the command line, a list of str; in `megaflow.run`, `args=`
    worker      the worker that calls the function: its `index`, the number of `peers`, its `log`
    scope       where other streams begin, by `to_stream(iterable)` or `source(name, build)`
    control     the stream of the commands that move bins; stateful operators take it by default

    The job ends when its lines end, and all other streams that begin at `scope`. `megaflow control stop` and Ctrl-C end
    the lines early. In both cases the job processes the records that it has read. Without a store, all timers that are
    left are due then, in the order of their times, however late. With a store, a stop keeps them for the next run, and
    the end of the lines keeps timers of event time and the clock; see `close_windows` of `megaflow.run`.
    """

    def __init__(
        self,
        worker: Worker,
        scope: Scope,
        control: Stream[Numbered],
        args: Sequence[str],
        read: Callable[[], Stream[Any]],
        inputs: NamedInputs | None = None,
        outputs: NamedOutputs | None = None,
        read_source: Callable[[str, Source[Any]], Stream[Any]] | None = None,
    ) -> None:
        """`read` builds the source of lines or rows; it is called at most once. The names are those of the job.

        `read_source` builds that of a `Source`; it is called once for each name.
        """
        self.worker = worker
        self.scope = scope
        self.control = control
        self.args: list[Any] = list(args)
        self._read = read
        self._inputs = NamedInputs() if inputs is None else inputs
        self._outputs = NamedOutputs() if outputs is None else outputs
        self._read_source = read_source
        self._source: Stream[Any] | None = None  # of one input; of batches, each with its input's name, if are several
        self._streams: dict[str, Stream[Any]] = {}  # input -> its lines or rows; "": the only one, without a name

    def lines(self, name: str | None = None) -> Stream[str]:
        """Return the lines of the job, without line ends. A second call returns the same stream.

        A job may have several inputs of lines, each with a name. `--lines orders=PATH --lines payments=PATH`, or
        `megaflow.run(dataflow, lines={"orders": …, "payments": …})`, makes them `flow.lines("orders")` and
        `flow.lines("payments")`. The lines of a file are on one worker at a time, in order, unless it is read with
        `?unordered`. Lines of different files, and so of different inputs, come in any order. Raises BuildError for a
        name that the job was not given, and for a missing name if the inputs have names.
        """
        self._inputs.read_as_lines(name)
        if (key := name or "") in self._inputs.formats:
            raise BuildError(
                "The input is read twice, as lines and parsed. Read it once, as lines, and parse them by map where "
                "needed."
            )
        return self._stream(key)

    def json_lines(self, name: str | None = None, *, on_error: OnError = "raise") -> Stream[Any]:
        """Return the lines of the job, or of an input, parsed as JSON: dicts if the lines are objects.

        Blank lines are left out. A line that is not JSON ends the job with an error that names its file and number.
        With `on_error="skip"` such lines are left out and counted. The first one is reported; `control status` and the
        end of the job show how many there were. A file that consists of one JSON value is refused. Order and names are
        as in `lines`. An input is read either as lines or parsed. Costs as much as `json.loads`.
        """
        return self._parsed(name, JsonLines(self._skip(name, on_error)))

    def csv(
        self, name: str | None = None, *, header: bool | Sequence[str] = True, as_: type | str = dict,
        delimiter: str = ",", quotechar: str = '"', escapechar: str | None = None, comment: str | None = None,
        skip_lines: int = 0, skip_header: bool = False, skip_repeated_header: bool = False, quoting: bool = True,
        multiline: bool = True, on_error: OnError = "raise",
    ) -> Stream[Any]:  # fmt: skip
        """Return the rows of the CSV files of the job, or of an input. All values are str.

        Each file is parsed as a whole, as Python's `csv` does with `strict=True`: a row may span lines, in quotes.
        Blank lines are left out.

        header      True: the first row of each file names its columns. An empty name becomes `column_N`, N its place
                    from 1 on; a repeated name gets `_2`, `_3`, …. Or the names, for files without such a row. Or False
        skip_header     with names in `header`: leave out the first row, which they replace
        skip_repeated_header    leave out later rows that equal the first one
        skip_lines  lines before the table. A line `sep=;` after them, which spreadsheets write, sets the delimiter
        as_         dict, tuple, or a NamedTuple of the program, whose fields are the columns in any order
        delimiter, quotechar, escapechar    as in Python's `csv`; quoting=False takes quotes as text
        comment     leave out lines between rows that begin with this text
        multiline   False: each line is a row. `?unordered` needs it. Lines without a file, of iterables and Spark, are
                    always read so
        on_error    "raise": a faulty row ends the job with an error that names its file and line. "skip": the row is
                    left out and counted, as in `json_lines`, and parsing continues after the line where it failed

        A row is faulty if it has more or fewer fields than there are columns or, without names, than the first row has.
        A row is also faulty if a quote is open at the end of the file, or for more than a million characters. Order and
        names are as in `lines`. An input is read either as lines or parsed.
        """
        skip = self._skip(name, on_error)
        return self._parsed(name, Csv(
            skip, header, as_, delimiter, quotechar, escapechar, comment, skip_lines, skip_header, skip_repeated_header,
            quoting, multiline,
        ))  # fmt: skip

    def _skip(self, name: str | None, on_error: OnError) -> Skip | None:
        """Return what counts faults; None: they are errors. Raises UsageError."""
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error must be 'raise' or 'skip', not {on_error!r:.80}.")
        return partial(self._inputs.skipped.note, name or "") if on_error == "skip" else None

    def _parsed(self, name: str | None, format: RecordFormat) -> Stream[Any]:
        self._inputs.read_as_lines(name)
        if (key := name or "") in self._streams:
            what = f"input {name!r}" if name else "input"
            raise BuildError(f"The {what} is read twice, as lines or parsed. Read it once and use the stream twice.")
        self._inputs.parse(key, format)
        return self._stream(key)

    def rows(self, name: str | None = None, *, as_: type | str = tuple, timestamps: str = "micros") -> Stream[Any]:
        """Return the rows of the DataFrame with this name. A second call returns the same stream.

        Without a name: the rows of the only DataFrame. `--rows NAME=spark:FORMAT:PATH`, `megaflow.run(dataflow,
        rows={"NAME": frame})` and `megaflow.spark.run({"NAME": frame}, dataflow)` give names. Each row is a tuple of
        its columns, a dict (`as_=dict`), or a NamedTuple of the program whose fields are the columns in any order
        (`as_=Order`). Values are ints, floats, bools, strs, bytes and Decimals. An array is a list, a map a dict, a
        nested row a tuple, null None. A timestamp is an int of microseconds since 1970 in UTC, a date an int of days
        since then. With `timestamps="datetime"` a timestamp is an aware datetime in UTC, a timestamp without a time
        zone a naive datetime, and a date a date; that takes far longer. The rows of a partition of a batch are on one
        worker, in order. Raises BuildError for a name that the job was not given.
        """
        name = self._inputs.only() if name is None else name
        self._inputs.read(name, shape_of(name, as_, timestamps))
        return self._stream(name)

    def items(self, name: str | None = None) -> Stream[Any]:
        """Return the items that the program feeds to the job: `megaflow.start(dataflow, items=…)`, or `megaflow.run`.

        Items are values of any type that can be a record. Without a name: the only input of items. A job may have
        several, `items={"clicks": …, "prices": …}`, beside inputs of lines. The items of an input come in order, on one
        worker at a time; items of different inputs come in any order. A second call returns the same stream. Raises
        BuildError for a name that the job was not given.
        """
        return self._stream(self._inputs.read_items(name))

    def read(self, source: Source[T], name: str) -> Stream[T]:
        """Return the records of a `megaflow.connect.Source`: those of each partition in order.

        The `name` stands for the source in checkpoints, errors and `megaflow control status`. No other input of the job
        may have it. The records of a partition are on one worker at a time. The records of a key are processed in the
        order of their partition, even if the partition or the key moves. Each worker makes its own source, because each
        calls the dataflow function. With `--state`, every checkpoint contains the positions of the source, and a
        resumed job opens each partition at its position. Raises BuildError for a name that is taken, and for an object
        that is not a source.
        """
        self._inputs.read_source(source, name)
        if self._read_source is None:
            raise BuildError(f"flow.read(…, {name!r}): An EngineCluster feeds only lines. Use a SimulatedCluster.")
        stream = self._read_source(name, source)
        carries(stream.port, name)
        return stream

    def _follow(self, name: str) -> Stream[Any]:
        """Return the records of files that are followed."""
        assert self._read_source is not None, "what is followed is known where it is read"
        source_name, format = name or ONLY_FOLLOWED, self._inputs.formats.get(name, LINES)
        self._inputs.sources.add(source_name)
        self._streams[name] = self._read_source(source_name, self._inputs.followed[name](format))
        carries(self._streams[name].port, source_name)
        return self._streams[name]

    def _stream(self, name: str) -> Stream[Any]:
        if name not in self._streams and name in self._inputs.followed:
            return self._follow(name)
        if name not in self._streams:
            if self._source is None:
                self._source = self._read()
            several = self._inputs.are_several
            return self._carrying(name, self._source.flat_map(select_input(name)) if several else self._source)
        return self._streams[name]

    def _carrying(self, name: str, stream: Stream[Any]) -> Stream[Any]:
        """Return the lines or rows of an input, by which name they are known from now on."""
        carries(stream.port, name)
        self._streams[name] = stream
        return stream

    def output(self, name: str, stream: Stream[Any]) -> None:
        """Give the stream out under a name, beside the stream that the function returns.

        The command line or the caller chooses where the records of `flow.output("late", stream)` go: `--output
        late=jsonl:late.jsonl`, or `megaflow.run(…, outputs={"late": …})`. The records of each output come in the order
        of their epochs. Outputs are independent of each other; with `state` each is exact after a crash. Raises
        BuildError for a name that the job was not given or that is used twice, and for a stream inside a loop or scope.
        """
        if not isinstance(stream, Stream):
            raise BuildError(f"flow.output({name!r}, …) needs a Stream, not {stream!r:.80}.")
        self._outputs.write(name, stream.port)

    def check_all(self, has_lines: bool) -> None:
        """Raise BuildError unless the program reads and writes all that the job was given; `has_lines`: lines, or rows.
        """
        self._outputs.check_written()
        self._inputs.check_read()
        if has_lines and self._source is None:
            raise BuildError("The dataflow function never calls flow.lines(), so its lines would never be read.")


def build_flow(function: Callable[[Any], Any], flow: Flow, has_lines: bool) -> Stream[Any]:
    """Call the user's function; return its output. Raises BuildError unless that is a Stream, and names agree.

    `has_lines`: there are some to read.
    """
    stream = function(flow)
    if not isinstance(stream, Stream):
        hint = ". Aggregate the windows first, by .count(), .collect() or another method" * isinstance(
            stream, WindowedStream
        )
        raise BuildError(
            f"The dataflow function must return its output, a Stream, but it returned {stream!r:.80}{hint}."
        )
    flow.check_all(has_lines)
    return stream


class App:
    """The user's function, made by the first worker of the process that asks for it."""

    def __init__(self, app: AppFile | PickledFunction) -> None:
        self._app = app
        self._lock = Lock()
        self._function: Callable[[Any], Any] | None = None
        self._record = SourceRecord(app.folder) if isinstance(app, AppFile) else None

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
        return Fingerprint(self._app.name, tuple(map(str, args)), dict(self._record.digests))


def load(app: AppFile | PickledFunction, record: SourceRecord | None = None) -> Callable[[Any], Any]:
    """Run the user's module or unpickle the function; return the function.

    The module may import its neighbours, as if it were run by `python FILE`: its folder comes first in the path. By now
    all that a worker needs is imported, so a neighbour of the same name cannot break it; `import` gives the module that
    is loaded already. `record` notes which source of the module and its neighbours is loaded, from then on.
    """
    if isinstance(app, PickledFunction):
        sys.path[:] = [*app.path, *(sys.path if app.elsewhere else ())]
        made: Callable[[Any], Any] | WithTypes = pickle.loads(app.data)  # which names cloudpickle where it needs it
        types: Mapping[str, type] = {}
        if isinstance(made, WithTypes):
            for cls, (encode, decode) in made.registered.items():
                register(cls) if encode is None or decode is None else register(cls, encode, decode)
            types = made.types
            made = made.function
        user_types.add_names(made, types)
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


def load_file(path: Path, record: SourceRecord | None) -> ModuleType:
    """Run a file as a module of its name."""
    name = module_name(path.stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is not a Python file. Its name must end in .py.")
    if record is not None:
        record.note_loads(spec)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # also for the decoder, which looks there for the types of records
    spec.loader.exec_module(module)
    return module


def module_name(stem: str) -> str:
    """Return the name for the module of a file, its own unless another module has that already.

    >>> module_name("an app that nobody imports"), module_name("json")
    ('an app that nobody imports', 'megaflow_app_json')
    """
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return f"megaflow_app_{stem}" if taken else stem
