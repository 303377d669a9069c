"""Provisioners of worker processes: a provisioner finds slots, and starts a process in each.

A slot has the address at which its process will listen, so processes that start together can know each other's
addresses. `LocalProvisioner` is the launcher's own machine, whose slots are available at once:

1. A child inherits its listening socket, so its address is known before it runs and no other process can take its port.
2. For a durable job the launcher keeps a duplicate of the listening socket of each process it started, until the
   process has left the job. So a replacement listens at the same address, which no other program can get. A connection
   made meanwhile waits there, and the new process accepts it. The handshake ends connections of the old job.
3. A child runs the same megaflow as the launcher, and imports no module of the current directory, whose files may come
   from anyone. That directory is not in its path (`-P`). Megaflow's folder is there only while it imports `megaflow`.
4. A child gets its `ChildSpec` over a pipe, its initial standard input, which then stays open (see `children`). It
   prints into another pipe (see `print_reader`).
"""

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self

from megaflow.errors import LimitReached
from megaflow.job.exit_report import ReportPipe
from megaflow.job.heartbeat import HeartbeatFile
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.print_reader import PrintReader
from megaflow.job.launcher.processes.wakeups import withheld_signals
from megaflow.job.limits import start_text
from megaflow.job.memory_limit import watch_kills
from megaflow.job.nested_start import check_depth
from megaflow.job.spec import Address, ChildSpec, address_of, listening, send_spec
from megaflow.own_files import keep_socket
from megaflow.python_executable import PACKAGES, marked_environment, python_path
from megaflow.quick_dataclass import dataclass

BOOT = (
    "import gc, sys, typing; gc.disable(); sys.path.insert(0, sys.argv.pop()); import megaflow; del sys.path[0]; "
    "from megaflow.job.worker.process.lifeline import leave_signals; leave_signals(); "
    "from megaflow.job.worker.process.{} import main; gc.freeze(); gc.enable(); sys.exit(main())"
)
"""Objects that imports create stay. Garbage collection during the imports would find nothing and take 6 % of the start.
The first collections afterwards would take 30 ms to scan these objects, so `gc.freeze` hides them."""


def command(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of `megaflow.job.worker.process` in a new process. Raises UsageError."""
    return python_path(), "-P", "-c", BOOT.format(module), PACKAGES


class ProcessSlot(Protocol):
    """Place for one process."""

    @property
    def address(self) -> Address:
        """Address at which the process will listen."""

    def start(self, spec: ChildSpec) -> Child:
        """Start the process; fill in the slot's own fields of the spec. Raises OSError or MegaflowError."""

    def close(self) -> None:
        """Give the slot back, if no process was started there."""


class Search(Protocol):
    """Search for slots."""

    def found(self) -> list[ProcessSlot]:
        """Return the slots found since the last call. Raises MegaflowError or OSError if the rest cannot be found."""

    def waits_for(self) -> str:
        """Return what the missing slots wait for."""

    def close(self) -> None:
        """End the search."""


class Provisioner(Protocol):
    """Place where processes run."""

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], bool], again: Sequence[Address] = ()
    ) -> Search:
        """Begin to look for slots of processes; each gets the draft, completed with its part and slot.

        `wake` is called, from any thread, when there is news. `again` lists the addresses of the processes that these
        replace. Raises MegaflowError or OSError.
        """

    def room(self, count: int) -> int:
        """Return how many of `count` processes of a restart have slots, at least one."""

    def let_go(self, address: Address) -> None:
        """Release everything kept for the process at this address, which will not be replaced."""


