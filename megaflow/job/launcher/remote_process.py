"""A worker process that runs elsewhere, as far as its agent tells; in the eyes of `Child` a process like others.

    queued ── an agent says hello: granted ─▶ seated ── begin ─▶ running ── Over, or the connection's end ─▶ ended
       └─────────── no agent can run, nobody wants it any more, or the job of the system that runs it has ended ──▲

1. A number is granted to one attempt, for good. Another attempt, of a task that was tried again or is suspected to be
   slow, waits until the first is known to have ended, and is then dismissed: it returns as if all were well. If it
   returned earlier, Spark could take that for the success of the task, and kill the live one.
2. It is ended in this order: `kill` has the agent end it; after CANCEL_SECONDS the system that runs the agent is asked
   to end that; after LOST_SECONDS nobody waits any longer, and who did not end is named. What it may still do is fenced
   like all that a lost process may do: its peers and the store take nothing of it. On an executor whose machine does
   not answer nothing more is begun: the system itself would notice that after minutes.
3. Its exit report and signs of life arrive in a pipe and a file of the launcher's own, times in its own clock, so that
   who watches processes sees no difference. What it prints goes to the launcher's standard error, named.

Any thread may ask. What changes is changed under one lock, and by the door's thread where a connection is touched.
"""

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from megaflow.job.agent_messages import (
    FROM_AGENT,
    AgentHello,
    Begin,
    Born,
    Dismiss,
    Kill,
    Over,
    Printed,
    Probe,
    Probed,
    Signed,
    Unfit,
    check_word,
)
from megaflow.job.exit_report import ReportPipe
from megaflow.job.launcher.agent_door import AgentDoor
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.place import STDERR
from megaflow.job.sign_of_life import SignFile, SignOfLife, parse_sign
from megaflow.job.spec import Address
from megaflow.timely.communication.role_handlers import Connection

CANCEL_SECONDS: Final = 2.0
LOST_SECONDS: Final = 10.0
NOTICED_SECONDS: Final = 3.0  # for the system to notice that an executor has ended
NOTICED_POLL_SECONDS: Final = 0.1
LINE_BYTES_MAX: Final = 16 * 1024  # of what is printed without an end of line, until it is shown
KILLED: Final = -9
SILENCE: Final = frozenset(map(os.strerror, (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)))
"""The kernel's errors for a connection to a machine that does not answer."""


