"""Sources fed by event loops: an asyncio.Queue of the program's loop, and async iterables in a separate loop.

The LineReader's thread pulls items, and another thread calls `end`.

1. An async iterable runs in a separate event loop on the thread that pulls. So it continues whatever the program does:
   a notebook's own loop is blocked while a cell runs. `end` cancels what the iterable awaits, and closes it.
2. An `asyncio.Queue` belongs to the loop that feeds it: the loop that runs in the thread that starts the job. So its
   items are requested in that loop. When the loop is closed, the queue has ended.
3. An item of such a queue is either taken before `end`, or stays in the queue. `_take` checks for the end, lets the
   queue's `get` continue, and appends its result to `taken`, all under one lock. `end` sets its flag under the same
   lock. So no item is in transit when `end` returns. `end` does not wait for the loop, because `job.stop()` blocks the
   loop if one of its coroutines calls it. The loop only has to drop the request afterwards.
"""

import asyncio
import concurrent.futures
import contextlib
import types
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterator, Mapping
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.pulled_source import LoopSource

AT_ONCE: Final = 100  # items to take from a loop's queue in one step


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if none does."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def pullable(given: Any, loop: asyncio.AbstractEventLoop | None) -> Any:
    """Return a source, or a dict of sources, with each source that a loop feeds wrapped in a LoopSource.

    `loop` feeds the queues. Raises UsageError for an asyncio.Queue if `loop` is None.
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
    """Source of the items of an asyncio.Queue, taken in the loop that feeds it."""

    def __init__(self, queue: "asyncio.Queue[Any]", loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._queue = queue
        self._loop = loop
        self._asked: concurrent.futures.Future[None] | None = None  # the last question; under the lock

    def end(self) -> None:
        """Stop pulling; items that were taken still come, and the others stay in the queue."""
        with self._lock:
            self._is_ended = True
            if self._asked is not None:
                self._asked.cancel()

    def __iter__(self) -> Iterator[Any]:
        while (asked := self._ask()) is not None:
            is_over = False
            try:
                asked.result()
            except BaseException as error:
                if type(error).__name__ not in ("CancelledError", "QueueShutDown"):  # the latter of 3.13
                    raise
                is_over = True
            while self.taken:
                yield self.taken[0]
                self.taken.popleft()  # only now: it is among the lines
            if is_over:
                return

    def _ask(self) -> concurrent.futures.Future[None] | None:
        """Make the loop take the next items; return None after `end`, or if the loop is closed."""

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
        """Wait for items and take some in one step; none after `end`: `get` is closed and leaves them in the queue."""
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
    """Source of the items of an async iterable, which runs in its own loop."""

    def __init__(self, items: AsyncIterable[Any]) -> None:
        super().__init__()
        self._items = items
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: asyncio.Task[Any] | None = None  # the last question; under the lock

    def end(self) -> None:
        """Stop pulling; items that were pulled still come."""
        with self._lock:
            self._is_ended = True
            if self._asked is not None:
                assert self._loop is not None, "it runs there"
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(self._asked.cancel)

    def __iter__(self) -> Iterator[Any]:
        with asyncio.Runner() as runner:  # closes async generators at its end
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
