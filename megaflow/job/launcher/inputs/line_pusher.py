"""The launcher's own lines on their way to the coordinator's process, limited by a window.

`LineReader` reads the lines on a thread, and the launcher's loop calls `LinePusher`.

1. The window limits the lines that were sent but not yet taken in by the worker's source (`LinesTaken`). It closes at
   WINDOW_BYTES of them. It also closes at the number of lines that the source takes in within AHEAD_SECONDS, by its
   recent pace.
2. A reader may read that number of lines again, ahead of the window. So when the job is to stop, the lines that were
   read are processed within about a second, however slow the dataflow is.
3. The pusher takes lines from a reader only while the window is open, so the reader reads no further.
4. At a stop the pusher ignores the window and sends the rest at once. A worker may hold the launcher's lines back for
   other inputs until it has the last of them (`megaflow.job.worker.reading.reading_turns`), so the window might stay
   closed.
5. When another process becomes the coordinator, the next lines go there. That process reads them after the earlier
   lines have been taken in (rule 6 of `megaflow.job.worker.reading.source_operator`), so one window is enough.
"""

from collections import deque
from collections.abc import Callable, Mapping

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.job.launcher.inputs.line_reader import FAREWELL_SECONDS, FIRST_LINES, LineReader
from megaflow.job.launcher.processes.child_process import Child

WINDOW_BYTES = 2 * 1024 * 1024  # of text: some milliseconds of work, so the source never waits for the launcher
AHEAD_SECONDS = 0.5  # of lines, at the pace at which they are taken in
LEAST_LINES = 64  # a fraction of a batch of the source
QUICK_SECONDS = 0.02  # before the window may double, if all of it was taken in
CALM_SECONDS = 0.5  # before the window follows the pace: batches may be taken in some time apart


class SendWindow:
    """The lines that were sent but not yet taken in, and their limits.

    >>> window = SendWindow(limit_bytes=10)
    >>> window.sent(1, 9); window.sent(2, 5); window.is_open
    False
    >>> window.taken(2); window.is_open
    True
    """

    def __init__(self, limit_bytes: int = WINDOW_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.limit = FIRST_LINES
        self.lines = 0  # sent but not taken in
        self._sent: deque[tuple[int, int]] = deque()  # (lines, bytes) of each message that is not wholly taken in
        self._ahead_bytes = 0
        self._taken = 0  # of the first message, in lines
        self._recent = 0  # lines taken in since `_since`
        self._since: float | None = None  # seconds of the clock

    @property
    def is_open(self) -> bool:
        """Whether more may be sent."""
        return self._ahead_bytes < self._limit_bytes and self.lines < self.limit

    def look(self, now: float) -> None:
        """Adjust the limit of lines to the pace at which they are taken in."""
        if self._since is None:
            self._since = now
        seconds = now - self._since
        is_quick = seconds >= QUICK_SECONDS and self._recent >= self.limit
        if is_quick or seconds >= CALM_SECONDS:
            limit = max(LEAST_LINES, int(self._recent / seconds * AHEAD_SECONDS))
            self.limit = min(limit, 2 * self.limit) if is_quick else limit
            self._since, self._recent = now, 0

    def sent(self, lines: int, size: int) -> None:
        """Note a sent message with this many lines and bytes."""
        self._sent.append((lines, size))
        self.lines += lines
        self._ahead_bytes += size

    def taken(self, lines: int) -> None:
        """Note that this many more lines were taken in."""
        self._taken += lines
        self._recent += lines
        self.lines -= lines
        while self._sent and self._taken >= self._sent[0][0]:
            count, size = self._sent.popleft()
            self._taken -= count
            self._ahead_bytes -= size


class LinePusher:
    """Sender of the lines of several LineReaders, in turn. One writer: the launcher's loop."""

    def __init__(
        self, readers: Mapping[str, LineReader], worker: Child, send: Callable[[Child, object], None]
    ) -> None:
        """Begin with sending to the process `worker`. `readers` are keyed by the names of their inputs.

        `send` sends a message to a process without blocking; nothing happens if the process is gone.
        """
        self._readers = deque(readers.items())  # that have not ended; the last one was the last to be asked
        self._end_due: float | None = None  # seconds of the clock, when blocked readers are abandoned; None: no stop
        self._cut: tuple[str, ...] = ()  # inputs that a stop has cut short
        self._worker = worker
        self._send = send
        self.window = SendWindow()  # the loop notes here what was taken in

    @property
    def is_drained(self) -> bool:
        """Whether all lines were sent and taken in."""
        return not self._readers and not self.window.lines

    def push(self, now: float) -> bool:
        """Send the next lines, or the end; return whether more may be ready to send at once.

        Raises the error of a source.
        """
        self.window.look(now)
        is_open = self.window.is_open or self._end_due is not None  # a worker with the last lines holds none back
        for _ in range(len(self._readers) if is_open else 0):
            self._readers.rotate(-1)
            name, reader = self._readers[-1]
            reader.ahead = self.window.limit
            is_left = self._end_due is not None and now >= self._end_due and not reader.is_at_work  # read before `take`
            taken = reader.take()
            if taken is None or (is_left and not taken[0]):
                reader.stop()
                self._readers.pop()
                self._cut += (name,) if self._end_due is not None else ()
                if not self._readers:
                    self._send(self._worker, LinesEnded(cut=self._cut))
            elif taken[0]:
                lines, size = taken
                self._send(self._worker, Lines(lines, name))  # type: ignore[arg-type]  # all of one type
                self.window.sent(len(lines), size)
                return True
        return False

    def end(self, now: float) -> None:
        """Stop the readers, and send the lines that they have; after FAREWELL_SECONDS, abandon blocked readers."""
        if self._end_due is None:
            self._end_due = now + FAREWELL_SECONDS
            for _, reader in self._readers:
                reader.end()

    def wait_seconds(self, now: float) -> float | None:
        """Return the seconds until `push` must be called; None: not before the next event."""
        if not self._readers or self._end_due is None or now >= self._end_due:
            return None
        return self._end_due - now

    def move(self, worker: Child) -> None:
        """Send the next lines to another process, and notify the previous one."""
        if self._readers and worker is not self._worker:
            self._send(self._worker, LinesEnded(elsewhere=True))
            self._worker = worker

    def stop(self) -> None:
        """Stop all readers, and send nothing further."""
        while self._readers:
            self._readers.pop()[1].stop()
