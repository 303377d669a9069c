"""A worker process ends with its launcher, however that dies and whatever the user's code does then.

1. The kernel kills the process when the thread that started it ends, where it offers that (Linux): also one that is
   stopped, or in C code that holds the interpreter's lock. That thread runs `launch`, so its processes end before it.
2. A thread waits for the end of the launcher's pipe and ends the process, without unwinding what its workers do. That
   is for other systems, and for a launcher that died before the kernel was asked. What comes before the end is a part
   in a next life of the job.
3. Nothing is cut short in an end that is agreed upon: the launcher keeps pipe and thread until the process has ended.
4. A process that was started by hand to join is no process of the launcher's. It loses its peers when they end, and
   notices that between two steps.
"""

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

from megaflow.errors import ProtocolError
from megaflow.job.spec import ChildSpec

LIFELINE: Final = "megaflow-lifeline"  # the thread
LENGTH_BYTES: Final = 8
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
ORPHANED = 1  # the exit code


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, if it can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a libc without it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def read_spec(file: int) -> ChildSpec:
    """Read the launcher's message: its length, then a pickled ChildSpec. The file stays open."""
    length = int.from_bytes(_read_exactly(file, LENGTH_BYTES), "big")
    spec = pickle.loads(_read_exactly(file, length))
    assert isinstance(spec, ChildSpec), "the launcher sends nothing else"
    return spec


def _read_exactly(file: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = os.read(file, size - len(data))
        if not block:
            raise ProtocolError("The launcher ended before it sent the program to run.")
        data += block
    return bytes(data)


def end_with(pipe: int, take: Callable[[ChildSpec], None]) -> None:
    """End this process, on a thread of its own, when nobody can write to the pipe any more; it takes what comes."""
    threading.Thread(target=_wait, args=(pipe, take), name=LIFELINE, daemon=True).start()


def _wait(pipe: int, take: Callable[[ChildSpec], None]) -> None:
    with contextlib.suppress(ProtocolError):
        while True:
            take(read_spec(pipe))
    os._exit(ORPHANED)
