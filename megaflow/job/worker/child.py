"""A worker process, started by the launcher.

It reads its `ChildSpec` from a pipe, which then stays open: its end is the launcher's end, and this process's, too (see
`megaflow.job.worker.lifeline`). If it has lost others it may stay, to be given a part in the job's next life (see
`megaflow.job.worker.memory`). Exit codes: 0 done, 1 failed. A failure of this process's own goes to the
launcher as `Failed`, to be shown there last and alone, and as its exit report if it is no member yet;
only what cannot be sent is logged here.

`Process` also runs in a process that was started by hand, to join: see `megaflow.job.worker.join_by_hand`.

What the user's code starts gets nothing that is the worker's own:
1. The launcher's pipe comes as standard input. It moves to a descriptor that is not inherited, as are all others of
   ours, and the null device takes its place: what reads standard input is at its end at once.
2. A fork inherits all descriptors. It gets the null device in place of the pipes, before any code of the user's runs in
   it; of the connections it lets go, and ends if it comes back to the engine: see
   `megaflow.timely.communication.tcp_fabric`. So a worker's end is seen though a fork of it lives on.

Once started, the process keeps the garbage collector off what was built (`gc.freeze`). It has it run rarely from the
first, as states are loaded, too: `MEGAFLOW_GC_THRESHOLD` allocations apart (default 1000000). State per key is many
small, long-lived objects; a full collection of a million keys takes 64 ms, in which the stream stands still.
"""

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Any

from megaflow.control.launcher_messages import Failed
from megaflow.control.messages import JobSettings
from megaflow.control.worker.port_roles import ControlDoor, IngestDoor, LauncherDoor
from megaflow.durable.incarnation import read_commit
from megaflow.durable.restored import Heir
from megaflow.durable.store import Store
from megaflow.errors import ClusterError, MegaflowError, PeerFailed, PeerLost, StoreError
from megaflow.job.exit_report import ExitReport, bins_text, say_stays, write_report
from megaflow.job.profile.worker_profile import Profile
from megaflow.job.program_code import difference
from megaflow.job.sign_of_life import SignOfLife, write_sign
from megaflow.job.spec import ChildSpec, Founder, JoiningProcess, gc_threshold
from megaflow.job.worker.cut_keeper import WRITER
from megaflow.job.worker.flow import App
from megaflow.job.worker.kept_state import open_folder
from megaflow.job.worker.lifeline import LIFELINE, die_with_parent, end_with, read_spec
from megaflow.job.worker.memory import Memory, kept_bins
from megaflow.job.worker.staging import Staging
from megaflow.job.worker.watchdog import WATCHDOG, Watchdog
from megaflow.job.worker.worker_program import Shared, WorkerProgram
from megaflow.megaphone.remains import Remains
from megaflow.program import Worker, execute
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.runtime import Config

STDIN = 0
LAUNCHED_SECONDS = 86_400.0  # to join: the launcher ends a process that takes too long, when the coordinator says so
FAREWELL_SECONDS = 2.0  # for the launcher to take the message of a failure
FAREWELL_POLL_SECONDS = 0.02  # until it is checked again whether it has

_log = logging.getLogger("megaflow.child")


CANNOT = ExitReport("anew", "this process cannot be reused after the restart; a new one is needed")


class CannotStay(Exception):
    """This process cannot go on in the job's next life, though it was to; a new one can."""


def say_whose_lines_these_are() -> None:
    """Have warnings about connections begin as all that megaflow says, unless the program sets up its own logging."""
    logger = logging.getLogger("megaflow.wire")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("megaflow: %(message)s"))
        handler.addFilter(lambda record: not logging.getLogger().handlers)
        logger.addHandler(handler)


