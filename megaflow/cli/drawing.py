"""`megaflow graph`: the dataflows of a program, built on a lone worker and drawn, not run.

An engine program's `main(worker)` runs up to where it would first step its worker, or to its end, with all that it does
before that. For a flow program's function see `megaflow.job.worker.dry_build`.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from megaflow.errors import PeerFailed, UsageError
from megaflow.job.app import find_app
from megaflow.job.spec import AppFile
from megaflow.job.worker.dry_build import Enough, build_dry, draughtsman
from megaflow.job.worker.flow import load
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.dataflow.picture import draw

MAIN = "main"  # an engine program's function, where there is no flow


def draw_app(text: str, args: Sequence[str], language: str, debug: bool = False) -> str:
    """Return the picture of what FILE[:FUNCTION] or MODULE[:FUNCTION] builds.

    FUNCTION is a flow program's (the default is `dataflow`) or, if its one parameter is named `worker`, an engine
    program's (`main` where there is no `dataflow`). Raises UsageError if it builds nothing, and PeerFailed with the
    traceback of what it raises, without megaflow's own frames unless `debug`.
    """
    app = find_function(text)
    worker = draughtsman(args)
    try:
        function = load(app)
        if takes_worker(function):
            function(worker)
        else:
            build_dry(worker, function, args)
    except Enough:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PeerFailed(format_user_traceback(error, debug)) from error
    if not worker.graphs():
        raise UsageError(f"There is nothing to draw: {text!r} builds no dataflow before its first step.")
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
