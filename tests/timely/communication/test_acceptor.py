"""Time limits for connections that have not yet proven that they know the secret."""

import contextlib
import gc
import selectors
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import PeerLost
from megaflow.timely.communication.acceptor import (
    ACCEPTED_MIN,
    LINES_MAX,
    MOMENT_SECONDS,
    STRANGERS_MAX,
    Acceptor,
    WaitingRoom,
)
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.handshake import NONCE_BYTES, greeting, welcome
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.role_handlers import Connection
from megaflow.timely.communication.tcp import Link, open_listener

SECONDS = 5.0  # for each message of a handshake


class Clock:
    """The time at the door, set by the test."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("acceptor", "poller"):
        monkeypatch.setattr(f"megaflow.timely.communication.{module}.time", made)
    return made


def test_who_answers_at_once_is_let_in_however_long_the_worker_takes_between_its_polls(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    admitted = []
    poller, listener = Poller(), open_listener("127.0.0.1", 0)
    admit = lambda link, role, hello: (admitted.append(role), link.close())  # noqa: E731
    acceptor = Acceptor(poller, listener, b"secret", admit, SECONDS)
    with ThreadPoolExecutor(1) as threads:
        coming = threads.submit(Client.connect, "127.0.0.1", listener.getsockname()[1], b"secret", "control", {}, 90)
        while not admitted:
            wait_readable(listener, *(link._socket for link in poller.links))
            clock.seconds += 3 * SECONDS  # a long step of the worker's
            poller.poll(0)
            poller.flush()
        acceptor.close()
        poller.close()
        with pytest.raises(PeerLost):
            coming.result(270)
    assert admitted == ["control"] and not caplog.records


def test_who_says_nothing_more_is_shut_out(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    poller, listener = Poller(), open_listener("127.0.0.1", 0)
    acceptor = Acceptor(poller, listener, b"secret", lambda link, role, hello: None, SECONDS)
    with socket.create_connection(listener.getsockname()):
        poller.poll(180)
        assert len(acceptor.waiting) == 1
        clock.seconds += SECONDS + 0.1
        poller.poll(0)
        assert len(acceptor.waiting) == 0
    acceptor.close()
    poller.close()
    [record] = caplog.records
    assert "took too long" in record.getMessage()


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Disable the garbage collector, which hardly ever runs in a worker."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def door(admitted: list[str]) -> Iterator[tuple[Poller, Acceptor, tuple[str, int]]]:
    """A poller that only the test polls, its acceptor, and the acceptor's address."""
    poller, listener = Poller(), open_listener("127.0.0.1", 0)
    admit = lambda link, role, hello: (admitted.append(role), link.close())  # noqa: E731
    acceptor = Acceptor(poller, listener, b"secret", admit, 60.0)
    try:
        yield poller, acceptor, listener.getsockname()
    finally:
        acceptor.close()
        poller.close()


def test_silent_strangers_make_room_for_who_answers(caplog: pytest.LogCaptureFixture) -> None:
    admitted: list[str] = []
    with ExitStack() as stack:
        poller, acceptor, address = stack.enter_context(door(admitted))
        came = 0
        while came < 2 * STRANGERS_MAX:
            stack.enter_context(socket.create_connection(address))
            came += 1
            poller.poll(0.01)
        assert len(acceptor.waiting) <= STRANGERS_MAX
        threads = stack.enter_context(ThreadPoolExecutor(1))
        coming = threads.submit(Client.connect, *address, b"secret", "control", {}, 90)
        end = time.monotonic() + 180
        while not admitted and time.monotonic() < end:
            poller.poll(0.01)
        with pytest.raises(PeerLost):
            coming.result(270)
    assert admitted == ["control"]
    assert "it sent nothing while others waited" in caplog.text


def test_what_the_quietest_stranger_has_sent_is_read_before_it_is_sent_away(clock: Clock) -> None:
    with ExitStack() as stack:
        poller, acceptor, address = stack.enter_context(door([]))
        strangers = []
        while len(acceptor.waiting) < STRANGERS_MAX:
            strangers.append(stack.enter_context(socket.create_connection(address)))
            poller.poll(1.0)
        first, second = strangers[:2]
        first.sendall(greeting(b"n" * NONCE_BYTES))
        wait_readable(*(link._socket for link in acceptor.waiting._strangers if link.address == at(first)))
        assert acceptor._make_room(clock.seconds + 2 * MOMENT_SECONDS)
        assert {link.address for link in acceptor.waiting._strangers}.isdisjoint({at(second)})
        assert at(first) in {link.address for link in acceptor.waiting._strangers}


def wait_readable(*sockets: socket.socket) -> None:
    """Wait until something has arrived at one of them."""
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        assert selector.select(60)