class Process:
    """The workers of this process, and what happens when one fails."""

    def __init__(
        self,
        spec: ChildSpec,
        joined: Callable[[Worker], None] = lambda worker: None,
        tell: Callable[[SignOfLife], None] = lambda sign: None,
        before: "Process | None" = None,
    ) -> None:
        """`joined` is told of each worker that has joined a running job and has its table, or is to wait for one.

        `tell` is told twice a second how the workers are, on a thread of its own. `before` is what this process was in
        the job's life before, in which it has ended.
        """
        part = spec.part
        first = part.addresses[0] if isinstance(part, Founder) else part.contact
        job = spec.job
        settings = JobSettings(
            spec.name, job.workers, job.rate, job.encoding_errors, spec.outputs, spec.durable, spec.rows,
            spec.lines, spec.followed, spec.piped, spec.unordered,
        )
        control = ControlDoor(first if first != spec.address else None, settings)
        self.spec = spec
        app = App(job.app) if before is None else before.shared.app
        watchdog = Watchdog(tell) if before is None else before.shared.watchdog
        memory = None if before is None else Memory()
        self.shared: Shared = Shared(spec, app, LauncherDoor(), control, {}, {}, watchdog, joined, memory=memory)
        self.programs: dict[int, WorkerProgram] = {}  # worker -> its part, once that is built
        self.told = False  # the launcher knows why this process fails
        self._unreported = threading.Lock()  # taken by the first that reports why the process ends

    def run(self) -> None:
        """Run the workers; blocks until the job's end, or theirs. Raises what stops it.

        A process that joins loads its program before it asks to: however long that takes, no other one waits for it.
        """
        say_whose_lines_these_are()
        if self.shared.memory is None:
            self.shared.watchdog.start()
        collect_rarely()
        if isinstance(self.spec.part, JoiningProcess):
            self.shared.app.function()
        execute(self._config(), self._work, self.spec.job.args)

    def _config(self) -> Config:
        spec, part, workers = self.spec, self.spec.part, self.spec.job.workers
        more: dict[str, Any] = {
            "secret": spec.secret,
            "roles": self._roles,
            "connect_timeout_seconds": spec.job.connect_timeout_seconds,
        }
        if isinstance(part, JoiningProcess) and spec.report_fd is not None:
            more["connect_timeout_seconds"] = LAUNCHED_SECONDS
        if spec.job.profile is not None:
            more["around"] = lambda allocator: self.shared.profiles[allocator.index].around(allocator)
        listener = socket.socket(fileno=spec.listener_fd)
        if isinstance(part, Founder):
            return Config.cluster(list(map(address_text, part.addresses)), part.process, workers, listener, **more)
        contact, address = address_text(part.contact), address_text(spec.address)
        return Config.join(contact, address, workers, part.server, listener, **more)

    def _roles(self, workers: tuple[int, ...]) -> dict[str, Any]:
        """Return role -> handler, now that the ids of this process's workers are known."""
        spec, shared = self.spec, self.shared
        shared.stagings.update((worker, Staging(worker)) for worker in workers)
        if spec.job.profile is not None:
            shared.profiles.update((worker, Profile(worker, spec.job.profile)) for worker in workers)
        return {"launcher": shared.launcher, "control": shared.control, "ingest": IngestDoor(shared.stagings)}

    def _work(self, worker: Worker) -> None:
        try:
            profile = self.shared.profiles.get(worker.index)
            program = WorkerProgram(worker, self.shared)
            with (
                contextlib.nullcontext() if profile is None else profile.measuring(worker),
                self.shared.watchdog.watching(worker),
            ):
                with contextlib.nullcontext() if profile is None else profile.building():
                    self._build(program)
                    settle_memory()
                self.programs[worker.index] = program
                if self.shared.memory is not None and len(self.programs) == len(self.shared.stagings):
                    self.shared.memory.forget()
                program.run()
        except PeerLost as error:
            self._tell_loss(worker, error)
            raise  # the connections are closed already
        except (PeerFailed, CannotStay):
            raise  # the worker at fault reports it; others may do what this process cannot
        except BaseException as error:
            self._tell(worker, error)
            raise

    def _build(self, program: WorkerProgram) -> None:
        """Build a worker's part. Raises CannotStay for what need not come again in a new process."""
        try:
            program.build()
        except Exception as error:
            if self.shared.memory is None:
                raise
            _log.error("cannot rebuild the program in a process that has run it: %s", format_user_traceback(error))
            raise CannotStay from error

    @property
    def may_stay(self) -> bool:
        """Whether it may go on in the job's next life, as it has lost others: see `memory`. Its workers have ended."""
        spec, part = self.spec, self.spec.part
        is_usual = spec.report_fd is not None and not (isinstance(part, JoiningProcess) and part.other_code)
        job = spec.job
        goes_on = spec.durable is not None and job.restarts > 0 and job.profile is None and job.on is None
        was_built = len(self.programs) == len(self.shared.stagings) > 0
        return is_usual and goes_on and was_built and not (spec.spark_queries or spec.pushed)

    def end(self) -> list[list[tuple[Heir, Remains]]]:
        """Write no more, as all workers have ended; return what each has in memory of its operators. Blocks."""
        heirs = [self.programs[worker].end() for worker in sorted(self.programs)]
        for program in self.programs.values():
            program.close()
        self.programs.clear()
        return heirs

    def remember(
        self, heirs: Iterable[tuple[Heir, Remains]], open_store: Callable[[str], Store] = open_folder
    ) -> None:
        """Remember what it has left in the job's life before, as far as that is what the commit says.

        Raises CannotStay if this is of other code.
        """
        part, memory = self.spec.durable, self.shared.memory
        assert part is not None and memory is not None
        if part.commit is None:
            return
        try:
            with contextlib.closing(open_store(part.folder)) as store:
                commit = read_commit(store, part.commit)
                if difference(self.shared.app.fingerprint(self.spec.job.args), commit.code) is not None:
                    raise CannotStay
                memory.roll_back(store, commit, heirs)
        except (OSError, MegaflowError) as error:
            _log.debug("kept no state in memory: %s", error)  # reading the store will report what is wrong with it

    def _tell(self, worker: Worker, error: BaseException) -> None:
        """Send the failure to the launcher, and wait a moment until it has it: raising closes the connections."""
        launcher = self.shared.launcher
        if worker.rescaling.joining and not launcher.is_here:
            return  # it does not know this worker, whose failure does not concern the job
        deadline = time.monotonic() + FAREWELL_SECONDS
        try:
            launcher.send(self.failed(worker, error))
            worker.allocator.park(0)  # raises if the connections are closed already
            while not launcher.is_drained and time.monotonic() < deadline:
                worker.allocator.park(FAREWELL_POLL_SECONDS)
            self.told = launcher.is_here
        except ClusterError as other:
            _log.debug("while reporting a failure: %s", other)
            self.told = isinstance(other, PeerFailed)  # then the other one is shown: one is enough

    def failed(self, worker: Worker, error: BaseException) -> Failed:
        """Return what the launcher is to be told of it."""
        unfit = isinstance(error, StoreError)
        return Failed(worker.index, str(error) if unfit else format_user_traceback(error, self.spec.job.debug), unfit)

    def _tell_loss(self, worker: Worker, error: PeerLost) -> None:
        """Report which workers are lost, and which bins with them."""
        parts = [bins_text(view.name, view.table(), error.workers) for view in worker.stateful]
        self.report(ExitReport("lost", str(error), error.workers, ", ".join(filter(None, parts))))

    def report(self, report: ExitReport) -> None:
        """Write the exit report, unless one was written; any worker's thread."""
        if self._unreported.acquire(blocking=False):
            write_report(self.spec.report_fd, report)