@dataclass(eq=False, slots=True)
class LocalSlot:
    """Listening socket that a process of this machine will inherit."""

    listener: socket.socket
    prints: PrintReader
    started: Callable[[socket.socket], None] = lambda listener: None  # called before the socket is handed over

    def __post_init__(self) -> None:
        keep_socket(self.listener)

    @property
    def address(self) -> Address:
        """Address of the socket."""
        return address_of(self.listener)

    def start(self, spec: ChildSpec) -> Child:
        """Start the process. Raises LimitReached if the system refuses."""
        pipe, sign, printed, child = ReportPipe(), None, None, Child(self.address)
        out_of_memory = watch_kills()
        try:
            sign = HeartbeatFile(time.monotonic())
            printed = self.prints.open(child.printed_lines(spec), spec.job.workers)
            assert printed.dropped is not None, "the process has not ended"
            files = (self.listener.fileno(), pipe.writing, sign.file, printed.dropped.file)
            words, environment = command("child"), marked_environment()
            with withheld_signals():
                process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=printed.writing, stderr=printed.writing, pass_fds=files,
                    process_group=0, env=environment,
                )  # fmt: skip
        except BaseException as error:
            pipe.close()
            if sign is not None:
                sign.close()
            if isinstance(error, OSError):
                raise LimitReached(start_text(error)) from error
            raise
        finally:
            pipe.close_writing()
            if printed is not None:
                printed.close_writing()
        spec = replace(
            spec, address=self.address, listener_fd=self.listener.fileno(), report_fd=pipe.writing, sign_fd=sign.file,
            dropped_fd=printed.dropped.file, on_terminal=self.prints.is_terminal,
        )  # fmt: skip
        self.started(self.listener)
        self.listener.close()  # a dead child then refuses connections, unless `started` has kept a duplicate
        send_spec(process.stdin, spec)
        child.process, child.pipe, child.sign, child.out_of_memory = process, pipe, sign, out_of_memory
        child.printed = printed
        return child

    def go_on(self, child: Child, spec: ChildSpec) -> Child:
        """Give a process that has stayed, and that listens here, a new part of the job."""
        assert child.process is not None and child.pipe is not None, "the launcher has started it"
        address = self.address
        child.pipe.begin_anew()
        self.started(self.listener)
        self.listener.close()
        send_spec(child.process.stdin, replace(spec, address=address))
        again = Child(
            address, child.process, child.pipe, child.sign, out_of_memory=watch_kills(), printed=child.printed
        )
        if again.printed is not None:
            fresh = again.printed_lines(spec)
            again.printed.lines.label, again.printed.lines.place = fresh.label, fresh.place
        return again

    def close(self) -> None:
        """Close the socket."""
        self.listener.close()


class LocalSlots:
    """Search that has found all slots."""

    def __init__(self, slots: Sequence[ProcessSlot]) -> None:
        self._slots = list(slots)

    def found(self) -> list[ProcessSlot]:
        """Return all slots at the first call, then none."""
        found, self._slots = self._slots, []
        return found

    def waits_for(self) -> str:
        """Return "": nothing waits."""
        return ""

    def close(self) -> None:
        """Do nothing: the search is over."""


class LocalProvisioner:
    """This machine; a context manager that closes the sockets with which no process was started."""

    def __init__(self, listen: str, founders: int, is_durable: bool = False) -> None:
        """Listen for the founders at once; `listen` is the value of `--listen`.

        Raises UsageError if it cannot listen there, if no Python can run the processes, or if the job runs inside too
        many others.
        """
        check_depth()
        python_path()
        self._listen = listen
        self._is_durable = is_durable
        self._held: dict[Address, socket.socket] = {}  # of the processes that the launcher started
        with listening(listen, founders) as listeners:
            self._prints = PrintReader()
            self._first = [LocalSlot(listener.dup(), self._prints, self._hold) for listener in listeners]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._first:
            slot.close()
        for address in list(self._held):
            self.let_go(address)
        self._prints.close()

    def find(
        self, count: int, draft: ChildSpec, wake: Callable[[], bool], again: Sequence[Address] = ()
    ) -> LocalSlots:
        """Return slots: first those of the founders, then those at the addresses in `again`, or else new ones."""
        if self._first:
            slots, self._first = self._first, []
        elif again:
            slots = [LocalSlot(self._held.pop(address), self._prints, self._hold) for address in again]
        else:
            with listening(self._listen, count, skipping=True) as listeners:
                slots = [LocalSlot(listener.dup(), self._prints, self._hold) for listener in listeners]
        return LocalSlots(slots)

    def room(self, count: int) -> int:
        """Return `count`: this machine has room for all."""
        return count

    def let_go(self, address: Address) -> None:
        """Close the kept duplicate of a socket."""
        if (listener := self._held.pop(address, None)) is not None:
            listener.close()

    def waits_text(self) -> str:
        """Return "": nothing waits for a place."""
        return ""

    def _hold(self, listener: socket.socket) -> None:
        if self._is_durable:
            self._held[address_of(listener)] = keep_socket(listener.dup())
