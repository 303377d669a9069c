"""Jobs whose dataflow is a Python function of a notebook, script or test: `megaflow.run` and `megaflow.start`."""

import asyncio
import contextlib
import inspect
import os
import pickle
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from typing import Any, ParamSpec, TypeVar

from megaflow.durable.incarnation import CHECKPOINTS_KEPT
from megaflow.durable.relocation import relocations
from megaflow.errors import Interrupted, MegaflowError, PeerFailed, UsageError
from megaflow.job.formats.text_lines import LINE_BYTES_MAX
from megaflow.job.launcher import outputs
from megaflow.job.launcher.inputs.loop_sources import pullable, running_loop
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_specs import is_written_by_spark, open_outputs
from megaflow.job.launcher.outputs.program_output import ProgramWriter
from megaflow.job.launcher.outputs.writer import ListWriter, Writer
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.live_page import LivePage
from megaflow.job.launcher.run.started_job import JobHandle
from megaflow.job.profile.report import profile_spec
from megaflow.job.spec import JobSpec, PickledFunction
from megaflow.spark.cluster import master_of
from megaflow.spark.worker_settings import parse_conf

OBSERVED = "megaflow"
COMMAND = r"megaflow [a-z]+ (?:(?![,;]|\.(?:\s|$)).)*"  # in a message; it is for a shell, also if the caller is Python

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The arguments that `megaflow.run` and `megaflow.spark.run` have in common."""

    processes: int = 1
    workers: int = 1
    args: Sequence[str] = ()
    on: Any = None
    name: str | None = None
    state: str | os.PathLike[str] | None = None
    close_windows: bool = False
    checkpoint_every: float = 1.0
    checkpoints_kept: int = CHECKPOINTS_KEPT
    restarts: int = 3
    shrink: bool = False
    rename_state: Mapping[str, str] | None = None
    drop_state: Sequence[str] = ()
    take_over: bool = False
    drain_timeout: float | None = None
    idle_timeout: float = 5.0
    start_timeout: float = 120.0
    ship: Sequence[str | os.PathLike[str]] = ()
    debug: bool = False
    web: int | str | None = None
    web_control: bool = False
    metrics: int | str | None = None

    def page(self) -> LivePage | None:
        """Return the job's page, None if it has none."""
        web, metrics = (None if place is None else str(place) for place in (self.web, self.metrics))
        return LivePage(web, metrics, self.web_control) if web or metrics or self.web_control else None

    def spec(self, app: PickledFunction, **more: Any) -> JobSpec:
        """Return the job's spec; `more` are its fields that only one of the two functions sets."""
        same = {each.name: getattr(self, each.name) for each in fields(self) if each.name in SAME}
        return JobSpec(
            app, args=sendable(self.args), state=None if self.state is None else os.path.abspath(self.state),
            renamed=tuple((self.rename_state or {}).items()), dropped=tuple(self.drop_state),
            start_timeout_seconds=self.start_timeout, shipped=tuple(os.fspath(path) for path in self.ship),
            **same, **more,
        )  # fmt: skip


