"""The worker processes of a job as the launcher sees them: started, connected to, watched, ended, blamed.

1. A child inherits its listening socket, so its address is known before it runs and no port can be lost to others.
2. It gets its `ChildSpec` over a pipe, at first its standard input, which then stays open. However the launcher dies,
   the children end with it (see `megaflow.job.worker.lifeline`): the pipe is closed, and the thread that starts them
   ends, only when they have.
3. It leads a process group of its own: Ctrl-C at a terminal reaches only the launcher, which drains the job.
4. What it prints goes to the launcher's standard error: standard output is for records.
5. A dead child is noticed by the end of its connection, or of the pipe for its exit report, which the kernel closes
   whatever the child died of.
6. A child that is to join the running job becomes part of it when the coordinator says so; if it ends before, that
   does not concern the job. A process that was started by hand is a child, too, once it has joined, but the launcher
   cannot kill it or see it die.
7. One that has ended is waited for and its files are closed at once. A member that ended well is forgotten; of those
   that never joined the last ENDED_KEPT are kept, as the word that one has joined may come after its end.
8. If the job is durable the launcher keeps a duplicate of the listening socket of each process that it has started,
   until that has left the job: so those that take its place listen at the same address, which nobody else can get. Who
   connects meanwhile waits there, and is served by the new one; what is left of the old job's own connections ends in
   the handshake.
9. It runs this very megaflow, and no module of the current directory, which may be anybody's: that is not in its path
   (`-P`), and the folder of megaflow only while `megaflow` itself is imported.
"""

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from megaflow.errors import ClusterError, MegaflowError, PeerLost
from megaflow.job.exit_report import ExitReport, ReportPipe
from megaflow.job.sign_of_life import SignFile
from megaflow.job.spec import Address, ChildSpec, Founder, JoiningProcess, address_of
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

BOOT = (
    "import sys, typing; sys.path.insert(0, sys.argv.pop()); import megaflow; del sys.path[0]; "
    "from megaflow.job.worker.{} import main; sys.exit(main())"
)
COMMAND = (sys.executable, "-P", "-c", BOOT.format("child"), str(Path(__file__).parents[3]))
EXIT_SECONDS = 5.0  # from its exit report to the end of a process
ENDED_KEPT = 100  # many more than can be on their way
STDERR = 2
STOPPED = "all other workers have been stopped"
RESTART = "nobody else has that state: run the job again from its first line"


