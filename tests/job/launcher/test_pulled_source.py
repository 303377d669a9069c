"""A job pulls from iterables, queues, and what event loops feed; none of it keeps a stop."""

import asyncio
import itertools
import multiprocessing
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from megaflow.errors import CannotTravel, UsageError
from megaflow.job.launcher.launcher_input import JobInput, find_input
from megaflow.job.launcher.line_reader import FIRST_LINES, LineReader
from megaflow.job.launcher.loop_sources import AT_ONCE, AsyncItems, QueueOfLoop, pullable
from megaflow.job.launcher.loop_sources import running_loop as found_loop
from megaflow.job.launcher.pulled_source import PulledItems, PulledLines, is_pulled, packed
from megaflow.timely.communication.codec.decode import decode

WAIT_SECONDS = 30.0


class Pulling:
    """A reader of items, and what the launcher's loop does with it."""

    def __init__(self, source: Any, ahead: int = FIRST_LINES) -> None:
        self.woken = threading.Semaphore(0)
        self.reader = LineReader(PulledItems(source), self.woken.release)
        self.reader.ahead = ahead
        self.close = self.reader.close
        self.reader.start()

    def take(self) -> list[Any] | None:
        while (taken := self.reader.take()) is not None and not taken[0]:
            assert self.woken.acquire(timeout=WAIT_SECONDS), "nobody said that items have come"
        return None if taken is None else [*map(decode, taken[0])]

    def take_until(self, count: int) -> list[Any]:
        """Take at least so many."""
        found: list[Any] = []
        while len(found) < count:
            some = self.take()
            assert some is not None, found
            found += some
        return found

    def take_all(self) -> list[Any]:
        return [item for some in iter(self.take, None) for item in some]


def test_items_are_what_they_were_when_they_were_given() -> None:
    def reused() -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(500):
            row["n"] = number
            yield row

    with closing(Pulling(reused())) as pulling:
        assert pulling.take_all() == [{"n": number} for number in range(500)]


def test_what_cannot_travel_is_refused_with_the_item() -> None:
    with closing(Pulling([1, lambda: 2])) as pulling:
        assert pulling.take() == [1]
        with pytest.raises(CannotTravel, match=r"^an item of items= cannot be sent to a worker: .*function.*<lambda>"):
            pulling.take()
    assert decode(packed(("a", None))) == ("a", None)


def feeds(put: Callable[[Any], None], count: int) -> None:
    for number in range(count):
        put(number)


@pytest.mark.parametrize("make", [queue.Queue, queue.SimpleQueue, multiprocessing.Queue])
def test_a_queue_is_read_as_it_is_fed_and_keeps_what_nobody_waits_for(make: Callable[[], Any]) -> None:
    source = make()
    with closing(Pulling(source)) as pulling:
        for number in range(100):
            source.put(number)
        assert pulling.take_until(100) == [*range(100)]
        pulling.reader.end()
        pulling.reader._thread.join(WAIT_SECONDS)
        source.put("late")
        assert pulling.take() is None
        assert source.get(timeout=WAIT_SECONDS) == "late"


def test_a_queue_ends_when_it_is_shut_down() -> None:
    class ShutDown(Exception):
        """As in Python 3.13."""

    class Closing(queue.Queue[int]):
        def get(self, block: bool = True, timeout: float | None = None) -> int:
            if self.empty():
                raise ShutDown
            return super().get(block, timeout)

    source = Closing()
    source.put(1)
    with closing(Pulling(source)) as pulling:
        assert pulling.take_all() == [1]


def test_an_async_generator_runs_in_a_loop_of_its_own_and_is_closed_by_an_end() -> None:
    closed = threading.Event()

    async def ticking() -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                yield number
                await asyncio.sleep(0.0001 if number < 200 else WAIT_SECONDS * 10)
        finally:
            closed.set()

    with closing(Pulling(AsyncItems(ticking()))) as pulling:
        assert pulling.take_until(201) == [*range(201)]
        pulling.reader.end()
        assert closed.wait(WAIT_SECONDS) and pulling.take() is None


def test_an_async_generator_ends_and_raises() -> None:
    async def two(error: Exception | None = None) -> AsyncIterator[int]:
        yield 1
        yield 2
        if error is not None:
            raise error

    with closing(Pulling(AsyncItems(two()))) as pulling:
        assert pulling.take_all() == [1, 2]
    with closing(Pulling(AsyncItems(two(KeyError("mine"))))) as pulling:
        assert pulling.take_until(2) == [1, 2]
        with pytest.raises(KeyError, match="mine"):
            pulling.take()


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
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
    with running_loop() as loop:

        async def make() -> Any:
            source: asyncio.Queue[int] = asyncio.Queue()
            return pullable({"a": source, "b": "other"}, found_loop()), source

        given, source = asyncio.run_coroutine_threadsafe(make(), loop).result(WAIT_SECONDS)
        assert isinstance(given["a"], QueueOfLoop) and is_pulled(given["a"]) and given["b"] == "other"
        with closing(Pulling(given["a"])) as pulling:
            loop.call_soon_threadsafe(feeds, source.put_nowait, 250)
            assert pulling.take_until(250) == [*range(250)]
            pulling.reader.end()
            assert pulling.take() is None
            loop.call_soon_threadsafe(source.put_nowait, "late")
            assert asyncio.run_coroutine_threadsafe(source.get(), loop).result(WAIT_SECONDS) == "late"


