"""`megaflow doctor`: what works on this machine, what does not, and what to type.

1. A check tries the thing itself: it binds a port, starts Java, imports a package in a new process. It changes nothing,
   but creates the folder for the files of running jobs, as a job would.
2. A check is needed if a plain job could not run without it. The others are for the features that they name.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec

import click

from megaflow.cli.help import Command
from megaflow.cli.options import answer, option, runtime_dir
from megaflow.errors import MegaflowError, NoPrivateFolder
from megaflow.python_executable import PACKAGES, marked_environment, python_path

HOST = "127.0.0.1"
ANSWER_SECONDS = 60.0  # of a new process on a crowded machine
IMPORTING = "import sys; sys.path.insert(0, sys.argv.pop()); import megaflow.job.worker.process.child"
EXTRAS = {
    # extra -> packages, and their use
    "arrow": (("pandas", "pyarrow"), "fast lines from Spark, and results to it"),
    "zstd": (("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",), "Zstandard files"),
    "postgres": (("psycopg",), "PostgreSQL"),
    "top": (("textual",), "megaflow top"),
    "web": (("aiohttp", "prometheus_client"), "--web and --metrics"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check."""

    name: str
    works: bool
    needed: bool  # by every job
    text: str  # if it does not work: why, and what to do


def python() -> str:
    """Return Python's version, and the Python that runs workers."""
    return f"{sys.version.split()[0]}, {python_path()}"


def package() -> str:
    """Return megaflow's version."""
    return f"{metadata.version('megaflow')}, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}"


def processes() -> str:
    """Start a process that imports a worker's code."""
    began = time.monotonic()
    try:
        words = [python_path(), "-P", "-c", IMPORTING, PACKAGES]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False, env=marked_environment()
        )
    except OSError as error:
        from megaflow.job.limits import start_text

        raise MegaflowError(start_text(error)) from error
    except subprocess.TimeoutExpired:
        raise MegaflowError(f"A new process did not start within {ANSWER_SECONDS:.0f} s. Free the machine.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MegaflowError(f"A new process cannot import megaflow: {last}. Install megaflow for {python_path()}.")
    return f"a worker process imports megaflow in {time.monotonic() - began:.1f} s"


def ports() -> str:
    """Bind a free port, and connect to it."""
    try:
        with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname(), ANSWER_SECONDS):
            return f"a process can listen on {HOST}, and be reached"
    except OSError as error:
        raise MegaflowError(f"No port of {HOST} can be used: {error.strerror or error}. Allow it.") from error


def files() -> str:
    """Compare the limit on open files with the need of a job of one process."""
    import resource

    from megaflow.job.launcher.run.launch import FILES, FILES_PER_PROCESS

    have = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if have == resource.RLIM_INFINITY:
        return "a process may open any number"
    room = (have - FILES) // FILES_PER_PROCESS
    if room < 1:
        raise MegaflowError(f"A process may open only {have} files. Raise the limit: ulimit -n 1024")
    return f"a process may open {have}, enough for a job of {room} processes"


def folder() -> str:
    """Write a file into the folder for the files of running jobs."""
    from megaflow.timely.communication.secret import private_folder

    place = private_folder()
    try:
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            file.write(b"{}")  # a full disk has room for an empty file
            return f"{place}"
    except OSError as error:
        raise NoPrivateFolder(f"Cannot write to {place}: {error.strerror}. Name another by --runtime-dir.") from error


def clock() -> str:
    """Return the resolution of the only clock that jobs wait by."""
    if time.get_clock_info("monotonic").adjustable:
        raise MegaflowError("The monotonic clock can be set, so waits may end early or late. Use another machine.")
    return "monotonic, which nobody can set; jobs do not compare the clocks of machines"


def terminal() -> str:
    """Tell whether the terminal can show progress."""
    if not sys.stderr.isatty():
        raise MegaflowError("Standard error is not a terminal: no progress bars, no megaflow top.")
    size = shutil.get_terminal_size()
    return f"{size.columns} x {size.lines}, {sys.stderr.encoding}"


def extra(name: str) -> str:
    """Find the packages of an extra."""
    packages, use = EXTRAS[name]
    if missing := [each for each in packages if not is_there(each)]:
        raise MegaflowError(f"No {' and '.join(missing)}, for {use}. Type: pip install 'megaflow[{name}]'")
    return use


def is_there(package: str) -> bool:
    """Tell whether a package is installed. Does not import it, but the packages above it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def spark() -> str:
    """Return the version of pyspark."""
    if not is_there("pyspark"):
        raise MegaflowError("There is none. Type: pip install pyspark")
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # a folder on the path, as a Spark installation has it
        return "of an unknown version"


def java() -> str:
    """Start Java."""
    from megaflow.spark.preflight import find_java

    return find_java()


CHECKS: tuple[tuple[str, bool, Callable[[], str]], ...] = (
    ("Python", True, python),
    ("megaflow", True, package),
    ("processes", True, processes),
    ("ports", True, ports),
    ("open files", True, files),
    ("clock", True, clock),
    ("folder of jobs", True, folder),
    ("terminal", False, terminal),
    ("Java", False, java),
    ("pyspark", False, spark),
    *((f"megaflow[{name}]", False, partial(extra, name)) for name in EXTRAS),
)


def examine(name: str, needed: bool, check: Callable[[], str]) -> Finding:
    """Make a check."""
    try:
        return Finding(name, True, needed, check())
    except NoPrivateFolder as error:  # a job without one runs, and cannot be steered
        return Finding(name, False, False, str(error))
    except OSError as error:  # such as a limit on files, which has a check of its own
        return Finding(name, False, needed, f"{error.strerror or error}.")
    except MegaflowError as error:
        return Finding(name, False, needed, str(error))


def line_of(finding: Finding) -> str:
    """Return the line for a finding."""
    mark = "ok" if finding.works else "FAILS" if finding.needed else "-"
    return f"{mark:<6}{finding.name:<19}{finding.text}"


@click.command(cls=Command)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@runtime_dir
def doctor(as_json: bool) -> None:
    """Check what works on this machine.

    \b
      megaflow doctor

    Each line is one thing that was tried. ok: it works. -: a feature is missing, and the line names the remedy. FAILS:
    no job can run without it, and the exit code is 1.
    """
    from megaflow.cli.json_records import to_json

    findings = [examine(*check) for check in CHECKS]
    runs = all(finding.works for finding in findings if finding.needed)
    if as_json:
        answer(to_json({"job_runs": runs, "checks": findings}))
    else:
        answer("\n".join(map(line_of, findings)))
        answer("\nA job runs here." if runs else "\nNo job runs here: see FAILS.")
    if not runs:
        click.get_current_context().exit(1)


COMMANDS = [doctor]
