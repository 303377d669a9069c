"""A launcher's side door: how to ask the launcher of a job what its workers cannot answer while they are busy.

1. It is a Unix-domain socket beside the job's file, with the same name. Only this user can enter the folder, so nobody
   has to show a secret, and it leads to the launcher even if all its workers are in user code.
2. It is removed with the job's file, by the job or by whoever finds that its launcher is gone (see
   `megaflow.job.job_file`). Who has the name has the socket: a job that begins replaces what an earlier one has left.
3. The kernel takes 107 bytes of a socket's path. On Linux the folder is opened and named by its number, so it may be
   longer; elsewhere a job in such a folder has no side door.
4. One question a connection, in the frames and the encoding of all other connections.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from megaflow.control.launcher_messages import EndNow, EndsNow
from megaflow.control.shapes import conforms
from megaflow.errors import ClusterError, NoAnswer, UsageError
from megaflow.job.job_file import Job, door_path, present
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.secret import private_folder

BACKLOG = 32
OPEN_FILES = "/proc/self/fd"  # on Linux

END_POLL_SECONDS = 0.05

T = TypeVar("T")


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
        raise NoAnswer(f"the launcher of job {job.name!r} cannot be asked: {error}") from error
    if not conforms(value, answer):
        raise NoAnswer(f"the launcher of job {job.name!r} is of another version of megaflow")
    assert isinstance(value, answer)
    return value


def end_by_force(job: Job, timeout_seconds: float) -> None:
    """Have a job ended at once, whatever its workers do; return when it has gone.

    Raises NoAnswer, with what else can be done, if its launcher does not answer or the job has not gone in that time.
    """
    deadline = time.monotonic() + timeout_seconds
    remedy = f"on {os.uname().nodename}, kill -KILL {job.pid} ends the launcher and all processes that it has started"
    try:
        ask_launcher(job, EndNow(), EndsNow, timeout_seconds)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; {remedy}") from error
    while any((other.pid, other.started, other.name) == (job.pid, job.started, job.name) for other, _ in present()):
        if time.monotonic() >= deadline:
            raise NoAnswer(f"job {job.name!r} ends, but has not gone within {timeout_seconds:g} s; {remedy}")
        time.sleep(END_POLL_SECONDS)
