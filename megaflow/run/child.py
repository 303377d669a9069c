"""A worker process: `python -m megaflow.run.child`, started by the launcher.

It reads its `ChildSpec` from standard input, which then stays open: its end is the launcher's end,
and the process stops. Exit codes: 0 done, 1 failed. A failure of this process's own goes to the
launcher as `Failed`, to be shown there last and alone; only what cannot be sent is logged here.

Once started, the process keeps the garbage collector off what was built (`gc.freeze`) and has it run
rarely: `MEGAFLOW_GC_THRESHOLD` allocations apart (default 1000000). State per key is many small,
long-lived objects; a full collection of a million keys takes 64 ms, in which the stream stands still.
"""

import gc
import logging
import os
import pickle
import socket
import sys
import time

from megaflow.control.messages import Failed
from megaflow.control.server import ControlDoor, IngestDoor, LauncherDoor
from megaflow.errors import ClusterError, PeerFailed, PeerLost, ProtocolError
from megaflow.front import Worker, execute
from megaflow.run.loading import App
from megaflow.run.program import Program, Shared, address_of
from megaflow.run.spec import ChildSpec
from megaflow.run.staging import Staging
from megaflow.timely.dataflow.blame import format_user_traceback
from megaflow.timely.execute import Config

STDIN = 0
LENGTH_BYTES = 8
LAST_WORD_SECONDS = 2.0  # for the launcher to take the report of a failure
LOOK_SECONDS = 0.02  # between looks whether it has
GC_THRESHOLD = int(os.environ.get("MEGAFLOW_GC_THRESHOLD") or 1_000_000)  # allocations between two collections

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


class Process:
    """The workers of this process, and what happens when one fails."""

    def __init__(self, spec: ChildSpec) -> None:
        first = spec.process * spec.workers
        stagings = {worker: Staging(worker) for worker in range(first, first + spec.workers)}
        coordinator = None if spec.process == 0 else address_of(spec, 0)
        self.spec = spec
        self.shared = Shared(spec, App(spec.app), LauncherDoor(), ControlDoor(coordinator), stagings)
        self.told = False  # the launcher knows why this process fails
        self._running = spec.workers

    def run(self) -> None:
        """Run the workers; blocks until the job's end. Raises what stops it."""
        spec, shared = self.spec, self.shared
        config = Config.cluster(
            [address_of(spec, process) for process in range(spec.processes)],
            spec.process,
            spec.workers,
            socket.socket(fileno=spec.listener_fd),
            secret=spec.secret,
            roles={
                "launcher": shared.launcher,
                "control": shared.control,
                "ingest": IngestDoor(shared.stagings),
            },
            watch={STDIN: self._launcher_ended},
            connect_timeout_seconds=spec.connect_timeout_seconds,
        )
        execute(config, self._work, spec.args)

    def _work(self, worker: Worker) -> None:
        try:
            program = Program(worker, self.shared)
            program.build()
            settle_memory()
            program.run()
            self._running -= 1
        except (PeerFailed, PeerLost):
            raise  # whoever is at fault reports it; the connections are closed already
        except BaseException as error:
            self._tell(worker, error)
            raise

    def _tell(self, worker: Worker, error: BaseException) -> None:
        """Send the launcher the failure, and give it a moment to come and take it: raising closes the connections."""
        launcher = self.shared.launcher
        deadline = time.monotonic() + LAST_WORD_SECONDS
        try:
            launcher.send(Failed(worker.index, format_user_traceback(error, self.spec.debug)))
            worker.allocator.park(0)  # raises if the connections are closed already
            while not launcher.is_drained and time.monotonic() < deadline:
                worker.allocator.park(LOOK_SECONDS)
            self.told = launcher.is_here
        except ClusterError as other:
            _log.debug("while reporting a failure: %s", other)
            self.told = isinstance(other, PeerFailed)  # then the other one is shown: one is enough

    def _launcher_ended(self) -> None:
        if not os.read(STDIN, 1) and self._running:
            raise PeerLost("the launcher has ended; the job ends with it")


def settle_memory() -> None:
    """Take what exists out of the garbage collector's sight, and let it look rarely at the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def main() -> int:
    """Run this process's part of a job; return the exit code."""
    process = Process(read_spec(STDIN))
    sys.stdin = open(os.devnull)  # noqa: SIM115  what the user's code would read is not for it
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        process.run()
    except (PeerFailed, PeerLost) as error:
        _log.debug("%s", error)  # whoever is at fault says so
        return 1
    except BaseException as error:
        if not process.told:
            _log.error("%s", format_user_traceback(error, process.spec.debug).rstrip())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
