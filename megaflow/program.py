"""The engine's entry points for programs, bound to `Scope`: `Worker`, `execute`, `example` and both `…_from_args`."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from megaflow.errors import MegaflowError, UsageError
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import arguments, runtime, worker
from megaflow.timely.dataflow.capture.capture import Captured
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.push_pull import ChannelAllocator, initialize
from megaflow.timely.runtime import Config, UserProgram

__all__ = ["Scope", "Stream", "Worker", "example", "execute", "execute_from_args", "initialize_from_args"]

R = TypeVar("R")

Worker: TypeAlias = worker.Worker[Scope]
"""Argument of `main(worker)`: builds dataflows with `with worker.dataflow() as scope`, and steps them."""


def execute(config: Config, main: Callable[[Worker], R], args: Sequence[str] = ()) -> list[R]:
    """Run `main(worker)` on every worker of this process; return their results. Blocks until all are done.

    An exception in one worker stops the whole cluster. It is raised here if the worker is in this process; otherwise
    PeerFailed is raised with its report.
    """
    runtime.check_start("execute", config, main)
    return runtime.execute(config, UserProgram(main, Scope, args))


def execute_from_args(main: Callable[[Worker], R], argv: Sequence[str] | None = None) -> list[R]:
    """Run like `execute`, configured by the command line: -w WORKERS, -n PROCESSES, -p PROCESS, -h HOSTFILE, -r.

    With --join SERVER --nn ADDRESSES a process joins a running cluster, which had -n processes at its start. Positional
    arguments and all arguments after `--` become `worker.args`. Raises UsageError for unknown options. If an exception
    ends the program, its traceback omits the engine's frames, unless --debug is given. An error before the program
    begins, such as a wrong option, is shown as one line.
    """
    return _from_args(execute, main, argv)


def initialize_from_args(main: Callable[[ChannelAllocator], R], argv: Sequence[str] | None = None) -> list[R]:
    """Run like `initialize`, configured by the command line as for `execute_from_args`. No process joins later."""
    return _from_args(initialize, main, argv)


def _from_args(
    start: Callable[[Config, Any, Sequence[str]], list[R]], main: Callable[[Any], R], argv: Sequence[str] | None
) -> list[R]:
    if not callable(main):
        raise UsageError(
            f"{start.__name__}_from_args({main!r:.200}): give the function that each worker runs, and after it the "
            "arguments"
        )
    given = sys.argv[1:] if argv is None else argv
    begun: list[object] = []  # workers that have begun the program

    def begin(worker: Any) -> R:
        begun.append(worker)
        return main(worker)

    try:
        options = arguments.parse(given)
        return start(_config(options), begin, options.rest)
    except BaseException as error:
        if "--debug" not in given:
            sys.excepthook = partial(_show_plainly, None if begun else error)
        raise


def _config(options: arguments.Arguments) -> Config:
    report = logging.getLogger("megaflow").warning if options.report else None
    patience = options.connect_timeout_seconds
    if options.join is not None:
        contacts = [address for address in options.addresses if address != options.address]
        return Config.join(
            contacts, options.address, options.workers, options.join, report=report, connect_timeout_seconds=patience
        )
    if options.processes == 1 and options.nn is None:
        return Config.process(options.workers)
    return Config.cluster(
        options.addresses, options.process, options.workers, report=report, connect_timeout_seconds=patience
    )


def _show_plainly(
    refused: BaseException | None, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error that ends Python. `refused`, an error from before the program began, needs no traceback."""
    if error is refused and isinstance(error, MegaflowError):
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {error}\n")
    else:
        sys.stderr.write(format_user_traceback(error))


def example(build: Callable[[Scope], Any], timestamp: Any = int) -> Any:
    """Build one dataflow and run it on one worker; return the result of `build(scope)`, with captures replaced.

    `timestamp` is as in `worker.dataflow`.

    >>> example(lambda scope: scope.to_stream(range(3)).map(lambda x: x * x).capture())
    [(0, [0, 1, 4])]
    """

    if not callable(build):
        raise UsageError(f"example({build!r:.200}): give a function of a scope, such as lambda scope: …")

    def main(worker: Worker) -> Any:
        with worker.dataflow("example", timestamp=timestamp) as scope:
            result = build(scope)
        return result

    return _extracted(execute(Config.thread(), main)[0])


def _extracted(value: Any) -> Any:
    if isinstance(value, Captured):
        return value.extract()
    if isinstance(value, tuple):
        return tuple(_extracted(item) for item in value)
    if isinstance(value, list):
        return [_extracted(item) for item in value]
    if isinstance(value, dict):
        return {key: _extracted(item) for key, item in value.items()}
    return value
