"""Refuses a job that would start again in each process that imports the module which starts it.

Workers import the module of the dataflow function. If that module starts a job at its top level, each worker also
starts one, and the workers of those jobs do the same, without end.

1. A call at the top level of a module is refused in three cases: the workers would import that module; the process is a
   worker or was started by one; or `multiprocessing` runs the script again in a child. Python refuses the last case for
   its own processes for the same reason. Other modules may start jobs when they are imported.
2. A module that is being imported may start a job by a thread or another program. This module cannot see that. So the
   environment of a worker has the depth of its job, and nested jobs end at DEPTH_MAX.
"""

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Final

from megaflow.errors import UsageError
from megaflow.python_executable import take_mark

DEPTH: Final = "WITHIN_MEGAFLOW"  # environment variable, not for users
DEPTH_MAX: Final = 3
OF_IMPORTS: Final = "<frozen importlib"  # begins the names of the files whose code runs a module
REMEDY: Final = 'Start the job under if __name__ == "__main__":.'
SPAWNED: Final = "__mp_main__"  # the script in a child of multiprocessing


def depth() -> int:
    """Return how many jobs surround this process."""
    text = os.environ.get(DEPTH, "")
    return int(text) if text.isdecimal() else 0


def enter() -> None:
    """Note that this process belongs to a job."""
    take_mark()
    os.environ[DEPTH] = str(depth() + 1)


def check_depth() -> None:
    """Raise UsageError for a job inside DEPTH_MAX others."""
    if depth() >= DEPTH_MAX:
        raise UsageError(
            f"A worker of a job within {DEPTH_MAX - 1} other jobs starts another one. Perhaps a module that workers "
            f"import starts it. {REMEDY}"
        )


def check_start(imported: str) -> None:
    """Raise UsageError if the caller is a module that workers would import and run: `imported`, or one of rule 1."""
    for name, frame in _imports():
        place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        if name == SPAWNED:
            raise UsageError(
                f"{place}: The script starts a job, but multiprocessing runs it again in each child process. {REMEDY}"
            )
        if name == imported or depth():
            raise UsageError(
                f"{place}: The module {name!r} starts a job when it is imported, and each worker imports it, so jobs "
                f"would start without end. {REMEDY.removesuffix('.')}, or move the dataflow function to a module of "
                "its own."
            )


def _imports() -> Iterator[tuple[str, FrameType]]:
    """Yield each module whose top level this thread runs because of an import, with the frame of its top level."""
    module, frame = None, sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            module = frame
            if frame.f_globals.get("__name__") == SPAWNED:
                yield SPAWNED, frame
        elif module is not None and frame.f_code.co_filename.startswith(OF_IMPORTS):
            yield str(module.f_globals.get("__name__")), module
            module = None
        frame = frame.f_back  # type: ignore[assignment]
