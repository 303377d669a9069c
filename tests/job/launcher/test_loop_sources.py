"""A job pulls from sources that run in event loops. It loses nothing, and no source delays a stop."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.loop_sources import AT_ONCE, AsyncItems, QueueOfLoop, pullable, running_loop
from megaflow.job.launcher.inputs.pulled_source import is_pulled
from tests.bench import WAIT_SECONDS
from tests.job.launcher.reading import ItemsBench
from tests.job.launcher.test_pulled_source import feeds


def test_an_async_generator_runs_in_a_loop_of_its_own_and_is_closed_by_an_end() -> None:
    closed = threading.Event()

    async def ticking() -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                yield number
                await asyncio.sleep(0.0001 if number < 200 else WAIT_SECONDS * 10)
        finally:
            closed.set()

    with closing(ItemsBench(AsyncItems(ticking()))) as pulling:
        assert pulling.take_until(201) == [*range(201)]
        pulling.reader.end()
        assert closed.wait(WAIT_SECONDS) and pulling.take() is None


def test_an_async_generator_ends_and_raises() -> None:
    async def two(error: Exception | None = None) -> AsyncIterator[int]:
        yield 1
        yield 2
        if error is not None:
            raise error

    with closing(ItemsBench(AsyncItems(two()))) as pulling:
        assert pulling.take_all() == [1, 2]
    with closing(ItemsBench(AsyncItems(two(KeyError("mine"))))) as pulling:
        assert pulling.take_until(2) == [1, 2]
        with pytest.raises(KeyError, match="mine"):
            pulling.take()


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_queue_of_asyncio_is_asked_in_the_loop_that_feeds_it() -> None:
    with loop_in_a_thread() as loop:

        async def make() -> Any:
            source: asyncio.Queue[int] = asyncio.Queue()
            return pullable({"a": source, "b": "other"}, running_loop()), source

        given, source = asyncio.run_coroutine_threadsafe(make(), loop).result(WAIT_SECONDS)
        assert given["b"] == "other" and is_pulled(given["a"])
        with closing(ItemsBench(given["a"])) as pulling:
            loop.call_soon_threadsafe(feeds, source.put_nowait, 250)
            assert pulling.take_until(250) == [*range(250)]
            pulling.reader.end()
            assert pulling.take() is None
            loop.call_soon_threadsafe(source.put_nowait, "late")
            assert asyncio.run_coroutine_threadsafe(source.get(), loop).result(WAIT_SECONDS) == "late"


class Driven:
    """A queue of a loop that runs only on request, and a thread that pulls from it."""

    def __init__(self, room: int = 0) -> None:
        self.loop = asyncio.new_event_loop()
        self.queue: asyncio.Queue[int] = asyncio.Queue(room)
        self.items = QueueOfLoop(self.queue, self.loop)
        self.found: list[int] = []
        self.reader = threading.Thread(target=lambda: self.found.extend(self.items))
        self.reader.start()
        while self.items._asked is None:
            self.reader.join(0.001)

    def turn(self, count: int = 1) -> None:
        """Run the loop for `count` turns."""
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def over(self) -> list[int]:
        """Wait for the end of the reader, let the loop finish, and return all items read."""
        self.reader.join(WAIT_SECONDS)
        assert not self.reader.is_alive(), "it waits for the loop, which does not run"
        self.turn(10)
        assert not asyncio.all_tasks(self.loop)
        return self.found

    def left(self) -> list[int]:
        """Return the remaining items of the queue."""
        return [self.queue.get_nowait() for _ in range(self.queue.qsize())]

    def close(self) -> None:
        self.items.end()
        self.over()
        self.loop.close()


ASKED = 2  # turns: the question becomes a task, which waits for an item


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("puts_first", [True, False])
def test_what_is_put_into_a_queue_of_asyncio_as_the_end_comes_stays_there(before: int, puts_first: bool) -> None:
    with closing(Driven()) as driven:
        driven.turn(before)
        if puts_first:
            driven.queue.put_nowait(7)
        driven.items.end()
        if not puts_first:
            driven.queue.put_nowait(7)
        assert (driven.over(), driven.left()) == ([], [7])


@pytest.mark.parametrize("after", range(4))
def test_what_was_taken_from_a_queue_of_asyncio_comes_though_the_end_overtakes_it(after: int) -> None:
    with closing(Driven()) as driven:
        driven.turn(ASKED)
        feeds(driven.queue.put_nowait, AT_ONCE + 5)
        driven.turn()
        assert driven.queue.qsize() == 5, "a question takes so many"
        driven.turn(after)  # then the reader has the answer, and may have asked for the rest
        driven.items.end()
        found = driven.over()
        assert len(found) >= AT_ONCE and found + driven.left() == [*range(AT_ONCE + 5)]


def test_a_coroutine_that_puts_an_item_and_stops_leaves_it_to_who_else_waits() -> None:
    with closing(Driven(room=1)) as driven:

        async def puts_and_stops() -> None:
            await driven.queue.put(1)
            driven.items.end()
            driven.reader.join(WAIT_SECONDS)
            assert not driven.reader.is_alive(), "it waits for the loop, which waits for it"
            await driven.queue.put(2)

        driven.turn(ASKED)
        other = driven.loop.create_task(driven.queue.get())
        driven.turn()
        driven.loop.run_until_complete(puts_and_stops())
        assert driven.loop.run_until_complete(other) == 1
        assert (driven.over(), driven.left()) == ([], [2])


def test_the_end_of_a_loop_is_the_end_of_its_queue() -> None:
    with closing(Driven()) as driven:
        driven.turn(ASKED)
        driven.queue.put_nowait(1)
        for task in asyncio.all_tasks(driven.loop):  # as asyncio.run does
            task.cancel()
        driven.turn(2)
        assert (driven.over(), driven.left()) == ([], [1])
    assert [*QueueOfLoop(driven.queue, driven.loop)] == []


def test_a_queue_of_asyncio_ends_when_it_is_shut_down() -> None:
    class QueueShutDown(Exception):
        """The class as in Python 3.13."""

    class Closing(asyncio.Queue[int]):
        async def get(self) -> int:
            if self.empty():
                raise QueueShutDown
            return await super().get()

    with loop_in_a_thread() as loop:
        source = Closing()
        source.put_nowait(1)
        with closing(ItemsBench(QueueOfLoop(source, loop))) as pulling:
            assert pulling.take_all() == [1]


def test_an_end_between_items_that_were_taken_together_leaves_none_behind() -> None:
    with loop_in_a_thread() as loop:
        source: asyncio.Queue[int] = asyncio.Queue()
        feeds(source.put_nowait, AT_ONCE)
        with closing(ItemsBench(QueueOfLoop(source, loop), ahead=1)) as pulling:
            found = pulling.take_until(1)
            pulling.reader.end()
            assert found + pulling.take_all() == [*range(AT_ONCE)] and source.empty()


def test_a_queue_whose_loop_nobody_knows_is_refused() -> None:
    assert running_loop() is None
    with pytest.raises(UsageError, match=r"Call megaflow\.start in a coroutine of that loop"):
        pullable({"clicks": asyncio.Queue()}, None)
