"""Sources fed by event loops: an asyncio.Queue of the program's loop, and async iterables in a loop of their own.

The LineReader's thread pulls; another thread calls `end`.

1. An async iterable runs in a separate event loop on the thread that pulls. So it continues whatever the program does:
   a notebook's loop is busy as long as a cell runs. `end` cancels what it awaits, and closes it.
2. An `asyncio.Queue` belongs to the loop that feeds it, so it is asked there: in the loop that runs in the thread that
   starts the job. When that loop is closed, the queue has ended.
3. An item of such a queue is either taken before `end`, or stays in the queue. `_take` looks for the end, lets the
   queue's `get` continue, and appends its result to `taken`, all under the lock under which `end` records that it was
   called. So no item is in transit when `end` returns, and `end` does not wait for the loop, which `job.stop()` blocks
   if a coroutine of the loop calls it. All that remains for the loop is to drop the request.
"""

import asyncio
import concurrent.futures
import contextlib
import types
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.job.launcher.pulled_source import LoopSource

AT_ONCE: Final = 100  # items that are taken from a queue of a loop in one go


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs in this thread."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def pullable(given: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    """Return what is given, or a dict of such, where what loops feed is a LoopSource; `loop` feeds the queues.

    Raises UsageError for an asyncio.Queue if no loop is known.
    """
    if isinstance(given, Mapping):
        return {name: pullable(each, loop) for name, each in given.items()}
    if isinstance(given, asyncio.Queue):
        if loop is None:
            raise UsageError(
                "An asyncio.Queue needs a running event loop. Call megaflow.start in a coroutine of that loop "
                "and read by `async for record in job.outputs()`, or give a queue.Queue."
            )
        return QueueOfLoop(given, loop)
    return AsyncItems(given) if isinstance(given, AsyncIterable) else given


class QueueOfLoop(LoopSource):
    """A queue of asyncio, and the loop that feeds it."""

    def __init__(self, queue: "asyncio.Queue[Any]", loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._queue = queue
        self._loop = loop
        self._asked: concurrent.futures.Future[None] | None = None  # the last question; under the lock

    def end(self) -> None:
        """Pull no more; what has been pulled still comes, and nothing else is taken from the queue."""
        with self._lock:
            self._is_ended = True
            if self._asked is not None:
                self._asked.cancel()

    def __iter__(self) -> Iterator[Any]:
        while (asked := self._ask()) is not None:
            is_over = False
            try:
                asked.result()
            except (asyncio.CancelledError, concurrent.futures.CancelledError):
                is_over = True
            except Exception as error:
                if type(error).__name__ != "QueueShutDown":  # of Python 3.13
                    raise
                is_over = True
            while self.taken:
                yield self.taken[0]
                self.taken.popleft()  # it is among the lines
            if is_over:
                return

    def _ask(self) -> concurrent.futures.Future[None] | None:
        """Have the loop take the next items; None: there are no more."""

        async def some() -> None:
            await self._take()

        with self._lock:
            if self._is_ended:
                return None
            question = some()
            try:
                self._asked = asyncio.run_coroutine_threadsafe(question, self._loop)
            except RuntimeError:  # the loop is closed
                question.close()
                return None
            return self._asked

    @types.coroutine
    def _take(self) -> Generator[Any, None, None]:
        """Wait for items and take some, in one step; none after an end: `get` is closed, and leaves them there."""
        with contextlib.closing(self._queue.get()) as get:
            while True:
                with self._lock:
                    if self._is_ended:
                        return
                    try:
                        awaited = get.send(None)
                    except StopIteration as found:
                        self.taken.append(found.value)
                        while len(self.taken) < AT_ONCE and not self._queue.empty():
                            self.taken.append(self._queue.get_nowait())
                        return
                yield awaited


class AsyncItems(LoopSource):
    """An async iterable, and a loop for it alone."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        super().__init__()
        self._items = items
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Task[Any] | None = None  # the last question; under the lock

    def end(self) -> None:
        """Pull no more; what has been pulled still comes."""
        with self._lock:
            self._is_ended = True
            if self._asked is not None:
                assert self._loop is not None, "it runs there"
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(self._asked.cancel)

    def __iter__(self) -> Iterator[Any]:
        with asyncio.Runner() as runner:  # which closes generators
            loop = self._loop = runner.get_loop()
            items = aiter(self._items)
            while True:
                with self._lock:
                    if self._is_ended:
                        return
                    asked = self._asked = loop.create_task(_next_of(items))
                try:
                    yield loop.run_until_complete(asked)
                except (StopAsyncIteration, asyncio.CancelledError):
                    return


async def _next_of(items: AsyncIterator[Any]) -> Any:
    return await anext(items)
