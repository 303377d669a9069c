"""Ctrl-C, SIGTERM or SIGHUP at a process that joined by hand: the first asks to leave, the second ends the process.

1. Until the job has admitted the process, it belongs to no job, so the first signal ends it.
2. After that, the process is a member or about to become one. Once its workers have joined, it requests its removal as
   `megaflow control remove-workers` does: its bins move away, and it finishes the work that it holds and leaves. If the
   coordinator refuses the removal, the process stays and reports the reason.
3. The second signal ends the process at once, without unwinding. Its peers see their connections end, and name the
   process in their errors.
4. For rule 2, the signal handler only starts a thread, which sends the request and reports the outcome.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import field
from types import FrameType

from megaflow.control.client import commands
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import plan_removal
from megaflow.errors import EndedBySignal, JobNotFound, MegaflowError, PeerLost
from megaflow.job.spec import STOP_SIGNALS, Address
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client

AGAIN = "a second Ctrl-C ends it at once and fails the job"
AGAIN_WITH_STATE = "a second Ctrl-C ends it at once, and the job resumes without it from its last checkpoint"


@dataclass(eq=False, repr=False)
class LeaveOnSignal:
    """Leave of one process on a signal. `handle` runs on the main thread, `joined` on the threads of its workers."""

    _address: Address  # the process's own port, where it sends its request
    _secret: bytes
    _is_let_in: Callable[[], bool]
    _report: Callable[[str], None]  # shows a text to the user
    _again: str = AGAIN  # the effect of the second signal
    _is_wanted: threading.Event = field(default_factory=threading.Event, init=False)
    _joined: threading.Event = field(default_factory=threading.Event, init=False)
    _worker: int = field(default=-1, init=False)  # the first worker that has joined

    def joined(self, worker: int) -> None:
        """Note that a worker of this process has joined."""
        if not self._joined.is_set():
            self._worker = worker
            self._joined.set()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._is_wanted.is_set():
            os._exit(128 + number)
        if not self._is_let_in():
            raise EndedBySignal(number)
        self._is_wanted.set()
        threading.Thread(target=self._ask, name="megaflow-leave", daemon=True).start()

    def _ask(self) -> None:
        self._joined.wait()
        who = f"worker {self._worker}"
        self._report(f"{who} is leaving: it finishes its work while its bins move away; {self._again}")
        try:
            with contextlib.closing(Conversation(self._connect(*self._address), None, self._connect)) as talk:
                commands.check_removal(talk, self._worker)
                for _ in commands.run_plan(talk, plan_removal(commands.ask_status(talk), self._worker), time.sleep):
                    pass
                commands.remove_worker(talk, self._worker)
        except PeerLost:
            pass  # it has left, or the job has ended
        except MegaflowError as error:
            self._report(f"{who} could not leave: {str(error).rstrip('.')}; {self._again}")

    def _connect(self, host: str, port: int) -> Client:
        try:
            return Client.connect(host, port, self._secret, "control", {})
        except (PeerLost, OSError) as error:
            raise JobNotFound(f"{host}:{port} does not answer: {error}") from error


@contextlib.contextmanager
def handled(leave: LeaveOnSignal) -> Iterator[None]:
    """Let `leave` handle the signals during the block. Only in the main thread, which alone may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        for number, handler in kept.items():
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, leave.handle)
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
