"""A worker process on an executor, as its agent reports it; `Child` treats it like any other process.

    queued ── an agent says hello ─▶ granted ── begin ─▶ running ── Over, or the connection's end ─▶ ended
       └────── no agent can run, the launcher kills it, or the Spark job that runs it has ended ───────▲

1. A process's number is granted to one attempt, permanently. Spark may start another attempt if it retries a task or
   finds it slow. That attempt waits until the first is known to have ended. Then it is dismissed and returns as if all
   were well. If it returned earlier, Spark could take the task for finished, and kill the live attempt.
2. `kill` ends a process in three stages. It asks the agent to end it. After CANCEL_SECONDS, or at once without an
   agent, it asks Spark to end the task. After LOST_SECONDS nothing waits any longer, and the error names the executor.
   Fencing then protects the job as from every lost process: its peers and the store accept nothing from it. If an
   executor's machine does not answer, no further process starts there, because Spark itself would notice only after
   minutes.
3. The launcher has the pipe and the file in which exit report and heartbeats arrive, with times of its own clock. So
   the code that watches processes sees no difference. The process's own printed lines go to the launcher's standard
   error, with the names of worker and executor, and as `print_reader` shows those of other processes.

Any thread may ask for a change. One lock guards all changes; only the door's thread touches a connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from megaflow.job import agent_messages as messages
from megaflow.job.agent_messages import AgentHello
from megaflow.job.exit_report import ReportPipe
from megaflow.job.heartbeat import Heartbeat, HeartbeatFile, parse_sign
from megaflow.job.launcher.processes.agent_door import AgentDoor
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.print_reader import PrintReader, Prints
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from megaflow.job.launcher.processes.wakeups import call_later
from megaflow.job.log_records import LogPlace
from megaflow.job.spec import Address, ChildSpec
from megaflow.quick_dataclass import dataclass
from megaflow.spark import launching as spark
from megaflow.timely.communication.role_handlers import Connection

CANCEL_SECONDS: Final = 2.0
LOST_SECONDS: Final = 10.0
NOTICED_SECONDS: Final = 3.0  # for the system to notice that an executor has ended
NOTICED_POLL_SECONDS: Final = 0.1
KILLED: Final = -9
SILENCE: Final = frozenset(map(os.strerror, (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)))
"""The kernel's errors for a connection to a machine that does not answer."""


