"""One worker process of a job as the launcher sees it: connected to, watched, ended, waited for.

Its process may run here, a `subprocess.Popen`, or elsewhere: then something answers for it that can be asked the same
(`WorkerProcess`), and no wait for that is without bound.
"""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import IO, Protocol

from megaflow.errors import ClusterError, PeerLost
from megaflow.job.exit_report import ExitReport, KeptBins, ReportPipe
from megaflow.job.sign_of_life import SignFile
from megaflow.job.spec import Address
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

EXIT_SECONDS = 5.0  # from its exit report to the end of a process


class WorkerProcess(Protocol):
    """What is asked of a process: see `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its id, where it runs; 0 as long as that is not known."""

    @property
    def returncode(self) -> int | None:
        """The exit code, as far as it is known; negative: the signal that it was killed by."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe to it."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

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
    sign: SignFile | None = None
    workers: tuple[int, ...] = ()  # their ids, from when it is part of the job
    running: set[int] = field(default_factory=set)  # those that have not said `Ended`
    client: Client | None = None  # None before it is connected and after it has closed
    failure: str | None = None  # what it said before it ended
    given_up: str | None = None  # why it was killed before it was part of the job
    host: str = ""  # what runs its process elsewhere; "": it runs here, or was started by hand
    how_lost: Callable[[], str | None] = lambda: None  # how it ended, where the exit code does not tell

    def __str__(self) -> str:
        """Return how messages name it."""
        first, *others = self.workers or (None,)
        workers = "a new process" if first is None else f"worker {first}"
        if others:
            workers = f"workers {first} to {others[-1]}"
        place = address_text(self.address)
        pid = f"pid {self.process.pid}" if self.process is not None and self.process.pid else ""
        return f"{workers} ({', '.join(filter(None, (place, pid, self.host)))})"

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

    def connect(self, secret: bytes, timeout_seconds: float, is_at_work: Callable[[], bool] = lambda: False) -> Client:
        """Connect to the child, which takes as long as it needs to start. Raises ClusterError if it does not.

        Waits for longer than the time given while the child `is_at_work`: what it builds may take long.
        """
        try:
            self.client = Client.connect(*self.address, secret, "launcher", {}, timeout_seconds, is_at_work)
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

    @property
    def stays(self) -> bool:
        """Whether it has lost others, and waits to be given another part, as far as it is known."""
        return self.pipe is not None and self.pipe.stays and self.exit_code is None

    @property
    def kept(self) -> KeptBins | None:
        """The bins that it has, if it stays."""
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
        """The exit code; None while it runs, and of processes started by hand."""
        return None if self.process is None else self.process.poll()

    def how_it_ended(self) -> str:
        """Say how it ended, by its exit code."""
        code = self.exit_code
        if (text := self.how_lost()) is not None:
            return text
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


def signal_name(number: int) -> str:
    """Return a signal's name.

    >>> signal_name(9), signal_name(1000)
    ('SIGKILL', 'signal 1000')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
