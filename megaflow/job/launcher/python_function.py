"""A job whose dataflow is a Python function, from a notebook, a script or a test: `megaflow.run`, `megaflow.start`."""

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from megaflow.durable.incarnation import CHECKPOINTS_KEPT
from megaflow.errors import Interrupted, MegaflowError, PeerFailed, UsageError
from megaflow.job.launcher.epoch_merge import ListWriter, Writer
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.loop_sources import pullable, running_loop
from megaflow.job.launcher.output_file import Mode
from megaflow.job.launcher.output_specs import open_outputs
from megaflow.job.launcher.program_output import ProgramWriter
from megaflow.job.launcher.started_job import JobHandle
from megaflow.job.profile.report import profile_spec
from megaflow.job.spec import JobSpec
from megaflow.spark.cluster import master_of
from megaflow.spark.worker_settings import parse_conf

P = ParamSpec("P")
R = TypeVar("R")


def begin(
    records: ListWriter | ProgramWriter,
    dataflow: Callable[[Any], Any],
    *,
    lines: Any = None, follow: bool = False,
    rows: Mapping[str, Any] | None = None,
    items: Any = None,
    output: str | None = None,
    outputs: Mapping[str, str | list[Any]] | None = None,
    overwrite: bool = False, append: bool = False,
    processes: int = 1, workers: int = 1,
    args: Sequence[str] = (),
    rate: float | None = None,
    name: str | None = None, listen: str = "127.0.0.1",
    encoding_errors: str = "strict",
    debug: bool = False, profile: str | os.PathLike[str] | None = None, profile_calls: bool = False,
    oversubscribe: bool = False, drain_timeout: float | None = None, idle_timeout: float = 5.0,
    state: str | os.PathLike[str] | None = None,
    close_windows: bool = False,
    checkpoint_every: float = 1.0, checkpoints_kept: int = CHECKPOINTS_KEPT,
    restarts: int = 3, shrink: bool = False,
    rename_state: Mapping[str, str] | None = None, drop_state: Sequence[str] = (),
    take_over: bool = False, allow_loss: bool = False,
    on: Any = None, conf: Mapping[str, str] | None = None, start_timeout: float = 120.0,
    ship: Sequence[str | os.PathLike[str]] = (),
) -> JobHandle:  # fmt: skip
    """Start the job that `run` describes; `records` gets the stream that the dataflow returns, but for `output`."""
    if on is None and (conf or ship):
        raise UsageError(f"{'conf' if conf else 'ship'} applies to processes that Spark runs: add on='spark'.")
    mode = mode_of(overwrite, append)
    places = {"": records if output is None else output, **(outputs or {})}
    with naming_arguments():
        spec = JobSpec(
            pickle_app(dataflow, with_types=items is not None), processes, workers, tuple(args), rate, name, listen,
            encoding_errors, debug, drain_timeout=drain_timeout, oversubscribe=oversubscribe, idle_timeout=idle_timeout,
            profile=profile_spec(profile, profile_calls),
            state=None if state is None else os.path.abspath(state), checkpoint_every=checkpoint_every,
            checkpoints_kept=checkpoints_kept, restarts=restarts, shrink=shrink, take_over=take_over,
            allow_loss=allow_loss,
            renamed=tuple((rename_state or {}).items()), dropped=tuple(drop_state),
            on=None if on is None else master_of(on), start_timeout_seconds=start_timeout, follow=follow,
            close_windows=close_windows, shipped=tuple(map(str, ship)),
            conf=parse_conf([f"{key}={value}" for key, value in (conf or {}).items()]),
        )  # fmt: skip
        opened = partial(open_places, places, paths_of(lines))
        return JobHandle(
            spec, partial(opened, mode), lines, rows, partial(opened, "resume"), items,
            output=records if output is None and isinstance(records, ProgramWriter) else None,
        )  # fmt: skip


def takes_arguments(
    of: Callable[Concatenate[Any, P], JobHandle],
) -> Callable[[Callable[Concatenate[Callable[[Any], Any], ...], R]], Callable[P, R]]:
    """Say that a function takes the arguments of another one, but for the first."""
    signature = inspect.signature(of)
    parameters = [*signature.parameters.values()][1:]

    def typed(function: Callable[..., R]) -> Callable[P, R]:
        answer = inspect.signature(function).return_annotation
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=answer
        )
        return function

    return typed


