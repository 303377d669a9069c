"""The poller: one selector for a process, polled by a worker's own thread.

This order of actions loses no wake-up. A waker first stores its data, then writes to the pipe, unless a byte is already
on its way (`_armed`). The poller first empties the pipe, then clears `_armed`, then reads the data.
"""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from megaflow.timely.communication.local import SIGNAL_SECONDS
from megaflow.timely.scheduled_calls import ScheduledCalls

READ_BYTES = 256 * 1024  # one frame


class Pollable(Protocol):
    """The part of a link that the poller uses."""

    def flush(self) -> None:
        """Send as much as the kernel takes."""

    def close(self) -> None:
        """Close at once."""

    def let_go(self) -> None:
        """Close this copy of the link, in a fork of the process."""


class SignalSelector(selectors.DefaultSelector):
    """A selector whose wait without limit looks for signals: one that comes just before the wait does not end it."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the files that are ready; wait at most so many seconds, None: without limit."""
        if timeout is not None:
            return super().select(timeout)
        while not (ready := super().select(SIGNAL_SECONDS)):
            pass
        return ready


class Poller:
    """A selector, a pipe to wake it, scheduled calls, and the links that have bytes to send."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))  # shared by all links; free again after each read
        self._selector = SignalSelector()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._armed = False  # a byte is in the pipe or about to be
        self._scheduled = ScheduledCalls(time.monotonic)
        self.call_later = self._scheduled.call_later  # (seconds, callback): `poll` makes the call
        self.dirty: dict[Pollable, None] = {}  # links to flush; any thread adds them, the poller removes them
        self._watched: dict[Any, int] = {}  # file -> its registered mask
        self.links: set[Pollable] = set()  # the open ones; each adds and removes itself
        self.closed = False
        self.watch(self._near, selectors.EVENT_READ, self._woken)

    def watch(self, file: Any, mask: int, callback: Callable[[int], None]) -> None:
        """Call `callback(mask)` whenever the file is ready; a mask of 0 stops watching it."""
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
        """Try once to send the bytes that links have queued since the last time."""
        while self.dirty:
            self.dirty.popitem()[0].flush()

    def poll(self, seconds: float | None, flush: bool = True) -> None:
        """Wait until a file is ready, a call is due, `wake` was called or the time is up; make the calls that are due.

        If `flush`, it flushes before and after. Otherwise queued bytes wait for the next `flush`.
        """
        if flush:
            self.flush()
        for key, mask in self._selector.select(self._scheduled.wait(seconds)):
            key.data(mask)
        self._scheduled.run_due()
        if flush:
            self.flush()

    def wake(self) -> None:
        """End the present or next `poll`. Any thread and signal handlers may call it."""
        if not self._armed and not self.closed:
            self._armed = True
            with contextlib.suppress(OSError):  # the pipe is full, which also wakes, or was closed just now
                self._far.send(b"\0")

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):  # a nested poll has emptied it
            self._near.recv(4096)
        self._armed = False

    def close(self) -> None:
        """Close all links, the selector and the pipe. Other files are for their owners to close."""
        if not self.closed:
            for link in list(self.links):
                link.close()
            self._close()

    def let_go(self) -> None:
        """Close everything in a fork, but unregister nothing: the fork shares the set that the selector watches."""
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
