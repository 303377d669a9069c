"""Wake-ups of the launcher's loop from outside its selector: by other threads, and by signals.

The first Ctrl-C, SIGTERM or SIGHUP asks the job to drain and stop. The second ends it at once.

1. A signal raises EndedBySignal, a KeyboardInterrupt, only where the launcher declares itself interruptible: where it
   may wait long. Code that creates and removes files and processes is not interruptible. So signals, however many,
   leave nothing behind.
2. A signal that arrives elsewhere raises where the launcher is next interruptible.
3. SIGHUP stays ignored if it was ignored at the start, as under nohup.
4. Programs wait for a job in slices (`wait_in_slices`). `_thread.interrupt_main` sends no signal, so Python raises only
   when the main thread runs again.
5. The launcher alone acts on these signals. A stop may also reach its processes, as when systemd stops a whole control
   group. They leave it to the launcher: see `megaflow.job.worker.process.lifeline`.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

from megaflow.errors import EndedBySignal
from megaflow.job.spec import STOP_SIGNALS

SLICE_SECONDS = 0.2


def wait_in_slices(wait: Callable[[float], object], seconds: float | None = None) -> bool:
    """Call `wait` with short times until it returns a true value or the seconds have passed; return whether it did.

    >>> wait_in_slices(threading.Event().wait, 0.01)
    False
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while not wait(SLICE_SECONDS if deadline is None else min(SLICE_SECONDS, max(0.0, deadline - time.monotonic()))):
        if deadline is not None and time.monotonic() >= deadline:
            return False
    return True


def call_later(seconds: float, function: Callable[[], object]) -> threading.Timer:
    """Call a function after some seconds, on a thread that nothing waits for, unless the timer is cancelled."""
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()
    return timer


class Wakeup:
    """A pair of sockets: a selector can wait for it, and any thread can write to it."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after `wake`."""
        return self._reader.fileno()

    def wake(self) -> bool:
        """Make `fileno` readable; any thread. Return False after `close`."""
        try:
            return self._writer.send(b"!") > 0
        except OSError:
            return False

    def clear(self) -> None:
        """Make `fileno` unreadable again; call it when `fileno` is readable."""
        self._reader.recv(16)

    def close(self) -> None:
        """Close the descriptors."""
        self._reader.close()
        self._writer.close()


class Signals(Wakeup):
    """The signals received; `fileno` becomes readable with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []  # written by the handler
        self.can_drain = False  # until it is true, the first signal is also final
        self.ends_input = False  # see `end_input`
        self.input_ended = threading.Event()  # the launcher's own input is processed, or abandoned
        self.is_through = False  # the processes have ended well, so no process can answer commands
        self._is_due = False  # a final signal has arrived but not raised yet
        self._may_raise = False

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return signal.SIGINT in self.received

    def ended(self) -> EndedBySignal:
        """Return the exception for a job that these signals ended."""
        return EndedBySignal(signal.SIGINT if self.interrupted else self.received[-1])

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. A final one raises EndedBySignal where the launcher is next interruptible."""
        self.received.append(number)
        if self.can_drain and len(self.received) == 1:
            self.wake()
        else:
            self._is_due = True
            self._interrupt()

    def end(self) -> None:
        """Make the launcher end the job while it starts; any thread. Does not raise here: see `pause`."""
        self._is_due = True

    def end_input(self) -> None:
        """Make the launcher stop pulling from the program's iterables; any thread. It then sets `input_ended`."""
        self.ends_input = True
        self.wake()

    def pause(self, seconds: float) -> None:
        """Sleep during a wait. Raises KeyboardInterrupt if the wait must end."""
        self._interrupt()
        time.sleep(seconds)
        self._interrupt()

    @contextlib.contextmanager
    def interruptible(self, anew: bool = False) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block if a final signal arrives, or has arrived unless `anew`."""
        self._is_due = self._is_due and not anew
        self._may_raise = True
        try:
            self._interrupt()
            yield
        finally:
            self._may_raise = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Do not raise in this part of an interruptible block, but at its end."""
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before
        self._interrupt()

    def _interrupt(self) -> None:
        if self._is_due and self._may_raise:
            self._is_due = self._may_raise = False  # so no other signal raises while this one leaves the block
            if not self.received:
                raise KeyboardInterrupt  # requested by `end`
            raise self.ended()


@contextlib.contextmanager
def withheld_signals() -> Iterator[Callable[[], object]]:
    """Block the signals of a stop in this thread, for the processes that it starts in the block. Yield their release.

    A started process inherits the block, so these signals wait until it can handle them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    release = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    try:
        yield release
    finally:
        release()


@contextlib.contextmanager
def watched_signals(wanted: bool | Signals) -> Iterator[Signals]:
    """Yield Signals that receive signals during the block if `wanted`. Only the main thread may set handlers.

    If `wanted` is a Signals object, this yields it, without handlers. The Signals are closed after the block.
    """
    signals = wanted if isinstance(wanted, Signals) else Signals()
    before = {}
    try:
        if wanted is True and threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
            before = {number: signal.signal(number, signals.handle) for number in STOP_SIGNALS if number not in ignored}
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