def sendable(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of the program. Raises UsageError if they cannot be sent to the workers."""
    try:
        pickle.dumps(args := tuple(args))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UsageError(f"args: These cannot be sent to the workers: {error}. Give texts or numbers.") from error
    return args


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameOptions(JobOptions):
    """The arguments that the functions of `megaflow.spark` have in common."""

    observe: str | None = OBSERVED

    def observed(self) -> str:
        """Return the name of the job's figures in Spark's metrics; "": there are none. Raises UsageError."""
        if not (self.observe is None or (isinstance(self.observe, str) and self.observe)):
            raise UsageError(f"observe: Give a name for Spark's metrics, or None, not {self.observe!r:.80}.")
        return self.observe or ""


@dataclass(frozen=True, slots=True)
class RunOptions(JobOptions):
    """The arguments of `megaflow.run`."""

    dataflow: Callable[[Any], Any]
    _: KW_ONLY
    lines: Any = None
    follow: bool = False
    rows: Mapping[str, Any] | None = None
    items: Any = None
    output: str | None = None
    outputs: Mapping[str, str | list[Any]] | None = None
    overwrite: bool = False
    append: bool = False
    rate: float | None = None
    listen: str = "127.0.0.1"
    encoding_errors: str = "strict"
    line_size_max: int = LINE_BYTES_MAX
    profile: str | os.PathLike[str] | None = None
    profile_calls: bool = False
    oversubscribe: bool = False
    max_skew: float | None = None
    relocate: Mapping[str, str] | None = None
    same_file: Mapping[str, str] | None = None
    allow_loss: bool = False
    forget_missing: bool = False
    accept_rows: Sequence[str] = ()
    partial_windows: str = "leave-out"
    conf: Mapping[str, str] | None = None


SAME = {each.name for each in fields(JobSpec)} - {"args", "state", "on", "conf", "profile", "accept_rows"}
"""Fields of a spec for which an argument has the same name and value."""


def begin(
    records: ListWriter | ProgramWriter, options: RunOptions, loop: asyncio.AbstractEventLoop | None
) -> JobHandle:
    """Start a job. If it has no `output`, `records` gets the stream that the dataflow returns; `loop` feeds queues."""
    with naming_arguments():
        lines, items = pullable(options.lines, loop), pullable(options.items, loop)
        if options.on is None and (options.conf or options.ship):
            name = "conf" if options.conf else "ship"
            raise UsageError(f"{name} applies to processes that Spark runs: add on='spark'.")
        mode = mode_of(options.overwrite, options.append)
        spec = options.spec(
            pickle_app(options.dataflow, with_types=items is not None),
            profile=profile_spec(options.profile, options.profile_calls),
            relocated=relocations((options.relocate or {}).items()),
            same_files=relocations((options.same_file or {}).items(), "--same-file"),
            accept_rows=tuple(options.accept_rows),
            on=None if options.on is None else master_of(options.on),
            conf=parse_conf([f"{key}={value}" for key, value in (options.conf or {}).items()]),
            results=options.output is not None and is_written_by_spark(options.output),
        )
        places = {"": records if options.output is None else options.output, **(options.outputs or {})}
        opened = partial(open_places, places, paths_of(options.lines), spec.state)
        launched = LaunchOptions(spec, lines, partial(opened, mode), partial(opened, "resume"), options.rows, items,
                                 options.page())  # fmt: skip
        read = records if options.output is None and isinstance(records, ProgramWriter) else None
        return JobHandle(launched, read, with_arguments)


def takes_arguments(of: Callable[P, JobOptions]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Return a decorator that gives a function the arguments of a class of options, first those that it adds."""
    own = inspect.get_annotations(of)
    arguments = sorted(inspect.signature(of).parameters.values(), key=lambda each: (each.kind, each.name not in own))

    def typed(function: Callable[..., R]) -> Callable[P, R]:
        answer = inspect.signature(function).return_annotation
        signature = inspect.Signature(arguments, return_annotation=answer)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return typed


@takes_arguments(RunOptions)
def run(*given: Any, **named: Any) -> list[Any]:
    """Run `dataflow(flow)` on worker processes and return its output records, by epoch. Blocks until the lines end.

        def dataflow(flow):
            return flow.lines().flat_map(str.split).count_by_value()

        megaflow.run(dataflow, lines=["a rose is a rose"])      # [('a', 2), ('rose', 2), ('is', 1)]

    Inputs:

    - `lines` is a specification as for `--lines`, an iterable of str, or a Spark streaming DataFrame. One worker reads
      a file, or the iterable, in order. Several read a file given as `"PATH?unordered"`. Files given as
      `"GLOB?ordered-by=name"` are begun in that order, and event time follows it.
    - `items` is an iterable of values of any type that can be a record, or a table, such as a DataFrame, whose rows
      become dicts by columns. The dataflow reads it by `flow.items()`.
    - A dict of either gives each input a name, for `flow.lines(name)` and `flow.items(name)`. It cannot contain Spark
      DataFrames.
    - `rows`, instead of both, is a dict of the inputs of `flow.rows(name)`: each is a Spark DataFrame, streaming or
      not, or a specification as for `--rows`. A streaming DataFrame feeds the job until the job is stopped.
    - A dataflow that reads only sources, by `flow.read`, needs none of these.
    - With `follow` the files of `lines` grow and new ones come, as with `--follow`. The job ends when it is stopped.
    - A file or partition without new records for `idle_timeout` seconds no longer holds event time back.
    - `max_skew`, in seconds of event time, and `line_size_max`, in bytes, are as `--max-skew` and `--line-size-max`.

    A separate thread pulls an iterable as needed, in a copy of the caller's context. So objects that belong to one
    thread, such as connections of `sqlite3`, must be opened in the iterable and not before. An async iterable is pulled
    in an event loop of that thread. A queue is also allowed (`queue.Queue`, or that of `multiprocessing`). Its
    `shutdown()`, of Python 3.13, ends it; `iter(queue.get, END)` ends at a value. If the job ends before the iterable,
    the iterable is abandoned, in its `next()` if that blocks.

    Outputs: `outputs` names the destinations of the streams that the dataflow passes to `flow.output(name, stream)`.
    Each is a specification as for `--output`, such as "jsonl:late.jsonl", or a list to which the records are added.
    `output` is such a specification for the stream that the dataflow returns; the returned list is then empty. A
    non-empty file is refused without `overwrite` or `append`. `profile` is a folder for the files of `megaflow run
    --profile`.

    Processes: `listen` is HOST or HOST:PORT, `oversubscribe` lifts the bound on processes, and `drain_timeout` is in
    seconds. With `on`, "spark", "spark:MASTER" or a Spark session, the processes run on Spark's executors, as with
    `--on`. The function's file, the files beside it and those in `ship` are sent there. `conf` configures a session
    that megaflow starts.

    State: `state` is a folder for the job's state, with a checkpoint every `checkpoint_every` seconds at most. The same
    call resumes from there. It returns the records of this call, up to its end.

    - If a process is lost, the job resumes from the last checkpoint by itself: `restarts` times without a checkpoint
      between, and ten times as often within ten minutes. Then the call raises StateKept. With `shrink`, the remaining
      processes divide the share of a lost one instead of a new process taking it.
    - When all lines are read, windows and timers that wait for event time or the clock stay open for the next call.
      With `close_windows` they close, and later lines are late for them. Without `state` they always close.
    - `rename_state` (old name -> new name) and `drop_state` handle states in the folder whose operators were renamed or
      removed. `relocate` (old path -> new path) names files and folders that have moved since the last call.
      `same_file` (path -> path) names copies of input files. `take_over` takes the folder from a launcher that does not
      answer. With `allow_loss` a job that follows files continues without lines that are gone, with `forget_missing`
      another one without files. `accept_rows` names sinks that may have rows of another checkpoint. With
      `partial_windows="emit"`, windows that lack records since their states were dropped give results.

    Raises PeerFailed with the traceback if the dataflow raises, UsageError for wrong arguments, and StoreError if the
    folder belongs to another job or the lines have changed. Ctrl-C stops the job: what was read or pulled is processed,
    then `Interrupted` is raised, a KeyboardInterrupt whose `records` holds the results so far. A second one ends it.
    """
    writer = ListWriter()
    with naming_arguments():
        job = begin(writer, RunOptions(*given, **named), None)
        try:
            job.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):  # the second one has ended the job
                job.stop_or_end()
            raise Interrupted(writer.records) from None
    return writer.records


