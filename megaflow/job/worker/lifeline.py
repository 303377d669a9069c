"""A worker process ends with its launcher, however that dies and whatever the user's code does then.

1. The kernel kills the process when the thread that started it ends, where it offers that (Linux): also one that is
   stopped, or in C code that holds the interpreter's lock. That thread runs `launch`, so its processes end before it.
2. A thread waits for the end of the launcher's pipe and ends the process, without unwinding what its workers do. That
   is for other systems, and for a launcher that died before the kernel was asked.
3. Nothing is cut short in an end that is agreed upon: the launcher keeps pipe and thread until the process has ended.
4. A process that was started by hand to join is no process of the launcher's. It loses its peers when they end, and
   notices that between two steps.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
ORPHANED = 1  # the exit code


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, if it can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_with(pipe: int) -> None:
    """End this process, on a thread of its own, when nobody can write to the pipe any more."""
    threading.Thread(target=_wait, args=(pipe,), name="megaflow-lifeline", daemon=True).start()


def _wait(pipe: int) -> None:
    while os.read(pipe, 1):
        pass  # the launcher has said all it has to say
    os._exit(ORPHANED)
