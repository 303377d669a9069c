"""Job files: how `megaflow control` finds the jobs of this user on this machine.

1. One file a job, NAME.json, in a folder of mode 0700 that belongs to the user; the file, which holds the secret, has
   mode 0600.
2. A file appears whole or not at all, and a name belongs to one living job: the file is written under another name and
   then linked; when the coordinator has moved, it replaces the same job's older file.
3. A job lives as long as its launcher. A process id alone may have been reused, so the file also has the
   process's start time where the operating system tells it. A process that finds the file of a launcher that is gone
   removes it.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from megaflow.errors import CommandRefused, JobNotFound, UsageError
from megaflow.timely.communication.secret import private_folder

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
NAMES_MAX = 1000  # jobs of one app at the same time


@dataclass(frozen=True, slots=True)
class Job:
    """What a job's file says."""

    name: str
    pid: int  # of the launcher
    started: str | None  # when that process began, in the operating system's words
    host: str  # where the coordinator listens
    port: int
    secret: str


def process_start(pid: int) -> str | None:
    """Return when a process began, as the kernel counts it; None if it is gone or the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[19]  # after the name, which may hold anything: field 22 of proc(5)


def is_alive(job: Job) -> bool:
    """Return whether the job's launcher runs, and not another process under its id."""
    try:
        os.kill(job.pid, 0)
    except (ProcessLookupError, PermissionError):  # the latter: another user's process
        return False
    return job.started is None or process_start(job.pid) == job.started


def check_name(name: str) -> str:
    """Return a job's name if it is one. Raises UsageError otherwise."""
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name}: must be 1 to 64 letters, digits, '.', '_' and '-', the first not '.' or '-'")
    return name


def publish(job: Job) -> Path:
    """Write the job's file and return where it is. Raises CommandRefused if a living job has the name."""
    path = private_folder() / f"{job.name}.json"
    with _written_aside(job) as aside:
        for _ in range(2):
            try:
                os.link(aside, path)
                return path
            except FileExistsError:
                other = read(path)
                if other is not None:
                    raise CommandRefused(
                        f"a job named {job.name!r} is running already (process {other.pid}): choose another --name"
                    ) from None
        raise CommandRefused(f"another job took the name {job.name!r} at the same moment: choose another --name")


def republish(job: Job) -> None:
    """Write anew the file of a job that was published. Raises OSError."""
    with _written_aside(job) as aside:
        os.replace(aside, private_folder() / f"{job.name}.json")


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


def publish_numbered(job: Job) -> tuple[Job, Path]:
    """Publish under the job's name or, if living jobs have it, under NAME-2, NAME-3, …"""
    for number in range(1, NAMES_MAX):
        name = job.name if number == 1 else f"{job.name}-{number}"
        path = private_folder() / f"{name}.json"
        if not path.exists() or read(path) is None:
            named = replace(job, name=name)
            with contextlib.suppress(CommandRefused):  # taken since: the next one
                return named, publish(named)
    raise CommandRefused(f"{NAMES_MAX} jobs named {job.name!r} are running")


def read(path: Path) -> Job | None:
    """Return the living job that a file describes; otherwise remove the file and return None."""
    try:
        job = Job(**json.loads(path.read_text(encoding="utf-8")))
        if is_alive(job):
            return job
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError):  # cut short, or by another version: no job can be found through it
        job = None
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return None


def running() -> Iterator[Job]:
    """Yield the living jobs of this user, by name."""
    for path in sorted(private_folder().glob("*.json")):
        if job := read(path):
            yield job


def find(name: str | None) -> Job:
    """Return the job of this name or, if None, the only one. Raises JobNotFound, with the list where that helps."""
    jobs = {job.name: job for job in running()}
    if name in jobs:
        return jobs[name]
    names = ", ".join(jobs) or "none"
    if name is not None:
        raise JobNotFound(f"there is no job named {name!r}; running: {names}")
    if not jobs:
        raise JobNotFound("no job is running; start one with: megaflow run FILE --lines …")
    if len(jobs) > 1:
        raise JobNotFound(f"several jobs are running, choose one with --job: {names}")
    return next(iter(jobs.values()))