@dataclass(eq=False)
class RemoteProcess:
    """One process. Its public methods named as in `subprocess.Popen` behave as there."""

    stdin: ClassVar[None] = None

    number: int
    door: AgentDoor
    changed: Callable[[], object]  # called when it is granted or has ended, from any thread
    jobs: spark.WorkerJobs  # of which its agent is one
    prints: PrintReader  # shows what it prints
    draft: ChildSpec | None = None  # of the process

    def __post_init__(self) -> None:
        self.pid = 0  # until it has started
        self.returncode: int | None = None
        self.hello: AgentHello | None = None  # of the agent to which it is granted
        self.reached: frozenset[Address] | None = None  # addresses that this agent can reach; None: not known
        self.trouble: str | None = None  # why it cannot begin, or how it was lost
        self.pipe = ReportPipe()
        self.sign = HeartbeatFile(time.monotonic())
        self.child: Child | None = None  # from `begin` on
        self._probed = self.changed
        self._is_lost = False  # the connection ended without a report
        self._lock = threading.Condition()
        self._connection: Connection | None = None
        self._others: list[Connection] = []  # other attempts, waiting for the end
        is_json = self.draft is not None and self.draft.job.log_format == "json"
        self._printed = Prints(self.prints, PrintedLines(self._label, self._log_place if is_json else None))
        self._timers: list[threading.Timer] = []

    @property
    def place(self) -> str:
        """The executor on which it runs, in words; "" before that is known."""
        hello = self.hello
        return "" if hello is None else f"executor {hello.executor}" + (f" on {hello.host}" if hello.host else "")

    @property
    def log(self) -> str:
        """Text that names its log, or ""."""
        return f"; its log: {self.hello.log_url}" if self.hello is not None and self.hello.log_url else ""

    # Called by any thread

    def probe(self, targets: tuple[tuple[Address, ...], ...], told: Callable[[], object] | None = None) -> None:
        """Ask the agent which of these addresses it can connect to; `told` is called when it has answered."""
        self._probed = told or self.changed
        self._send(messages.Probe(targets))

    def begin(self, name: str, host: str, process: int | None, addresses: tuple[Address, ...]) -> Child:
        """Start the process; return it as the launcher's `Child`."""
        assert self.hello is not None, "it is seated"
        address = (host, self.hello.port)
        self.child = Child(
            address, self, self.pipe, self.sign, host=self.place, how_lost=self.how_lost, printed=self._printed
        )
        self._send(messages.Begin(name, host, process, addresses))
        return self.child

    def how_lost(self) -> str | None:
        """Return how the process was lost, None if it was not. May block until Spark knows which executor has ended.

        Call it for a process that has ended, or that its peers have lost.
        """
        deadline = time.monotonic() + NOTICED_SECONDS
        with self._lock:
            if not self._lock.wait_for(lambda: self.returncode is not None, NOTICED_SECONDS):
                return f"does not answer{self.log}"
        while self._is_lost and self.trouble is None and self.hello is not None:
            reason = self.jobs.why_lost(self.hello.executor)
            if reason is None and time.monotonic() < deadline:
                time.sleep(NOTICED_POLL_SECONDS)
                continue
            self.trouble = f"was lost: {reason or 'its agent was killed, and the process with it'}{self.log}"
        return self.trouble

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Without a timeout that takes as long as the process, but `kill` bounds it."""
        with self._lock:
            if not self._lock.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(f"process {self.number}", timeout or 0.0)
            assert self.returncode is not None
            return self.returncode

    def kill(self) -> None:
        """End the process; see rule 2."""
        with self._lock:
            if self.returncode is not None or self._timers:
                return
            seconds = CANCEL_SECONDS if self._connection is not None else 0.0
            cancel = partial(self.jobs.cancel, self.number)
            self._timers = [call_later(seconds, cancel), call_later(LOST_SECONDS, self._give_up)]
        self._send(messages.Kill())

    def end(self, code: int, trouble: str | None, report: bytes = b"") -> None:
        """Note that it has ended, or will not begin. Later calls do nothing."""
        with self._lock:
            if self.returncode is not None:
                return
            self.returncode, self.trouble = code, self.trouble or trouble
            for timer in self._timers:
                timer.cancel()
            with contextlib.suppress(OSError):
                os.write(self.pipe.writing, report)
            self.pipe.close_writing()
            self.door.call(self._part)  # first, because a thread that waits may then close the door
            self._lock.notify_all()
        self.changed()

    # Called by the door's thread

    def greet(self, connection: Connection, hello: AgentHello) -> None:
        """Grant the process to an attempt, or let the attempt wait."""
        with self._lock:
            granted = self.hello is None and self.returncode is None
            if granted:
                self.hello, self._connection = hello, connection
        if granted:
            self.changed()
            return
        self._others.append(connection)
        if self.returncode is not None:
            self.door.call(self._part)  # after the handshake

    def hear(self, connection: Connection, value: Any) -> None:
        """Process an agent's message. Raises ProtocolError."""
        word = messages.check_word(value, messages.FROM_AGENT)
        if connection is not self._connection:
            return
        match word:
            case messages.Unfit(reason):
                self.end(1, f"{self.place}: {reason}")
            case messages.Probed(reached):
                self.reached = frozenset(reached) | (self.reached or frozenset())
                self._probed()
            case messages.Born(pid):
                self.pid = pid
                self.sign.begin(time.monotonic())
            case messages.Printed(data):
                self._printed.show(data)
            case messages.Signed(now, data):
                self._take_sign(now, data)
            case messages.Over(code, report):
                self.end(code, None, report)

    def lose(self, connection: Connection) -> None:
        """Note the end of a connection."""
        if connection is self._connection:
            self._connection = None
            self._is_lost = True
            self.end(KILLED, self._silence() if connection.trouble in SILENCE else None)
        elif connection in self._others:
            self._others.remove(connection)

    def _part(self) -> None:
        """Close the connections to the agent and to other attempts."""
        self._printed.show(b"", is_last=True)
        if self._connection is not None:
            self._connection.close()
        for connection in self._others:
            connection.send(messages.Dismiss("another attempt has had this process"))
            connection.close()
        self._others.clear()

    def _send(self, word: object) -> None:
        def send() -> None:
            if self._connection is not None:
                self._connection.send(word)

        self.door.call(send)

    def _silence(self) -> str:
        """Note that the machine does not answer; return the description."""
        self.jobs.cancel(self.number)
        if self.hello is not None:
            self.jobs.avoid(self.hello.executor)
        return f"was lost: its machine does not answer{self.log}"

    def _give_up(self) -> None:
        if self.hello is not None:
            self.jobs.avoid(self.hello.executor)
        seconds = f"{LOST_SECONDS:g} s"
        self.end(KILLED, f"did not end within {seconds}: {self.place or 'Spark'} does not answer{self.log}")

    def _label(self, worker: int | None) -> str:
        workers = () if self.child is None else self.child.workers
        first = workers[0] if worker is None and workers else worker
        return f"[{f'process {self.number}' if first is None else f'worker {first}'}, {self.place}] "

    def _log_place(self, worker: int | None) -> LogPlace:
        if self.child is None or self.draft is None:
            return LogPlace()
        return self.child.log_place(self.draft, worker)

    def _take_sign(self, now: float, data: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
            if (sign := parse_sign(data)) is not None:
                ahead = time.monotonic() - now
                busy = tuple(replace(step, since=step.since + ahead) for step in sign.busy)
                self.sign.write(Heartbeat(sign.now + ahead, busy))
