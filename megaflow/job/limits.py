"""Limits on files, processes and memory: turns an error of the system into a sentence with its remedy.

1. If a limit is reached, a traceback does not help: any statement may be the first to find nothing left. If Python runs
   out of memory without a limit, a statement asked for too much, and the traceback shows it.
2. Python reports a thread that cannot be started as a RuntimeError, which has no errno.
3. In workers, only megaflow's own errors and a lack of memory are reworded. An error of a system call in a user's
   function keeps its traceback.
4. A full or faulty disk and a taken port may be mended while a supervisor tries again. A running job with a store then
   exits with 75, and the next start must not exit with a code after which the supervisor gives up.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from megaflow.errors import LimitReached, OutputError, StateKept, StoreError, UsageError

PASSING: Final = {
    errno.ENOSPC: "free some room", errno.EDQUOT: "free some room",
    errno.EIO: "mend the disk", errno.EROFS: "make the disk writable", errno.ESTALE: "mount the disk again",
    errno.EADDRINUSE: "free the port", errno.EADDRNOTAVAIL: "wait until this machine has the address",
}  # fmt: skip
"""Faults of the machine that others may mend while a supervisor tries again -> what they have to do."""
NO_THREAD: Final = "can't start new thread"
NO_TEMPORARY: Final = "No usable temporary directory"  # begins Python's text, and its list of those that it has tried
FILES_SUGGESTED: Final = 1024
PROCESSES: Final = "the limit on processes and threads is reached ({}, or TasksMax= of systemd, or pids.max)"
MEMORY_LIMITS: Final = (("-v", resource.RLIMIT_AS), ("-d", resource.RLIMIT_DATA))


def limit_text(error: BaseException) -> str:
    """Return which limit an error reports, and what to do. "" if it reports none.

    >>> limit_text(OSError(errno.ENFILE, "…"))
    'Cannot open another file: the whole system has too many open. Raise the limit: sysctl fs.file-max.'
    >>> limit_text(ValueError())
    ''
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        have = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raised = max(FILES_SUGGESTED, 2 * have)
        return f"Cannot open another file: a process may have {have} open. Raise the limit, as with ulimit -n {raised}."
    if number == errno.ENFILE:
        return "Cannot open another file: the whole system has too many open. Raise the limit: sysctl fs.file-max."
    if isinstance(error, FileNotFoundError) and str(error.strerror).startswith(NO_TEMPORARY):
        return f"{error.strerror}. Set TMPDIR to a folder in which files can be written."
    if number == errno.ENOMEM or (isinstance(error, MemoryError) and _memory_limits()):
        return _memory_text()
    if isinstance(error, RuntimeError) and NO_THREAD in str(error):
        limited = _memory_limits()
        also = f", or the one on memory ({', '.join(limited)})" if limited else ""
        return f"Cannot start another thread: {_processes_text()}{also}. Raise it, or run with fewer --processes."
    return ""


def shortage_text(error: BaseException) -> str:
    """Return where a worker reached a memory limit, and what to do. "" for any other error."""
    text, place = limit_text(error) if isinstance(error, MemoryError) else "", ""
    cause: BaseException | None = error
    while cause is not None and not place:  # reporting the first error may have failed in the same way
        place, cause = next(iter(getattr(cause, "__notes__", ())), ""), cause.__context__
    return f"{place.removeprefix('in ')}: {text}" if text and place else text


def start_text(error: OSError) -> str:
    """Return why another process cannot be started, and what to do."""
    if error.errno == errno.EAGAIN:
        return f"Cannot start another process: {_processes_text()}. Raise it, or run with fewer --processes."
    return limit_text(error) or f"Cannot start another process: {error.strerror or error}."


def _processes_text() -> str:
    have = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return PROCESSES.format("ulimit -u" if have == resource.RLIM_INFINITY else f"ulimit -u is {have}")


def _memory_limits() -> list[str]:
    limits = ((flag, resource.getrlimit(which)[0]) for flag, which in MEMORY_LIMITS)
    return [f"ulimit {flag} is {limit // 1024} kB" for flag, limit in limits if limit != resource.RLIM_INFINITY]


def _memory_text() -> str:
    limited = _memory_limits()
    if limited:
        return f"No memory is left: {', '.join(limited)}. Raise the limit, or run with more --processes."
    return f"No memory is left on {os.uname().nodename}. Free memory, or have the job hold less state."


@contextmanager
def telling_limits() -> Iterator[None]:
    """Raise LimitReached in place of an error that reports a limit."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if text := limit_text(error):
            raise LimitReached(text) from error
        raise


@contextmanager
def telling_passing_faults(state: str | None) -> Iterator[None]:
    """Raise StateKept if a job with a store cannot start now, but perhaps later: a supervisor has to try again."""
    try:
        yield
    except (StoreError, OutputError, UsageError) as error:
        cause = error.__cause__
        remedy = PASSING.get(cause.errno or 0) if state is not None and isinstance(cause, OSError) else None
        if remedy is None:
            raise
        text = f"{str(error).rstrip('.')}. The job did not start; {remedy}, then run the same command again."
        raise StateKept(text) from error
