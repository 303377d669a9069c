"""A worker process, started by the launcher.

The process reads its `ChildSpec` from a pipe that stays open until the launcher ends. When it closes, this process ends
too (see `megaflow.job.worker.process.lifeline`). After the loss of other processes, this one may stay for the job's
next incarnation (see `megaflow.job.worker.snapshots.local_recovery`). Exit codes: 0 done, 1 failed. The process sends
its failure to the launcher, as `Failed` or, before it is a member, as its exit report. It logs here only the failures
that it cannot send.

`Process` also runs in a process that a user starts by hand to join a job: see
`megaflow.job.worker.process.join_by_hand`.

Processes that the user's code starts must not inherit the worker's own files:
1. The launcher's pipe arrives as standard input. The worker moves it to a descriptor that is not inherited, as none of
   its descriptors are, and puts the null device in its place. Code that reads standard input sees its end at once.
2. A fork inherits all descriptors. The null device replaces the pipes in the fork (`megaflow.own_files`). The fork
   closes the connections, and ends if it returns to the engine: see `megaflow.timely.communication.tcp_fabric`.

After it has built the dataflow, the process hides all objects from the garbage collector (`gc.freeze`). The collector
runs rarely from the start: every `MEGAFLOW_GC_THRESHOLD` allocations (default 1000000). State per key consists of many
small, long-lived objects. A full collection of a million keys takes 64 ms, and the stream stops meanwhile.
"""

from __future__ import annotations

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
from typing import Any, Literal

from megaflow.control.launcher_messages import Failed
from megaflow.control.messages import JobSettings
from megaflow.durable.incarnation import read_commit
from megaflow.durable.restored import StateDescriptor
from megaflow.durable.store import Store
from megaflow.errors import ClusterError, MegaflowError, Outage, PeerFailed, PeerLost, StoreError, notes_of
from megaflow.job.dropped_tail import DroppedTail
from megaflow.job.exit_report import ExitReport, bins_text, say_stays, write_report
from megaflow.job.heartbeat import Heartbeat, write_sign
from megaflow.job.limits import limit_text, shortage_text
from megaflow.job.log_records import MARK, LogPlace, marked_line, set_up
from megaflow.job.nested_start import enter
from megaflow.job.patient_stream import print_patiently
from megaflow.job.profile.worker_profile import Profile
from megaflow.job.program_code import difference
from megaflow.job.script_logging import print_own_lines
from megaflow.job.spec import ChildSpec, Founder, JoiningProcess, gc_threshold
from megaflow.job.worker import snapshots
from megaflow.job.worker.control.connection_handlers import ControlDoor, LauncherDoor
from megaflow.job.worker.process.lifeline import (
    LIFELINE,
    die_with_parent,
    end_with,
    load_for_ends_of_threads,
    read_spec,
)
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.watchdog import WATCHDOG, Watchdog
from megaflow.job.worker.process.worker_program import Shared, WorkerProgram
from megaflow.job.worker.process.worker_text import WorkerText
from megaflow.job.worker.reading.staging import IngestDoor, Staging
from megaflow.megaphone import snapshot
from megaflow.own_files import keep
from megaflow.program import Worker, execute
from megaflow.timely.communication.address import address_text
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.runtime import Config

STDIN = 0
LAUNCHED_SECONDS = 86_400.0  # no limit of its own: the launcher ends a joiner that the coordinator calls too slow
FAREWELL_SECONDS = 2.0  # for the launcher to receive the message of a failure
FAREWELL_POLL_SECONDS = 0.02  # between two checks whether it has received it

_log = logging.getLogger("megaflow.job.worker")

CANNOT = ExitReport("anew", "this process cannot be reused after the restart; a new one is needed")


class CannotStay(Exception):
    """This process was to stay for the job's next incarnation but cannot; a new process can take part."""


