"""The Python that runs every process that megaflow starts on this machine: workers, and the Python processes of Spark.

1. It is this process's own, `sys.executable`, unless MEGAFLOW_PYTHON names another one.
2. The executable of a frozen program (PyInstaller), or of a server that embeds Python (uWSGI), is no Python. Given
   Python's arguments, it would run its own program again. That program would start the job again, and so on without
   end. So a frozen program needs MEGAFLOW_PYTHON. An executable whose name is unlike Python's is started once and
   asked what it is.
3. Workers unpickle what this process has pickled, code included. So the Python that MEGAFLOW_PYTHON names must be of
   the same version, and must find megaflow.
4. Each process starts with the mark STARTED in its environment and removes it by its first statement. So only a
   program that runs in the place of such a process can have the mark, in a case that rule 2 has not noticed. It may
   start no process. User code in a worker, and programs that it starts, never have the mark: they may use all commands,
   and may start jobs within the depth of `megaflow.job.nested_start`.
"""

import os
import re
import subprocess
import sys
from functools import cache
from typing import Final

from megaflow.errors import UsageError

STARTED: Final = "STARTED_BY_MEGAFLOW"  # environment variable, not for users
VARIABLE: Final = "MEGAFLOW_PYTHON"
USUAL: Final = re.compile(r"(python|pypy|graalpy)[0-9.]*t?", re.IGNORECASE)
ANSWER_SECONDS: Final = 60.0  # of a new process on a crowded machine
ANSWER: Final = "a Python:"
VERSION: Final = str(sys.implementation.cache_tag)  # such as cpython-313
QUESTION: Final = (
    "import sys; sys.path[:] = [sys.argv[1], *filter(None, sys.path)]; from importlib.util import find_spec; "
    f"print({ANSWER!r}, sys.implementation.cache_tag, find_spec('megaflow') is not None)"
)
PACKAGES: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that contains megaflow."""
REMEDY: Final = f"Set {VARIABLE}=/path/to/python to a Python of the same version that has megaflow."


def python_path() -> str:
    """Return the path of the Python for new processes.

    Raises UsageError if there is none, or if this process was started as one but runs another program. May block while
    another process starts.
    """
    own, given = sys.executable or "", os.environ.get(VARIABLE)
    if STARTED in os.environ:
        raise UsageError(
            f"A job has started {own!r} as a worker process, but it is no Python and runs a program that starts a "
            f"job. {REMEDY}"
        )
    if given:
        check_given(given)
        return given
    if getattr(sys, "frozen", False):
        raise UsageError(f"This program is frozen: {own!r} is no Python that could run worker processes. {REMEDY}")
    if not own:
        raise UsageError(f"Python does not know its own executable, so it cannot start worker processes. {REMEDY}")
    if not os.path.isfile(own):
        raise UsageError(f"Python's executable {own!r} does not exist. {REMEDY}")
    if not USUAL.fullmatch(os.path.basename(own)) and isinstance(answer := ask(own), str):
        raise UsageError(f"The executable of this program, {own!r}, is no Python ({answer}). {REMEDY}")
    return own


def named_python() -> str:
    """Return the Python of `python_path` without a check, for messages and comparisons."""
    return os.environ.get(VARIABLE) or sys.executable or ""


def check_given(path: str) -> None:
    """Raise UsageError unless this can be the Python of this process's workers."""
    answer = ask(path)
    if isinstance(answer, str):
        raise UsageError(f"{VARIABLE}={path}: This is no Python ({answer}). {REMEDY}")
    version, has_megaflow = answer
    if version != VERSION:
        raise UsageError(f"{VARIABLE}={path}: This is {version}, but the program runs {VERSION}. {REMEDY}")
    if not has_megaflow:
        raise UsageError(f"{VARIABLE}={path}: This Python has no megaflow: {path} -m pip install megaflow")


@cache
def ask(path: str) -> tuple[str, bool] | str:
    """Start an executable; return its version of Python and whether it finds megaflow, or why it is no Python."""
    try:
        done = subprocess.run(
            [path, "-c", QUESTION, PACKAGES], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=ANSWER_SECONDS, check=False, env=marked_environment(),
        )  # fmt: skip
    except OSError as error:
        return str(error.strerror or error)
    except subprocess.TimeoutExpired:
        return f"it did not answer within {ANSWER_SECONDS:.0f} s"
    words = done.stdout.removeprefix(ANSWER).split()
    if not done.stdout.startswith(ANSWER) or len(words) != 2:
        return "it does not tell its version"
    return words[0], words[1] == "True"


def marked_environment() -> dict[str, str]:
    """Return the environment for a process that is to call `take_mark` at once."""
    return {**os.environ, STARTED: "1"}


def take_mark() -> None:
    """Remove the mark: this process runs what it was started for."""
    os.environ.pop(STARTED, None)
