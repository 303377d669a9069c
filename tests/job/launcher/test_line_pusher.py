"""The launcher's lines are sent no further ahead than the window allows."""

import os
import selectors
from collections.abc import Iterator
from typing import Any

import pytest

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.job.launcher.children import Child
from megaflow.job.launcher.launcher_input import FileLines, IterableLines
from megaflow.job.launcher.line_pusher import LinePusher, SendWindow


def test_window_comes_back_as_messages_are_taken_in() -> None:
    window = SendWindow(limit_bytes=100)
    sent = 0
    while window.is_open:
        window.sent(["123456789"] * 3)
        sent += 3
    assert sent == 12
    window.taken(2)
    assert not window.is_open
    window.taken(1)
    assert window.is_open
    window.taken(sent - 3)
    window.sent(["x" * 99])
    assert not window.is_open


class Client:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as selector:
        yield selector


@pytest.fixture
def worker() -> Child:
    child = Child(("127.0.0.1", 1))
    child.client = Client()  # type: ignore[assignment]
    return child


def test_an_iterable_is_pushed_while_the_window_is_open(selector: selectors.BaseSelector, worker: Child) -> None:
    client: Any = worker.client
    pusher = LinePusher(IterableLines(["x" * 1_000_000] * 4), worker, selector)
    while pusher.is_ready:
        pusher.push()
    assert client.sent == [Lines(["x" * 1_000_000])] * 3
    pusher.window.taken(3)
    while pusher.is_ready:
        pusher.push()
    assert client.sent[3:] == [Lines(["x" * 1_000_000]), LinesEnded()]


def test_a_pipe_is_watched_until_it_ends_or_the_pusher_stops(selector: selectors.BaseSelector, worker: Child) -> None:
    client: Any = worker.client
    reading, writing = os.pipe()
    pusher = LinePusher(FileLines(reading, "pipe", "replace"), worker, selector)
    pusher.watch()
    assert [key.fd for key in selector.get_map().values()] == [reading] and not pusher.is_ready
    os.write(writing, b"a\n")
    pusher.push()
    os.close(writing)
    pusher.push()
    assert client.sent == [Lines(["a"]), LinesEnded()]
    assert not selector.get_map()
    pusher.watch()
    pusher.push()
    assert not selector.get_map() and len(client.sent) == 2
    os.close(reading)


def test_lines_go_elsewhere_from_one_to_the_next(selector: selectors.BaseSelector, worker: Child) -> None:
    other = Child(("127.0.0.1", 2))
    other.client = Client()  # type: ignore[assignment]
    clients: list[Any] = [worker.client, other.client]
    pusher = LinePusher(IterableLines(["x" * 1_000_000] * 4), worker, selector)
    pusher.push()
    pusher.move(worker)
    pusher.move(other)
    while pusher.is_ready:
        pusher.push()
    assert [[type(message) for message in client.sent] for client in clients] == [[Lines, LinesEnded], [Lines, Lines]]
    assert clients[0].sent[1] == LinesEnded(elsewhere=True)
    pusher.window.taken(3)
    while pusher.is_ready:
        pusher.push()
    pusher.move(worker)
    assert clients[1].sent[3:] == [LinesEnded()] and len(clients[0].sent) == 2