class Process:
    """The workers of this process, and what happens when one fails."""

    def __init__(
        self,
        spec: ChildSpec,
        joined: Callable[[Worker], None] = lambda worker: None,
        tell: Callable[[Heartbeat], None] = lambda sign: None,
        before: Process | None = None,
    ) -> None:
        """Prepare the workers; `joined` receives each that has joined a running job and has its table, or must wait.

        `tell` receives a heartbeat of the workers twice a second, on a thread of its own. `before` is the process
        object of the job's previous incarnation, in which it has ended.
        """
        part = spec.part
        first = part.addresses[0] if isinstance(part, Founder) else part.contact
        job = spec.job
        settings = JobSettings(
            spec.name, job.workers, job.rate, job.encoding_errors, spec.outputs, spec.durable, spec.inputs, spec.piped,
            job.line_size_max,
        )  # fmt: skip
        control = ControlDoor(first if first != spec.address else None, settings)
        self.spec = spec
        app = App(job.app) if before is None else before.shared.app
        watchdog = Watchdog(tell) if before is None else before.shared.watchdog
        memory = None if before is None else snapshots.LocalRecovery()
        self.shared: Shared = Shared(spec, app, LauncherDoor(), control, {}, {}, watchdog, joined, memory=memory)
        self.programs: dict[int, WorkerProgram] = {}  # worker -> its part, once it is built
        self.told = False  # the launcher knows why this process fails
        self._unreported = threading.Lock()  # acquired by the first worker that reports why the process ends

    def run(self) -> None:
        """Run the workers until the job or these workers end. Blocks. Raises the error that ends them.

        A joiner loads its program before it asks to join. However long that takes, no other process waits for it.
        """
        print_own_lines("megaflow.timely.communication", logging.WARNING)
        if self.shared.memory is None:
            self.shared.watchdog.start()
        collect_rarely()
        if isinstance(self.spec.part, JoiningProcess):
            with self.shared.watchdog.watching():
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
        """Return the handler of each role, now that the ids of this process's workers are known."""
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
            raise  # the worker at fault reports it; after CannotStay, a new process replaces this one
        except BaseException as error:
            self._tell(worker, error)
            raise

    def _build(self, program: WorkerProgram) -> None:
        """Build a worker's part. Raises CannotStay for an error that may not occur in a new process."""
        try:
            program.build()
        except Exception as error:
            if self.shared.memory is None:
                raise
            _log.error("cannot rebuild the program in a process that has run it: %s", format_user_traceback(error))
            raise CannotStay from error

    @property
    def may_stay(self) -> bool:
        """Whether it may stay for the job's next incarnation after losing others: see `local_recovery`. Its workers
        have ended.
        """
        spec, part = self.spec, self.spec.part
        is_usual = spec.report_fd is not None and not (isinstance(part, JoiningProcess) and part.other_code)
        job = spec.job
        goes_on = spec.durable is not None and job.restarts > 0 and job.profile is None and job.on is None
        was_built = len(self.programs) == len(self.shared.stagings) > 0
        return is_usual and goes_on and was_built and not (spec.spark_queries or spec.pushed)

    def end(self) -> list[list[tuple[StateDescriptor, snapshot.RetainedBins]]]:
        """Stop writing, as all workers have ended; return what each keeps in memory of its operators. Blocks."""
        descriptors = [self.programs[worker].end() for worker in sorted(self.programs)]
        for program in self.programs.values():
            program.close()
        self.programs.clear()
        return descriptors

    def remember(
        self,
        descriptors: Iterable[tuple[StateDescriptor, snapshot.RetainedBins]],
        open_store: Callable[[str], Store] | None = None,
    ) -> None:
        """Remember the states of the previous incarnation, as far as they agree with the commit.

        Raises CannotStay if the commit is of other code.
        """
        part, memory = self.spec.durable, self.shared.memory
        assert part is not None and memory is not None
        if part.commit is None:
            return
        try:
            with contextlib.closing((open_store or snapshots.open_folder)(part.folder)) as store:
                commit = read_commit(store, part.commit)
                if difference(self.shared.app.fingerprint(self.spec.job.args), commit.code) is not None:
                    raise CannotStay
                memory.roll_back(store, commit, descriptors)
        except (OSError, MegaflowError) as error:
            _log.debug("kept no state in memory: %s", error)  # reading the store later reports what is wrong with it

    def _tell(self, worker: Worker, error: BaseException) -> None:
        """Send the failure to the launcher and wait briefly for its receipt: raising closes the connections."""
        launcher = self.shared.launcher
        if worker.rescaling.joining and not launcher.is_here:
            return  # the launcher does not know this worker, whose failure does not concern the job
        deadline = time.monotonic() + FAREWELL_SECONDS
        try:
            launcher.send(self.failed(worker, error))
            worker.allocator.park(0)  # raises if the connections are closed already
            while not launcher.is_drained and time.monotonic() < deadline:
                worker.allocator.park(FAREWELL_POLL_SECONDS)
            self.told = launcher.is_here
        except ClusterError as other:
            _log.debug("while reporting a failure: %s", other)
            self.told = isinstance(other, PeerFailed)  # the launcher then shows the other failure, and one is enough

    def failed(self, worker: Worker, error: BaseException) -> Failed:
        """Return the message that describes a failure to the launcher."""
        unfit, passes, raised = isinstance(error, StoreError), isinstance(error, Outage), type(error)
        text = str(error) if unfit else format_user_traceback(error, self.spec.job.debug)
        text = outage_text(error) if passes else text
        text = f"megaflow: {short}" if (short := shortage_text(error)) else text
        return Failed(worker.index, text, unfit, f"{raised.__module__}:{raised.__qualname__}", passes)

    def _tell_loss(self, worker: Worker, error: PeerLost) -> None:
        """Report which workers are lost, and which bins they had."""
        parts = [bins_text(view.name, view.table(), error.workers) for view in worker.stateful]
        self.report(ExitReport("lost", str(error), error.workers, ", ".join(filter(None, parts))))

    def report(self, report: ExitReport) -> None:
        """Write the exit report, unless another worker has written one. Any worker's thread may call it."""
        if self._unreported.acquire(blocking=False):
            write_report(self.spec.report_fd, report)


