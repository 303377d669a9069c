"""The worker processes of a job as the launcher sees them: started, connected to, watched, ended, blamed.

1. A child inherits its listening socket, so its address is known before it runs and no port can be lost to others.
2. It gets its `ChildSpec` over its standard input, which then stays open: when the launcher dies, however, the
   children see the end of it and stop.
3. It is the leader of a process group of its own: Ctrl-C at a terminal reaches the launcher only, which drains.
4. What it prints goes to the launcher's standard error: standard output is for records.
5. A dead child is noticed by the end of its connection, which the kernel closes whatever it died of.
"""

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from megaflow.errors import ClusterError, PeerFailed, PeerLost, UsageError
from megaflow.run.spec import ChildSpec
from megaflow.timely.communication.client import Client

COMMAND = (sys.executable, "-m", "megaflow.run.child")
BACKLOG = 128
EXIT_SECONDS = 5.0  # from its last word to the end of a process
STDERR = 2


class Child:
    """One worker process."""

    def __init__(self, spec: ChildSpec, process: "subprocess.Popen[bytes]") -> None:
        self.spec = spec
        self.process = process
        self.client: Client | None = None  # None before it is connected and after it has closed
        self.failure: str | None = None  # what it said before it ended
        first = spec.process * spec.workers
        self.running = set(range(first, first + spec.workers))  # its workers that have not said `Ended`

    def __str__(self) -> str:
        """Return how messages name it."""
        first = self.spec.process * self.spec.workers
        workers = f"worker {first}" if self.spec.workers == 1 else f"workers {first} to {first + self.spec.workers - 1}"
        host, port = self.spec.addresses[self.spec.process]
        return f"{workers} ({host}:{port}, pid {self.process.pid})"

    def send_spec(self) -> None:
        """Send the child what it must know."""
        assert self.process.stdin is not None
        data = pickle.dumps(self.spec)
        with contextlib.suppress(BrokenPipeError):  # it has died: connecting will show that
            self.process.stdin.write(len(data).to_bytes(8, "big") + data)
            self.process.stdin.flush()

    def connect(self, timeout_seconds: float) -> Client:
        """Connect to the child, which takes as long as it needs to start. Raises ClusterError if it does not."""
        host, port = self.spec.addresses[self.spec.process]
        try:
            self.client = Client.connect(host, port, self.spec.secret, "launcher", {}, timeout_seconds)
        except TimeoutError as error:
            raise ClusterError(f"{self} did not answer within {timeout_seconds:g} s") from error
        except (PeerLost, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(EXIT_SECONDS)
            raise ClusterError(f"{self} {self.how_it_ended()} before it began") from error
        return self.client

    def close(self) -> None:
        """Close the connection."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def how_it_ended(self) -> str:
        """Return the words for its exit code."""
        code = self.process.poll()
        if code is None:
            return "closed its connection without a word"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        return f"exited with code {code} without a word"


class Children:
    """All worker processes of a job; a context manager that leaves none behind."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, listeners: Sequence[socket.socket], spec_of: Callable[[int, int], ChildSpec]) -> None:
        """Start one process for each listening socket, with `spec_of(process, fd)`; close the sockets here."""
        for process, listener in enumerate(listeners):
            spec = spec_of(process, listener.fileno())
            popen = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=STDERR, pass_fds=(listener.fileno(),), process_group=0
            )
            self.all.append(Child(spec, popen))
            listener.close()  # so that a dead child refuses connections
        for child in self.all:
            child.send_spec()

    def wait_for_exit(self, seconds: float) -> None:
        """Wait until all have exited, but no longer than that."""
        deadline = time.monotonic() + seconds
        for child in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End all that still run, at once, and wait for that."""
        for child in self.all:
            child.close()
            child.process.kill()  # does nothing to one that has exited
        for child in self.all:
            child.process.wait()
            assert child.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.process.stdin.close()

    def blame(self, failures: Sequence[str]) -> ClusterError | None:
        """Return why the job failed, judging by those that have exited by themselves; None if it did not.

        A process that was killed is the cause of whatever the others complain of; then counts who complained
        first (`failures`); then a process that ended early and said nothing.
        """
        ended = [child for child in self.all if child.process.poll() is not None]
        for child in ended:
            if child.process.returncode < 0 and child.failure is None:
                return ClusterError(f"{child} {child.how_it_ended()}; all other workers have been stopped")
        if failures:
            return PeerFailed(failures[0])
        for child in ended:
            if child.running or child.process.returncode:
                return ClusterError(f"{child} {child.how_it_ended()}; all other workers have been stopped")
        for child in self.all:
            if child.running and child.client is None:
                return ClusterError(f"{child} {child.how_it_ended()}; all other workers have been stopped")
        return None


def signal_name(number: int) -> str:
    """Return a signal's name.

    >>> signal_name(9), signal_name(1000)
    ('SIGKILL', 'signal 1000')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def listening(host: str, count: int) -> Iterator[list[socket.socket]]:
    """Give `count` sockets that listen on free ports of `host`. Raises UsageError if they cannot be had."""
    with contextlib.ExitStack() as stack:
        listeners = []
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            for _ in range(count):
                listeners.append(stack.enter_context(socket.create_server((host, 0), family=family, backlog=BACKLOG)))
        except OSError as error:
            raise UsageError(f"--listen {host}: {error.strerror or error}") from error
        yield listeners


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Return where to reach a listening socket; from this machine, if it listens on all addresses."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
