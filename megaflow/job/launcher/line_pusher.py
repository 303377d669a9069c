"""The launcher's own lines on their way to the coordinator's process, no further ahead than a window of bytes.

The window holds what was sent and what the worker's source has not taken in yet (`LinesTaken`). The source of lines is
read only while the window is open. When another process coordinates, the lines that follow go there; they are read
there when those before have been taken in (rule 6 of `megaflow.job.worker.source_operator`), so one window is enough.
"""

import contextlib
import selectors
from collections import deque

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.errors import PeerLost
from megaflow.job.launcher.children import Child
from megaflow.job.launcher.launcher_input import PushedLines

WINDOW_BYTES = 2 * 1024 * 1024  # of text; some milliseconds of work, so that the source never waits for the launcher


class SendWindow:
    """How much text was sent and not yet taken in.

    >>> window = SendWindow(limit_bytes=10)
    >>> window.sent(["12345678"]); window.sent(["ab", "c"]); window.is_open
    False
    >>> window.taken(2); window.is_open
    True
    """

    def __init__(self, limit_bytes: int = WINDOW_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._sent: deque[tuple[int, int]] = deque()  # (lines, bytes) of each message not wholly taken in
        self._ahead_bytes = 0
        self._taken = 0  # lines of the first message

    @property
    def is_open(self) -> bool:
        """Whether more may be sent."""
        return self._ahead_bytes < self._limit_bytes

    def sent(self, lines: list[str]) -> None:
        """Note lines that were sent in one message."""
        size = sum(map(len, lines)) + len(lines)
        self._sent.append((len(lines), size))
        self._ahead_bytes += size

    def taken(self, lines: int) -> None:
        """Note that so many more lines were taken in."""
        self._taken += lines
        while self._sent and self._taken >= self._sent[0][0]:
            count, size = self._sent.popleft()
            self._taken -= count
            self._ahead_bytes -= size


class LinePusher:
    """Reads and sends the lines. One writer: the launcher's loop, which gives its selector."""

    def __init__(self, lines: PushedLines | None, worker: Child, selector: selectors.BaseSelector) -> None:
        """`worker` is the process that takes the lines at first; None for `lines` if the launcher reads none."""
        self._lines = lines  # None from when they have ended
        self._worker = worker
        self._selector = selector
        self.window = SendWindow()  # what was taken in is noted here by the launcher's loop
        self._is_registered = False  # the selector watches the source of lines

    @property
    def is_ready(self) -> bool:
        """Whether lines may be sent whose source need not be waited for."""
        return self._lines is not None and self._lines.fileno() is None and self.window.is_open

    def watch(self) -> None:
        """Have the selector watch the source exactly while lines may be sent."""
        file = None if self._lines is None else self._lines.fileno()
        if file is None or self.window.is_open == self._is_registered:
            return
        if self.window.is_open:
            self._selector.register(file, selectors.EVENT_READ, self.push)
        else:
            self._selector.unregister(file)
        self._is_registered = self.window.is_open

    def push(self) -> None:
        """Send the next lines, or that there are none."""
        client = self._worker.client
        if self._lines is None or client is None:
            return
        lines, done = self._lines.read(), self._lines.done
        try:
            if lines:
                client.send(Lines(lines))
                self.window.sent(lines)
            if done:
                self.stop()
                client.send(LinesEnded())
        except PeerLost:
            self.stop()  # the end of the connection is noticed, and judged, where it is read

    def move(self, worker: Child) -> None:
        """Send what follows to another process, and tell so to the one before."""
        client = self._worker.client
        if self._lines is not None and client is not None and worker is not self._worker:
            self._worker = worker
            with contextlib.suppress(PeerLost):  # noticed where it is read
                client.send(LinesEnded(elsewhere=True))

    def stop(self) -> None:
        """Read no more lines."""
        if self._is_registered and self._lines is not None and (file := self._lines.fileno()) is not None:
            self._selector.unregister(file)
        self._is_registered = False
        self._lines = None
