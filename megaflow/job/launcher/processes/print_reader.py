"""The thread that reads what worker processes print, and shows it on the launcher's standard error.

A process prints into a pipe of its own. The alternatives are worse: with an inherited standard error, nothing keeps
the last lines and no line has a name; a file grows without a bound, because a program that writes to descriptor 2
cannot be made to write to a ring.

1. A process never waits long for its prints. This thread reads each pipe at once and waits only in `poll`. If standard
   error accepts less than the processes print, up to WAITING_BYTES of each process wait here. Then a process may wait
   for its reader, but only as long as its patience lasts: PATIENCE_SECONDS, and PATIENCE_SHARE of the time since. After
   that its lines are read, left out and counted, until all that wait are shown. Then comes a line with the number.
2. So memory is bounded: per process a pipe, WAITING_BYTES and the last 64 kB.
3. If the launcher itself does not read, for example because it is suspended, the process waits for one second, then
   drops lines, counts them and keeps the last of them in shared memory: see `megaflow.job.patient_stream` and
   `megaflow.job.dropped_tail`. Only programs in other languages wait on, as for any pipe.
4. The kernel keeps what a dead process has written to its pipe. So nothing is lost by a SIGKILL, and `last_of` first
   reads the rest.
5. `close` shows everything that the ended processes have printed. So the error of a job, which comes after it, stands
   last and alone.
6. Standard error is written without blocking and as it was when the reader started, at descriptor level. So a notebook
   captures it as it captures prints of other processes. Pieces end at line ends, as far as possible.
7. After a read of a few lines the thread pauses for PAUSE_SECONDS. So a process that prints line by line causes few
   wake-ups, and leaves Python's interpreter to the other threads of the launcher.
8. One lock guards everything here. Any thread may call the public methods. None waits for standard error while it has
   the lock, except for a regular file.
"""

import contextlib
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from megaflow.job.dropped_tail import DroppedTail
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from megaflow.job.launcher.processes.wakeups import Wakeup
from megaflow.job.patient_stream import WAIT_SECONDS, unblocking
from megaflow.own_files import close_own, own_pipe

STDERR: Final = 2
READ_BYTES: Final = 64 * 1024
WAITING_BYTES: Final = 256 * 1024  # of one process
PATIENCE_SECONDS: Final = 1.0
PATIENCE_SHARE: Final = 0.01
READ_AT_ONCE: Final = 1 << 20  # of a process that has ended; a pipe has less
FEW_BYTES: Final = 16 * 1024
PAUSE_SECONDS: Final = 0.002
END_SECONDS: Final = 5.0  # to show the rest when the job ends


class Prints:
    """What one process prints: its pipe, and what of it waits to be shown. Guarded by the reader's lock.

    A process elsewhere has no pipe here: `show` brings what it prints.
    """

    def __init__(self, reader: "PrintReader", lines: PrintedLines) -> None:
        self.lines = lines
        self._reader = reader
        self.reading = self.writing = -1  # `writing` is the process's end: close it here once the process runs
        self.dropped: DroppedTail | None = None
        self.queued = 0  # bytes that wait
        self.left_out = 0  # lines since then
        self.patience = PATIENCE_SECONDS
        self.since = 0.0  # when `patience` was as said
        self.must_wait = False  # whether it is not read since then

    def close_writing(self) -> None:
        """Close the process's end in the launcher."""
        if self.writing >= 0:
            file, self.writing = self.writing, -1
            close_own(file)

    def show(self, data: bytes, is_last: bool = False) -> None:
        """Show what the process has printed, if it runs elsewhere. Any thread may call it; does not block."""
        self._reader.show(self, data, is_last)

    def last(self) -> str:
        """Return the last lines of the process, "" if there are none. Any thread may call it."""
        return self._reader.last_of(self)


