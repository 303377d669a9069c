"""Ctrl-C, SIGTERM or SIGHUP at a process that joined by hand: the first asks the job to let it go, the second ends it.

1. Before the job has let the process in, it is nobody's: the first signal ends it.
2. From then on it is a member, or about to be one. It asks for its removal when its workers have joined, as
   `megaflow control remove-workers` does: its bins move away, it works off what it holds and leaves. If that is
   refused, it stays and says why.
3. The second signal ends it wherever it is, without unwinding: its peers see their connections end and name it.
4. A handler only takes notes: a thread of its own asks and tells.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from megaflow.control.client import commands
from megaflow.control.client.conversation import Conversation
from megaflow.control.client.move_request import plan_removal
from megaflow.errors import JobNotFound, MegaflowError, PeerLost
from megaflow.job.spec import Address
from megaflow.timely.communication.client import Client

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = "a second Ctrl-C ends it at once and fails the job"


class Departure:
    """One process's. `handle` runs on the main thread, `joined` on its workers' threads."""

    def __init__(
        self, address: Address, secret: bytes, is_let_in: Callable[[], bool], report: Callable[[str], None]
    ) -> None:
        """`address` is the process's own, where it is asked like any other; `report` tells the user."""
        self._address = address
        self._secret = secret
        self._is_let_in = is_let_in
        self._report = report
        self._is_wanted = threading.Event()
        self._joined = threading.Event()
        self._worker = -1  # the first that has joined

    def joined(self, worker: int) -> None:
        """Note that a worker of this process has joined."""
        if not self._joined.is_set():
            self._worker = worker
            self._joined.set()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if self._is_wanted.is_set():
            os._exit(128 + number)
        if not self._is_let_in():
            raise KeyboardInterrupt
        self._is_wanted.set()
        threading.Thread(target=self._ask, name="megaflow-departure", daemon=True).start()

    def _ask(self) -> None:
        self._joined.wait()
        who = f"worker {self._worker}"
        self._report(f"{who} is leaving: it finishes its work while its bins move away; {AGAIN}")
        try:
            with contextlib.closing(Conversation(self._connect(*self._address), None, self._connect)) as talk:
                commands.check_removal(talk, self._worker)
                for _ in commands.run_plan(talk, plan_removal(commands.ask_status(talk), self._worker), time.sleep):
                    pass
                commands.remove_worker(talk, self._worker)
        except PeerLost:
            pass  # it has left, or the job has ended
        except MegaflowError as error:
            self._report(f"{who} could not leave: {error}; {AGAIN}")

    def _connect(self, host: str, port: int) -> Client:
        try:
            return Client.connect(host, port, self._secret, "control", {})
        except (PeerLost, OSError) as error:
            raise JobNotFound(f"{host}:{port} does not answer: {error}") from error


@contextlib.contextmanager
def handled(departure: Departure) -> Iterator[None]:
    """Have it handle the signals in the block; only in the main thread, which alone may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in kept.items():
            if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, departure.handle)
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