def collect_rarely() -> None:
    """Make the garbage collector run rarely."""
    gc.set_threshold(gc_threshold(), 20, 100)


def settle_memory() -> None:
    """Hide all objects that exist now from the garbage collector."""
    gc.collect()
    gc.freeze()


def empty_standard_input() -> None:
    """Put the null device in place of standard input, for this process and all that it starts."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)


def main() -> int:
    """Run this process's part of a job, in one or several incarnations; return the exit code."""
    die_with_parent()
    load_for_ends_of_threads()
    enter()
    printing = print_patiently()
    sys.stdout = sys.stderr  # the same file, but it escapes an `é` that the locale cannot encode instead of raising
    pipe = os.dup(STDIN)
    empty_standard_input()
    spec = read_spec(pipe)
    assert spec.report_fd is not None and spec.sign_fd is not None, "the launcher reads them"
    for file in (spec.report_fd, spec.sign_fd, spec.dropped_fd, spec.listener_fd):
        if file is not None:
            os.set_inheritable(file, False)  # the end of the report tells the launcher that this process has ended
    if printing is not None and spec.dropped_fd is not None:
        printing.tail, printing.is_terminal = DroppedTail(spec.dropped_fd), spec.on_terminal
    if spec.job.log_format == "json":
        sys.stdout = sys.stderr = WorkerText(sys.stderr, marked_line, holds=True)
    elif spec.job.workers > 1:
        sys.stdout = sys.stderr = WorkerText(sys.stderr)
    attempt = 0 if spec.durable is None else spec.durable.incarnation
    set_up(spec.job.log_level, spec.job.log_format, MARK, LogPlace(spec.name, None, attempt))
    listener = os.dup(spec.listener_fd)  # for a next incarnation
    for file in (pipe, spec.report_fd, spec.sign_fd, listener):
        keep(file)
    parts: SimpleQueue[ChildSpec] = SimpleQueue()
    try:
        end_with(pipe, parts.put)
    except RuntimeError as error:
        write_report(spec.report_fd, ExitReport("limit", limit_text(error) or str(error)))
        return 1
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # like other signals, it ends the process without a traceback
    process = Process(spec, tell=partial(write_sign, spec.sign_fd))
    while (code := live(process)) is None:
        try:
            process = stay(process, parts, listener)
        except CannotStay:
            process.report(CANNOT)
            return 1
    return code


def outage_text(error: BaseException) -> str:
    """Return in one line where an external system was out of reach, and which."""
    return ": ".join([*(note.removeprefix("in ") for note in notes_of(error)), str(error)])


def stay(process: Process, parts: SimpleQueue[ChildSpec], listener: int) -> Process:
    """Wait for a part in the job's next incarnation; return the process object for it. Raises CannotStay."""
    report_fd, sign_fd = process.spec.report_fd, process.spec.sign_fd
    assert report_fd is not None, "it may stay"
    descriptors = process.end()
    say_stays(report_fd, snapshots.kept_bins(descriptors))
    gc.unfreeze()  # the old dataflow can be freed
    spec = replace(parts.get(), listener_fd=os.dup(listener), report_fd=report_fd, sign_fd=sign_fd)
    following = Process(spec, before=process)
    following.remember(chain.from_iterable(descriptors))
    return following


def live(process: Process) -> int | None:
    """Run a process in one incarnation of the job; return the exit code, or None if it stays for the next."""
    try:
        process.run()
    except PeerLost as error:
        _log.debug("%s", error)  # the process at fault reports it
        others = {thread.name for thread in threading.enumerate()} - {LIFELINE, WATCHDOG, snapshots.WRITER}
        return None if process.may_stay and len(others) == 1 else 1  # the program's threads must not start twice
    except PeerFailed as error:
        _log.debug("%s", error)
        return 1
    except CannotStay:
        process.report(CANNOT)
        return 1
    except BaseException as error:
        limit, text = shortage_text(error) or limit_text(error), "".join(traceback.format_exception_only(error)).strip()
        text = str(error) if isinstance(error, MegaflowError) else text
        outage = outage_text(error) if isinstance(error, Outage) else ""
        kind: Literal["limit", "outage", "failed"] = "limit" if limit else "outage" if outage else "failed"
        process.report(ExitReport(kind, limit or outage or text))
        if not process.told and kind == "failed":
            _log.error("%s", format_user_traceback(error, process.spec.job.debug).rstrip())
        return 1
    return 0
