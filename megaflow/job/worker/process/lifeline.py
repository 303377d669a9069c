"""A worker process ends with its launcher, however the launcher dies and whatever the user's code does then.

1. On Linux, the kernel kills the process when the thread that started it ends, even if the process is stopped or runs C
   code that holds the interpreter's lock. The starting thread runs `launch`, so its processes normally end before it.
2. A thread waits for the end of the launcher's pipe and then ends the process, without unwinding its workers. This
   serves other systems, and a launcher that died before the process had asked the kernel. Before its end, the pipe may
   bring parts in the job's next incarnations.
3. A regular end is not cut short: the launcher keeps the pipe and the thread until the process has ended.
4. A process that was started by hand to join does not belong to the launcher. It loses its peers when they end, and
   notices the loss between two steps.
5. glibc loads a library when a thread ends, and aborts the process if there is no memory left for it. A worker that
   reaches a memory limit would then die without its message. So the library is loaded before.
6. A stop may also reach the launcher's processes, because service managers and schedulers signal a whole group or tree.
   The launcher drains the job and needs its processes for that. So they handle these signals and do nothing. They do
   not ignore them, because processes that the program starts would inherit that. Until the handlers are there, the
   signals wait: the launcher starts the process with the signals blocked.
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
from megaflow.job.spec import STOP_SIGNALS, ChildSpec

LIFELINE: Final = "megaflow-lifeline"  # the thread
LENGTH_BYTES: Final = 8
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
ORPHANED = 1  # the exit code


def die_with_parent() -> None:
    """Ask the kernel, if it offers this, to kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # this libc lacks it
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def leave_signals() -> None:
    """Leave the signals of a stop to the launcher, which has blocked them here. Forks get the default actions back.

    A signal that is ignored, as SIGHUP under nohup, stays ignored.
    """

    def leave(number: int, frame: object) -> None:
        """Do nothing."""

    def restore() -> None:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
            signal.siginterrupt(number, False)  # so no system call of a library ends early
    os.register_at_fork(after_in_child=restore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def load_for_ends_of_threads() -> None:
    """Load the library of rule 5, if this is a system that needs it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # another libc
            ctypes.CDLL("libgcc_s.so.1")


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
    """End this process, on a thread of its own, when the pipe has no writer left; `take` receives each message."""
    threading.Thread(target=_wait, args=(pipe, take), name=LIFELINE, daemon=True).start()


def _wait(pipe: int, take: Callable[[ChildSpec], None]) -> None:
    with contextlib.suppress(ProtocolError):
        while True:
            take(read_spec(pipe))
    os._exit(ORPHANED)
