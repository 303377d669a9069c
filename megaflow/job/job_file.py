"""Job files: how `megaflow control` finds the jobs of this user on this machine.

1. Each job has one file, NAME.json, in a folder of mode 0700 that belongs to the user. The file holds the secret, so it
   has mode 0600. Commands of root also read the folders of other users, after root's own. If no folder can be made, the
   job has no file.
2. A file appears whole or not at all, and a name belongs to one job. So the file is written under another name and then
   linked. When the coordinator moves, or the job recovers from a loss, the new file replaces the same job's old file.
3. A job lives as long as its launcher. A process id alone may have been reused. So the file also has the process's
   start time and the namespace of its id (a container has its own), if the operating system reports them. A zombie (a
   process that has ended and whose parent has not waited for it) counts as gone, because its parent may never wait. A
   process that finds the file of a dead launcher removes it, unless the file is another user's. A launcher that
   replaces an unresponsive one also removes its file.
4. An entry that cannot be judged stays, and its name is taken: the file of a launcher in another namespace, and an
   entry that is not a job file, or not a file at all. Another version's file may have other fields. Those that this
   version lacks do not matter, so a job that was killed and then upgraded gets its name again. This check never waits
   and never reads much. The lock of a store decides about a launcher in another namespace: a launcher that gets the
   lock reads which launchers had it, and these are gone. So a container that was killed restarts under its name.
5. Before a process removes or replaces a file, it locks the folder and checks which job owns the file. So a job touches
   only its own file.
6. An empty file .NAME.ended records that a job of this name has ended. The newest ENDED_MAX of these files stay.
7. A file or its folder may vanish while the job runs: /run/user/UID at logout, or by a cleaner of /tmp. The launcher
   writes it again, in the same folder.
8. The socket NAME.sock beside a job's file (see `megaflow.job.admin_socket`) is removed with the file.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

from megaflow.errors import CommandRefused, JobNotFound, NoPrivateFolder, UsageError
from megaflow.own_files import close_own, open_own
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.secret import BY, folders_to_read, private_folder

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
NAMES_MAX = 1000  # jobs of one app at the same time
NAMES_SHOWN = 10  # in an error
ENDED_MAX = 100  # recorded ends of jobs
FILE_BYTES_MAX = 1 << 16
PID_MAX = 2**31 - 1  # on any system
CHANGING = ("host", "port", "attempt", "recovering", "folder")  # fields that a job may republish, and the file's folder


@dataclass(frozen=True, slots=True)
class Job:
    """Contents of a job's file."""

    name: str
    pid: int  # of the launcher
    started: str | None  # when that process began, in the operating system's format
    host: str  # where the coordinator listens
    port: int
    secret: str
    namespace: str | None = None  # of the launcher's process id, in the operating system's format
    attempt: int = 0  # the number of the current attempt, from 1; 0: the job ends if it loses a process
    state: str | None = None  # the folder of its store; None: it has no store
    recovering: str = ""  # if not empty, `attempt` is about to begin; which restart of how many, and why
    lock: str = ""  # the launcher's entry in the lock of its store; "": it has no store
    folder: str | None = ""  # the file's folder, not stored in the file; "": this user's; None: there is no file


FIELDS = frozenset(field.name for field in fields(Job))


@dataclass(frozen=True, slots=True)
class FormerLaunchers:
    """Launchers that are gone or do not answer, and that a new job replaces."""

    pid: int | None = None  # on this machine
    locks: tuple[str, ...] = ()  # their entries in the lock that the job now holds


NOBODY = FormerLaunchers()


def process_fields(pid: int) -> list[str]:
    """Return the kernel's fields of a process, from its state on (field 3 of proc(5)). Empty if there are none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # after the name, which may contain anything


def process_start(pid: int) -> str | None:
    """Return when a process began, in the kernel's units. None if it is gone or the system does not report it."""
    return next(iter(process_fields(pid)[19:]), None)


def process_state(pid: int) -> str:
    """Return the kernel's letter for a process's state. "" if it has ended, "?" if the system does not report it."""
    state = next(iter(process_fields(pid)), "" if process_fields(os.getpid()) else "?")
    return "" if state in ("Z", "X") else state


