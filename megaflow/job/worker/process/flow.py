"""The argument of the user's dataflow function in a worker process: `Flow`.

`wire` connects the dataflow of a job to its commands, states and sinks. A worker, a rehearsal and `megaflow graph` all
call it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from re import Pattern
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, overload

from megaflow.connect.sink_host import Writing
from megaflow.connect.source_protocol import Source
from megaflow.errors import BuildError, UsageError
from megaflow.job import formats
from megaflow.job.files.followed_files import ONLY_FOLLOWED
from megaflow.job.formats.line_records import LineRecords
from megaflow.job.formats.record_format import Count, RecordFormat, Skip
from megaflow.job.formats.text_lines import Line
from megaflow.job.spec import ENGINE
from megaflow.job.worker import snapshots
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.process.named_inputs import NamedInputs, select_input, shape_of
from megaflow.job.worker.process.worker_sinks import WorkerSinks
from megaflow.job.worker.writing.json_lines import state_text
from megaflow.job.worker.writing.output import NamedOutputs
from megaflow.megaphone.base.barrier_actions import Showing
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.event_inputs import carries
from megaflow.megaphone.base.routing import Numbered
from megaflow.megaphone.router.control_stream import set_default
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.scope import Scope
from megaflow.stream import Stream, WindowedStream
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.operators.movement import broadcast

T = TypeVar("T")

OnError: TypeAlias = Literal["raise", "skip"]
"""What a record that cannot be parsed causes: the job ends with an error, or continues without it."""
Ragged: TypeAlias = Literal["refuse", "fill", "cut"]
"""What a row with too few or too many fields causes: a fault, None for what is missing, or the loss of the rest."""

ON_ERROR: Final = ("raise", "skip")


class Reading(Protocol):
    """The operator that reads the inputs of a dataflow on one worker."""

    @property
    def lines(self) -> Port[Any]:
        """The lines or rows; if there are several inputs, batches with the names of their inputs."""

    def add_source(self, name: str, source: Source[Any]) -> Port[Any]:
        """Return the records of a source."""


@dataclass(eq=False, repr=False)
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

    worker: Worker
    scope: Scope
    control: Stream[Numbered]
    args: list[Any]
    _reading: Callable[[Flow], Reading]  # returns the operator that reads, built at the first call: it may read nothing
    _inputs: NamedInputs = field(default_factory=NamedInputs)  # the names of the job's inputs
    _outputs: NamedOutputs = field(default_factory=NamedOutputs)  # the names of its outputs
    _source: Stream[Any] | None = field(default=None, init=False)  # of the only input; of several, batches with names
    _streams: dict[str, Stream[Any]] = field(default_factory=dict, init=False)  # input -> its records; "": the only one

    @overload
    def lines(self, name: str | None = None, *, start: str | Pattern[str] | None = None) -> Stream[str]: ...

    @overload
    def lines(
        self, name: str | None = None, *, start: str | Pattern[str] | None = None, with_source: Literal[True]
    ) -> Stream[Line]: ...

    def lines(
        self, name: str | None = None, *, start: str | Pattern[str] | None = None, with_source: bool = False
    ) -> Stream[Any]:
        """Return the lines of the job, without line ends. A second call returns the same stream.

        A job may have several inputs of lines, each with a name. `--lines orders=PATH --lines payments=PATH`, or
        `megaflow.run(dataflow, lines={"orders": …, "payments": …})`, makes them `flow.lines("orders")` and
        `flow.lines("payments")`. The lines of a file are on one worker at a time, in order, unless it is read with
        `?unordered`. Lines of different files, and so of different inputs, come in any order. Raises BuildError for a
        name that the job was not given, and for a missing name if the inputs have names.

        start       a regular expression: each line in which it is found begins a record. A record is that line and all
                    lines up to the next such line, joined by newlines. Lines before the first such line of a file are a
                    record of their own. A record ends with its file; in a followed file, the last one waits for the
                    next. Not for `?unordered` or Spark
        with_source     True: a record is a `Line(text, path, number)`. `number` counts the lines of the file from 1.
                    Not for `?unordered` or Spark
        """
        if start is not None or with_source:
            return self._parsed(name, LineRecords(start, with_source, self._inputs.plain.bytes_max))
        self._inputs.read_as_lines(name)
        if (key := name or "") in self._inputs.formats:
            raise read_twice(name)
        return self._stream(key)

    def json_lines(
        self, name: str | None = None, *, on_error: OnError = "raise", several: bool = False
    ) -> Stream[Any]:
        """Return the lines of the job, or of an input, parsed as JSON: dicts if the lines are objects.

        Blank lines are left out, and so is a byte order mark at the beginning of a line, which is counted. A line that
        is not JSON ends the job with an error that names its file and number. With `on_error="skip"`, such lines are
        left out and counted. The first one is reported; `control status` and the end of the job show how many there
        were. A file that consists of one JSON value is refused: read it by `json`. With `several=True`, a line may have
        several values, such as `{…}{…}`; if one of them is faulty, none is used.
        Order and names are as in `lines`. An input is read either as lines or parsed. Costs as much as `json.loads`.
        """
        limit = self._inputs.plain.bytes_max
        values = self._parsed(name, formats.JsonLines(self._skip(name, on_error), self._count(name), several, limit))
        return values.flat_map(lambda each: each) if several else values

    def json(self, name: str | None = None, *, on_error: OnError = "raise") -> Stream[Any]:
        """Return the values of JSON files that are arrays, or have values over several lines.

        The elements of an array at the top level are the records; each other value there is one record. A file is read
        piece by piece, so it may be larger than the memory; a record may have up to 64 MiB, or `--line-size-max`. Text
        that is not JSON ends the job with an error that names the file, the line and the column. With `on_error="skip"`
        the rest of that file is left out, as it may be parts of values, and counted once; not for files that are
        followed. With a store, later runs leave out what the file gains. Not for `?unordered` or Spark. Order and names
        are as in `lines`. An input is read either as lines or parsed.
        """
        limit = self._inputs.plain.bytes_max
        return self._parsed(name, formats.JsonValues(self._skip(name, on_error), self._count(name), limit))

    def csv(
        self, name: str | None = None, *, header: bool | Sequence[str] = True, as_: type | str = dict,
        delimiter: str = ",", quotechar: str = '"', escapechar: str | None = None, comment: str | None = None,
        skip_lines: int = 0, skip_header: bool = False, skip_repeated_header: bool = False, quoting: bool = True,
        multiline: bool = True, on_error: OnError = "raise", types: Any = None, skipinitialspace: bool = False,
        ragged: Ragged = "refuse",
    ) -> Stream[Any]:  # fmt: skip
        """Return the rows of the CSV files of the job, or of an input. Values are str unless types are given.

        Each file is parsed as a whole, as Python's `csv` does with `strict=True`: a row may span lines, in quotes.
        Blank lines are left out.

        header      True: the first row of each file names its columns. An empty name becomes `column_N`, N its place
                    from 1 on; a repeated name gets `_2`, `_3`, …. Or the names, for files without such a row. Or False
        skip_header     with names in `header`: leave out the first row, which they replace
        skip_repeated_header    leave out later rows that equal the first one
        skip_lines  lines before the table. A line `sep=;` after them, which spreadsheets write, sets the delimiter
        as_         dict, tuple, or a NamedTuple of the program, whose fields are the columns in any order. Its
                    annotations are the types of the columns
        types       `{"id": int, "price": float | None}`: the types of these columns, in place of annotations. Or one
                    type for all columns; `str` keeps all text. Types are str, int, float, bool, Decimal, date and
                    datetime. An empty field is None with `| None`; otherwise, only str allows it
        delimiter, quotechar, escapechar, skipinitialspace    as in Python's `csv`; quoting=False takes quotes as text
        ragged      "refuse": a row with more or fewer fields than there are columns is faulty. "fill": None stands for
                    missing fields. "cut": further fields are left out. Both are counted
        comment     leave out lines between rows that begin with this text
        multiline   False: each line is a row. `?unordered` needs it. Lines without a file (iterables, Spark) are always
                    read this way
        on_error    "raise": a faulty row ends the job with an error that names its file and line. "skip": the row is
                    left out and counted, as in `json_lines`, and parsing continues after the line where it failed

        A row is faulty if its number of fields is wrong, or a value is not of its column's type. It is also faulty if a
        quote is open at the end of the file, or for more than 64 MiB, or `--line-size-max`. Such a row has at most the
        lines of a million characters. A byte order mark before a row, as `cat` of two files leaves it, is left out and
        counted.

        Order and names are as in `lines`. An input is read either as lines or parsed. A store whose keys and states
        were made from values of other types is refused.
        """
        format = formats.Csv(
            self._skip(name, on_error), header, as_, delimiter, quotechar, escapechar, comment, skip_lines, skip_header,
            skip_repeated_header, quoting, multiline, types, skipinitialspace, ragged, self._count(name),
            self._inputs.plain.bytes_max,
        )  # fmt: skip
        self.scope.ref.graph.extension(formats.ReadColumns).of[name or ""] = format.types.recorded()
        return self._parsed(name, format)

    def _skip(self, name: str | None, on_error: OnError) -> Skip | None:
        """Return a function that counts faults; None: faults are errors. Raises UsageError."""
        if on_error not in ON_ERROR:
            raise UsageError(f"on_error must be 'raise' or 'skip', not {on_error!r:.80}.")
        return partial(self._inputs.skipped.note, name or "") if on_error == "skip" else None

    def _count(self, name: str | None) -> Count:
        """Return a function that counts remarks."""
        return partial(self._inputs.skipped.count, name or "")

    def _parsed(self, name: str | None, format: RecordFormat) -> Stream[Any]:
        self._inputs.read_as_lines(name)
        if (key := name or "") in self._streams:
            raise read_twice(name)
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
        return self._read_source(name, source)

    def _read_source(self, name: str, source: Source[Any]) -> Stream[Any]:
        port = self._reading(self).add_source(name, source)
        carries(port, name)
        return Stream(port)

    def _stream(self, name: str) -> Stream[Any]:
        """Return the records of an input, which carry its name from now on."""
        inputs = self._inputs
        if name in self._streams:
            return self._streams[name]
        if name in inputs.followed:
            source_name = name or ONLY_FOLLOWED
            inputs.sources.add(source_name)
            stream = self._read_source(source_name, inputs.followed[name](inputs.formats.get(name, inputs.plain)))
        else:
            if self._source is None:
                self._source = Stream(self._reading(self).lines)
            stream = self._source.flat_map(select_input(name)) if inputs.are_cut(name) else self._source
            carries(stream.port, name)
        self._streams[name] = stream
        return stream

    def output(self, name: str, stream: Stream[Any]) -> None:
        """Output a stream by name, in addition to the stream that the function returns.

        The command line or the caller chooses where the records of `flow.output("late", stream)` go: `--output
        late=jsonl:late.jsonl`, or `megaflow.run(…, outputs={"late": …})`. The records of each output come in the order
        of their epochs. Outputs are independent of each other; with `state` each is exact after a crash. Raises
        BuildError for a name that the job was not given or that is used twice, and for a stream inside a loop or scope.
        """
        if not isinstance(stream, Stream):
            raise BuildError(f"flow.output({name!r}, …) needs a Stream, not {stream!r:.80}.")
        self._outputs.write(name, stream.port)

    def check_all(self, has_lines: bool) -> None:
        """Raise BuildError unless the program reads and writes all that the job was given; `has_lines`: also lines.
        """
        self._outputs.check_written()
        self._inputs.check_read()
        if has_lines and self._source is None:
            raise BuildError("The dataflow function never calls flow.lines(), so its lines would never be read.")


def wire(
    worker: Worker,
    scope: Scope,
    control: InputHandle[Any],
    args: Sequence[Any],
    reading: Callable[[Flow], Reading],
    inputs: NamedInputs,
    outputs: NamedOutputs,
    backend: snapshots.StateBackend | None = None,
    bins: Mapping[int, Iterable[int]] | None = None,
    launcher: LauncherDoor | None = None,
    has_joined: bool = False,
) -> tuple[Flow, WorkerSinks]:
    """Connect a dataflow to what it needs on this worker; return the argument of its function, and its sinks.

    The coordinator sends commands through `control`. `backend` makes states durable; `bins` are those with which
    workers begin. Without a `launcher`, the dataflow will not run.
    """
    graph = scope.ref.graph
    graph.where = ENGINE
    numbered = broadcast(scope.input_from(control).port, Lane.MAIL)
    graph.where = None
    graph.extension(Showing).show = state_text
    if backend is not None:
        backend.equip(graph.extension(Durability))
    set_default(numbered, bins, *(() if backend is None else backend.event_time()))
    sinks = graph.extension(Writing).host = WorkerSinks(worker, scope.name, numbered, backend, launcher, has_joined)
    return Flow(worker, scope, Stream(numbered), list(args), reading, inputs, outputs), sinks


def read_twice(name: str | None) -> BuildError:
    """Return the error for a second reading that differs from the first.

    >>> print(read_twice("clicks"))
    The input 'clicks' is read twice. Call one method of flow for it, once, and use the stream that it returns twice.
    """
    what = f"input {name!r}" if name else "input"
    return BuildError(
        f"The {what} is read twice. Call one method of flow for it, once, and use the stream that it returns twice."
    )


def build_flow(function: Callable[[Any], Any], flow: Flow, has_lines: bool) -> Stream[Any]:
    """Call the user's function; return its output. Raises BuildError unless it is a Stream and all names agree.

    `has_lines`: the job has lines or rows to read.
    """
    stream = function(flow)
    if not isinstance(stream, Stream):
        hint = ""
        if isinstance(stream, WindowedStream):
            hint = ". Aggregate the windows first, by .count(), .collect() or another method"
        elif isinstance(stream, Coroutine):
            hint = ". Write 'def' instead of 'async def'"
            stream.close()
        elif stream is None:
            hint = ". End it with 'return' and a stream, such as the one that write() returns"
        raise BuildError(
            f"The dataflow function must return its output, a Stream, but it returned {stream!r:.80}{hint}."
        )
    flow.check_all(has_lines)
    return stream