@takes_arguments(RunOptions)
def start(*given: Any, **named: Any) -> JobHandle:
    """Start `dataflow(flow)` on worker processes and return the running job. The arguments are those of `run`.

        with megaflow.start(dataflow, items=clicks(), processes=2) as job:
            for record in job.outputs():             # as they come
                ...

    Blocks until the processes are started, about half a second, and raises the reason if they cannot start. The job has
    `outputs()`, `status()`, `control` (`control.move_bins(…)` and the other commands of `megaflow control`), `stop()`
    and `wait()`; see `help(megaflow.JobHandle)`. An input may also be an `asyncio.Queue`, if `start` is called in a
    coroutine of the loop that feeds it. `async for record in job.outputs()` lets that loop run.

    `web` is the port of a page that shows the job, or HOST:PORT; 0 takes any free port. `job.web_url` is its
    address. With `web_control` the page can also steer the job. `metrics` is the port, or HOST:PORT, of /metrics alone.
    Both need `pip install 'megaflow[web]'`.

    Leaving the block stops the job, if it has not ended: records that were read or pulled are processed. An error ends
    the job at once; Ctrl-C stops it. If the dataflow raises, `outputs` and `wait` raise its error, so that an uncaught
    error prints its traceback last. When the program ends, a job that still runs is ended by force. With
    `output="none"` the records are dropped. Otherwise the job waits until the program reads its outputs.
    """
    options = RunOptions(*given, **named)
    return begin(ProgramWriter(durable=options.state is not None), options, running_loop())


