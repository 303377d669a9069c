"""The launcher's own lines on their way to the coordinator's process, no further ahead than a window.

The window holds what was sent and what the worker's source has not taken in yet (`LinesTaken`): so many bytes, and so
many lines as were taken in half a second, lately. A reader may be as many lines ahead of that: so what has been pulled
is worked off within a second or so when the job is to stop, however slow its dataflow is. Lines are taken from their
reader only while the window is open, and so it reads no further. When another process coordinates, the lines
that follow go there; they are read there when those before have been taken in (rule 6 of
`megaflow.job.worker.source_operator`), so one window is enough.
"""

from collections import deque
from collections.abc import Callable, Mapping

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.line_reader import FAREWELL_SECONDS, FIRST_LINES, LineReader

WINDOW_BYTES = 2 * 1024 * 1024  # of text; some milliseconds of work, so that the source never waits for the launcher
AHEAD_SECONDS = 0.5  # of the pace at which lines are taken
LEAST_LINES = 64  # a fraction of a batch of the source
QUICK_SECONDS = 0.02  # until the window is doubled at the most, if all of it was taken
CALM_SECONDS = 0.5  # until it is what the pace says: batches may be taken some time apart


class SendWindow:
    """How much was sent and not yet taken in.

    >>> window = SendWindow(limit_bytes=10)
    >>> window.sent(1, 9); window.sent(2, 5); window.is_open
    False
    >>> window.taken(2); window.is_open
    True
    """

    def __init__(self, limit_bytes: int = WINDOW_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.limit = FIRST_LINES
        self.lines = 0  # that were sent and not taken in
        self._sent: deque[tuple[int, int]] = deque()  # (lines, bytes) of each message not wholly taken in
        self._ahead_bytes = 0
        self._taken = 0  # lines of the first message
        self._recent = 0  # lines that were taken in since the next
        self._since: float | None = None  # seconds of the clock

    @property
    def is_open(self) -> bool:
        """Whether more may be sent."""
        return self._ahead_bytes < self._limit_bytes and self.lines < self.limit

    def look(self, now: float) -> None:
        """Follow the pace at which lines are taken in."""
        if self._since is None:
            self._since = now
        seconds = now - self._since
        is_quick = seconds >= QUICK_SECONDS and self._recent >= self.limit
        if is_quick or seconds >= CALM_SECONDS:
            limit = max(LEAST_LINES, int(self._recent / seconds * AHEAD_SECONDS))
            self.limit = min(limit, 2 * self.limit) if is_quick else limit
            self._since, self._recent = now, 0

    def sent(self, lines: int, size: int) -> None:
        """Note so many lines, and bytes, that were sent in one message."""
        self._sent.append((lines, size))
        self.lines += lines
        self._ahead_bytes += size

    def taken(self, lines: int) -> None:
        """Note that so many more lines were taken in."""
        self._taken += lines
        self._recent += lines
        self.lines -= lines
        while self._sent and self._taken >= self._sent[0][0]:
            count, size = self._sent.popleft()
            self._taken -= count
            self._ahead_bytes -= size


class LinePusher:
    """Sends the lines that LineReaders read, in turn. One writer: the launcher's loop."""

    def __init__(
        self, readers: Mapping[str, LineReader], worker: Child, send: Callable[[Child, object], None]
    ) -> None:
        """`worker` is the process that takes the lines at first; `readers` are known by the names of their inputs.

        `send` sends a process a message, without blocking; nothing happens if the process is gone.
        """
        self._readers = deque(readers.items())  # that have not ended; the last one was asked last
        self._end_due: float | None = None  # seconds of the clock: who has not ended is left; None: all read
        self._worker = worker
        self._send = send
        self.window = SendWindow()  # what was taken in is noted here by the launcher's loop

    @property
    def is_drained(self) -> bool:
        """Whether all was sent, and taken in."""
        return not self._readers and not self.window.lines

    def push(self, now: float) -> bool:
        """Send the next lines, or that there are no more; return whether there may be others to send at once.

        Raises what the source of the lines has raised.
        """
        self.window.look(now)
        for _ in range(len(self._readers) if self.window.is_open else 0):
            self._readers.rotate(-1)
            name, reader = self._readers[-1]
            reader.ahead = self.window.limit
            is_left = self._end_due is not None and now >= self._end_due and not reader.is_at_work  # before `take`
            taken = reader.take()
            if taken is None or (is_left and not taken[0]):
                reader.stop()
                self._readers.pop()
                if not self._readers:
                    self._send(self._worker, LinesEnded())
            elif taken[0]:
                lines, size = taken
                self._send(self._worker, Lines(lines, name))  # type: ignore[arg-type]  # of one type
                self.window.sent(len(lines), size)
                return True
        return False

    def end(self, now: float) -> None:
        """Have the readers read no more, and send what they have; one whose source blocks is left after a moment."""
        if self._end_due is None:
            self._end_due = now + FAREWELL_SECONDS
            for _, reader in self._readers:
                reader.end()

    def wait_seconds(self, now: float) -> float | None:
        """Return in how many seconds `push` is to be called; None: not before something has come."""
        if not self._readers or self._end_due is None or now >= self._end_due:
            return None
        return self._end_due - now

    def move(self, worker: Child) -> None:
        """Send what follows to another process, and tell so to the one before."""
        if self._readers and worker is not self._worker:
            self._send(self._worker, LinesEnded(elsewhere=True))
            self._worker = worker

    def stop(self) -> None:
        """Send no more lines."""
        while self._readers:
            self._readers.pop()[1].stop()