class PrintReader:
    """Reader of all processes of a job."""

    def __init__(self, show: int = STDERR, clock: Callable[[], float] = time.monotonic) -> None:
        """`show` is the descriptor to write to. The thread starts with the first process."""
        self._clock = clock
        self._lock = threading.RLock()
        self._news = Wakeup()
        self._pipes: list[Prints] = []  # those that have not ended
        self._own = -1  # a duplicate of `show`
        self._queue: deque[tuple[Prints, memoryview]] = deque()  # to be shown
        self._is_at_line_start = True
        self._are_several = False  # workers, now or before
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="megaflow-prints", daemon=True)
        self._file, self._piece_bytes = -1, READ_BYTES  # -1: it never waits
        self._send: Callable[[memoryview], int] = len
        self.is_terminal = False  # known once the first process has started
        self._show = show

    def open(self, lines: PrintedLines, workers: int) -> Prints:
        """Return the pipe of a process that is about to start, with so many workers. Raises OSError, RuntimeError."""
        printed = Prints(self, lines)
        printed.reading, printed.writing = own_pipe()
        try:
            printed.dropped = DroppedTail()
            with self._lock:
                os.set_blocking(printed.reading, False)
                printed.since = self._clock()
                self._start()
                for other in list(self._pipes):
                    self._read(other, READ_AT_ONCE)  # it may have ended
                self._are_several |= bool(self._pipes) or workers > 1
                self._pipes.append(printed)
        except BaseException:
            close_own(printed.reading)
            printed.close_writing()
            if printed.dropped is not None:
                printed.dropped.close()
            raise
        self._news.wake()
        return printed

    def show(self, printed: Prints, data: bytes, is_last: bool) -> None:
        """Show what a process elsewhere has printed."""
        with self._lock:
            self._start()
            self._put(printed, printed.lines.take(data) + (printed.lines.finish() if is_last else b""))
            self._flush()
        self._news.wake()

    def last_of(self, printed: Prints) -> str:
        """Return the last lines of a process, including those that have not been read yet."""
        with self._lock:
            if printed.reading >= 0:
                self._read(printed, READ_AT_ONCE)
            return printed.lines.last(b"" if printed.dropped is None else printed.dropped.read()[0])

    def close(self) -> None:
        """Show the rest of what has been printed, and end the thread."""
        self._is_closing = True
        self._news.wake()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            for printed in list(self._pipes):
                self._end(printed)
            for file in {self._own, self._file} - {-1}:
                os.close(file)
            self._own = self._file = -1
        self._news.close()

    # The thread

    def _start(self) -> None:
        """Start the thread, if it does not run, and open standard error again: see rule 6."""
        if self._thread.ident is not None or self._is_closing:
            return
        with contextlib.suppress(OSError):  # standard error is closed
            self.is_terminal = os.isatty(self._show)
            self._own = os.dup(self._show)
            kind = os.fstat(self._own).st_mode
            if stat.S_ISREG(kind) or os.path.samestat(os.fstat(self._own), os.stat(os.devnull)):
                self._send = lambda piece: os.write(self._own, piece)
            else:
                self._file, self._send, self._piece_bytes = unblocking(self._own, kind)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closing:
            with self._lock:
                poller, files, seconds = self._poller()
            ready = {file for file, _ in poller.poll(seconds)}
            with self._lock:
                if self._news.fileno() in ready:
                    self._news.clear()
                self._flush()
                came = sum(self._read(each, READ_BYTES) for file, each in files.items() if file in ready)
                self._flush()
            if 0 < came < FEW_BYTES and not self._is_closing:
                time.sleep(PAUSE_SECONDS)
        with self._lock:
            for printed in list(self._pipes):
                printed.patience = 0.0
                self._read(printed, READ_AT_ONCE)
        until, progress = self._clock() + END_SECONDS, self._clock() + WAIT_SECONDS
        while self._queue and self._clock() < min(until, progress):
            before = len(self._queue), self._queue[0][0].queued
            with self._lock:
                self._flush()
                if self._queue and (len(self._queue), self._queue[0][0].queued) != before:
                    progress = self._clock() + WAIT_SECONDS
            if self._queue:
                self._wait_for_room(progress - self._clock())

    def _poller(self) -> tuple[select.poll, dict[int, Prints], int | None]:
        """Return what to wait for, and for how many milliseconds."""
        poller, now, wait = select.poll(), self._clock(), None
        poller.register(self._news, select.POLLIN)
        files: dict[int, Prints] = {}
        for printed in self._pipes:
            if self._must_wait(printed, now):
                wait = printed.patience if wait is None else min(wait, printed.patience)
                continue
            poller.register(printed.reading, select.POLLIN)
            files[printed.reading] = printed
        if self._queue and self._file >= 0:
            poller.register(self._file, select.POLLOUT)
        return poller, files, None if wait is None else int(wait * 1000) + 1

    def _must_wait(self, printed: Prints, now: float) -> bool:
        """Return whether a process waits for the reader of standard error from now on: see rule 1."""
        passed, printed.since = now - printed.since, now
        change = -passed if printed.must_wait else passed * PATIENCE_SHARE
        printed.patience = max(0.0, min(PATIENCE_SECONDS, printed.patience + change))
        printed.must_wait = printed.queued > WAITING_BYTES and printed.patience > 0
        return printed.must_wait

    def _read(self, printed: Prints, most: int) -> int:
        """Read what a process has printed, at most about so many bytes. Return how many."""
        came = 0
        while came < most and printed.reading >= 0:
            try:
                data = os.read(printed.reading, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self._end(printed)
                break
            came += len(data)
            self._put(printed, printed.lines.take(data, not self._are_several))
        return came

    def _put(self, printed: Prints, text: bytes) -> None:
        """Let a text of a process wait to be shown, or leave it out and count its lines."""
        if not text:
            return
        is_patient = printed.reading >= 0 and printed.patience > 0
        if printed.left_out or (printed.queued > WAITING_BYTES and not is_patient):
            printed.left_out += text.count(b"\n")
            return
        self._queue.append((printed, memoryview(text)))
        printed.queued += len(text)

    def _flush(self) -> None:
        """Write what waits, as far as there is room."""
        while self._queue:
            printed, text = self._queue[0]
            sent = self._written(text)
            if not sent:
                return
            printed.queued -= sent
            if sent < len(text):
                self._queue[0] = printed, text[sent:]
                continue
            self._queue.popleft()
            if not printed.queued and printed.left_out:
                left_out, printed.left_out = printed.left_out, 0
                self._put(printed, printed.lines.gap(left_out))

    def _written(self, text: memoryview) -> int:
        """Write a piece of a text. Return its length, 0 if there is no room."""
        piece = text
        if self._file >= 0:
            if not self._wait_for_room(0.0):
                return 0
            end = bytes(text[: self._piece_bytes]).rfind(b"\n") + 1
            piece = text[: end or self._piece_bytes]
        try:
            sent = self._send(piece)
        except BlockingIOError:
            return 0
        except OSError:  # a closed terminal, for example: there is no place to show anything
            sent = len(piece)
        self._is_at_line_start = bytes(piece[sent - 1 : sent]) == b"\n"
        return sent

    def _wait_for_room(self, seconds: float) -> bool:
        if self._file < 0:
            return True
        poller = select.poll()
        poller.register(self._file, select.POLLOUT)
        return bool(poller.poll(max(0.0, seconds) * 1000))

    def _end(self, printed: Prints) -> None:
        """Show the end of what a process has printed, and close its files."""
        rest = printed.lines.finish()
        if printed.dropped is not None:
            data, left_out = printed.dropped.read()
            printed.dropped.close()
            printed.dropped = None
            if left_out:
                rest += printed.lines.gap(left_out)
            rest += printed.lines.take(data, not self._are_several) + printed.lines.finish()
        is_complete = bytes(self._queue[-1][1][-1:]) == b"\n" if self._queue else self._is_at_line_start
        if not (rest or self._are_several or is_complete):
            rest = b"\n"
        self._put(printed, rest)
        close_own(printed.reading)
        printed.reading = -1
        printed.close_writing()
        self._pipes.remove(printed)