class RemoteProcess:
    """One process; see `subprocess.Popen` for the methods without underscores that it shares with that."""

    stdin: None = None

    def __init__(
        self,
        number: int,
        door: AgentDoor,
        changed: Callable[[], None],
        cancel: Callable[[], None],
        why_lost: Callable[[str], str | None] = lambda executor: None,
        avoid: Callable[[str], None] = lambda executor: None,
    ) -> None:
        """`changed` is called when it is seated or has ended; `cancel` has the system end its agent; any thread.

        `why_lost` says what of the system's has ended that an executor depends on, None if nothing is known to have;
        `avoid` has the system begin nothing more on an executor.
        """
        self.number = number
        self.pid = 0  # until it is born
        self.returncode: int | None = None
        self.hello: AgentHello | None = None  # of the agent that it is granted to
        self.reached: frozenset[Address] | None = None  # where that agent has connected to; None: not known
        self.trouble: str | None = None  # why it cannot begin, or how it was lost
        self.pipe = ReportPipe()
        self.sign = SignFile(time.monotonic())
        self.child: Child | None = None  # from when it was begun
        self._door = door
        self._changed = changed
        self._cancel = cancel
        self._why_lost = why_lost
        self._avoid = avoid
        self._probed = changed
        self._is_lost = False  # its agent has gone without a word
        self._lock = threading.Condition()
        self._connection: Connection | None = None
        self._others: list[Connection] = []  # other attempts, which wait for the end
        self._printed = b""  # the beginning of a line
        self._timers: list[threading.Timer] = []

    @property
    def place(self) -> str:
        """What it runs on, in words; "" before that is known."""
        hello = self.hello
        return "" if hello is None else f"executor {hello.executor}" + (f" on {hello.host}" if hello.host else "")

    @property
    def log(self) -> str:
        """Where to read what happened there, in words."""
        return f"; its log: {self.hello.log_url}" if self.hello is not None and self.hello.log_url else ""

    # Asked by any thread

    def probe(self, targets: tuple[tuple[Address, ...], ...], told: Callable[[], None] | None = None) -> None:
        """Ask the agent which of these addresses it can connect to; `told` is called when it has said so."""
        self._probed = told or self._changed
        self._send(Probe(targets))

    def begin(self, name: str, host: str, process: int | None, addresses: tuple[Address, ...]) -> Child:
        """Have the process started; return it as the launcher sees it."""
        assert self.hello is not None, "it is seated"
        address = (host, self.hello.port)
        self.child = Child(address, self, self.pipe, self.sign, host=self.place, how_lost=self.how_lost)
        self._send(Begin(name, host, process, addresses))
        return self.child

    def how_lost(self) -> str | None:
        """Say how it was lost, None if it was not; blocks for a moment, until the system knows what has ended.

        Is asked of one that has ended, or whose peers have lost it.
        """
        deadline = time.monotonic() + NOTICED_SECONDS
        with self._lock:
            if not self._lock.wait_for(lambda: self.returncode is not None, NOTICED_SECONDS):
                return f"does not answer{self.log}"
        while self._is_lost and self.trouble is None and self.hello is not None:
            reason = self._why_lost(self.hello.executor)
            if reason is None and time.monotonic() < deadline:
                time.sleep(NOTICED_POLL_SECONDS)
                continue
            self.trouble = f"was lost: {reason or 'its agent was killed, and the process with it'}{self.log}"
        return self.trouble

    def poll(self) -> int | None:
        """Return the exit code."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; without a timeout as long as it takes, which `kill` bounds."""
        with self._lock:
            if not self._lock.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(f"process {self.number}", timeout or 0.0)
            assert self.returncode is not None
            return self.returncode

    def kill(self) -> None:
        """Have it end; see rule 2."""
        with self._lock:
            if self.returncode is not None or self._timers:
                return
            self._timers = [
                threading.Timer(CANCEL_SECONDS if self._connection is not None else 0.0, self._cancel),
                threading.Timer(LOST_SECONDS, self._give_up),
            ]
            for timer in self._timers:
                timer.daemon = True
                timer.start()
        self._send(Kill())

    def end(self, code: int, trouble: str | None, report: bytes = b"") -> None:
        """Note that it has ended, or will not begin; nothing the second time."""
        with self._lock:
            if self.returncode is not None:
                return
            self.returncode, self.trouble = code, self.trouble or trouble
            for timer in self._timers:
                timer.cancel()
            with contextlib.suppress(OSError):
                os.write(self.pipe.writing, report)
            self.pipe.close_writing()
            self._lock.notify_all()
        self._door.call(self._part)
        self._changed()

    # Called by the door's thread

    def greet(self, connection: Connection, hello: AgentHello) -> None:
        """Grant the process to an attempt, or have it wait."""
        with self._lock:
            granted = self.hello is None and self.returncode is None
            if granted:
                self.hello, self._connection = hello, connection
        if granted:
            self._changed()
            return
        self._others.append(connection)
        if self.returncode is not None:
            self._door.call(self._part)  # after the handshake

    def hear(self, connection: Connection, value: Any) -> None:
        """Take what an agent says. Raises ProtocolError."""
        word = check_word(value, FROM_AGENT)
        if connection is not self._connection:
            return
        match word:
            case Unfit(reason):
                self.end(1, f"{self.place}: {reason}")
            case Probed(reached):
                self.reached = frozenset(reached) | (self.reached or frozenset())
                self._probed()
            case Born(pid):
                self.pid = pid
                self.sign.begin(time.monotonic())
            case Printed(data):
                self._show(data)
            case Signed(now, data):
                self._take_sign(now, data)
            case Over(code, report):
                self.end(code, None, report)

    def lose(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        if connection is self._connection:
            self._connection = None
            self._is_lost = True
            self.end(KILLED, self._silence() if connection.trouble in SILENCE else None)
        elif connection in self._others:
            self._others.remove(connection)

    def _part(self) -> None:
        """Let go of the agent, and of other attempts."""
        self._show(b"", is_last=True)
        if self._connection is not None:
            self._connection.close()
        for connection in self._others:
            connection.send(Dismiss("another attempt has had this process"))
            connection.close()
        self._others.clear()

    def _send(self, word: object) -> None:
        def send() -> None:
            if self._connection is not None:
                self._connection.send(word)

        self._door.call(send)

    def _silence(self) -> str:
        """Note that the machine does not answer; return the words for that."""
        self._cancel()
        if self.hello is not None:
            self._avoid(self.hello.executor)
        return f"was lost: its machine does not answer{self.log}"

    def _give_up(self) -> None:
        if self.hello is not None:
            self._avoid(self.hello.executor)
        seconds = f"{LOST_SECONDS:g} s"
        self.end(KILLED, f"did not end within {seconds}: {self.place or 'Spark'} does not answer{self.log}")

    def _show(self, data: bytes, is_last: bool = False) -> None:
        """Show whole lines of what the process has printed, each with its name."""
        lines = (self._printed + data).split(b"\n")
        self._printed = b"" if is_last or len(lines[-1]) > LINE_BYTES_MAX else lines[-1]
        shown = lines[:-1] if self._printed or not lines[-1] else lines
        if shown:
            workers = () if self.child is None else self.child.workers
            name = f"worker {workers[0]}" if workers else f"process {self.number}"
            head = f"[{name}, {self.place}] ".encode(errors="replace")
            with contextlib.suppress(OSError):
                os.write(STDERR, b"".join(head + line + b"\n" for line in shown))

    def _take_sign(self, now: float, data: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
            if (sign := parse_sign(data)) is not None:
                ahead = time.monotonic() - now
                busy = tuple(replace(step, since=step.since + ahead) for step in sign.busy)
                self.sign.write(SignOfLife(sign.now + ahead, busy))