@dataclass(eq=False)
class Child:
    """One worker process."""

    address: Address
    process: "subprocess.Popen[bytes] | None" = None  # None: it was started by hand
    pipe: ReportPipe | None = None
    sign: SignFile | None = None
    workers: tuple[int, ...] = ()  # their ids, from when it is part of the job
    running: set[int] = field(default_factory=set)  # those that have not said `Ended`
    client: Client | None = None  # None before it is connected and after it has closed
    failure: str | None = None  # what it said before it ended
    given_up: str | None = None  # why it was killed before it was part of the job

    def __str__(self) -> str:
        """Return how messages name it."""
        first, *others = self.workers or (None,)
        workers = "a new process" if first is None else f"worker {first}"
        if others:
            workers = f"workers {first} to {others[-1]}"
        place = address_text(self.address)
        return f"{workers} ({place})" if self.process is None else f"{workers} ({place}, pid {self.process.pid})"

    @property
    def is_member(self) -> bool:
        """Whether it is part of the job, or was."""
        return bool(self.workers)

    @property
    def has_left(self) -> bool:
        """Whether it was part of the job and has ended well."""
        has_ended = self.process is None or self.exit_code == 0
        return self.is_member and not self.running and self.client is None and has_ended

    @property
    def report(self) -> ExitReport | None:
        """Its exit report, if it wrote one and `pipe.read` has taken that in."""
        return None if self.pipe is None else self.pipe.report

    def join(self, workers: Sequence[int]) -> None:
        """Note that it is part of the job."""
        self.workers = tuple(workers)
        self.running = set(workers)

    def send_spec(self, spec: ChildSpec) -> None:
        """Send the child its spec."""
        assert self.process is not None and self.process.stdin is not None
        data = pickle.dumps(spec)
        with contextlib.suppress(BrokenPipeError):  # it has died: connecting will show that
            self.process.stdin.write(len(data).to_bytes(8, "big") + data)
            self.process.stdin.flush()

    def connect(self, secret: bytes, timeout_seconds: float) -> Client:
        """Connect to the child, which takes as long as it needs to start. Raises ClusterError if it does not."""
        try:
            self.client = Client.connect(*self.address, secret, "launcher", {}, timeout_seconds)
        except TimeoutError as error:
            raise ClusterError(f"{self} did not answer within {timeout_seconds:g} s") from error
        except (PeerLost, OSError) as error:
            self.wait(EXIT_SECONDS)
            raise ClusterError(f"{self} {self.how_it_ended()} before it began") from error
        return self.client

    def close(self) -> None:
        """Close the connection."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def wait(self, seconds: float) -> None:
        """Wait until it has exited, but no longer than that."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, seconds))

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.close()
        if self.process is not None:
            self.process.kill()

    def release(self) -> None:
        """Wait for its end and close its files."""
        if self.process is not None:
            self.process.wait()
            assert self.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self.pipe is not None:
            self.pipe.close()
        if self.sign is not None:
            self.sign.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, and of processes started by hand."""
        return None if self.process is None else self.process.poll()

    def how_it_ended(self) -> str:
        """Say how it ended, by its exit code."""
        code = self.exit_code
        if code is None:
            return "closed its connection without giving a reason"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        return f"exited with code {code} without giving a reason"

    def why_it_never_joined(self) -> str:
        """Say why a process ended before it was part of the job."""
        if self.given_up is not None:
            return f"{self} was killed: {self.given_up}"
        self.wait(EXIT_SECONDS)  # it has closed its pipe: this takes a moment only
        if self.pipe is not None:
            self.pipe.read()
        return f"{self} {self.how_it_ended()}" if self.report is None else f"{self}: {self.report.text.strip()}"


class Children:
    """All worker processes of a job; a context manager that leaves none running."""

    def __init__(self, is_durable: bool = False) -> None:
        """`is_durable`: what a process has is not lost with it."""
        self.all: list[Child] = []
        self.coordinator: Address = ("", 0)  # where the one that coordinates the job listens
        self._is_durable = is_durable
        self._held: dict[Address, socket.socket] = {}  # where those listen that the launcher has started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(self.all)
        for address in list(self._held):
            self._let_go(address)

    @property
    def members(self) -> list[Child]:
        """Those that are part of the job, or were."""
        return [child for child in self.all if child.is_member]

    def at(self, address: Address) -> Child | None:
        """Return the newest child that listens at this address."""
        return next((child for child in reversed(self.all) if child.address == address), None)

    def start(
        self,
        parts: Sequence[Founder | JoiningProcess],
        listeners: Sequence[socket.socket],
        spec_of: Callable[[Founder | JoiningProcess, socket.socket, int], ChildSpec],
    ) -> list[Child]:
        """Start a process for each part, with `spec_of(part, listener, report_fd)`; close the listening sockets.

        Founders are part of the job at once. Raises OSError; then none is started.
        """
        started: list[tuple[Child, ChildSpec]] = []
        held = {address_of(listener): listener.dup() for listener in listeners} if self._is_durable else {}
        self._held |= held
        try:
            for part, listener in zip(parts, listeners):
                started.append(start_process(part, listener, spec_of))
        except BaseException:  # all or none
            self.kill(child for child, _ in started)
            for address in held:
                self._let_go(address)
            raise
        self.all += [child for child, _ in started]
        for child, spec in started:
            child.send_spec(spec)
        return [child for child, _ in started]

    def bury(self, child: Child) -> None:
        """Let go of one that has closed its pipe, and so ends."""
        child.wait(EXIT_SECONDS)
        if child.exit_code is not None:
            child.release()
        if not child.is_member:
            self._let_go(child.address)
        self.forget_ended()

    def forget_ended(self) -> None:
        """Forget those that nobody will ask for."""
        left = {child for child in self.all if child.has_left}
        late = [child for child in self.all if not child.is_member and child.exit_code is not None][:-ENDED_KEPT]
        self.all = [child for child in self.all if child not in left and child not in late]
        for child in left:
            self._let_go(child.address)

    def begin_anew(self) -> list[Address]:
        """End all, and forget them; return where those listened that the launcher had started and the job still had.

        The address of the one that coordinated the job comes first. `take_listeners` has the sockets.
        """
        addresses = [child.address for child in self.members if child.process is not None and not child.has_left]
        addresses.sort(key=lambda address: address != self.coordinator)
        self.kill(self.all)
        self.all = []
        for address in self._held.keys() - set(addresses):
            self._let_go(address)
        return addresses

    def take_listeners(self, addresses: Iterable[Address]) -> list[socket.socket]:
        """Return the sockets that listen there, for `start`."""
        return [self._held.pop(address) for address in addresses]

    def _let_go(self, address: Address) -> None:
        if (listener := self._held.pop(address, None)) is not None:
            listener.close()

    def wait_for_exit(self, seconds: float) -> None:
        """Wait until all have exited, but no longer than that."""
        deadline = time.monotonic() + seconds
        for child in self.all:
            child.wait(deadline - time.monotonic())

    def kill(self, children: Iterable[Child]) -> None:
        """End these at once, as far as they still run, and wait for that."""
        children = list(children)
        for child in children:
            child.kill()
        for child in children:
            child.release()

    def blame(self, failures: Sequence[MegaflowError], unreached: ClusterError | None = None) -> MegaflowError | None:
        """Return why the job failed, judging by those that have exited by themselves; None if it did not.

        A process that was killed is the cause of all that the others report. Next comes the first failure that was
        reported (`failures`), then a process that others have lost, then one that ended early without a report, then
        one that could not be connected to (`unreached`).
        """
        for child in self.all:
            if child.pipe is not None:
                child.pipe.read()
        reports = [report for child in self.all if (report := child.report) is not None and report.kind == "lost"]
        lost = max(reports, key=lambda report: (len(report.workers), len(report.bins)), default=None)  # that says most
        ended = [child for child in self.members if child.exit_code is not None]
        for child in ended:
            if (child.exit_code or 0) < 0 and child.failure is None:
                return self._loss_of(child, lost)
        if failures:
            return failures[0]
        if lost is not None:
            dead = next((child for child in self.all if set(child.workers) & set(lost.workers)), None)
            return ClusterError(lost.text) if dead is None else self._loss_of(dead, lost)
        for child in ended:
            if child.running or child.exit_code:
                return self._loss_of(child, lost)
        for child in self.members if unreached is None else ():
            if child.running and child.client is None:
                return self._loss_of(child, lost)
        return unreached

    def _loss_of(self, child: Child, lost: ExitReport | None) -> ClusterError:
        bins = remedy = ""
        if lost is not None and set(lost.workers) & set(child.workers) and not self._is_durable:
            bins = f", and with it the state of {lost.bins}" if lost.bins else "; it owned no bins"
            remedy = f"; {RESTART}" if lost.bins else ""
        return ClusterError(f"{child} {child.how_it_ended()}{bins}; {STOPPED}{remedy}")


def start_process(
    part: Founder | JoiningProcess,
    listener: socket.socket,
    spec_of: Callable[[Founder | JoiningProcess, socket.socket, int], ChildSpec],
) -> tuple[Child, ChildSpec]:
    """Start one process, and return it with the spec that it is to be sent. Raises OSError."""
    pipe, sign = ReportPipe(), None
    try:
        sign = SignFile(time.monotonic())
        files = (listener.fileno(), pipe.writing, sign.file)
        process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=STDERR, pass_fds=files, process_group=0)
    except BaseException:
        pipe.close()
        if sign is not None:
            sign.close()
        raise
    finally:
        pipe.close_writing()
    spec = replace(spec_of(part, listener, pipe.writing), sign_fd=sign.file)
    listener.close()  # so that a dead child refuses connections, unless another one is to take its place
    child = Child(spec.address, process, pipe, sign)
    if isinstance(part, Founder):
        child.join(range(part.process * spec.job.workers, (part.process + 1) * spec.job.workers))
    return child, spec


def signal_name(number: int) -> str:
    """Return a signal's name.

    >>> signal_name(9), signal_name(1000)
    ('SIGKILL', 'signal 1000')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
