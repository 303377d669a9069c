"""Provisioner of processes on Spark's executors: each process is a Spark job of one task (see `megaflow.spark`).

1. The first search for process slots starts the session, which ends with the provisioner. Everything that can be
   checked is checked before that. Spark's free slots are counted before a process is submitted (see `spark_slots`).
2. A submitted process has its process slot once its agent has sent its hello. The processes that found an attempt begin
   when all have their process slots and can reach each other. Until then nothing depends on them, so a fault of one of
   them is a fault of the start.
3. A joining process begins when it has its process slot and all processes that began before can reach it. It may wait
   for a slot of Spark without a time limit, and reports that.
4. A number is used once, over all attempts. So a process of an earlier attempt cannot take a process slot of a later
   one.
5. Number and attempt identify each process that was started. The launcher keeps a process until it has ended or was
   given up (see `remote_process`), so closing takes a bounded time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from megaflow.errors import ClusterError, ConfigMismatch, ProtocolError
from megaflow.job.agent_messages import AgentTask, read_hello
from megaflow.job.launcher.processes.agent_door import AgentDoor
from megaflow.job.launcher.processes.print_reader import PrintReader
from megaflow.job.launcher.processes.remote_process import KILLED, RemoteProcess
from megaflow.job.launcher.processes.spark_slots import SparkSlots
from megaflow.job.process_agent import run_task
from megaflow.job.profile.report import WITNESS
from megaflow.job.spec import Address, AppFile, ChildSpec, Founder, JobSpec
from megaflow.python_executable import VARIABLE as PYTHON
from megaflow.quick_dataclass import dataclass
from megaflow.spark import launching as spark
from megaflow.spark.batch_run import task_title
from megaflow.spark.cluster import worker_jobs
from megaflow.spark.slots import REMOVE, Slots, too_few
from megaflow.timely.communication.role_handlers import Connection

LOOK_SECONDS = 0.5  # for Java to report the number of slots


@dataclass(eq=False, repr=False)  # repr must not show the secret
class SparkProvisioner:
    """The executors of a Spark cluster; a context manager that ends all processes and sessions it started."""

    spec: JobSpec
    secret: bytes
    feeds: bool  # Spark also supplies the lines
    files: Sequence[str]  # that the workers read
    report: Callable[[str], None]  # prints for the user

    def __post_init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._jobs: spark.WorkerJobs | None = None
        self._look: threading.Thread | None = None  # it asks Java for slots
        self._slots: Slots | None = None  # Java's last answer; written by that thread
        self._door: AgentDoor | None = None
        self._processes: dict[int, RemoteProcess] = {}  # by number; only the launcher's thread adds
        self._witnesses: tuple[tuple[str, bytes | int], ...] = ()
        self._prints = PrintReader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            process.pipe.close()
            process.sign.close()
        if self._door is not None:
            self._door.close()
        self._prints.close()
        self._stack.close()

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], bool], again: Sequence[Address] = ()
    ) -> SparkSlots:
        """Submit `count` tasks. The first call starts a session, which blocks for some seconds."""
        jobs, door = self._open()
        if (reason := jobs.why_lost("driver")) is not None:
            raise ClusterError(reason)
        founds = isinstance(draft.part, Founder)
        deadline = time.monotonic() + self.spec.start_timeout_seconds if founds else None
        submit = functools.partial(self._submit, jobs, door, draft, wake)
        return SparkSlots(
            count, submit, jobs, draft, self.feeds, deadline, self.report, self._begun, wake, founds and bool(again)
        )

    def room(self, count: int) -> int:
        """Return how many of `count` processes of a restart have slots, at least one."""
        jobs, _ = self._open()
        room = jobs.slots().room(jobs.taken_by_others(), self.feeds)
        return count if room is None else max(1, min(count, room))

    def waits_text(self) -> str:
        """Return why Spark's own tasks wait, for instance after the loss of an executor; "" if they do not. Any thread.

        If Java does not answer within LOOK_SECONDS, its last answer counts, because the admin socket also
        serves others.
        """
        jobs = self._jobs
        if jobs is None or not self.feeds:
            return ""

        def look() -> None:
            self._slots = jobs.slots()

        if self._look is None or not self._look.is_alive():
            self._look = threading.Thread(target=look, name="megaflow-slots", daemon=True)
            self._look.start()
        self._look.join(LOOK_SECONDS)
        slots, taken = self._slots, jobs.taken()
        if slots is None or slots.elastic or slots.now is None or taken == 0 or slots.now > taken:
            return ""
        return f"Spark's own source waits for a slot: {too_few(slots.now, taken, True, REMOVE)}"

    def _begun(self) -> list[RemoteProcess]:
        return [each for each in self._processes.values() if each.child is not None and each.returncode is None]

    def let_go(self, address: Address) -> None:
        """Do nothing: this provisioner keeps nothing of a process that has left."""

    # Calls from the door's thread, about agents

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Give an agent its process, or let it wait."""
        try:
            found = read_hello(hello)
        except ProtocolError as error:
            raise ConfigMismatch(str(error)) from error
        process = self._processes.get(found.number)
        if process is None:
            raise ConfigMismatch(f"there is no process {found.number}")
        process.greet(connection, found)

    def received(self, connection: Connection, value: Any) -> None:
        """Pass a message to the processes; the one that it concerns takes it."""
        for process in list(self._processes.values()):
            process.hear(connection, value)

    def lost(self, connection: Connection) -> None:
        """Report a lost connection to the processes; the one whose agent it was takes note."""
        for process in list(self._processes.values()):
            process.lose(connection)

    def _open(self) -> tuple[spark.WorkerJobs, AgentDoor]:
        if self._jobs is None or self._door is None:
            spec = self.spec
            app = spec.app.shipped if isinstance(spec.app, AppFile) else spec.app.file or None
            self._witnesses = self._write_witnesses()
            assert spec.on is not None, "the job is to be on Spark"
            self._jobs = self._stack.enter_context(
                worker_jobs(spec.on, dict(spec.conf), app, spec.shipped, spec.processes, self.feeds, self.report)
            )
            self._door = AgentDoor(self._jobs.is_local, self._jobs.driver_host, self.secret, self)
        return self._jobs, self._door

    def _write_witnesses(self) -> tuple[tuple[str, bytes | int], ...]:
        """Return the witnesses: files that must look the same on executors and on this machine.

        These are the input's files with their sizes, and a random file in each folder to which executors write. This
        launcher has locked these folders, so it may remove witnesses that a killed launcher left there.
        """
        found: list[tuple[str, bytes | int]] = [(path, os.path.getsize(path)) for path in sorted(set(self.files))]
        spec = self.spec
        folders = [folder for folder in (spec.state, None if spec.profile is None else spec.profile.folder) if folder]
        for folder in folders:
            for left in Path(folder).glob(f"{WITNESS}*"):
                left.unlink(missing_ok=True)
            word = os.urandom(16).hex().encode()
            with tempfile.NamedTemporaryFile(prefix=WITNESS, dir=folder, delete=False) as file:
                file.write(word)
            self._stack.callback(Path(file.name).unlink, missing_ok=True)
            found.append((file.name, word))
        return tuple(found)

    def _submit(
        self, jobs: spark.WorkerJobs, door: AgentDoor, draft: ChildSpec, wake: Callable[[], bool]
    ) -> RemoteProcess:
        number = len(self._processes)
        process = self._processes[number] = RemoteProcess(number, door, wake, jobs, self._prints, draft)
        task = AgentTask(number, door.addresses, self.secret, draft, environment(), self._witnesses)

        def ended(trouble: str | None) -> None:
            begun = process.child is not None
            process.end(KILLED if trouble else 0, f"was lost: {trouble}" if trouble and begun else trouble)

        title = task_title(self.spec.name or self.spec.title or "", f"worker process {number}")
        jobs.submit(number, title, pickle.dumps(functools.partial(run_task, task)), ended)
        return process


def environment() -> tuple[tuple[str, str], ...]:
    """Return the part of the launcher's environment that its processes get, wherever they run.

    The secret is left out, and the launcher's Python, as executors run their own.
    """
    own = ("MEGAFLOW_SECRET", PYTHON)
    names = [name for name in os.environ if name.startswith("MEGAFLOW_") and name not in own]
    path = os.pathsep.join(part for part in sys.path if part and os.path.isdir(part) and "site-packages" not in part)
    return (*((name, os.environ[name]) for name in sorted(names)), ("PYTHONPATH", os.environ.get("PYTHONPATH", path)))
