"""Where the worker processes of a job run: a place finds seats, and starts a process in each.

A seat has the address at which its process will listen, so processes that start together can know each other's
addresses. `Here` is the launcher's own machine, whose seats are available at once:

1. A child inherits its listening socket, so its address is known before it runs and no other process can take its port.
2. For a durable job the launcher keeps a duplicate of the listening socket of each process it started, until the
   process has left the job. So a replacement listens at the same address, which no other program can get. A connection
   made meanwhile waits there, and the new process accepts it. Connections of the old job end in the handshake.
3. A child runs this very megaflow, and imports no module of the current directory, whose files may come from anyone.
   That directory is not in its path (`-P`), and megaflow's folder only while `megaflow` itself is imported.
4. A child gets its `ChildSpec` over a pipe, at first its standard input, which then stays open (see `children`).
"""

import contextlib
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self

from megaflow.job.exit_report import ReportPipe
from megaflow.job.launcher.child_process import Child, WorkerProcess
from megaflow.job.sign_of_life import SignFile
from megaflow.job.spec import Address, ChildSpec, address_of, listening
from megaflow.quick_dataclass import dataclass

BOOT = (
    "import sys, typing; sys.path.insert(0, sys.argv.pop()); import megaflow; del sys.path[0]; "
    "from megaflow.job.worker.{} import main; sys.exit(main())"
)
COMMAND = (sys.executable, "-P", "-c", BOOT.format("child"), str(Path(__file__).parents[3]))
STDERR = 2


class Seat(Protocol):
    """Where one process is to run."""

    @property
    def address(self) -> Address:
        """Where it will listen."""

    def start(self, spec: ChildSpec) -> Child:
        """Start it; what the spec says of the seat itself is filled in here. Raises OSError."""

    def close(self) -> None:
        """Give the seat back, if no process was started there."""


class Search(Protocol):
    """Seats that are being looked for."""

    def found(self) -> list[Seat]:
        """Return those found since the last call. Raises MegaflowError or OSError if no more will be."""

    def waits_for(self) -> str:
        """Say what those wait for that are not found yet."""

    def close(self) -> None:
        """Give up those that are not found yet."""


class ProcessPlace(Protocol):
    """Where processes run."""

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], None], again: Sequence[Address] = ()
    ) -> Search:
        """Begin to look for seats of processes that will be told what the draft says, but for their part and seat.

        `wake` is called, by any thread, when there is something new. `again`: where processes listened whose places
        these take. Raises MegaflowError or OSError.
        """

    def let_go(self, address: Address) -> None:
        """Keep nothing of the process that listened there: it is not replaced."""


@dataclass(eq=False, slots=True)
class SeatHere:
    """A listening socket, for a process of this machine to inherit."""

    listener: socket.socket
    started: Callable[[socket.socket], None] = lambda listener: None  # told before it is handed over

    @property
    def address(self) -> Address:
        """Where it listens."""
        return address_of(self.listener)

    def start(self, spec: ChildSpec) -> Child:
        """Start the process."""
        pipe, sign = ReportPipe(), None
        try:
            sign = SignFile(time.monotonic())
            files = (self.listener.fileno(), pipe.writing, sign.file)
            process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=STDERR, pass_fds=files, process_group=0)
        except BaseException:
            pipe.close()
            if sign is not None:
                sign.close()
            raise
        finally:
            pipe.close_writing()
        address, number = self.address, self.listener.fileno()
        spec = replace(spec, address=address, listener_fd=number, report_fd=pipe.writing, sign_fd=sign.file)
        self.started(self.listener)
        self.listener.close()  # so that a dead child refuses connections, unless another one is to take its place
        send_spec(process, spec)
        return Child(address, process, pipe, sign)

    def go_on(self, child: Child, spec: ChildSpec) -> Child:
        """Have a process go on that has stayed, and listens there: with another part of the job."""
        assert child.process is not None and child.pipe is not None, "the launcher has started it"
        address = self.address
        child.pipe.begin_anew()
        self.started(self.listener)
        self.listener.close()
        send_spec(child.process, replace(spec, address=address))
        return Child(address, child.process, child.pipe, child.sign)

    def close(self) -> None:
        """Close the socket."""
        self.listener.close()


def send_spec(process: WorkerProcess, spec: ChildSpec) -> None:
    """Tell a process its part."""
    data = pickle.dumps(spec)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died: connecting will show that
        process.stdin.write(len(data).to_bytes(8, "big") + data)
        process.stdin.flush()


class SeatsHere:
    """A search that has found all."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = list(seats)

    def found(self) -> list[Seat]:
        """Return all, once."""
        found, self._seats = self._seats, []
        return found

    def waits_for(self) -> str:
        """Nothing waits."""
        return ""

    def close(self) -> None:
        """Close those that nobody has asked for."""
        for seat in self.found():
            seat.close()


class Here:
    """This machine; a context manager that closes the sockets which no process was started with."""

    def __init__(self, listen: str, founders: int, is_durable: bool = False) -> None:
        """`listen` is what `--listen` says. Listens for the founders at once; raises UsageError if that cannot be."""
        self._listen = listen
        self._is_durable = is_durable
        self._held: dict[Address, socket.socket] = {}  # where those listen that the launcher has started
        with listening(listen, founders) as listeners:
            self._first = [SeatHere(listener.dup(), self._hold) for listener in listeners]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for seat in self._first:
            seat.close()
        for address in list(self._held):
            self.let_go(address)

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], None], again: Sequence[Address] = ()
    ) -> SeatsHere:
        """Return seats: those of the founders at first, then those at the addresses named, or else new ones."""
        if self._first:
            seats, self._first = self._first, []
        elif again:
            seats = [SeatHere(self._held.pop(address), self._hold) for address in again]
        else:
            with listening(self._listen, count, skipping=True) as listeners:
                seats = [SeatHere(listener.dup(), self._hold) for listener in listeners]
        return SeatsHere(seats)

    def let_go(self, address: Address) -> None:
        """Close the duplicate of a socket."""
        if (listener := self._held.pop(address, None)) is not None:
            listener.close()

    def _hold(self, listener: socket.socket) -> None:
        if self._is_durable:
            self._held[address_of(listener)] = listener.dup()
