"""The poller: one selector for a process, polled by a worker's own thread.

The order that loses no wake-up: a waker puts its data in first and then writes to the pipe, unless a byte is on its
way (`_armed`); the poller empties the pipe, then clears `_armed`, and then reads the data.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from megaflow.timely.scheduled_calls import ScheduledCalls

READ_BYTES = 256 * 1024  # one frame


class Pollable(Protocol):
    """What the poller needs of a link."""

    def flush(self) -> None:
        """Send what the kernel takes."""

    def close(self) -> None:
        """Close at once."""

    def let_go(self) -> None:
        """Close this copy of it, in a fork of the process."""


class Poller:
    """A selector with a pipe to wake it, scheduled calls, and the links that have something to send."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))  # shared by all links, free again after each read
        self._selector = selectors.DefaultSelector()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._armed = False  # a byte is in the pipe or about to be
        self._scheduled = ScheduledCalls(time.monotonic)
        self.call_later = self._scheduled.call_later  # (seconds, callback): `poll` calls back
        self.dirty: dict[Pollable, None] = {}  # links to flush; each adds itself, in any thread, and the poller drains
        self._watched: dict[Any, int] = {}  # file -> mask it is registered with
        self.links: set[Pollable] = set()  # the open ones; each enters and leaves by itself
        self.closed = False
        self.watch(self._near, selectors.EVENT_READ, self._woken)

    def watch(self, file: Any, mask: int, callback: Callable[[int], None]) -> None:
        """Call `callback(mask)` whenever the file is ready; a mask of 0 forgets the file."""
        known = self._watched.get(file, 0)
        if mask == known:
            return
        if not mask:
            self._selector.unregister(file)
            del self._watched[file]
            return
        self._watched[file] = mask
        (self._selector.modify if known else self._selector.register)(file, mask, callback)

    def flush(self) -> None:
        """Try once to send what links have queued since the last time."""
        while self.dirty:
            self.dirty.popitem()[0].flush()

    def poll(self, seconds: float | None, flush: bool = True) -> None:
        """Wait until a file is ready, a call is due, `wake` was called or the time is up, and call back.

        `flush`: before and after; else what links have queued is left to the next `flush`.
        """
        if flush:
            self.flush()
        for key, mask in self._selector.select(self._scheduled.wait(seconds)):
            key.data(mask)
        self._scheduled.run_due()
        if flush:
            self.flush()

    def wake(self) -> None:
        """End the present or next `poll`; any thread, also a signal handler."""
        if not self._armed and not self.closed:
            self._armed = True
            with contextlib.suppress(OSError):  # full of bytes that wake just as well, or closed this moment
                self._far.send(b"\0")

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):  # an inner round has emptied it
            self._near.recv(4096)
        self._armed = False

    def close(self) -> None:
        """Close all links, the selector and the pipe; other files are their owners' to close."""
        if not self.closed:
            for link in list(self.links):
                link.close()
            self._close()

    def let_go(self) -> None:
        """Do the same in a fork of the process, but unregister nothing: it shares what the selector watches."""
        for link in list(self.links):
            link.let_go()
        self._close()

    def _close(self) -> None:
        self.closed = True
        self.dirty.clear()
        self._scheduled.clear()
        self._selector.close()
        self._near.close()
        self._far.close()