def collect_rarely() -> None:
    """Have the garbage collector run rarely."""
    gc.set_threshold(gc_threshold(), 20, 100)


def settle_memory() -> None:
    """Hide from the garbage collector what exists now."""
    gc.collect()
    gc.freeze()


def empty_standard_input() -> None:
    """Put the null device in its place, for this process and all that it starts."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)


def keep_from_forks(*files: int) -> None:
    """Put the null device in the place of these descriptors in each fork of this process; its numbers stay taken."""
    null = os.open(os.devnull, os.O_RDWR)
    os.register_at_fork(after_in_child=lambda: [os.dup2(null, file, inheritable=False) for file in files])


def main() -> int:
    """Run this process's part of a job, in one life or several; return the exit code."""
    die_with_parent()
    pipe = os.dup(STDIN)
    empty_standard_input()
    spec = read_spec(pipe)
    assert spec.report_fd is not None and spec.sign_fd is not None, "the launcher reads them"
    os.set_inheritable(spec.report_fd, False)  # its end is this process's end
    os.set_inheritable(spec.sign_fd, False)
    os.set_inheritable(spec.listener_fd, False)
    listener = os.dup(spec.listener_fd)  # for a next life
    keep_from_forks(pipe, spec.report_fd, spec.sign_fd, listener)
    parts: SimpleQueue[ChildSpec] = SimpleQueue()
    end_with(pipe, parts.put)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends the process like other signals, not with a traceback
    process = Process(spec, tell=partial(write_sign, spec.sign_fd))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    while (code := live(process)) is None:
        try:
            process = stay(process, parts, listener)
        except CannotStay:
            process.report(CANNOT)
            return 1
    return code


def stay(process: Process, parts: "SimpleQueue[ChildSpec]", listener: int) -> Process:
    """Wait until the process has a part in the job's next life; return what it is in that. Raises CannotStay."""
    report_fd, sign_fd = process.spec.report_fd, process.spec.sign_fd
    assert report_fd is not None, "it may stay"
    heirs = process.end()
    say_stays(report_fd, kept_bins(heirs))
    gc.unfreeze()  # what was built goes
    spec = replace(parts.get(), listener_fd=os.dup(listener), report_fd=report_fd, sign_fd=sign_fd)
    following = Process(spec, before=process)
    following.remember(chain.from_iterable(heirs))
    return following


def live(process: Process) -> int | None:
    """Run a process in one life of the job; return the exit code, None if it stays for the next."""
    try:
        process.run()
    except PeerLost as error:
        _log.debug("%s", error)  # the process at fault reports it
        others = {thread.name for thread in threading.enumerate()} - {LIFELINE, WATCHDOG, WRITER}
        return None if process.may_stay and len(others) == 1 else 1  # else the program has begun what it may not again
    except PeerFailed as error:
        _log.debug("%s", error)
        return 1
    except CannotStay:
        process.report(CANNOT)
        return 1
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        process.report(ExitReport("failed", str(error) if isinstance(error, MegaflowError) else text))
        if not process.told:
            _log.error("%s", format_user_traceback(error, process.spec.job.debug).rstrip())
        return 1
    return 0
