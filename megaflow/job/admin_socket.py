"""Admin socket of a launcher: asks the launcher of a job what its workers cannot answer while they are busy.

1. The door is a Unix-domain socket beside the job's file, with the same name. Only this user can enter the folder, so
   no secret is needed. It leads to the launcher even if all its workers are in user code.
2. It is removed with the job's file, by the job or by a process that finds that its launcher is gone (see
   `megaflow.job.job_file`). The owner of the name owns the socket: a new job replaces the socket of an earlier one.
3. The kernel accepts 107 bytes for a socket's path. On Linux the folder is opened and named by its descriptor, so its
   path may be longer. Elsewhere a job in a folder with a longer path has no admin socket.
4. A connection carries one question, in the frames and encoding of all other connections.

A command asks here when the coordinator has been silent for two seconds: see `find_reason`.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from megaflow.control.launcher_messages import BusyReport, EndNow, EndsNow, RestartStops, StopRestart, WhoIsBusy
from megaflow.control.reports import BusyWorker
from megaflow.control.shapes import conforms
from megaflow.control.wording import busy_text
from megaflow.errors import ClusterError, NoAnswer, UsageError
from megaflow.job.job_file import Job, door_path, folder_of, is_suspended, present
from megaflow.own_files import keep_socket
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client

BACKLOG = 32
OPEN_FILES = "/proc/self/fd"  # on Linux

LAUNCHER_SECONDS = 1.0  # the launcher has nothing to do but answer
NAMED_MAX = 3  # busy workers in a sentence
END_POLL_SECONDS = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Silence:
    """Known facts about a coordinator that has not answered for a while."""

    job: str  # its name or, if that is unknown, its address
    sent: bool  # the request has reached it and waits there; False: it has not even accepted the connection
    busy: tuple[BusyWorker, ...] = ()  # as reported by the launcher
    coordinating: tuple[int, ...] = ()  # the workers of its process
    unasked: str = ""  # why the launcher could not be asked
    is_suspended: bool = False  # it could not be asked because a signal has stopped the launcher
    output: str = ""  # what the output waits for

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator's process is busy."""
        return any(set(self.coordinating).intersection(each.workers) for each in self.busy)

    def __str__(self) -> str:
        """Return the busy workers as text, or why they are unknown."""
        if self.unasked:
            return self.unasked
        more = len(self.busy) - NAMED_MAX
        named = [busy_text(each) for each in self.busy[:NAMED_MAX]] + ([f"and {more} more"] if more > 0 else [])
        return "; ".join(named) or "its launcher knows no worker that is in a long step"


def open_door(job: Job) -> socket.socket:
    """Listen at the door of a published job. Raises OSError if it cannot have a door."""
    path = door_path(folder_of(job), job.name)
    path.unlink(missing_ok=True)
    listener = keep_socket(socket.socket(socket.AF_UNIX))
    try:
        with short_name(path) as name:
            listener.bind(name)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a name of this path that fits into a socket's address, if the system has one."""
    if not os.path.isdir(OPEN_FILES):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{OPEN_FILES}/{folder}/{path.name}"
    finally:
        os.close(folder)


def find_reason(job: Job | None, name: str, sent: bool, patience_seconds: float = LAUNCHER_SECONDS) -> Silence:
    """Return what the launcher knows of busy workers. Blocks at most `patience_seconds`. `job` None: no job file."""
    if job is None:
        return Silence(
            name, sent, unasked="its launcher could not be asked, because --connect names only a worker's address"
        )
    try:
        report = ask_launcher(job, WhoIsBusy(), BusyReport, patience_seconds)
    except NoAnswer as error:
        return Silence(name, sent, unasked=str(error), is_suspended=is_suspended(job))
    return Silence(name, sent, report.busy, report.coordinating, output=report.output)


def ask_launcher(job: Job, request: object, answer: type[T], timeout_seconds: float) -> T:
    """Return the launcher's answer, which is of class `answer`. Blocks at most `timeout_seconds`.

    Raises NoAnswer if there is no such answer: the job has no door here, or its launcher is gone or suspended. It does
    not wait for a suspended launcher.
    """
    if is_suspended(job):
        raise NoAnswer(
            f"the launcher of job {job.name!r} is suspended: resume the process with kill -CONT {job.pid}"
        )
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(timeout_seconds)
            with short_name(door_path(folder_of(job), job.name)) as name:
                connection.connect(name)
            client = Client(connection, f"the launcher of job {job.name!r}")
            client.send(request)
            value = client.receive(timeout_seconds)
    except (OSError, ClusterError, UsageError) as error:
        raise NoAnswer(f"the launcher of job {job.name!r} does not answer: {error}") from error
    if not conforms(value, answer):
        raise NoAnswer(f"the launcher of job {job.name!r} runs another version of megaflow")
    assert isinstance(value, answer)
    return value


def end_by_force(job: Job, timeout_seconds: float) -> None:
    """End a job at once, whatever its workers do. Return when it is gone.

    If its launcher does not answer, or the job is not gone in time, raises NoAnswer with another way to end it.
    """
    deadline = time.monotonic() + timeout_seconds
    remedy = f"on {os.uname().nodename}, kill -KILL {job.pid} ends the launcher and all processes it started"
    try:
        ask_launcher(job, EndNow(), EndsNow, timeout_seconds)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; {remedy}") from error
    _await_end(job, deadline, timeout_seconds, remedy)


def stop_restart(job: Job, timeout_seconds: float) -> bool:
    """Stop a job if it resumes after a loss and waits for processes. Return True once it is gone.

    Returns False if it does not wait for processes, or its launcher does not answer. Raises NoAnswer if the job is not
    gone in time.
    """
    deadline = time.monotonic() + timeout_seconds
    try:
        if not ask_launcher(job, StopRestart(), RestartStops, min(timeout_seconds, LAUNCHER_SECONDS)).stops:
            return False
    except NoAnswer:
        return False
    _await_end(job, deadline, timeout_seconds, "megaflow control stop --force ends it at once")
    return True


def _await_end(job: Job, deadline: float, timeout_seconds: float, remedy: str) -> None:
    """Wait until a job is gone. Raises NoAnswer at a time of the monotonic clock."""
    while any((other.pid, other.started, other.name) == (job.pid, job.started, job.name) for other, _ in present()):
        if time.monotonic() >= deadline:
            raise NoAnswer(f"job {job.name!r} is ending, but did not end within {timeout_seconds:g} s; {remedy}")
        time.sleep(END_POLL_SECONDS)