def at(stranger: socket.socket) -> str:
    host, port = stranger.getsockname()
    return f"{host}:{port}"


def test_a_poll_accepts_few_and_more_after_a_long_step(clock: Clock) -> None:
    with ExitStack() as stack:
        poller, acceptor, address = stack.enter_context(door([]))
        for _ in range(50):
            stack.enter_context(socket.create_connection(address))
        poller.poll(0)  # the first time it takes as many as it may
        assert len(acceptor.waiting) == 50
        for _ in range(50):
            stack.enter_context(socket.create_connection(address))
        poller.poll(0)
        assert len(acceptor.waiting) == 50 + ACCEPTED_MIN
        clock.seconds += 1.0
        poller.poll(0)
        assert len(acceptor.waiting) == 100


def links_of(poller: Poller) -> list[Link]:
    """Return all live links of a poller. A simulated link, perhaps left by an earlier test, has no poller."""
    return [each for each in gc.get_objects() if isinstance(each, Link) and getattr(each, "_poller", None) is poller]


@pytest.mark.parametrize(
    ("said", "count"), [(greeting(b"n" * NONCE_BYTES), 0), (b"GET / HTTP/1.1\r\n" * 9, LINES_MAX + 1)]
)
def test_strangers_that_are_gone_leave_nothing_but_a_few_lines(
    clock: Clock, caplog: pytest.LogCaptureFixture, said: bytes, count: int
) -> None:
    gc.collect()
    with no_collector(), door([]) as (poller, acceptor, address):
        for _ in range(300):
            with socket.create_connection(address) as stranger:
                stranger.sendall(said)
            poller.poll(1.0)
        while len(acceptor.waiting):
            poller.poll(1.0)
        poller.flush()
        assert not links_of(poller)
        assert len(poller._scheduled._heap) < 10
        acceptor.complain.end_period()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == count and (not lines or lines[-1].startswith("and 280 more connections within 10 s")), lines


@pytest.mark.parametrize("server_closes", [False, True])
def test_clients_that_come_and_go_leave_nothing(server_closes: bool) -> None:
    gc.collect()
    with no_collector(), ExitStack() as stack:
        poller, acceptor, address = stack.enter_context(door([]))

        def admit(link: Link, role: str, hello: dict[str, Any]) -> None:
            link.owner = connection = Connection(poller, link, Handler(), lambda text: None)
            link.queue(0, [welcome({})])
            if server_closes:
                connection.close()

        acceptor.admit = admit
        threads = stack.enter_context(ThreadPoolExecutor(1))
        for _ in range(20):
            coming = threads.submit(Client.connect, *address, b"secret", "control", {}, 90)
            while not coming.done():
                poller.poll(0.01)
            coming.result().close()
        while poller.links:
            poller.poll(1.0)
        assert not links_of(poller)


class Handler:
    """Does nothing."""

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Do nothing."""

    def received(self, connection: Connection, value: Any) -> None:
        """Do nothing."""

    def lost(self, connection: Connection) -> None:
        """Do nothing."""


def test_a_stranger_that_is_proven_makes_room_and_is_never_the_one_to_go() -> None:
    room: WaitingRoom[str] = WaitingRoom(2, 1.0, 5.0)
    room.hear("a", 0.0)
    room.hear("b", 0.0)
    assert room.is_full and room.quietest(1.0) == "a"
    room.hear("a", 0.5, proven=True)
    assert not room.is_full and room.quietest(9.0) == "b" and len(room) == 2
    assert list(room.overdue(5.2)) == ["b"] and room.seconds_to_overdue(1.0) == 4.0
    room.leave("b")
    assert room.quietest(9.0) is None and list(room.overdue(5.5)) == ["a"]
    room.leave("a")
    assert room.seconds_to_overdue(9.0) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["hear", "prove", "leave"])), max_size=60))
def test_the_quietest_is_the_one_that_a_list_would_tell(steps: list[tuple[int, str]]) -> None:
    room: WaitingRoom[int] = WaitingRoom(3, 2.0, 10.0)
    heard: dict[int, tuple[float, bool]] = {}
    for now, (who, what) in enumerate(steps):
        if what == "leave":
            room.leave(who)
            heard.pop(who, None)
        else:
            heard[who] = float(now), what == "prove"
            room.hear(who, float(now), what == "prove")
        strangers = sorted((when, each) for each, (when, proven) in heard.items() if not proven)
        quiet = next((each for when, each in strangers if now - when >= 2.0), None)
        assert (room.quietest(now), room.is_full, len(room)) == (quiet, len(strangers) >= 3, len(heard))
        assert sorted(room.overdue(now)) == sorted(each for each, (when, _) in heard.items() if now - when >= 10.0)
