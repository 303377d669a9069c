"""Outputs on their way to the program that started the job and reads them while it runs.

1. The output queue's thread calls `write`, `cut_back` and `close`; the launcher's thread calls `committed`; the
   program's threads call all other methods. `_came` guards the waiting threads, and the records that are written but
   not yet ready for the program.
2. No call blocks the writer. Records that the program has not read count like those in the output queue
   (`unread_bytes`). Above a limit the workers hold their outputs, so the job waits for a slow reader. Sizes are
   estimated, from one record of each epoch.
3. A thread that waits for the job's end cannot read meanwhile. To avoid a deadlock, the writer then keeps all records,
   unless the last reader was another thread that still lives.
4. A durable job that loses processes sends the records after its last checkpoint again. The program receives only
   records that a checkpoint contains, so no record comes twice and none is taken back. Records without a checkpoint do
   not count as unread, because the job must continue in order to take one.
5. Python runs signal handlers and other threads at calls, at jumps back and at the beginning of a function. There is
   none of these between taking a record from `ready` and returning it to the program. So whatever a Ctrl-C interrupts,
   each record is returned or still there.
6. A fork of the program has none of the launcher's threads and would wait without end. So its copies of the writers
   become empty (`_forget_in_fork`), and a call that would wait raises. Reading a record costs no check.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

from megaflow.errors import CannotTravel, UsageError
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.wakeups import SLICE_SECONDS, wait_in_slices
from megaflow.job.spec import Form
from megaflow.timely.communication.codec.encode import encode

FREED_EACH: Final = 128  # records read between two checks whether the workers may continue


class ProgramWriter(Writer):
    """Writer that keeps the records until the program reads them."""

    form: Form = "records"
    name = "records"
    is_in_memory = True

    def __init__(self, durable: bool) -> None:
        """With `durable`, records become ready for the program when a checkpoint contains them."""
        self.ready: deque[Any] = deque()  # for the program
        self.is_over = False  # nothing more will be written
        self.reader: threading.Thread | None = None  # the last one that read
        self._kept: deque[Any] | None = deque() if durable else None  # written, but in no checkpoint yet
        self._released = 0  # records made ready in total
        self._record_bytes = 0.0  # average per record
        self._came = threading.Condition()
        self._readers = 0  # threads that wait for a record
        self._wakers: list[Callable[[], None]] = []  # each called once, when there is something to read
        self._waiting: list[threading.Thread] = []  # for the job's end
        self._process = os.getpid()
        _writers.add(self)

    @property
    def unread_bytes(self) -> int:
        """Estimated bytes of the records that the program could have read; 0 if the job must not wait for a reader."""
        if self._waiting and (self.reader is None or self.reader in self._waiting or not self.reader.is_alive()):
            return 0
        return int(len(self.ready) * self._record_bytes)

    @property
    def is_awaited(self) -> bool:
        """Whether a reader waits for the next record, or for the end. Any thread."""
        return bool(self._readers or self._wakers)

    def bytes_of(self, records: list[Any]) -> int:
        """Return the estimated encoded size of the records. Encodes one of them."""
        with contextlib.suppress(CannotTravel):
            size = len(encode(records[0]))
            self._record_bytes = size if not self._record_bytes else (7 * self._record_bytes + size) / 8
        return int(len(records) * self._record_bytes)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep these records."""
        with self._came:
            if self._kept is not None:
                self._kept.extend(records)
                return
            self._released += len(records)
            self.ready.extend(records)
            self._tell()

    def sync(self) -> int:
        """Return the number of records so far, including those that were read."""
        with self._came:
            return self._released + len(self._kept or ())

    def cut_back(self, length: int) -> None:
        """Forget the records after this length. The program has not seen them."""
        with self._came:
            while self._kept and self._released + len(self._kept) > length:
                self._kept.pop()

    def committed(self, length: int) -> None:
        """Make the records that a checkpoint now contains ready for the program."""
        with self._came:
            while self._kept and self._released < length:
                self.ready.append(self._kept.popleft())
                self._released += 1
            self._tell()

    def close(self) -> None:
        """Note that no more records come."""
        with self._came:
            self.is_over = True
            self._tell()

    def await_more(self) -> None:
        """Wait until there is a record to read, or none can come. Raises UsageError in a fork."""
        check_process(self._process)
        self.freed()
        with self._came:
            self._readers += 1
            try:
                wait_in_slices(lambda seconds: self._came.wait_for(lambda: self.ready or self.is_over, seconds))
            finally:
                self._readers -= 1

    def call_with_more(self, waker: Callable[[], None]) -> None:
        """Call `waker` once there is a record to read or none can come; from any thread, perhaps at once.

        Raises UsageError in a fork.
        """
        check_process(self._process)
        self.freed()
        with self._came:
            self._wakers.append(waker)
            if self.ready or self.is_over:
                self._tell()

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Keep all records that come while this thread waits in the block for the job's end: see rule 3."""
        self._waiting.append(threading.current_thread())
        self.freed()
        try:
            yield
        finally:
            self._waiting.remove(threading.current_thread())

    def _tell(self) -> None:
        self._came.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            wake()


