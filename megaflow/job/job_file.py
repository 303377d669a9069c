"""Job files: how `megaflow control` finds the jobs of this user on this machine.

1. One file a job, NAME.json, in a folder of mode 0700 that belongs to the user; the file, which holds the secret, has
   mode 0600.
2. A file appears whole or not at all, and a name belongs to one job: the file is written under another name and then
   linked; when the coordinator has moved, or the job recovers from a loss, it replaces the same job's older file.
3. A job lives as long as its launcher. A process id alone may have been reused, so the file also has the process's
   start time, and the namespace in which it has that id (a container has one of its own), where the operating system
   tells them. A process that finds the file of a launcher that is gone removes it; so does a launcher that takes the
   place of one that does not answer.
4. What cannot be judged stays, and its name is taken: the file of a launcher in another namespace, and what is no job
   file of this version, or no file at all; nothing is waited for, nor read at length, to find that out.
5. Who removes or replaces a file has locked the folder and read whose it is: a job touches only its own.
6. The socket NAME.sock beside a job's file (see `megaflow.job.side_door`) goes when the file goes.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from megaflow.errors import CommandRefused, JobNotFound, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.secret import private_folder

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
NAMES_MAX = 1000  # jobs of one app at the same time
FILE_BYTES_MAX = 1 << 16
PID_MAX = 2**31 - 1  # of any system
CHANGING = ("host", "port", "life", "recovering")  # what a job may publish anew


@dataclass(frozen=True, slots=True)
class Job:
    """What a job's file says."""

    name: str
    pid: int  # of the launcher
    started: str | None  # when that process began, in the operating system's words
    host: str  # where the coordinator listens
    port: int
    secret: str
    namespace: str | None = None  # in which the launcher has its id, in the operating system's words
    life: int = 0  # which of its lives this is, from 1 on; 0: if it loses a process, it ends
    state: str | None = None  # the folder of its store; None: it keeps nothing
    recovering: str = ""  # not empty: that life is about to begin; which restart of how many


def process_start(pid: int) -> str | None:
    """Return when a process began, as the kernel counts it; None if it is gone or the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]  # after the name, which may hold anything: field 22 of proc(5)


def process_namespace() -> str | None:
    """Return the namespace of the process ids that this process sees; None if the system does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def is_alive(job: Job) -> bool | None:
    """Return whether the job's launcher runs, and not another process under its id; None if that is not seen here."""
    if job.namespace != process_namespace():
        return None
    try:
        os.kill(job.pid, 0)
    except (ProcessLookupError, PermissionError):  # the latter: another user's process
        return False
    return job.started is None or process_start(job.pid) == job.started


def check_name(name: str) -> str:
    """Return a job's name if it is one. Raises UsageError otherwise."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"--name {name}: must be 1 to 64 letters, digits, '.', '_' and '-', and must not begin with '.' or '-'."
        )
    return name


def publish(job: Job, replaced: int | None = None) -> Path:
    """Write the job's file and return where it is. Raises CommandRefused if the name is taken.

    A launcher with the id `replaced` does not answer: its name is free.
    """
    path = private_folder() / f"{job.name}.json"
    with _written_aside(job) as aside, _alone(path.parent):
        for _ in range(2):
            try:
                os.link(aside, path)
                return path
            except FileExistsError:
                _check_gone(path, replaced)
                _remove(path)
    raise CommandRefused(f"another job took the name {job.name!r} at the same moment: choose another --name")


def check_free(name: str, replaced: int | None = None) -> None:
    """Raise CommandRefused if the name of a job is taken; `replaced` as for `publish`."""
    _check_gone(private_folder() / f"{name}.json", replaced)


def _check_gone(path: Path, replaced: int | None) -> None:
    """Raise CommandRefused unless this is the file of a launcher that is gone, or replaced, or there is none."""
    other = read(path)
    alive = None if other is None else is_alive(other)
    alive = alive and other is not None and other.pid != replaced
    if other is not None and alive:
        raise CommandRefused(
            f"a job named {other.name!r} is running already (process {other.pid}): choose another --name"
        )
    if alive is None and os.path.lexists(path):
        raise CommandRefused(
            f"{path} names a job in another container or of another version of megaflow, which may still be "
            "running: choose another --name, or remove the file if the job is gone"
        )


def republish(job: Job) -> None:
    """Write anew the file of a job that was published. Raises OSError; so if another job has the name by now."""
    path = private_folder() / f"{job.name}.json"
    with _written_aside(job) as aside, _alone(path.parent):
        if os.path.lexists(path) and not _is_of(job, path):
            raise FileExistsError(f"{path} is another job's by now")
        os.replace(aside, path)


def withdraw(job: Job, path: Path) -> None:
    """Remove the file of a job, unless another job has the name by now."""
    with contextlib.suppress(OSError), _alone(path.parent):
        if _is_of(job, path):
            _remove(path)


def door_path(folder: Path, name: str) -> Path:
    """Return where the launcher of the job of this name listens."""
    return folder / f"{name}.sock"


def _remove(path: Path) -> None:
    """Remove a job's file and its socket."""
    with contextlib.suppress(OSError):  # there is none, or something else has its name
        door_path(path.parent, path.stem).unlink()
    path.unlink(missing_ok=True)


