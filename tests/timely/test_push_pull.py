"""Channels of messages without dataflows: order, allocation, waiting, end and failures, on threads and on sockets."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from apps.comm_hello import main as greet
from megaflow.errors import CannotTravel, PeerFailed, UsageError
from megaflow.timely import ChannelAllocator, Config, Pull, initialize
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.tcp import open_listener
from tests.timely.workers import EVERY

Main = Callable[[ChannelAllocator], Any]
PATIENCE_SECONDS = 90.0


def take(allocator: ChannelAllocator, puller: Pull[Any], count: int) -> list[Any]:
    """Pull `count` messages."""
    found: list[Any] = []
    while len(found) < count:
        message = puller.pull()
        if message is None:
            allocator.park(PATIENCE_SECONDS)
        else:
            found.append(message)
    return found


def on_sockets(main: Main, processes: int = 2, workers: int = 1) -> list[Any]:
    """Run `main` as `processes` processes would, each on its own threads, with sockets between them."""
    listeners = [open_listener("127.0.0.1", 0) for _ in range(processes)]
    addresses = [address_text(listener.getsockname()) for listener in listeners]
    results: dict[int, Any] = {}

    def process(index: int) -> None:
        config = Config.cluster(addresses, index, workers, listeners[index], secret=b"of the tests")
        try:
            results[index] = initialize(config, main)
        except BaseException as error:
            results[index] = [error]

    threads = [threading.Thread(target=process, args=(index,)) for index in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    return [result for index in range(processes) for result in results[index]]


def on_threads(main: Main) -> list[Any]:
    return initialize(Config.process(2), main)


BOTH = pytest.mark.parametrize("run", [on_threads, on_sockets], ids=["threads", "sockets"])


@pytest.mark.parametrize("workers", EVERY)
def test_every_worker_is_greeted_by_every_worker(workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The book's example."""
    assert initialize(Config.process(workers), greet) == list(range(workers))
    lines = capsys.readouterr().out.splitlines()
    for index in range(workers):
        assert lines.count(f"worker {index}: received: <hello, {index}>") == workers


@BOTH
def test_messages_of_one_sender_arrive_in_order_in_each_channel(run: Callable[[Main], list[Any]]) -> None:
    def main(allocator: ChannelAllocator) -> list[list[Any]]:
        channels = [allocator.allocate() for _ in range(3)]
        for number in range(100):
            for place, (pushers, _) in enumerate(channels):
                for pusher in pushers:
                    pusher.push((allocator.index, place, number))
        return [take(allocator, puller, 100 * allocator.peers) for _, puller in channels]

    for found in run(main):
        for place, messages in enumerate(found):
            for source in range(2):
                assert [each for each in messages if each[0] == source] == [(source, place, n) for n in range(100)]


@BOTH
def test_what_comes_for_a_channel_before_it_is_allocated_waits_for_it(run: Callable[[Main], list[Any]]) -> None:
    def main(allocator: ChannelAllocator) -> list[Any]:
        first, opened = allocator.allocate()
        if allocator.index == 0:
            second, heard = allocator.allocate()
            second[1].push("early")
            first[1].push("go")
            first[1].done()
            return take(allocator, heard, 1)
        assert take(allocator, opened, 1) == ["go"], "pushed later: so the other has come, too"
        second, heard = allocator.allocate()
        second[0].push("back")
        return take(allocator, heard, 1)

    assert run(main) == [["back"], ["early"]]


@BOTH
def test_a_message_arrives_as_it_was_pushed_also_when_its_sender_has_returned(run: Callable[[Main], list[Any]]) -> None:
    message = {"tuple": (1, 2.5, None), "list": ["", b"x"], "set": {1, 2}, "big": 2**80}

    def main(allocator: ChannelAllocator) -> Any:
        pushers, puller = allocator.allocate()
        if allocator.index == 0:
            pushers[1].push(message)
            return message
        return take(allocator, puller, 1)[0]

    assert run(main) == [message, message]


@BOTH
def test_a_failing_worker_ends_those_that_wait_for_it(run: Callable[[Main], list[Any]]) -> None:
    seen: list[BaseException] = []

    def main(allocator: ChannelAllocator) -> None:
        pushers, puller = allocator.allocate()
        if allocator.index == 1:
            take(allocator, puller, 1)
            raise ValueError("no greeting")
        pushers[1].push("I wait")
        try:
            take(allocator, puller, 1)
        except PeerFailed as error:
            seen.append(error)
            raise

    if run is on_threads:
        with pytest.raises(ValueError, match="no greeting"):
            run(main)
    else:
        assert [type(error) for error in run(main)] == [PeerFailed, ValueError]
    assert "ValueError: no greeting" in str(seen[0])


def test_a_message_that_cannot_travel_names_its_channel_and_target() -> None:
    def main(allocator: ChannelAllocator) -> None:
        pushers, _ = allocator.allocate()
        pushers[1 - allocator.index].push(threading.Lock())

    errors = [error for error in on_sockets(main) if isinstance(error, CannotTravel)]
    assert errors and all("in a message pushed into channel 0 to worker" in error.__notes__[0] for error in errors)


def test_park_returns_when_something_has_come_that_nobody_has_looked_for_yet() -> None:
    """The second channel's message arrives while the first is polled. Waiting for more would never end."""

    def main(allocator: ChannelAllocator) -> Any:
        (_, silent), (pushers, puller) = allocator.allocate(), allocator.allocate()
        assert puller.pull() is None
        pushers[0].push("here")
        assert silent.pull() is None
        allocator.park()
        return puller.pull()

    assert initialize(Config.thread(), main) == ["here"]


def test_park_waits_no_longer_than_it_may() -> None:
    def main(allocator: ChannelAllocator) -> Any:
        allocator.park(0.01)
        return allocator.allocate()[1].pull()

    assert initialize(Config.thread(), main) == [None]


def test_two_processes_with_two_workers_each_know_who_they_are() -> None:
    def main(allocator: ChannelAllocator) -> tuple[int, int, list[Any]]:
        pushers, puller = allocator.allocate()
        for pusher in pushers:
            pusher.push(allocator.index)
        return allocator.index, allocator.peers, sorted(take(allocator, puller, allocator.peers))

    assert on_sockets(main, 2, 2) == [(index, 4, [0, 1, 2, 3]) for index in range(4)]


def test_nothing_joins_channels_of_messages() -> None:
    with pytest.raises(UsageError, match="no process can join"):
        initialize(Config.join("localhost:1", "localhost:2"), lambda allocator: None)
