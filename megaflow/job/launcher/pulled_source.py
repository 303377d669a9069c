"""What a program gives a job to pull from: an iterable, a queue, or what an event loop of asyncio feeds.

One thread pulls, the LineReader's; `end` is called by another one.

1. An iterable is asked for the next item and nothing else; one that blocks is left behind in its `next()`.
2. A `queue.Queue` (or one like it, of `multiprocessing`) is asked with a timeout: an item that nobody waits for any
   more stays in it. Its end is its `shutdown()`, of Python 3.13.
3. An async iterable runs in an event loop of its own, on this thread, so that it goes on whatever the program does: a
   notebook's loop is busy as long as a cell runs. `end` cancels what it awaits, and closes it.
4. An `asyncio.Queue` belongs to the loop that feeds it, so it is asked there: that is the one which runs in the thread
   that starts the job (`bound`). When that loop is closed the queue has ended.
5. An item of such a queue is either taken before `end`, and comes, or stays in the queue: `_take` looks for the end,
   has the queue's `get` go on, and appends to `taken` what that gives, all under the lock under which `end` says that
   it has come. So nothing is on its way when `end` returns, and nobody waits for the loop, which `job.stop()` blocks if
   one of its coroutines calls it. What it still has to do with the question is to forget it.
"""

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import types
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import Any, Final

from megaflow.errors import CannotTravel, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.encode import encode

POLL_SECONDS: Final = 0.1  # until it is looked whether a queue is still to be asked
AT_ONCE: Final = 100  # items that are taken from a queue of a loop in one go


@dataclass(frozen=True, slots=True)
class FedQueue:
    """A queue of asyncio, and the loop that feeds it."""

    queue: "asyncio.Queue[Any]"
    loop: asyncio.AbstractEventLoop


def bound(given: Any) -> Any:
    """Return what is given, or a dict of such, where queues of asyncio have the loop that runs in this thread."""
    if isinstance(given, Mapping):
        return {name: bound(each) for name, each in given.items()}
    with contextlib.suppress(RuntimeError):  # none runs
        return FedQueue(given, asyncio.get_running_loop()) if isinstance(given, asyncio.Queue) else given
    return given


def is_pulled(source: object) -> bool:
    """Return whether items can be pulled from this."""
    return isinstance(source, Iterable | AsyncIterable | asyncio.Queue | FedQueue) or is_queue(source)


def is_queue(source: object) -> bool:
    """Return whether this is a queue that threads or processes share."""
    methods = (getattr(source, name, None) for name in ("get", "put", "empty"))
    return all(map(callable, methods)) and not isinstance(source, Iterable | asyncio.Queue)


class PulledSource:
    """What is pulled from something, item by item; iterated by one thread, once."""

    def __init__(self, source: Any) -> None:
        """Raises UsageError for a queue of asyncio whose loop is not known."""
        self.taken: deque[Any] = deque()  # what was pulled and has not come yet; appended to where a queue is asked
        self._source = source
        self._is_ended = False
        self._lock = threading.Lock()  # guards these three, and steps of `_take`
        self._asked: concurrent.futures.Future[Any] | asyncio.Task[Any] | None = None  # what `end` is to cancel
        self._loop: asyncio.AbstractEventLoop | None = None  # which a task belongs to
        if isinstance(source, asyncio.Queue):
            raise UsageError(
                "an asyncio.Queue is fed by an event loop, which has to run meanwhile: call megaflow.start in a "
                "coroutine of that loop, and read by `async for record in job.outputs()`; or give a queue.Queue"
            )

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._source, FedQueue):
            return self._from_loop(self._source)
        if isinstance(self._source, AsyncIterable):
            return self._in_loop(self._source)
        return self._from_queue() if is_queue(self._source) else iter(self._source)

    def end(self) -> None:
        """Pull no more; what has been pulled still comes."""
        with self._lock:
            self._is_ended = True
            if isinstance(self._asked, asyncio.Task):
                assert self._loop is not None, "it runs there"
                with contextlib.suppress(RuntimeError):  # it is closed
                    self._loop.call_soon_threadsafe(self._asked.cancel)
            elif self._asked is not None:
                self._asked.cancel()

    def _from_queue(self) -> Iterator[Any]:
        while not self._is_ended:
            try:
                item = self._source.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            except Exception as error:
                if type(error).__name__ == "ShutDown":  # of Python 3.13
                    return
                raise
            yield item

    def _from_loop(self, source: FedQueue) -> Iterator[Any]:
        async def some() -> None:
            await self._take(source.queue)

        while True:
            with self._lock:
                if self._is_ended:
                    return
                question = some()
                try:
                    asked = self._asked = asyncio.run_coroutine_threadsafe(question, source.loop)
                except RuntimeError:  # the loop is closed
                    question.close()
                    return
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
                yield self.taken.popleft()
            if is_over:
                return

    @types.coroutine
    def _take(self, source: "asyncio.Queue[Any]") -> Generator[Any, None, None]:
        """Wait for items and take some, in one step; none after an end: `get` is closed, and leaves them there."""
        with contextlib.closing(source.get()) as get:
            while True:
                with self._lock:
                    if self._is_ended:
                        return
                    try:
                        awaited = get.send(None)
                    except StopIteration as found:
                        self.taken.append(found.value)
                        while len(self.taken) < AT_ONCE and not source.empty():
                            self.taken.append(source.get_nowait())
                        return
                yield awaited

    def _in_loop(self, source: AsyncIterable[Any]) -> Iterator[Any]:
        with asyncio.Runner() as runner:  # which closes generators
            loop = self._loop = runner.get_loop()
            items = aiter(source)
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


def packed(item: Any) -> bytes:
    """Return an item as it travels; what becomes of the object later is not seen. Raises CannotTravel."""
    try:
        return encode(item)
    except CannotTravel as error:
        raise CannotTravel(f"an item of items= cannot be sent to a worker: {error}; it is {item!r:.200}") from None


def without_end(line: Any) -> str:
    """Return a line of an iterable without its end. Raises UsageError for what is no str.

    >>> without_end("a\\r\\n")
    'a'
    """
    if not isinstance(line, str):
        raise UsageError(f"lines must be an iterable of str, but one is {line!r:.80} ({type(line).__name__})")
    return line.removesuffix("\n").removesuffix("\r")


class PulledLines(PulledSource):
    """What str come from, pulled only as far as needed."""

    form = staticmethod(without_end)


class PulledItems(PulledSource):
    """What values of any type come from, pulled only as far as needed."""

    form = staticmethod(packed)
