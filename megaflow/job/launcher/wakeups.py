"""What wakes the launcher's loop from outside its selector: other threads, and signals.

The first Ctrl-C, SIGTERM or SIGHUP asks the job to drain and stop, the second ends it at once.

1. A signal raises KeyboardInterrupt only where the launcher says that it is interruptible: where it may wait long. What
   makes and removes files and processes is not, so however many signals come, nothing is left.
2. A signal that comes elsewhere raises where the launcher is next interruptible.
3. SIGHUP stays ignored where it was at the start, as under nohup.
"""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Wakeup:
    """A pipe that a selector can wait for and any thread can write to."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()

    def fileno(self) -> int:
        """Return what becomes readable when `wake` was called."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make `fileno` readable; any thread. Raises OSError once it is closed."""
        self._writer.send(b"!")

    def clear(self) -> None:
        """Make `fileno` unreadable again; to be called when it is readable."""
        self._reader.recv(16)

    def close(self) -> None:
        """Close the descriptors."""
        self._reader.close()
        self._writer.close()


class Signals(Wakeup):
    """The signals that have arrived; `fileno` becomes readable with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.received: list[int] = []  # written by the handler
        self.can_drain = False  # until then the first signal is final, too
        self.ends_input = False  # see `end_input`
        self.input_ended = threading.Event()  # what the launcher reads itself has ended and is worked off; or is left
        self.is_through = False  # the processes have ended well, so nobody is there to steer any more
        self._is_due = False  # a final signal has come and has not raised yet
        self._may_raise = False

    @property
    def interrupted(self) -> bool:
        """Whether there was a Ctrl-C."""
        return signal.SIGINT in self.received

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt at the second, wherever the program is interruptible then."""
        self.received.append(number)
        if self.can_drain and len(self.received) == 1:
            self.wake()
        else:
            self._is_due = True
            self._interrupt()

    def end(self) -> None:
        """Have the launcher end the job while it starts it; any thread. Raises not here: see `pause`."""
        self._is_due = True

    def end_input(self) -> None:
        """Have the launcher pull no more of the program's iterables; any thread. `input_ended` is set then."""
        self.ends_input = True
        with contextlib.suppress(OSError):  # the job has ended
            self.wake()

    def pause(self, seconds: float) -> None:
        """Sleep while something is waited for. Raises KeyboardInterrupt if that is to end."""
        self._interrupt()
        time.sleep(seconds)
        self._interrupt()

    @contextlib.contextmanager
    def interruptible(self, anew: bool = False) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block when a final signal comes; or has come, unless only `anew`."""
        self._is_due = self._is_due and not anew
        self._may_raise = True
        try:
            self._interrupt()
            yield
        finally:
            self._may_raise = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Raise not in this part of an interruptible block, but at its end."""
        before, self._may_raise = self._may_raise, False
        try:
            yield
        finally:
            self._may_raise = before
        self._interrupt()

    def _interrupt(self) -> None:
        if self._is_due and self._may_raise:
            self._is_due = self._may_raise = False  # so that no other one raises while this one leaves the block
            raise KeyboardInterrupt


@contextlib.contextmanager
def watched_signals(wanted: bool | Signals) -> Iterator[Signals]:
    """Give Signals that are filled in the block if `wanted`; only in the main thread, which alone may set handlers.

    Those that another thread has made are given as they are. They are closed with the block.
    """
    signals = wanted if isinstance(wanted, Signals) else Signals()
    before = {}
    try:
        if wanted is True and threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
            before = {number: signal.signal(number, signals.handle) for number in WATCHED if number not in ignored}
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
