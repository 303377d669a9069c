"""The launcher's own lines on their way to the coordinator's process, no further ahead than a window of bytes.

The window holds what was sent and what the worker's source has not taken in yet (`LinesTaken`). Lines are taken from
their reader only while the window is open, and so it reads no further. When another process coordinates, the lines
that follow go there; they are read there when those before have been taken in (rule 6 of
`megaflow.job.worker.source_operator`), so one window is enough.
"""

from collections import deque
from collections.abc import Callable

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.line_reader import LineReader

WINDOW_BYTES = 2 * 1024 * 1024  # of text; some milliseconds of work, so that the source never waits for the launcher


class SendWindow:
    """How much text was sent and not yet taken in.

    >>> window = SendWindow(limit_bytes=10)
    >>> window.sent(1, 9); window.sent(2, 5); window.is_open
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

    @property
    def lines(self) -> int:
        """How many lines were sent and not taken in."""
        return sum(lines for lines, _ in self._sent) - self._taken

    def sent(self, lines: int, size: int) -> None:
        """Note so many lines, and bytes, that were sent in one message."""
        self._sent.append((lines, size))
        self._ahead_bytes += size

    def taken(self, lines: int) -> None:
        """Note that so many more lines were taken in."""
        self._taken += lines
        while self._sent and self._taken >= self._sent[0][0]:
            count, size = self._sent.popleft()
            self._taken -= count
            self._ahead_bytes -= size


class LinePusher:
    """Sends the lines that a LineReader reads. One writer: the launcher's loop."""

    def __init__(self, reader: LineReader | None, worker: Child, send: Callable[[Child, object], None]) -> None:
        """`worker` is the process that takes the lines at first; None for `reader` if the launcher reads none.

        `send` sends a process a message, without blocking; nothing happens if the process is gone.
        """
        self._reader = reader
        self._worker = worker
        self._send = send
        self.window = SendWindow()  # what was taken in is noted here by the launcher's loop

    def push(self) -> bool:
        """Send the next lines, or that there are no more; return whether there may be others to send at once.

        Raises what the source of the lines has raised.
        """
        if self._reader is None or not self.window.is_open:
            return False
        taken = self._reader.take()
        if taken is None:
            self.stop()
            self._send(self._worker, LinesEnded())
            return False
        lines, size = taken
        if lines:
            self._send(self._worker, Lines(lines))
            self.window.sent(len(lines), size)
        return bool(lines)

    def move(self, worker: Child) -> None:
        """Send what follows to another process, and tell so to the one before."""
        if self._reader is not None and worker is not self._worker:
            self._send(self._worker, LinesEnded(elsewhere=True))
            self._worker = worker

    def stop(self) -> None:
        """Send no more lines."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None