_writers: Final[WeakSet[ProgramWriter]] = WeakSet()


def _forget_in_fork() -> None:
    for writer in _writers:
        writer.ready.clear()
        writer.is_over = False


os.register_at_fork(after_in_child=_forget_in_fork)


def check_process(owner: int) -> None:
    """Raise UsageError in a fork of the process that started a job."""
    if os.getpid() != owner:
        raise UsageError(
            f"This process is a fork of process {owner}, which started the job. Read the job's outputs, wait for it "
            "and stop it there, and pass its records on to the fork."
        )


@contextlib.contextmanager
def waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Wake the loop regularly while a coroutine waits, for the reason given in `wait_in_slices`."""

    timers: list[asyncio.TimerHandle] = []

    def again() -> None:
        timers[:] = [loop.call_later(SLICE_SECONDS, again)]

    again()
    try:
        yield
    finally:
        timers[0].cancel()


class ReadJob(Protocol):
    """Job whose outputs are read."""

    def stop_or_end(self) -> None:
        """Stop the job; block until it has processed its records. A Ctrl-C meanwhile ends it at once and is raised."""

    def wait(self) -> object:
        """Wait for the job's end; raise its error if it failed."""


class Outputs:
    """Records of a job, as they come: iterate with `for`, or in a coroutine with `async for`.

    Ctrl-C while `for` waits for the next record stops the job, as `job.stop()` does. The iteration still returns the
    records that were on their way, and then raises KeyboardInterrupt. A second Ctrl-C ends the job at once.
    """

    def __init__(self, writer: ProgramWriter, job: ReadJob) -> None:
        self._writer = writer
        self._job = job
        self._ready = writer.ready
        self._given = 0
        self._interrupt: KeyboardInterrupt | None = None

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        """Return the next record, waiting for it. After the last record of a failed job, raises the job's error."""
        self._note()
        while True:
            try:
                record = self._ready[0]
                del self._ready[0]
                return record  # see rule 5
            except IndexError:
                pass
            try:
                if self._writer.is_over and not self._ready:
                    break
                self._writer.await_more()
            except KeyboardInterrupt as interrupt:
                if self._interrupt is not None:
                    raise
                self._interrupt = interrupt
                self._job.stop_or_end()
        if self._interrupt is not None:
            raise self._interrupt.with_traceback(None)  # without the traceback of megaflow's wait
        self._job.wait()
        raise StopIteration

    async def __anext__(self) -> Any:
        """Do what `__next__` does while other coroutines run. A cancellation does not affect the job."""
        self._note()
        while True:
            try:
                record = self._ready[0]
                del self._ready[0]
                return record
            except IndexError:
                pass
            if self._writer.is_over and not self._ready:
                break
            loop, came = asyncio.get_running_loop(), asyncio.Event()

            def wake(loop: asyncio.AbstractEventLoop = loop, came: asyncio.Event = came) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(came.set)

            self._writer.call_with_more(wake)
            with waking(loop):
                await came.wait()
        await asyncio.to_thread(self._job.wait)
        raise StopAsyncIteration

    def _note(self) -> None:
        """Note the reading thread, and let the workers continue if there is room."""
        if not self._given % FREED_EACH:
            self._writer.reader = threading.current_thread()
            self._writer.freed()
        self._given += 1
