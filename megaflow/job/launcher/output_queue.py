"""Closed epochs on their way to the writer. A thread calls the writer, so a slow reader of the output delays nothing
else.

1. From `start` on only the thread calls the writer, and also closes it. Everything else continues while it hangs in a
   write.
2. The loop puts epochs, asks for the end (`finish`) and closes; the thread takes epochs. `_lock` guards the state that
   both change.
3. From FULL_BYTES on the queue `is_full`, until it has fallen to half of that. Meanwhile the loop has the workers hold
   their outputs in the dataflow (`HoldOutput`, see `megaflow.job.worker.output`). Outputs that are already on their way
   are accepted: at most OUTPUT_BYTES_MAX more per process. All other messages arrive as before. Bytes that the writer
   has and its reader has not taken also count. Records that stay in memory anyway, those of `megaflow.run`, do not.
4. The thread flushes whenever it has written everything, and after `finish` even if there was nothing to write.
5. An error of the writer ends the thread. `check` or `close` raises it, once; the same holds for the argument of
   `fail`.
6. `close` waits for the thread as long as it makes progress: SLICE records within STUCK_SECONDS. A stuck thread is left
   behind. It is a daemon, and the writers use no stream that the interpreter flushes at its end.
7. At a `Mark` the thread makes everything before it durable, and reports the length of the output there (`synced`).
   `cut_back` removes epochs that are not written yet, and then truncates the output to a length. Later epochs follow
   that, and earlier marks are no longer reported: a job that has lost processes continues with the same queue.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from megaflow.control.wording import quantity
from megaflow.job.launcher.epoch_merge import Leaving, Mark, Writer
from megaflow.quick_dataclass import dataclass

FULL_BYTES = 4 << 20  # of text, a fraction of a second for a disk
SLICE = 100  # records in one call of the writer
STUCK_SECONDS = 1.0  # without progress; the whole end of a failed job is promised to take 5


@dataclass(frozen=True, slots=True)
class CutBack:
    """The output is to be no longer than this."""

    length: int


class OutputQueue:
    """One thread, which writes; the launcher's loop gives it what is to be written."""

    def __init__(
        self, writer: Writer, report: Callable[[str], None] = lambda text: None, full_bytes: int = FULL_BYTES
    ) -> None:
        """The writer belongs to this from now on; `report` tells the user."""
        self.forms = writer.forms
        self.lengths = writer.lengths
        self.is_full = False
        self._writer = writer
        self._writers = {name: part for (name, _), part in zip(writer.forms, writer.parts, strict=True)}
        for part in writer.parts:
            part.freed = self._find_room
        self._report = report
        self._full_bytes = full_bytes
        self._wake: Callable[[], None] = lambda: None
        self._lock = threading.Condition()
        self._epochs: deque[tuple[int, list[Any], str, int] | Mark | CutBack] = deque()  # epoch, records, output, bytes
        self._synced: list[tuple[Mark, int]] = []  # with the output's length; not fetched yet
        self._bytes = 0  # of these and of the one that is being written
        self.records = 0  # that are not written yet, of these and of that one
        self._slices = 0  # written, ever
        self._cuts = 0  # times that it was cut back
        self._is_finishing = self._is_finished = self._is_closing = self._is_dropped = False
        self._error: BaseException | None = None
        self._raised: BaseException | None = None  # the last one that was
        self._thread = threading.Thread(target=self._run, name="megaflow-output", daemon=True)

    def start(self, wake: Callable[[], None]) -> None:
        """Begin, if that is not done; this `wake` is called by the thread from now on, and at once if it had begun.

        It tells that `is_full`, `is_finished` or `check` has something new.
        """
        self._wake = wake
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._tell()  # what there has been since the one before ended

    def put(self, leaving: Sequence[Leaving]) -> None:
        """Have these written, in this order. Does not block."""
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

    @property
    def is_silent(self) -> bool:
        """Whether the workers send nothing of any output."""
        return all(form == "nothing" for _, form in self.forms)

    def committed(self, length: int) -> None:
        """Tell the writer that a commit is durable that has the output up to this length."""
        self._writer.committed(length)

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until what reads the output has all: nothing is put any more. Raises what has made that fail."""
        try:
            self._writer.await_read(pause)
        except BaseException as error:
            self._raised = error
            raise

    def fail(self, error: BaseException) -> None:
        """Have `check` raise this: the output cannot be read. Any thread."""
        with self._lock:
            self._error = self._error or error
        self._tell()

    def check(self) -> None:
        """Raise what the writer has raised, once."""
        with self._lock:
            error, self._error = self._error, None
        if error is not None and error is not self._raised:
            self._raised = error
            raise error

    @property
    def is_finished(self) -> bool:
        """Whether `finish` was called, and all is written and flushed."""
        return self._is_finished

    def synced(self) -> list[tuple[Mark, int]]:
        """Return the marks that were reached since the last call, each with the length of the output, now durable."""
        with self._lock:
            reached, self._synced = self._synced, []
        return reached

    def cut_back(self, length: int) -> None:
        """Write nothing of what is waiting, and take back what the output has beyond this length. Does not block."""
        with self._lock:
            self._epochs.clear()
            self._epochs.append(CutBack(length))
            self._synced.clear()
            self._bytes = self.records = 0
            self._cuts += 1
            self.is_full = self._is_finishing = self._is_finished = False
            self._lock.notify()

    def finish(self) -> None:
        """Have the writer flushed when all is written, also if that is nothing."""
        with self._lock:
            self._is_finishing = True
            self._lock.notify()

    def drop(self) -> None:
        """Write nothing more but the slice that is being written."""
        with self._lock:
            self._is_dropped = True
            self._epochs.clear()
            self.records = 0

    def close(self) -> None:
        """Write what is left, and close the writer; but wait only as long as that makes progress.

        Raises what the writer raises, unless `check` has.
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
        self._tell()

    def _write_next(self) -> bool:
        """Write one epoch, or flush, when there is something to do; return whether there may be more."""
        with self._lock:
            self._lock.wait_for(lambda: self._epochs or self._is_closing or self._is_finishing > self._is_finished)
            taken, cuts = self._epochs.popleft() if self._epochs else None, self._cuts
        if isinstance(taken, Mark):
            self._sync(taken, cuts)
        elif isinstance(taken, CutBack):
            self._writer.cut_back(taken.length)
        elif taken is not None:
            self._write(*taken)
        elif self._is_finishing and not self._is_finished:
            self._writer.flush()
            self._is_finished = True
            self._tell()
        return taken is not None or not self._is_closing

    def _write(self, epoch: int, records: list[Any], output: str, size: int) -> None:
        for at in range(0, len(records), SLICE):
            if self._is_dropped:
                return
            self._writer.write_to(output, epoch, records[at : at + SLICE])
            self._slices += 1
        with self._lock:
            self._bytes = max(0, self._bytes - size)  # 0: it was cut back meanwhile
            self.records = max(0, self.records - len(records))
        if not self._epochs:
            self._writer.flush()
        self._find_room()

    def _kept_bytes(self) -> int:
        return self._bytes + sum(part.unread_bytes for part in self._writers.values())

    def _find_room(self) -> None:
        """Have the workers send their outputs again if enough of them are written, and read; any thread."""
        with self._lock:
            has_room = self.is_full and self._kept_bytes() < self._full_bytes / 2
            self.is_full = self.is_full and not has_room
        if has_room:
            self._tell()

    def _sync(self, mark: Mark, cuts: int) -> None:
        length = self._writer.sync()
        with self._lock:
            if cuts == self._cuts:
                self._synced.append((mark, length))
        self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # the loop has ended
            self._wake()