class Driven:
    """A queue of a loop that runs only when it is told to, and a thread that pulls from it."""

    def __init__(self, room: int = 0) -> None:
        self.loop = asyncio.new_event_loop()
        self.queue: asyncio.Queue[int] = asyncio.Queue(room)
        self.source = QueueOfLoop(self.queue, self.loop)
        self.items = PulledItems(self.source)
        self.found: list[int] = []
        self.reader = threading.Thread(target=lambda: self.found.extend(self.items))
        self.reader.start()
        while self.source._asked is None:
            self.reader.join(0.001)

    def turn(self, count: int = 1) -> None:
        """Do what the loop is to do next, so many times."""
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def over(self) -> list[int]:
        """Wait until nothing more comes, have the loop do all that is left, and return what came."""
        self.reader.join(WAIT_SECONDS)
        assert not self.reader.is_alive(), "it waits for the loop, which does not run"
        self.turn(10)
        assert not asyncio.all_tasks(self.loop)
        return self.found

    def left(self) -> list[int]:
        """What is still in the queue."""
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
        driven.turn(after)  # then its answer is with the reader, which may have asked for the rest
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
    assert [*PulledItems(QueueOfLoop(driven.queue, driven.loop))] == []


def test_a_queue_of_asyncio_ends_when_it_is_shut_down() -> None:
    class QueueShutDown(Exception):
        """As in Python 3.13."""

    class Closing(asyncio.Queue[int]):
        async def get(self) -> int:
            if self.empty():
                raise QueueShutDown
            return await super().get()

    with running_loop() as loop:
        source = Closing()
        source.put_nowait(1)
        with closing(Pulling(QueueOfLoop(source, loop))) as pulling:
            assert pulling.take_all() == [1]


def test_an_end_between_items_that_were_taken_together_leaves_none_behind() -> None:
    with running_loop() as loop:
        source: asyncio.Queue[int] = asyncio.Queue()
        feeds(source.put_nowait, AT_ONCE)
        with closing(Pulling(QueueOfLoop(source, loop), ahead=1)) as pulling:
            found = pulling.take_until(1)
            pulling.reader.end()
            assert found + pulling.take_all() == [*range(AT_ONCE)] and source.empty()


def test_a_queue_whose_loop_nobody_knows_is_refused() -> None:
    assert found_loop() is None
    with pytest.raises(UsageError, match=r"call megaflow\.start in a coroutine of that loop"):
        pullable({"orders": asyncio.Queue()}, None)


def test_what_was_pulled_when_the_end_came_is_taken_and_no_more_is_pulled() -> None:
    pulled: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            pulled.append(number)
            yield number

    source = numbers()
    with closing(Pulling(source)) as pulling:
        found = pulling.take_until(1)
        pulling.reader.end()
        found += pulling.take_all()
    assert found == pulled and next(source) == len(found)


def test_a_generator_that_blocks_does_not_hold_up_an_end() -> None:
    go_on = threading.Event()

    def blocking() -> Iterator[int]:
        yield 1
        assert go_on.wait(WAIT_SECONDS)
        yield 2

    pulling = Pulling(blocking())
    assert pulling.take() == [1]
    pulling.reader.end()
    assert pulling.reader.take() == ([], 0)
    pulling.close()
    assert pulling.reader._thread.is_alive()
    go_on.set()
    pulling.reader._thread.join(WAIT_SECONDS)


def test_inputs_of_items_have_names_beside_those_of_lines(tmp_path: Any) -> None:
    path = tmp_path / "orders"
    path.write_text("a\n")
    alone = find_input(None, 1, "replace", items=[1])
    assert (alone.lines, alone.items, [*alone.pushed]) == (("items",), ("items",), ["items"])
    both = find_input({"orders": str(path)}, 1, "replace", items={"clicks": [1], "prices": queue.Queue()})
    assert (both.lines, both.items) == (("clicks", "orders", "prices"), ("clicks", "prices"))
    assert [split.input for split in both.splits] == ["orders"] and [*both.pushed] == ["clicks", "prices"]
    assert isinstance(find_input(queue.Queue(), 1, "replace").pushed[""], PulledLines)
    assert JobInput().items == ()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"items": {}}, "items is an empty dict"),
        ({"items": "abc"}, r"items must be an iterable, an async iterable or a queue, .* not 'abc' \(str\)"),
        ({"items": 5}, r"not 5 \(int\)"),
        ({"items": {"a-b": [1]}}, r"items: 'a-b' must be a name, as in flow.items\('clicks'\)"),
        ({"items": {"a": {"b": 1}}}, r"not \{'b': 1\} \(dict\)"),
        ({"items": {"a": [1]}, "lines": {"a": ["x"]}}, "lines and items both have the name 'a'"),
        ({"items": [1], "lines": ["x"]}, "lines and items go together if the lines have names"),
        ({"items": [1], "rows": {"a": 1}}, "rows and items do not go together"),
    ],
)
def test_items_that_cannot_be_read_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_input(given.pop("lines", None), 1, "replace", **given)
