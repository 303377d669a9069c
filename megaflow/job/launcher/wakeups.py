"""What wakes the launcher's loop from outside its selector: other threads, and signals.

The first Ctrl-C or SIGTERM asks the job to drain and stop, the second ends it at once.
"""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

WATCHED = (signal.SIGINT, signal.SIGTERM)


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

    @property
    def interrupted(self) -> bool:
        """Whether there was a Ctrl-C."""
        return signal.SIGINT in self.received

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal. Raises KeyboardInterrupt at the second, wherever the program is then."""
        self.received.append(number)
        if len(self.received) > 1 or not self.can_drain:
            raise KeyboardInterrupt
        self.wake()


@contextlib.contextmanager
def watched_signals(wanted: bool) -> Iterator[Signals]:
    """Give Signals that are filled in the block if `wanted`; only in the main thread, which alone may set handlers."""
    signals = Signals()
    before = {}
    try:
        if wanted and threading.current_thread() is threading.main_thread():
            before = {number: signal.signal(number, signals.handle) for number in WATCHED}
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()
