"""Outputs on their way to the program that has started the job, which reads them while that runs.

1. `write`, `cut_back` and `close` are called by the output queue's thread, `committed` by the launcher's, all else by
   the program's threads. `_came` guards what has been written and is not for the program yet, and who waits.
2. Nothing here blocks who writes. What the program has not read counts as what waits in the output queue does
   (`unread_bytes`): from a limit on the workers hold their outputs, and so the job waits for a reader that is slow.
   Their size is estimated, by one record of each epoch.
3. Who waits for the job's end cannot read meanwhile, so that nobody waits for the other: all that comes is kept, unless
   another thread, which lives, has read last.
4. A durable job may lose processes, and then puts out again what came after its last checkpoint. The program is given
   what a checkpoint has: so no record comes twice, and none is taken back. What has no checkpoint does not count as
   unread, since the job must go on to take one.
5. A record is taken from `ready` and given to the program without a moment between at which Python runs signal
   handlers or other threads: it does so at calls, jumps back and the begin of a function. So whatever a Ctrl-C
   interrupts, each record is given or still there.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, Self

from megaflow.errors import CannotTravel
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.spec import Form
from megaflow.timely.communication.codec.encode import encode

FREED_EACH: Final = 128  # records that are read until it is looked whether the workers may go on


class ProgramWriter(Writer):
    """Keeps the records until the program reads them."""

    form: Form = "records"
    name = "records"
    is_in_memory = True

    def __init__(self, durable: bool) -> None:
        """`durable`: records are for the program when a checkpoint has them."""
        self.ready: deque[Any] = deque()  # for the program
        self.is_over = False  # nothing more will be written
        self.reader: threading.Thread | None = None  # that has read last
        self._kept: deque[Any] | None = deque() if durable else None  # written, and in no checkpoint
        self._released = 0  # records that were for the program, ever
        self._record_bytes = 0.0  # of one, about
        self._came = threading.Condition()
        self._wakers: list[Callable[[], None]] = []  # called once, when there is something to read
        self._waiting: list[threading.Thread] = []  # for the job's end

    @property
    def unread_bytes(self) -> int:
        """How much the program has not read that it might have; 0 if nobody is to wait until it has."""
        if self._waiting and (self.reader is None or self.reader in self._waiting or not self.reader.is_alive()):
            return 0
        return int(len(self.ready) * self._record_bytes)

    def bytes_of(self, records: list[Any]) -> int:
        """Return about how large they are, as they would travel. Cost: encodes one of them."""
        with contextlib.suppress(CannotTravel):
            size = len(encode(records[0]))
            self._record_bytes = size if not self._record_bytes else (7 * self._record_bytes + size) / 8
        return int(len(records) * self._record_bytes)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep them."""
        with self._came:
            if self._kept is not None:
                self._kept.extend(records)
                return
            self._released += len(records)
            self.ready.extend(records)
            self._tell()

    def sync(self) -> int:
        """Return how many there are, those that were read included."""
        with self._came:
            return self._released + len(self._kept or ())

    def cut_back(self, length: int) -> None:
        """Forget those that came later: the program has not seen them."""
        with self._came:
            while self._kept and self._released + len(self._kept) > length:
                self._kept.pop()

    def committed(self, length: int) -> None:
        """Give those to the program that a checkpoint has now."""
        with self._came:
            while self._kept and self._released < length:
                self.ready.append(self._kept.popleft())
                self._released += 1
            self._tell()

    def close(self) -> None:
        """Note that there will be no more."""
        with self._came:
            self.is_over = True
            self._tell()

    def await_more(self) -> None:
        """Wait until there is something to read, or never will be."""
        self.freed()
        with self._came:
            self._came.wait_for(lambda: self.ready or self.is_over)

    def call_with_more(self, waker: Callable[[], None]) -> None:
        """Have this called, by any thread, when there is something to read or never will be; perhaps at once."""
        self.freed()
        with self._came:
            self._wakers.append(waker)
            if self.ready or self.is_over:
                self._tell()

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Keep all that comes while this thread waits in the block for the end of the job: see rule 3."""
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


class ReadJob(Protocol):
    """The job whose outputs are read."""

    def stop_or_end(self) -> None:
        """Have it work off what it has; blocks until it has. A Ctrl-C meanwhile ends it at once, and is raised."""

    def wait(self) -> object:
        """Wait for its end; raise what has made it fail."""


class Outputs:
    """The records of a job, as they come: for `for`, or in a coroutine for `async for`.

    Ctrl-C while `for` waits for the next record stops the job, as `job.stop()` does; the records that were on their way
    are given still, and then KeyboardInterrupt is raised. A second one ends the job at once.
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
        """Return the next record; wait for it. Raises what has made the job fail, behind the records before that."""
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
            raise self._interrupt
        self._job.wait()
        raise StopIteration

    async def __anext__(self) -> Any:
        """Do what `__next__` does, and let others run meanwhile; cancelled, it leaves the job alone."""
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
                with contextlib.suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(came.set)

            self._writer.call_with_more(wake)
            await came.wait()
        await asyncio.to_thread(self._job.wait)
        raise StopAsyncIteration

    def _note(self) -> None:
        """Note who reads; have the workers go on if there is room."""
        if not self._given % FREED_EACH:
            self._writer.reader = threading.current_thread()
            self._writer.freed()
        self._given += 1
