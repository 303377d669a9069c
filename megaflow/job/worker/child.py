"""A worker process, started by the launcher.

It reads its `ChildSpec` from a pipe, which then stays open: its end is the launcher's end, and this process's, too (see
`megaflow.job.worker.lifeline`). Exit codes: 0 done, 1 failed. A failure of this process's own goes to the
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
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from megaflow.control.launcher_messages import Failed
from megaflow.control.messages import JobSettings
from megaflow.control.worker.port_roles import ControlDoor, IngestDoor, LauncherDoor
from megaflow.errors import ClusterError, MegaflowError, PeerFailed, PeerLost, ProtocolError, StoreError
from megaflow.job.exit_report import ExitReport, write_report
from megaflow.job.profile.worker_profile import Profile
from megaflow.job.sign_of_life import SignOfLife, write_sign
from megaflow.job.spec import ChildSpec, Founder, JoiningProcess, gc_threshold
from megaflow.job.worker.flow import App
from megaflow.job.worker.lifeline import die_with_parent, end_with
from megaflow.job.worker.staging import Staging
from megaflow.job.worker.watchdog import Watchdog
from megaflow.job.worker.worker_program import Shared, WorkerProgram
from megaflow.megaphone.routing import ranges_text
from megaflow.program import Worker, execute
from megaflow.timely.communication.tcp import address_text
from megaflow.timely.dataflow.error_notes import format_user_traceback
from megaflow.timely.runtime import Config

STDIN = 0
LENGTH_BYTES = 8
RANGES_SHOWN = 8  # of the bins of an operator that are lost
LAUNCHED_SECONDS = 86_400.0  # to join: the launcher ends a process that takes too long, when the coordinator says so
FAREWELL_SECONDS = 2.0  # for the launcher to take the message of a failure
FAREWELL_POLL_SECONDS = 0.02  # until it is checked again whether it has

_log = logging.getLogger("megaflow.child")


def read_spec(file: int) -> ChildSpec:
    """Read the launcher's message: its length, then a pickled ChildSpec. The file stays open."""
    length = int.from_bytes(_read_exactly(file, LENGTH_BYTES), "big")
    spec = pickle.loads(_read_exactly(file, length))
    assert isinstance(spec, ChildSpec), "the launcher sends nothing else"
    return spec


def _read_exactly(file: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        block = os.read(file, size - len(data))
        if not block:
            raise ProtocolError("the launcher ended before it had said what to run")
        data += block
    return bytes(data)


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
    ) -> None:
        """`joined` is told of each worker that has joined a running job and has its table, or is to wait for one.

        `tell` is told twice a second how the workers are, on a thread of its own.
        """
        part = spec.part
        first = part.addresses[0] if isinstance(part, Founder) else part.contact
        job = spec.job
        settings = JobSettings(
            spec.name, job.workers, job.rate, job.encoding_errors, spec.output, spec.durable, spec.rows
        )
        control = ControlDoor(first if first != spec.address else None, settings)
        self.spec = spec
        self.shared = Shared(spec, App(job.app), LauncherDoor(), control, {}, {}, Watchdog(tell), joined)
        self.told = False  # the launcher knows why this process fails
        self._unreported = threading.Lock()  # taken by the first that reports why the process ends

    def run(self) -> None:
        """Run the workers; blocks until the job's end, or theirs. Raises what stops it.

        A process that joins loads its program before it asks to: however long that takes, no other one waits for it.
        """
        say_whose_lines_these_are()
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
                    program.build()
                    settle_memory()
                program.run()
        except PeerLost as error:
            self._tell_loss(worker, error)
            raise  # the connections are closed already
        except PeerFailed:
            raise  # the worker at fault reports it
        except BaseException as error:
            self._tell(worker, error)
            raise

    def _tell(self, worker: Worker, error: BaseException) -> None:
        """Send the failure to the launcher, and wait a moment until it has it: raising closes the connections."""
        launcher = self.shared.launcher
        if worker.rescaling.joining and not launcher.is_here:
            return  # it does not know this worker, whose failure does not concern the job
        deadline = time.monotonic() + FAREWELL_SECONDS
        try:
            unfit = isinstance(error, StoreError)
            text = str(error) if unfit else format_user_traceback(error, self.spec.job.debug)
            launcher.send(Failed(worker.index, text, unfit))
            worker.allocator.park(0)  # raises if the connections are closed already
            while not launcher.is_drained and time.monotonic() < deadline:
                worker.allocator.park(FAREWELL_POLL_SECONDS)
            self.told = launcher.is_here
        except ClusterError as other:
            _log.debug("while reporting a failure: %s", other)
            self.told = isinstance(other, PeerFailed)  # then the other one is shown: one is enough

    def _tell_loss(self, worker: Worker, error: PeerLost) -> None:
        """Report which workers are lost, and which bins with them."""
        parts = [bins_text(view.name, view.table(), error.workers) for view in worker.stateful]
        self.report(ExitReport("lost", str(error), error.workers, ", ".join(filter(None, parts))))

    def report(self, report: ExitReport) -> None:
        """Write the exit report, unless one was written; any worker's thread."""
        if self._unreported.acquire(blocking=False):
            write_report(self.spec.report_fd, report)


def bins_text(operator: str, table: Sequence[int], workers: Collection[int]) -> str:
    """Return how many of an operator's bins these workers own and which, "" if none; `table` is bin -> worker.

    >>> bins_text("count", [0, 0, 1, 1, 0], [1]), bins_text("count", [0], [1])
    ("2 of 5 bins of 'count' (2-3)", '')
    >>> bins_text("count", [0, 1] * 128, [1])
    "128 of 256 bins of 'count' (1,3,5,7,9,11,13,…,255)"
    """
    bins = [bin for bin, owner in enumerate(table) if owner in workers]
    if not bins:
        return ""
    ranges = ranges_text(bins).split(",")
    if len(ranges) > RANGES_SHOWN:
        ranges[RANGES_SHOWN - 1 : -1] = ["…"]
    return f"{len(bins)} of {len(table)} bins of {operator!r} ({','.join(ranges)})"


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
    """Run this process's part of a job; return the exit code."""
    die_with_parent()
    pipe = os.dup(STDIN)
    empty_standard_input()
    spec = read_spec(pipe)
    assert spec.report_fd is not None and spec.sign_fd is not None, "the launcher reads them"
    os.set_inheritable(spec.report_fd, False)  # its end is this process's end
    os.set_inheritable(spec.sign_fd, False)
    os.set_inheritable(spec.listener_fd, False)
    keep_from_forks(pipe, spec.report_fd, spec.sign_fd)
    end_with(pipe)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it ends the process like other signals, not with a traceback
    process = Process(spec, tell=partial(write_sign, spec.sign_fd))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        process.run()
    except (PeerFailed, PeerLost) as error:
        _log.debug("%s", error)  # the process at fault reports it
        return 1
    except BaseException as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        process.report(ExitReport("failed", str(error) if isinstance(error, MegaflowError) else text))
        if not process.told:
            _log.error("%s", format_user_traceback(error, process.spec.job.debug).rstrip())
        return 1
    return 0