@takes_arguments(begin)
def run(dataflow: Callable[[Any], Any], **arguments: Any) -> list[Any]:
    """Run `dataflow(flow)` on worker processes and return its output records, by epoch. Blocks until the lines end.

    Inputs:

    - `lines` is a specification as for `--lines`, an iterable of str, or a Spark streaming DataFrame. One worker reads
      a file, or the iterable, in order. Several read a file given as `"PATH?unordered"`. Files given as
      `"GLOB?ordered-by=name"` are begun in that order, and event time follows it.
    - `items` is an iterable of values of any type that can be a record. The dataflow reads it by `flow.items()`.
    - A dict of either gives each input a name, for `flow.lines(name)` and `flow.items(name)`. Spark's DataFrames cannot
      be among them.
    - `rows`, instead of both, is a dict of the inputs of `flow.rows(name)`: each is a Spark DataFrame, streaming or
      not, or a specification as for `--rows`. A streaming DataFrame feeds the job until the job is stopped.
    - A dataflow that reads only sources, by `flow.read`, needs none of these.
    - With `follow` the files of `lines` grow and new ones come, as with `--follow`. The job ends when it is stopped.
    - A file or partition without new records for `idle_timeout` seconds no longer holds event time back.

    An iterable is pulled as needed, by a separate thread in a copy of the caller's context. So objects that belong to
    one thread, such as connections of `sqlite3`, must be opened in the iterable and not before. An async iterable is
    pulled in an event loop of that thread. A queue is also allowed (`queue.Queue`, or that of `multiprocessing`). It
    ends by its `shutdown()`, of Python 3.13; `iter(queue.get, END)` ends by a value. If the job ends before the
    iterable, the iterable is abandoned, in its `next()` if that blocks.

    Outputs: `outputs` names the destinations of the streams that the dataflow gives out by `flow.output(name, stream)`.
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

    - If a process is lost, the call resumes from the last checkpoint by itself: `restarts` times without a checkpoint
      between, and ten times as often within ten minutes. Then it raises StateKept. With `shrink` no new process
      replaces a lost one; the others divide its share.
    - When all lines are read, windows and timers that wait for event time or the clock stay open for the next call.
      With `close_windows` they close, and later lines are late for them. Without `state` they always close.
    - `rename_state` (old name -> new name) and `drop_state` handle states in the folder whose operators were renamed or
      removed. `take_over` takes the folder from a launcher that does not answer. With `allow_loss` a job that follows
      files continues without lines that are gone.

    Raises PeerFailed with the traceback if the dataflow raises, UsageError for wrong arguments, and StoreError if the
    folder belongs to another job or the lines have changed. Ctrl-C stops the job: records that were read or pulled are
    processed, then `Interrupted` is raised, a KeyboardInterrupt whose `records` holds the results so far. A second
    Ctrl-C ends the job at once.
    """
    writer = ListWriter()
    with naming_arguments():
        job = begin(writer, dataflow, **{**arguments, **pullable(inputs_of(arguments), None)})
        try:
            job.wait()
        except KeyboardInterrupt:
            job.stop_or_end()
            raise Interrupted(writer.records) from None
    return writer.records


@takes_arguments(begin)
def start(dataflow: Callable[[Any], Any], **arguments: Any) -> JobHandle:
    """Start `dataflow(flow)` on worker processes and return the running job. The arguments are those of `run`.

        with megaflow.start(dataflow, items=clicks(), processes=2) as job:
            for record in job.outputs():             # as they come
                ...

    Blocks until the processes are started, about half a second, and raises the reason if they cannot start. The job has
    `outputs()`, `status()`, `control` (`control.move_bins(…)` and the other commands of `megaflow control`), `stop()`
    and `wait()`; see `help(megaflow.JobHandle)`. An input may also be an `asyncio.Queue`, if `start` is called in a
    coroutine of the loop that feeds it. `async for record in job.outputs()` lets that loop run.

    Leaving the block stops the job, if it has not ended: records that were read or pulled are processed. An error ends
    the job at once; Ctrl-C stops it. If the dataflow raises, `outputs` and `wait` raise its error, so that an uncaught
    error prints its traceback last. When the program ends, a job that still runs is ended by force. With
    `output="none"` the records are dropped. Otherwise the job waits until the program reads its outputs.
    """
    records = ProgramWriter(durable=arguments.get("state") is not None)
    with naming_arguments():
        return begin(records, dataflow, **{**arguments, **pullable(inputs_of(arguments), running_loop())})


def inputs_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of these arguments from which a job may pull."""
    return {name: each for name, each in arguments.items() if name in ("lines", "items")}


def mode_of(overwrite: bool, append: bool) -> Mode:
    """Return what becomes of files that are not empty. Raises UsageError if both are said."""
    if overwrite and append:
        raise UsageError("Give only one of overwrite and append, or neither for a new file.")
    return "overwrite" if overwrite else "append" if append else "new"


def paths_of(lines: Any) -> list[str]:
    """Return the specifications of files among what `lines=` may be."""
    given = lines.values() if isinstance(lines, Mapping) else [lines]
    return [os.fspath(each) for each in given if isinstance(each, str | os.PathLike)]


def open_places(places: Mapping[str, str | list[Any] | Writer], read: Collection[str], mode: Mode) -> Writer:
    """Return what writes outputs by name, each to a list or to what a specification names. Raises UsageError."""
    for name, place in places.items():
        if not isinstance(place, str | list | Writer):
            raise UsageError(
                f"outputs: {name!r} must go to a list or to a specification such as 'jsonl:PATH', not {place!r:.80}."
            )
        if isinstance(place, str) and place.startswith("spark:"):
            raise UsageError(f"output {place:.80}: Use megaflow.spark.run to send a job's output to Spark.")
        if name and not name.isidentifier():
            raise UsageError(f"outputs: {name!r:.80} must be a name, as in flow.output('late', stream).")
    writers = {name: ListWriter(place) if isinstance(place, list) else place for name, place in places.items()}
    return open_outputs(writers, read, mode)


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """Have errors name the arguments of `run`, where they name the options of the command that stand for them."""
    try:
        yield
    except MegaflowError as error:
        if not isinstance(error, PeerFailed) and error.args and isinstance(error.args[0], str):
            error.args = with_arguments(error.args[0]), *error.args[1:]
        raise


def with_arguments(text: str) -> str:
    """Return a message that names arguments of `run` in the place of options.

    >>> with_arguments("--state: name another --state folder, or --checkpoint-every 5, but not --else")
    'state: name another state= folder, or checkpoint_every= 5, but not --else'
    """
    names = inspect.signature(run).parameters

    def named(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        return found[0] if name not in names else name + ("=" if found[2] == " " else "") + found[2]

    text = re.sub(r"(?<!\S)--([a-z-]+)( (?!must)|(?=[^a-z-]|$))", named, text)
    return text.replace("the same command", "the same call")
