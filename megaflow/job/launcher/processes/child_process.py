"""One worker process of a job in the launcher: its connection, its exit report and its end.

The process may run on this machine, as a `subprocess.Popen`. For a process on another machine, an object with the same
interface (`WorkerProcess`) stands in. Each of its waits has a bound.
"""

import contextlib
import signal
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import IO, Protocol

from megaflow.errors import ClusterError, LimitReached, PeerLost
from megaflow.job.exit_report import ExitReport, KeptBins, ReportPipe
from megaflow.job.heartbeat import HeartbeatFile
from megaflow.job.launcher.processes.print_reader import Prints
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from megaflow.job.limits import limit_text
from megaflow.job.log_records import LogPlace
from megaflow.job.spec import Address, ChildSpec
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.client import Client

CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS)
UNREACHABLE = "bring up the network interface of this address (ip link set lo up), or name another one by --listen"
EXIT_SECONDS = 5.0  # for a process to end after its exit report


class WorkerProcess(Protocol):
    """The interface of a process: the part of `subprocess.Popen` that the launcher uses."""

    @property
    def pid(self) -> int:
        """Its id on the machine where it runs; 0 while that is unknown."""

    @property
    def returncode(self) -> int | None:
        """The exit code, if it is known yet; negative: minus the signal that killed it."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe to its standard input."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""

    def kill(self) -> None:
        """End it at once."""


@dataclass(eq=False)
class Child:
    """One worker process."""

    address: Address
    process: WorkerProcess | None = None  # None: it was started by hand
    pipe: ReportPipe | None = None
    sign: HeartbeatFile | None = None
    workers: tuple[int, ...] = ()  # their ids, once it is part of the job
    running: set[int] = field(default_factory=set)  # the workers that have not sent `Ended`
    client: Client | None = None  # None before it is connected and after it has closed
    failure: str | None = None  # the error that it reported before it ended
    given_up: str | None = None  # why it was killed before it was part of the job
    host: str = ""  # what runs its process elsewhere; "": it runs here, or was started by hand
    how_lost: Callable[[], str | None] = lambda: None  # how it ended, if the exit code does not show it
    out_of_memory: Callable[[], str] = lambda: ""  # which memory was exhausted, if the kernel killed processes for that
    printed: Prints | None = None  # what it prints; None if it was started by hand

    def __str__(self) -> str:
        """Return its name in messages."""
        first, *others = self.workers or (None,)
        workers = "a new process" if first is None else f"worker {first}"
        if others:
            workers = f"workers {first} to {others[-1]}"
        place = address_text(self.address)
        pid = f"pid {self.process.pid}" if self.process is not None and self.process.pid else ""
        return f"{workers} ({', '.join(filter(None, (place, pid, self.host)))})"

    def label(self, worker: int | None) -> str:
        """Return the beginning of a line that a worker prints. None: the process prints it."""
        if worker is None and not self.workers:
            return f"new process {self.process.pid}: " if self.process is not None else ""
        return f"worker {self.workers[0] if worker is None else worker}: "

    def log_place(self, spec: ChildSpec, worker: int | None) -> LogPlace:
        """Return the place of a line that a worker prints, in a part of the job. None: the process prints it."""
        if worker is None and len(self.workers) == 1:
            worker = self.workers[0]
        return LogPlace(spec.name or None, worker, 0 if spec.durable is None else spec.durable.incarnation)

    def printed_lines(self, spec: ChildSpec) -> PrintedLines:
        """Return the lines of its process, empty so far, in the form that the job wants."""
        return PrintedLines(self.label, partial(self.log_place, spec) if spec.job.log_format == "json" else None)

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
        """Its exit report, if it wrote one and `pipe.read` has read it."""
        return None if self.pipe is None else self.pipe.report

    def join(self, workers: Sequence[int]) -> None:
        """Note that it is part of the job."""
        self.workers = tuple(workers)
        self.running = set(workers)

    def connect(
        self, secret: bytes, timeout_seconds: float, is_at_work: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Client:  # fmt: skip
        """Connect to the child; blocks while the child starts. Raises ClusterError if it does not answer.

        Waits beyond the timeout while the child `is_at_work`, because its dataflow may take long to build. Stops
        waiting once the child has ended, or if `is_over`: a process that the child waits for has ended. The end must be
        checked, because the launcher may hold the child's listening socket, and then no connection attempt fails.
        """

        def never_answers() -> bool:
            return self.exit_code is not None or is_over()

        try:
            self.client = Client.connect(
                *self.address, secret, "launcher", {}, timeout_seconds, is_at_work, never_answers
            )
        except TimeoutError as error:
            raise ClusterError(f"{self} did not answer within {timeout_seconds:g} s") from error
        except (PeerLost, OSError) as error:
            if text := limit_text(error):
                raise LimitReached(text) from error
            if self.exit_code is None and is_over():
                raise ClusterError(f"{self} waits for a process that has ended") from error
            self.wait(EXIT_SECONDS)
            if self.exit_code is None and not isinstance(error, PeerLost | ConnectionError):
                raise ClusterError(f"Cannot connect to {self}: {error.strerror or error}; {UNREACHABLE}") from error
            raise self.with_last_lines(ClusterError(f"{self} {self.how_it_ended()} before it began")) from error
        return self.client

    def close(self) -> None:
        """Close the connection."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def wait(self, seconds: float) -> None:
        """Wait until it has exited, for at most `seconds`."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, seconds))

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.close()
        if self.process is not None:
            self.process.kill()

    @property
    def stays(self) -> bool:
        """Whether it is known to have lost others and to wait for a part in the next attempt."""
        return self.pipe is not None and self.pipe.stays and self.exit_code is None

    @property
    def kept(self) -> KeptBins | None:
        """The bins that it holds, if it stays."""
        return None if self.pipe is None else self.pipe.kept

    def release(self) -> None:
        """Wait for its end and close its files."""
        if self.process is not None:
            self.process.wait()
            if self.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self.process.stdin.close()
        if self.pipe is not None:
            self.pipe.close()
        if self.sign is not None:
            self.sign.close()

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, and for a process started by hand."""
        return None if self.process is None else self.process.poll()

    def how_it_ended(self) -> str:
        """Return how it ended, as text for a message."""
        code = self.exit_code
        if (text := self.how_lost()) is not None:
            return text
        if code is None:
            return "closed its connection without giving a reason"
        if code == -signal.SIGKILL and (text := self.out_of_memory()):
            return f"was killed by SIGKILL {text}"
        if code < 0:
            return f"was killed by {signal_name(-code)}"
        if self.report is not None and self.report.kind == "failed":
            return f"failed: {self.report.text.strip().rstrip('.')}"
        return f"exited with code {code} without giving a reason"

    def with_last_lines(self, error: ClusterError) -> ClusterError:
        """Add the last lines that the process has printed to an error, as a note."""
        if self.printed is not None and (lines := self.printed.last()):
            error.add_note(f"the last lines that {self} printed:\n{textwrap.indent(lines, '  | ', lambda line: True)}")
        return error

    @property
    def ended_by_itself(self) -> bool:
        """Whether it caused its own end: it exited without a report, crashed, or exhausted a memory limit."""
        code = self.exit_code
        if code is None or self.report is not None or self.host:
            return False
        return code >= 0 or -code in CRASHES or (code == -signal.SIGKILL and bool(self.out_of_memory()))

    def why_it_never_joined(self) -> str:
        """Return why the process ended before it joined the job, as text for a message."""
        if self.given_up is not None:
            return f"{self} was killed: {self.given_up}"
        self.wait(EXIT_SECONDS)  # only a moment: it has closed its pipe
        if self.pipe is not None:
            self.pipe.read()
        return f"{self} {self.how_it_ended()}" if self.report is None else f"{self}: {self.report.text.strip()}"


def signal_name(number: int) -> str:
    """Return a signal's name.

    >>> signal_name(9), signal_name(1000)
    ('SIGKILL', 'signal 1000')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
