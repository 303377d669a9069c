"""Closed epochs on their way to the writer, which a thread calls. So a slow reader of the output delays nothing else.

1. From `start` on, only the thread calls the writer, and also closes it. Everything else continues while it hangs in a
   write.
2. The loop puts epochs, asks for the end (`finish`) and closes. The thread takes epochs. `_lock` guards the state that
   both change.
3. From FULL_BYTES on the queue `is_full`, until it has fallen to half of that. Meanwhile the loop makes the workers
   hold their outputs in the dataflow (`HoldOutput`, see `megaflow.job.worker.writing.output`). The queue still accepts
   outputs that are on their way: at most OUTPUT_BYTES_MAX more per process. All other messages arrive as before. Bytes
   that the writer has and its reader has not taken also count. Records that stay in memory anyway, those of
   `megaflow.run`, do not.
4. The thread flushes whenever it has written everything, and after `finish` even if there was nothing to write.
5. An error of the writer ends the thread. `check` or `close` raises it, once. The same holds for the argument of
   `fail`.
6. `close` waits for the thread as long as it makes progress: SLICE records within STUCK_SECONDS. A stuck thread is left
   behind. It is a daemon, and the writers use no stream that the interpreter flushes at its end.
7. At a `Mark` the thread makes everything before it durable, and reports the length of the output there (`synced`).
   `cut_back` removes epochs that are not written yet, and then truncates the output to a length. Later epochs follow
   that length, and earlier marks are no longer reported. So a job that has lost processes continues with this queue.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from megaflow.control.launcher_messages import Ended
from megaflow.control.wording import quantity
from megaflow.job.launcher.outputs.epoch_merge import Leaving, Mark
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form

FULL_BYTES = 4 << 20  # of text, a fraction of a second for a disk
SLICE = 100  # records in one call of the writer
STUCK_SECONDS = 1.0  # without progress; a failed job must end within 5 seconds


class OutputQueue:
    """Queue of outputs with its own thread, which writes; the launcher's loop fills it."""

    def __init__(
        self, writer: Writer, report: Callable[[str], None] = lambda text: None, full_bytes: int = FULL_BYTES
    ) -> None:
        """Take over the writer; `report` prints for the user."""
        self.lengths = writer.lengths
        self.is_full = False
        self._writer = writer
        self._writers = writer.parts
        for part in self._writers.values():
            part.freed = self._find_room
            part.report = report
        self._report = report
        self._full_bytes = full_bytes
        self._wake: Callable[[], object] = lambda: None
        self._lock = threading.Condition()
        # (epoch, records, output, bytes), or a mark, or the length to which the output must be cut back
        self._epochs: deque[tuple[int, list[Any], str, int] | Mark | int] = deque()
        self._synced: list[tuple[Mark, int]] = []  # with the output's length; not fetched yet
        self._bytes = 0  # of these and of the epoch that is being written
        self.records = 0  # not written yet, of these and of that epoch
        self._slices = 0  # written in total
        self._cuts = 0  # calls of `cut_back`
        self.is_finished = False  # `finish` was called, and everything is written and flushed
        self._is_finishing = self._is_closing = self._is_dropped = False
        self._error: BaseException | None = None
        self._raised: BaseException | None = None  # the last error that was raised
        self._thread = threading.Thread(target=self._run, name="megaflow-output", daemon=True)

    @property
    def forms(self) -> tuple[tuple[str, Form], ...]:
        """The name and form of each output."""
        return self._writer.forms

    def start(self, wake: Callable[[], object]) -> None:
        """Start the thread unless it runs. From now on it calls this `wake`, and at once if it ran before.

        The call means that `is_full`, `is_finished` or `check` may have changed.
        """
        self._wake = wake
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._wake()  # news since the previous loop ended

    def put(self, leaving: Sequence[Leaving]) -> None:
        """Queue these to be written, in this order. Does not block."""
        if not leaving:
            return
        with self._lock:
            for each in leaving:
                if isinstance(each, Mark):
                    self._epochs.append(each)
                    continue
                epoch, records, output = each
                size = self._writers[output].bytes_of(records)
                self._epochs.append((epoch, records, output, size))
                self._bytes += size
                self.records += len(records)
            self.is_full = self.is_full or self._kept_bytes() >= self._full_bytes
            self._lock.notify()

    def committed(self, length: int) -> None:
        """Tell the writer that a durable commit includes the output up to this length."""
        self._writer.committed(length)

    def note_end(self, ended: Ended) -> None:
        """Tell the writers of the last report of a worker."""
        for part in self._writers.values():
            part.note_end(ended)

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until the output's reader has everything. Call it after the last `put`. Raises the reader's error."""
        try:
            for part in self._writers.values():
                part.await_read(pause)
        except BaseException as error:
            self._raised = error
            raise

    def fail(self, error: BaseException) -> None:
        """Make `check` raise this error, because the output cannot be read. Any thread."""
        with self._lock:
            self._error = self._error or error
        self._wake()

    def check(self) -> None:
        """Raise the writer's error, once."""
        with self._lock:
            error, self._error = self._error, None
        if error is not None and error is not self._raised:
            self._raised = error
            raise error

    def synced(self) -> list[tuple[Mark, int]]:
        """Return the marks reached since the last call, each with the length of the output, which is durable."""
        with self._lock:
            reached, self._synced = self._synced, []
        return reached

    def cut_back(self, length: int) -> None:
        """Drop what waits to be written, and truncate the output to this length. Does not block."""
        with self._lock:
            self._epochs.clear()
            self._epochs.append(length)
            self._synced.clear()
            self._bytes = self.records = 0
            self._cuts += 1
            self.is_full = self._is_finishing = self.is_finished = False
            self._lock.notify()

    def finish(self) -> None:
        """Let the thread flush the writer once everything is written, even if there was nothing."""
        with self._lock:
            self._is_finishing = True
            self._lock.notify()

    def drop(self) -> None:
        """Write nothing after the current slice."""
        with self._lock:
            self._is_dropped = True
            self._epochs.clear()
            self.records = 0

    def close(self) -> None:
        """Write what is left, and close the writer; give up when a wait of STUCK_SECONDS brings no progress.

        Raises the writer's error, unless `check` has raised it.
        """
        if self._thread.ident is None:
            self._writer.close()
            return
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        before = -1
        while self._thread.is_alive():
            if before == self._slices:
                if self.records:
                    self._report(f"the output has no reader, so {quantity(self.records, 'record')} were not written")
                return
            before = self._slices
            self._thread.join(STUCK_SECONDS)
        self.check()

    def _run(self) -> None:
        try:
            try:
                while self._write_next():
                    pass
            finally:
                self._writer.close()
        except BaseException as error:
            self._error = error
        self._wake()

    def _write_next(self) -> bool:
        """Wait for something to do; write one epoch, or flush. Return whether there may be more."""
        with self._lock:
            self._lock.wait_for(lambda: self._epochs or self._is_closing or self._is_finishing > self.is_finished)
            taken, cuts = self._epochs.popleft() if self._epochs else None, self._cuts
        if isinstance(taken, Mark):
            self._sync(taken, cuts)
        elif isinstance(taken, int):
            self._writer.cut_back(taken)
        elif taken is not None:
            self._write(*taken)
        elif self._is_finishing and not self.is_finished:
            self._writer.flush()
            self.is_finished = True
            self._wake()
        return taken is not None or not self._is_closing

    def _write(self, epoch: int, records: list[Any], output: str, size: int) -> None:
        for at in range(0, len(records), SLICE):
            if self._is_dropped:
                return
            self._writers[output].write(epoch, records[at : at + SLICE])
            self._slices += 1
        with self._lock:
            self._bytes = max(0, self._bytes - size)  # 0: `cut_back` was called meanwhile
            self.records = max(0, self.records - len(records))
        if not self._epochs:
            self._writer.flush()
        self._find_room()

    def _kept_bytes(self) -> int:
        return self._bytes + sum(part.unread_bytes for part in self._writers.values())

    def _find_room(self) -> None:
        """Let the workers send outputs again once enough of them are written and read; any thread."""
        with self._lock:
            has_room = self.is_full and self._kept_bytes() < self._full_bytes / 2
            self.is_full = self.is_full and not has_room
        if has_room:
            self._wake()

    def _sync(self, mark: Mark, cuts: int) -> None:
        length = self._writer.sync()
        with self._lock:
            if cuts == self._cuts:
                self._synced.append((mark, length))
        self._wake()
