"""A thread that reads the launcher's own lines, so that a blocking source does not delay the launcher's other work.

1. Only this thread touches the source. It asks an iterable for its iterator, advances it, and reads standard input. It
   runs in a copy of the context (`contextvars`) of the thread that made the job.
2. The thread reads at most AHEAD_BYTES ahead, and at most `ahead` items of the program. Then it waits until the loop
   takes some. It wakes the loop only if the loop waits for lines, however few there are. So lines of a slow source are
   sent at once, and lines of a fast source many at a time.
3. The thread appends to a list of lines, and the loop takes from its start. The thread writes `_put` and `_ended`, and
   the loop writes `_taken`. The loop sets `_is_awaited` before it checks for the end and then for lines. The thread
   reads it after it has appended lines or ended. So at least one of the two sees what the other has done.
4. An error of the source ends the thread. `take` raises the error, with its traceback, after the earlier lines.
5. `stop` ends the thread between two lines, or while it waits for standard input. The thread is a daemon, and is left
   behind if an iterable blocks. `end` also stops the thread, but the loop still takes the lines that were read. Items
   that were being pulled are appended before the thread ends, however long their encoding takes. `is_at_work` is true
   from the arrival of an item until it is appended.
6. Items of any type are encoded as they are pulled (`PulledItems`), so later changes to an object have no effect. From
   here on they are bytes among lines.
"""

import contextvars
import threading
from collections.abc import Callable

from megaflow.job.formats.text_lines import BLOCK_BYTES
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.launcher_input import PushedLines
from megaflow.job.launcher.inputs.pulled_source import PulledItems, PulledLines
from megaflow.job.launcher.processes.wakeups import Wakeup

AHEAD_BYTES = BLOCK_BYTES  # of text, sent as one message
FIRST_LINES = 128  # to send, and to read ahead, until the pace at which they are taken is known
FAREWELL_SECONDS = 0.2  # for the line that is being read


class LineReader:
    """The thread that reads lines, and the list from which the launcher's loop takes them."""

    def __init__(self, source: PushedLines, wake: Callable[[], object]) -> None:
        """The thread calls `wake` when lines arrive for which the loop waits."""
        self._source = source
        self._wake = wake
        self.ahead = FIRST_LINES  # items; written by the loop
        self._lines: list[str | bytes] = []
        self._put = self._taken = 0  # bytes since the start; a line's end counts as one
        self._ended = False
        self._is_forming = False  # written by the thread
        self._error: BaseException | None = None
        self._is_awaited = False
        self._stopped = Wakeup()
        self._is_stopped = False
        self._is_ending = False
        self._space = threading.Condition()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="megaflow-lines", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def take(self) -> tuple[list[str | bytes], int] | None:
        """Return the lines that have come, and their size in bytes; no lines if none have come, None after the last.

        If none have come, the thread will wake the loop when some do. Raises the error of the source.
        """
        self._is_awaited = True
        ended = self._ended
        if count := len(self._lines):
            self._is_awaited = False
            lines = self._lines[:count]
            del self._lines[:count]
            size = sum(map(len, lines)) + count
            with self._space:
                self._taken += size
                self._space.notify()
            return lines, size
        if not ended:
            return [], 0
        if self._error is not None:
            raise self._error
        return None

    @property
    def is_at_work(self) -> bool:
        """Whether a pulled item is not among the lines yet. Ask before `take`, which returns all that are."""
        return self._is_forming or (not isinstance(self._source, FileLines) and bool(self._source.taken))

    def end(self) -> None:
        """Stop reading; `take` still returns the lines that were read, and then the end."""
        self._is_ending = True
        if not isinstance(self._source, FileLines):
            self._source.end()
        with self._space:
            self._space.notify()
        self._stopped.wake()

    def stop(self) -> None:
        """Stop reading; the thread no longer wakes the loop."""
        self._is_stopped = self._is_awaited = True
        self.end()

    def close(self) -> None:
        """Stop, and wait at most FAREWELL_SECONDS for the line that is being read."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(FAREWELL_SECONDS)
        if not self._thread.is_alive():
            self._stopped.close()

    def _run(self) -> None:
        try:
            if isinstance(self._source, FileLines):
                self._read(self._source)
            else:
                self._pull(self._source)
        except BaseException as error:
            self._error = error
        self._ended = True
        self._hand_over()

    def _read(self, file: FileLines) -> None:
        while not file.done and self._hand_over() and file.wait(self._stopped):
            lines = file.read()
            self._lines += lines
            self._put += sum(map(len, lines)) + len(lines)

    def _pull(self, source: PulledLines | PulledItems) -> None:
        lines, form = self._lines, source.form
        for item in source:
            self._is_forming = True
            line = form(item)
            lines.append(line)
            self._is_forming = False
            self._put += len(line) + 1
            if self._is_awaited or self._is_ending or self._is_ahead(len(lines)):
                if not self._hand_over() and not source.taken:
                    return

    def _hand_over(self) -> bool:
        """Wake the loop if it waits and there are lines or the end; wait for space. Return whether to read on."""
        if self._is_awaited and (self._lines or self._ended) and not self._is_stopped:
            self._is_awaited = False
            self._wake()
        if self._is_ahead(len(self._lines)):
            with self._space:
                self._space.wait_for(lambda: self._is_ending or not self._is_ahead(len(self._lines)))
        return not self._is_ending

    def _is_ahead(self, lines: int) -> bool:
        return self._put - self._taken >= AHEAD_BYTES or lines >= self.ahead
