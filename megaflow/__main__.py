"""`python -m megaflow` is `megaflow`.

Python puts the current directory first in the path. This module removes it before it imports anything else, because the
files there are not part of megaflow. (Modules that Python had imported before may be from there. `python -P -m
megaflow` and the script `megaflow` import nothing from there.)
"""

import gc
import os
import sys

INTERRUPTED = 130  # the exit code by which shells report Ctrl-C
OBJECTS = 10_000  # made between two runs of the garbage collector; a job that runs for days never leaves more garbage


def end(number: int, frame: object) -> None:
    """End the program with the exit code that shells give to this signal."""
    sys.exit(128 + number)


def leave_out_current_directory() -> None:
    """Keep an empty part of PYTHONPATH from adding the current directory to the path, here and in child processes."""
    path = os.environ.get("PYTHONPATH", "")
    wanted = [part for part in path.split(os.pathsep) if part]
    if path != (cleaned := os.pathsep.join(wanted)):
        os.environ["PYTHONPATH"] = cleaned
        if (here := os.getcwd()) in sys.path and here not in map(os.path.abspath, wanted):
            sys.path.remove(here)


def run() -> None:
    """Run the command line and exit. Signals end it without a message until the command line can print one.

    A job has its own signal handlers. Signals that the parent process ignores, as under nohup, stay ignored. Imports
    create objects that stay, so the garbage collector would find nothing. It does not run during the first imports,
    never sees the objects that they created, and runs rarely afterwards. With Python's threshold of 700 objects, it
    would take 6 % of the start.
    """
    leave_out_current_directory()
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, end)
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    gc.disable()
    try:
        from megaflow.cli.main import main
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    gc.freeze()
    gc.enable()
    main()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]
    run()
