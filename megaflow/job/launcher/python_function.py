"""A job whose dataflow is a Python function, from a notebook, a script or a test: `megaflow.run`."""

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import cloudpickle

from megaflow.durable.incarnation import CHECKPOINTS_KEPT
from megaflow.errors import MegaflowError, PeerFailed, UsageError
from megaflow.job.launcher.epoch_merge import ListWriter
from megaflow.job.launcher.launch import launch
from megaflow.job.profile.report import profile_spec
from megaflow.job.spec import JobSpec, PickledFunction


def run(
    dataflow: Callable[[Any], Any],
    *,
    lines: Any = None,
    rows: Mapping[str, Any] | None = None,
    processes: int = 1,
    workers: int = 1,
    args: Sequence[str] = (),
    rate: float | None = None,
    name: str | None = None,
    listen: str = "127.0.0.1",
    encoding_errors: str = "replace",
    debug: bool = False,
    profile: str | os.PathLike[str] | None = None,
    profile_calls: bool = False,
    oversubscribe: bool = False,
    drain_timeout: float | None = None,
    state: str | os.PathLike[str] | None = None,
    checkpoint_every: float = 1.0,
    checkpoints_kept: int = CHECKPOINTS_KEPT,
    restarts: int = 3,
    rename_state: Mapping[str, str] | None = None,
    drop_state: Sequence[str] = (),
    take_over: bool = False,
) -> list[Any]:
    """Run `dataflow(flow)` on worker processes; return its output records, by epoch. Blocks until the lines end.

    `lines` is a specification as for `--lines`, an iterable of str or a Spark streaming DataFrame. One worker reads a
    file, or the iterable, in order; several read a file given as `"PATH?unordered"`. An iterable is pulled as it is
    needed, by a thread of its own in a copy of the caller's context: what belongs to one thread, as a connection of
    `sqlite3` does, is to be opened in the iterable, not before. If the job ends before the iterable does, it is left
    as it is: in its `next()`, if that blocks.
    In their place, `rows` is a dict of the inputs that the dataflow reads by `flow.rows(name)`: each a Spark DataFrame,
    streaming or not, or a specification as for `--rows`. A streaming one feeds the job until that is stopped.
    `listen` is HOST or HOST:PORT, `oversubscribe` lifts the bound on processes, and `drain_timeout` is in seconds, as
    their options do.
    `profile` is a folder for what `megaflow run --profile` writes. Raises PeerFailed with the traceback if
    the dataflow raises, and UsageError for wrong arguments.
    `state` is a folder in which the job's state is kept, by a checkpoint every `checkpoint_every` seconds at most: the
    same call goes on from there. The records returned are those of this call, up to its end. After a process is lost
    the call goes on from the last checkpoint by itself, `restarts` times without one between, and ten times as often
    within ten minutes, and then raises StateKept; StoreError if the folder is not this job's or its lines are not what
    they were.
    `rename_state`, old name -> new name, and `drop_state` say what becomes of states in that folder whose operators
    have another name by now, or are gone. With `take_over` the folder is taken from a launcher that does not answer.
    """
    spec = JobSpec(
        pickle_app(dataflow), processes, workers, tuple(args), rate, name, listen, encoding_errors, debug,
        profile=profile_spec(profile, profile_calls), oversubscribe=oversubscribe, drain_timeout=drain_timeout,
        state=None if state is None else os.path.abspath(state), checkpoint_every=checkpoint_every,
        checkpoints_kept=checkpoints_kept, restarts=restarts,
        renamed=tuple((rename_state or {}).items()), dropped=tuple(drop_state),
        take_over=take_over,
    )  # fmt: skip
    if lines is None and rows is None:
        raise UsageError("megaflow.run needs lines=… or rows=…: what the dataflow reads")
    writer = ListWriter()
    with naming_arguments():
        launch(spec, lines, lambda: writer, rows=rows)
    return writer.records


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
    raise UsageError(f"the dataflow must be a function of one argument, the flow, as in dataflow(flow), not {what}")


def pickle_app(function: Callable[..., Any]) -> PickledFunction:
    """Return a function as it travels to the worker processes.

    A function that they can import is pickled by its name, any other (from a notebook, a script, a test) with all that
    it refers to.
    """
    check_function(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or can_import(module):  # cloudpickle sees to __main__
        return PickledFunction(cloudpickle.dumps(function), tuple(sys.path), name)
    cloudpickle.register_pickle_by_value(module)
    try:
        return PickledFunction(cloudpickle.dumps(function), tuple(sys.path), name)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


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
