"""`megaflow graph`: the dataflows of a program, built on a lone worker and drawn, not run.

A flow program's function is given a flow whose lines never come. An engine program's `main(worker)` runs up to where
it would first step its worker, or to its end, with all that it does before that.
"""

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from megaflow.errors import PeerFailed, UsageError
from megaflow.job.app import find_app
from megaflow.job.spec import AppFile
from megaflow.job.worker.flow import Flow, load
from megaflow.megaphone.control_stream import set_default
from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely import worker as engine
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.dataflow.picture import draw
from megaflow.timely.membership import founding

MAIN = "main"  # an engine program's function, where there is no flow


class Enough(BaseException):
    """The program wants to step: it has built what it builds. Not to be caught by `except Exception`."""


class Draughtsman(engine.Worker[Scope]):
    """A worker that builds and does not run."""

    def step(self) -> NoReturn:
        """End the program."""
        raise Enough

    def step_or_park(self, seconds: float | None = None) -> NoReturn:
        """End the program."""
        raise Enough


def draw_app(text: str, args: Sequence[str], language: str, debug: bool = False) -> str:
    """Return the picture of what FILE[:FUNCTION] builds.

    FUNCTION is a flow program's (the default is `dataflow`) or, if its one parameter is named `worker`, an engine
    program's (`main` where there is no `dataflow`). Raises UsageError if it builds nothing, and PeerFailed with the
    traceback of what it raises, without megaflow's own frames unless `debug`.
    """
    app = find_function(text)
    worker = Draughtsman(LocalFabric([0]).allocator(0), founding([0]), Scope, (time.monotonic, time.time), args)
    try:
        function = load(app)
        if takes_worker(function):
            function(worker)
        else:
            build_flow(worker, function, args)
    except Enough:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PeerFailed(format_user_traceback(error, debug)) from error
    if not worker.graphs():
        raise UsageError(f"{text} built no dataflow before its first step, so there is nothing to draw")
    return draw(worker.graphs(), language)


def find_function(text: str) -> AppFile:
    """Return what is meant: `dataflow` or, in a file without it, `main`."""
    try:
        return find_app(text)
    except UsageError as missing:
        try:
            return find_app(f"{text}:{MAIN}")
        except UsageError:
            raise missing from None


def takes_worker(function: Callable[..., Any]) -> bool:
    """Tell an engine program's function from a flow's."""
    return [*inspect.signature(function).parameters][:1] == ["worker"]


def build_flow(worker: Worker, function: Callable[[Any], Any], args: Sequence[str]) -> None:
    """Build a flow program's dataflow, from lines that never come to its output."""
    control: InputHandle[Any] = InputHandle()
    with worker.dataflow(function.__name__) as scope:
        scope.ref.graph.where = "megaflow"
        numbered = broadcast(scope.input_from(control).port, Lane.MAIL)
        set_default(numbered)
        scope.ref.graph.where = None
        numbers: Stream[Numbered] = Stream(numbered)
        function(Flow(worker, scope, numbers, args, lambda: scope.source("Lines", never)))


def never(capability: Capability, info: object) -> Callable[[object], None]:
    """A source that has no lines and does not end."""

    def logic(output: object) -> None:
        assert capability.held, "a source that lets go of it ends"

    return logic
