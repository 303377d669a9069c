"""The job's file, which exists while the job runs, and the log line that tells the user how to steer the job.

1. The job has the lock of launchers that are gone, and its file replaces theirs. It also replaces the file of the
   launcher from which the job takes over.
2. If there is no private folder for the file, the job runs without one. So a user who may write only to the store can
   run it. Commands then reach it by the address of a process and the secret.
3. The launcher looks after the file every few seconds, and writes it again if it is gone (`JobFile.look`). If that is
   impossible, the user learns it once. The launcher keeps trying, because the folder may come back at the next login.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from megaflow.control.wording import Notice, quantity
from megaflow.errors import NoPrivateFolder
from megaflow.job.job_file import (
    NOBODY,
    FormerLaunchers,
    Job,
    is_published,
    own_job,
    publish,
    publish_numbered,
    republish,
    withdraw,
)
from megaflow.job.launcher import store
from megaflow.job.spec import AppFile, JobSpec
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.secret import RUNTIME_DIR, given_secret


def replaced_by(keeper: store.StoreKeeper | None) -> FormerLaunchers:
    """Return the launchers that a job replaces."""
    if keeper is None:
        return NOBODY
    other = keeper.taken_from
    pid = other.pid if other is not None and other.host == socket.gethostname() else None
    return FormerLaunchers(pid, keeper.words_before)


PROJECT_PROGRAM: Final = "app"  # stem of the program in each project that `megaflow new` makes


def default_name(path: str) -> str:
    """Return the name of a job whose program is this file: that of the file, or of the project's folder for app.py.

    >>> default_name("/home/ann/word-count.py"), default_name("/home/ann/orders/app.py"), default_name("/app.py")
    ('word_count', 'orders', 'app')
    """
    folder, file = os.path.split(os.path.abspath(path))
    stem = os.path.splitext(file)[0]
    if stem == PROJECT_PROGRAM:
        stem = os.path.basename(folder) or stem
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in stem)[:50] or "job"


def job_title(text: str) -> str:
    """Return a job's name from the name of a query or a program.

    >>> job_title("totals of März"), job_title("-folded-<lambda>")
    ('totals_of_M_rz', 'folded-lambda')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.-").replace("-_", "-")[:50] or "job"


def program_name() -> str:
    """Return the default name of a job of this program; "job" for a notebook or a shell.

    >>> program_name() != ""
    True
    """
    return default_name(getattr(sys.modules["__main__"], "__file__", None) or "job.py")


@dataclass(eq=False, repr=False)
class JobFile:
    """The file of a job that runs. Any thread may write it."""

    job: Job  # as published
    _report: Callable[[str], None]
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)
    _is_over: bool = field(default=False, init=False)
    _is_told: bool = field(default=False, init=False)  # the user knows that the file is gone

    def publish(self, job: Job) -> None:
        """Write the job as it is now. Raises OSError."""
        with self._turn:
            self.job = job
            republish(job)

    def look(self) -> None:
        """Write the file again if it is gone. Report the first time that this is impossible."""
        with self._turn:
            if self._is_over or self.job.folder is None or is_published(self.job):
                return
            try:
                republish(self.job)
                return
            except OSError as error:
                why, is_told, self._is_told = str(error), self._is_told, True
        if not is_told:
            place = f"--connect {address_text((self.job.host, self.job.port))}"
            how = "" if given_secret() else ". Only a job with a secret of your own in MEGAFLOW_SECRET accepts that"
            self._report(f"commands no longer find job {self.job.name!r}: {why}. Steer it by {place}{how}")

    def withdraw(self) -> None:
        """Remove the file for good, unless another job now has the name."""
        with self._turn:
            self._is_over = True
            if self.job.folder is not None:
                withdraw(self.job, Path(self.job.folder) / f"{self.job.name}.json")


@contextlib.contextmanager
def published(
    spec: JobSpec, host: str, port: int, secret: str, keeper: store.StoreKeeper | None, report: Callable[[str], None]
) -> Iterator[JobFile]:
    """Yield the job's file. It exists during the block, in place of the files of launchers that are gone."""
    name = spec.title or default_name(spec.app.path if isinstance(spec.app, AppFile) else "job.py")
    attempt, lock = 1 if spec.state is not None and spec.restarts else 0, "" if keeper is None else keeper.word
    job, replaced = own_job(spec.name or name, host, port, secret, attempt, spec.state, lock), replaced_by(keeper)
    try:
        job, path = publish_numbered(job, replaced) if spec.name is None else (job, publish(job, replaced))
    except NoPrivateFolder as error:
        own = "" if given_secret() else " and a secret of your own in MEGAFLOW_SECRET"
        report(f"commands do not find job {job.name!r} by its name: {error}, or steer it by --connect{own}")
        yield JobFile(replace(job, folder=None), report)
        return
    file = JobFile(replace(job, folder=str(path.parent.absolute())), report)
    try:
        yield file
    finally:
        file.withdraw()


def started_text(job: Job, workers: int) -> str:
    """Return the name of a job with this number of workers, and how to steer it."""
    at_work = f"job {job.name!r} on {quantity(workers, 'worker')}"
    return Notice(f"{at_work}; steer it with: megaflow control status {naming_options(job)}")


def naming_options(job: Job) -> str:
    """Return the options that name a job in a command, quoted for a shell."""
    if job.folder is None:
        return f"--connect {address_text((job.host, job.port))}"
    folder = os.environ.get(RUNTIME_DIR)
    return f"--job {job.name}" + (f" --runtime-dir {shlex.quote(folder)}" if folder else "")