def mode_of(overwrite: bool, append: bool) -> Mode:
    """Return the treatment of non-empty files. Raises UsageError if both arguments are given."""
    if overwrite and append:
        raise UsageError("Give only one of overwrite and append, or neither for a new file.")
    return "overwrite" if overwrite else "append" if append else "new"


def paths_of(lines: Any) -> list[str]:
    """Return the paths and other str among the values that `lines=` accepts."""
    given = lines.values() if isinstance(lines, Mapping) else [lines]
    return [os.fspath(each) for each in given if isinstance(each, str | os.PathLike)]


def open_places(
    places: Mapping[str, str | list[Any] | Writer], read: Collection[str], state: str | None, mode: Mode
) -> Writer:
    """Return a writer of outputs by name, each to a list or to the place of a specification. Raises UsageError."""
    for name, place in places.items():
        if not isinstance(place, str | list | Writer):
            raise UsageError(
                f"outputs: {name!r} must go to a list or to a specification such as 'jsonl:PATH', not {place!r:.80}."
            )
        if name and not name.isidentifier():
            raise UsageError(f"outputs: {name!r:.80} must be a name, as in flow.output('late', stream).")
    writers = {name: ListWriter(place) if isinstance(place, list) else place for name, place in places.items()}
    return open_outputs(writers, read, mode, lambda output, own: outputs.open_results(output, state, own, True))


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """Have errors name the arguments of `run` instead of the corresponding command-line options."""
    try:
        yield
    except MegaflowError as error:
        if not isinstance(error, PeerFailed) and error.args and isinstance(error.args[0], str):
            error.args = with_arguments(error.args[0]), *error.args[1:]
        raise


def with_arguments(text: str) -> str:
    """Return a message with the arguments of `run` in place of command-line options, except in commands for a shell.

    >>> with_arguments("--state: name another --state folder, or --checkpoint-every 5, but not --else")
    'state: name another state= folder, or checkpoint_every= 5, but not --else'
    >>> with_arguments("--follow: pipe it in: cat x.fifo | megaflow run … --lines -, without --follow")
    'follow: pipe it in: cat x.fifo | megaflow run … --lines -, without follow'
    """
    names = inspect.signature(run).parameters

    def named(found: re.Match[str]) -> str:
        name = (found[1] or "").replace("-", "_")
        return found[0] if name not in names else name + ("=" if found[2] == " " else "") + found[2]

    text = re.sub(COMMAND + r"|(?<!\S)--([a-z-]+)( (?!must)|(?=[^a-z-]|$))", named, text)
    return text.replace("the same command", "the same call")