def _is_of(job: Job, path: Path) -> bool:
    """Whether this is the file of this job, wherever its coordinator is, and whether it recovers or not."""
    other = read(path)
    return other is not None and replace(job, **{name: getattr(other, name) for name in CHANGING}) == other


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let no other process change files there, as far as the file system has locks."""
    file = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


@contextlib.contextmanager
def _written_aside(job: Job) -> Iterator[str]:
    """Write a job's file whole under a name that is no job's, and give its path for the block; mode 0600."""
    file, aside = tempfile.mkstemp(dir=private_folder(), prefix=".", suffix=".new")
    try:
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            json.dump(asdict(job), stream)
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has taken the job's name
            os.unlink(aside)


def publish_numbered(job: Job, replaced: int | None = None) -> tuple[Job, Path]:
    """Publish under the job's name or, if that is taken, under NAME-2, NAME-3, …; `replaced` as for `publish`."""
    for number in range(1, NAMES_MAX):
        named = job if number == 1 else replace(job, name=f"{job.name}-{number}")
        with contextlib.suppress(CommandRefused):
            return named, publish(named, replaced)
    raise CommandRefused(f"{NAMES_MAX} jobs named {job.name!r} are running")


def read(path: Path) -> Job | None:
    """Return the job that a file describes; None if there is no file, or it is no job's of this version."""
    try:
        job = Job(**json.loads(_content(path)))
        return job if job.name == path.stem and _is_sound(job) else None
    except (OSError, TypeError, ValueError, RecursionError):
        return None


def _content(path: Path) -> str:
    """Return what a file says; raises OSError for all else that may have its name: a pipe would not end, nor /dev/zero.

    Raises ValueError for a file that is too long, or no text.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{path} is longer than a job's file")
    return content.decode()


def _is_sound(job: Job) -> bool:
    """Whether each value is such as a job has: a file may say anything. Raises TypeError or ValueError, too."""
    "".join((job.secret, job.started or "", job.namespace or "", job.state or "", job.recovering)).encode()
    numbers = type(job.pid) is type(job.port) is type(job.life) is int
    numbers = numbers and 0 < job.pid <= PID_MAX and 0 < job.port < 65536
    return numbers and NAME.fullmatch(job.name) is not None and str.isascii(job.host)


def present() -> Iterator[tuple[Job, bool]]:
    """Yield the jobs of this user, by name, and whether each is seen to live; remove the files of what is over."""
    for path in sorted(private_folder().glob("*.json")):
        if job := read(path):
            alive = is_alive(job)
            if alive is False:
                withdraw(job, path)
            else:
                yield job, alive is True


def find(name: str | None) -> Job:
    """Return the job of this name or, if None, the only one. Raises JobNotFound, with the list where that helps.

    One that is not seen from here has to be named.
    """
    jobs = list(present())
    living = [job for job, alive in jobs if alive]
    names = ", ".join(job.name for job in living) or "none"
    if unseen := ", ".join(job.name for job, alive in jobs if not alive):
        names += f"; in another container, or ended: {unseen}"
    if name is not None:
        for job, _ in jobs:
            if job.name == name:
                return job
        raise JobNotFound(f"there is no job named {name!r}; running: {names}")
    if len(living) > 1:
        raise JobNotFound(f"several jobs are running, choose one with --job: {names}")
    if living:
        return living[0]
    if unseen:
        raise JobNotFound(f"no job is visible from here, choose one with --job: {names}")
    raise JobNotFound("no job is running; start one with: megaflow run FILE --lines …")
