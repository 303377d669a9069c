"""A launcher's side door: how to ask the launcher of a job what its workers cannot answer while they are busy.

1. It is a Unix-domain socket beside the job's file, with the same name. Only this user can enter the folder, so nobody
   has to show a secret, and it leads to the launcher even if all its workers are in user code.
2. It is removed with the job's file, by the job or by whoever finds that its launcher is gone (see
   `megaflow.job.job_file`). Who has the name has the socket: a job that begins replaces what an earlier one has left.
3. The kernel takes 107 bytes of a socket's path. On Linux the folder is opened and named by its number, so it may be
   longer; elsewhere a job in such a folder has no side door.
4. One question a connection, in the frames and the encoding of all other connections.

Who steers a job asks here when its coordinator has been silent for two seconds: `find_reason`.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from megaflow.control.launcher_messages import BusyReport, EndNow, EndsNow, WhoIsBusy
from megaflow.control.reports import BusyWorker
from megaflow.control.shapes import conforms
from megaflow.control.wording import busy_text
from megaflow.errors import ClusterError, NoAnswer, UsageError
from megaflow.job.job_file import Job, door_path, present
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.secret import private_folder

BACKLOG = 32
OPEN_FILES = "/proc/self/fd"  # on Linux

LAUNCHER_SECONDS = 1.0  # it has nothing to do but to answer
NAMED_MAX = 3  # of those that are busy, in a sentence
END_POLL_SECONDS = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known of a coordinator that has not answered for a while."""

    job: str  # its name, or for want of that its address
    sent: bool  # the request has reached it, and waits there; else it has not even taken the connection
    busy: tuple[BusyWorker, ...] = ()  # by the word of the launcher
    coordinating: tuple[int, ...] = ()  # the workers of its process
    unasked: str = ""  # why the launcher could not be asked
    output: str = ""  # what the output waits for

    @property
    def is_busy(self) -> bool:
        """Whether the coordinator's process is what is busy."""
        return any(set(self.coordinating).intersection(each.workers) for each in self.busy)

    def __str__(self) -> str:
        """Return who is busy, or why that is not known."""
        if self.unasked:
            return self.unasked
        more = len(self.busy) - NAMED_MAX
        named = [busy_text(each) for each in self.busy[:NAMED_MAX]] + ([f"and {more} more"] if more > 0 else [])
        return "; ".join(named) or "its launcher knows no worker that is in a long step"


def open_door(job: Job) -> socket.socket:
    """Listen at the door of a job that was published. Raises OSError if there can be none."""
    path = door_path(private_folder(), job.name)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
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
    """Give a name of this path that a socket's address has room for, where the system has one."""
    if not os.path.isdir(OPEN_FILES):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{OPEN_FILES}/{folder}/{path.name}"
    finally:
        os.close(folder)


def find_reason(job: Job | None, name: str, sent: bool) -> Silence:
    """Return what the launcher knows of who is busy; it blocks for LAUNCHER_SECONDS at most. None: no job file."""
    if job is None:
        return Silence(
            name, sent, unasked="its launcher could not be asked, because --connect names only a worker's address"
        )
    try:
        report = ask_launcher(job, WhoIsBusy(), BusyReport, LAUNCHER_SECONDS)
    except NoAnswer as error:
        return Silence(name, sent, unasked=str(error))
    return Silence(name, sent, report.busy, report.coordinating, output=report.output)


def ask_launcher(job: Job, request: object, answer: type[T], timeout_seconds: float) -> T:
    """Return the launcher's answer, which is of this class; blocks for the time given at most.

    Raises NoAnswer if there is no such answer: the job has no door here, or its launcher is stopped or gone.
    """
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(timeout_seconds)
            with short_name(door_path(private_folder(), job.name)) as name:
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
    """Have a job ended at once, whatever its workers do; return when it has gone.

    Raises NoAnswer, with what else can be done, if its launcher does not answer or the job has not gone in that time.
    """
    deadline = time.monotonic() + timeout_seconds
    remedy = f"on {os.uname().nodename}, kill -KILL {job.pid} ends the launcher and all processes it started"
    try:
        ask_launcher(job, EndNow(), EndsNow, timeout_seconds)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; {remedy}") from error
    while any((other.pid, other.started, other.name) == (job.pid, job.started, job.name) for other, _ in present()):
        if time.monotonic() >= deadline:
            raise NoAnswer(f"job {job.name!r} is ending, but did not end within {timeout_seconds:g} s; {remedy}")
        time.sleep(END_POLL_SECONDS)