def process_namespace() -> str | None:
    """Return the namespace of the process ids that this process sees. None if the system does not report it."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def own_job(name: str, host: str, port: int, secret: str, attempt: int, state: str | None, lock: str) -> Job:
    """Return a job that this process launches."""
    pid = os.getpid()
    return Job(name, pid, process_start(pid), host, port, secret, process_namespace(), attempt, state, lock=lock)


def is_alive(job: Job) -> bool | None:
    """Return whether the job's launcher runs, and not another process with its id. None if not visible from here."""
    if job.namespace != process_namespace():
        return None
    try:
        os.kill(job.pid, 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: another user's process
        return False
    return bool(process_state(job.pid)) and job.started in (None, process_start(job.pid))


def is_suspended(job: Job) -> bool:
    """Return whether a signal has stopped the job's launcher, as far as this process can see."""
    return job.namespace == process_namespace() and process_state(job.pid) in ("T", "t")


def check_name(name: str) -> None:
    """Raise UsageError if a job's name is not valid."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"--name {name}: must be 1 to 64 letters, digits, '.', '_' and '-', and must not begin with '.' or '-'."
        )


def publish(job: Job, replaced: FormerLaunchers = NOBODY) -> Path:
    """Write the job's file and return its path. Raises CommandRefused if the name is taken.

    The names of `replaced` launchers are free. Raises NoPrivateFolder if the file cannot be written.
    """
    path = private_folder() / f"{job.name}.json"
    try:
        with _written_aside(job) as aside, _alone(path.parent):
            for _ in range(2):
                try:
                    os.link(aside, path)
                    return path
                except FileExistsError:
                    _check_gone(path, replaced)
                    _remove(path)
    except OSError as error:
        reason = f"cannot write files of running jobs to {path.parent}: {error.strerror or error}"
        raise NoPrivateFolder(f"{reason}. Name another {BY}") from error
    raise CommandRefused(f"another job took the name {job.name!r} at the same moment: choose another --name")


def check_free(name: str, replaced: FormerLaunchers = NOBODY) -> None:
    """Raise CommandRefused if the name of a job is taken. `replaced`: see `publish`."""
    with contextlib.suppress(NoPrivateFolder):  # the job will have no file
        _check_gone(private_folder() / f"{name}.json", replaced)


def _check_gone(path: Path, replaced: FormerLaunchers) -> None:
    """Raise CommandRefused unless there is no file, or its launcher is gone or replaced."""
    other = read(path)
    alive = None if other is None else is_alive(other)
    alive = alive and other is not None and other.pid != replaced.pid
    if alive is None and other is not None and other.lock in replaced.locks:
        alive = False
    if other is not None and alive:
        raise CommandRefused(
            f"a job named {other.name!r} is running already (process {other.pid}): choose another --name"
        )
    if alive is None and os.path.lexists(path):
        raise CommandRefused(
            f"{path} names a job in another container or of another version of megaflow, which may still be "
            "running: choose another --name, or remove the file if the job is gone"
        )


def is_published(job: Job) -> bool:
    """Return whether the file of a job is there, wherever its coordinator is and whether or not it recovers."""
    return _is_of(job, folder_of(job) / f"{job.name}.json")


def republish(job: Job) -> None:
    """Write the file of a published job again, with its folder if that is gone.

    Raises OSError, also if another job now has the name or the folder cannot be used.
    """
    if job.folder is None:
        return
    path = folder_of(job) / f"{job.name}.json"
    if not os.path.lexists(path):
        _make_again(path.parent)
    with _written_aside(job) as aside, _alone(path.parent):
        if os.path.lexists(path) and not _is_of(job, path):
            raise FileExistsError(f"{path} is another job's by now")
        os.replace(aside, path)


def _make_again(folder: Path) -> None:
    """Make the folder of a job's file as at the start, with the same checks. Raises OSError if that is impossible."""
    try:
        made = private_folder()
    except UsageError as error:
        raise OSError(str(error)) from error
    if made.absolute() != folder.absolute():
        raise OSError(f"the folder {folder} is gone and cannot be made again")


def withdraw(job: Job, path: Path) -> None:
    """Remove the file of a job, unless another job now has the name."""
    with contextlib.suppress(OSError), _alone(path.parent):
        if _is_of(job, path):
            _remove(path)
            _note_end(path)


def folder_of(job: Job) -> Path:
    """Return the folder of a job's file. Raises NoPrivateFolder if it has none."""
    if job.folder is None:
        raise NoPrivateFolder(f"job {job.name!r} has no file, as there is no folder for it")
    return Path(job.folder) if job.folder else private_folder()


def door_path(folder: Path, name: str) -> Path:
    """Return the path of the socket at which the launcher of this job listens."""
    return folder / f"{name}.sock"


def _ended_path(folder: Path, name: str) -> Path:
    """Return the file that records that the last job of this name has ended."""
    return folder / f".{name}.ended"


def _note_end(path: Path) -> None:
    """Record that the job of this file has ended. Delete the oldest of these records if there are too many."""
    _ended_path(path.parent, path.stem).touch(mode=0o600)
    ended = sorted(path.parent.glob(".*.ended"), key=lambda each: each.stat().st_mtime_ns)
    for each in ended[:-ENDED_MAX]:
        each.unlink(missing_ok=True)


def _shown(names: Iterable[str]) -> str:
    """Return the first of these names, and the number of the others."""
    names = list(names)
    more = [f"and {len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    return ", ".join([*names[:NAMES_SHOWN], *more])


def _remove(path: Path) -> None:
    """Remove a job's file and its socket."""
    with contextlib.suppress(OSError):  # there is no socket, or something else has its name
        door_path(path.parent, path.stem).unlink()
    path.unlink(missing_ok=True)


def _is_of(job: Job, path: Path) -> bool:
    """Return whether this is the file of this job, wherever its coordinator is and whether or not it recovers."""
    other = read(path)
    return other is not None and replace(job, **{name: getattr(other, name) for name in CHANGING}) == other


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from changing files in the folder, if the file system has locks."""
    file = open_own(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        close_own(file)


@contextlib.contextmanager
def _written_aside(job: Job) -> Iterator[str]:
    """Write a job's whole file, of mode 0600, under a name that no job has. Yield its path for the block."""
    file, aside = tempfile.mkstemp(dir=folder_of(job), prefix=".", suffix=".new")
    try:
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            json.dump(asdict(replace(job, folder="")), stream)
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):  # it now has the job's name
            os.unlink(aside)


def publish_numbered(job: Job, replaced: FormerLaunchers = NOBODY) -> tuple[Job, Path]:
    """Publish under the job's name or, if it is taken, under NAME-2, NAME-3, …. `replaced`: see `publish`."""
    for number in range(1, NAMES_MAX):
        named = job if number == 1 else replace(job, name=f"{job.name}-{number}")
        with contextlib.suppress(CommandRefused):
            return named, publish(named, replaced)
    raise CommandRefused(f"{NAMES_MAX} jobs named {job.name!r} are running")


def read(path: Path) -> Job | None:
    """Return the job that a file describes. None if there is no file, or this version cannot read it: see rule 4."""
    try:
        known = {name: value for name, value in json.loads(_content(path)).items() if name in FIELDS}
        job = Job(**known)
        return job if job.name == path.stem and _is_sound(job) else None
    except (OSError, AttributeError, TypeError, ValueError, RecursionError):
        return None


def _content(path: Path) -> str:
    """Return the content of a file. Raises OSError for anything else with its name: a pipe or /dev/zero has no end.

    Raises ValueError for a file that is too long or not text.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a file")
        content = file.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"{path} is longer than a job's file")
    return content.decode()


def _is_sound(job: Job) -> bool:
    """Return whether each value is valid: a file may contain anything. May also raise TypeError or ValueError."""
    "".join((job.secret, job.started or "", job.namespace or "", job.state or "", job.recovering, job.lock)).encode()
    numbers = type(job.pid) is type(job.port) is type(job.attempt) is int
    numbers = numbers and 0 < job.pid <= PID_MAX and 0 < job.port < 65536
    return numbers and NAME.fullmatch(job.name) is not None and str.isascii(job.host)


def present() -> Iterator[tuple[Job, bool]]:
    """Yield this user's jobs, by name, and whether each visibly lives. Remove the files of this user's dead jobs.

    For root, the jobs of other users follow.
    """
    own, others = folders_to_read()
    for folder in others if own is None else (own, *others):
        for path in sorted(folder.glob("*.json")):
            if job := read(path):
                alive = is_alive(job)
                if alive is not False:
                    yield (job if folder == own else replace(job, folder=str(folder))), alive is True
                elif folder == own:
                    withdraw(job, path)


def find(name: str | None) -> Job:
    """Return the job of this name or, if None, the only job. Raises JobNotFound, with a list where it helps.

    A job that is not visible from here must be named.
    """
    jobs = list(present())
    living = [job for job, alive in jobs if alive]
    living = [job for job in living if not job.folder] or living  # jobs with a folder belong to other users, for root
    names = _shown(job.name for job in living) or "none"
    if unseen := _shown(job.name for job, alive in jobs if not alive):
        names += f"; in another container, or ended: {unseen}"
    if name is not None:
        for job, _ in jobs:
            if job.name == name:
                return job
        own, others = folders_to_read()
        folders = others if own is None else [own, *others]
        has_ended = NAME.fullmatch(name) and any(_ended_path(each, name).exists() for each in folders)
        what = f"the job {name!r} has ended" if has_ended else f"there is no job named {name!r}"
        raise JobNotFound(f"{what}; running: {names}")
    if len(living) > 1:
        raise JobNotFound(f"several jobs are running, choose one with --job: {names}")
    if living:
        return living[0]
    if unseen:
        raise JobNotFound(f"no job is visible from here, choose one with --job: {names}")
    raise JobNotFound("no job is running; start one with: megaflow run FILE --lines …")
