"""The share of a poll that one link may take."""

import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from megaflow.timely.communication.handshake import MAX_UNPROVEN_BYTES
from megaflow.timely.communication.local import SIGNAL_SECONDS
from megaflow.timely.communication.poller import READ_BYTES, Poller, SignalSelector
from megaflow.timely.communication.tcp import PEER_READS_PER_POLL, Link
from megaflow.timely.communication.wire import Buffer, Kind, frames

FRAME = frames(Kind.VALUE, b"x" * 11)[0]  # 16 bytes


class Owner:
    """Counts the messages."""

    def __init__(self) -> None:
        self.messages = 0

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        self.messages += 1

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        raise AssertionError(reason)


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def ends(poller: Poller) -> Iterator[tuple[Link, Owner, socket.socket]]:
    """A link of the poller, its owner, and the socket at the other end."""
    with ExitStack() as stack:
        near, far = map(stack.enter_context, socket.socketpair())
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * READ_BYTES)
        owner = Owner()
        yield Link(poller, near, owner, "there"), owner, far


def test_a_wait_without_limit_looks_for_signals_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ctrl-C that comes just before the system waits does not end that wait."""
    waited = list[float | None]()

    def select(selector: object, seconds: float | None) -> list[object]:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    with SignalSelector() as selector, pytest.raises(KeyboardInterrupt):
        selector.select(None)
    assert waited == [SIGNAL_SECONDS] * 3


def test_a_stranger_is_read_no_further_at_a_time_than_a_message_of_the_handshake_may_be_long(
    ends: tuple[Link, Owner, socket.socket],
) -> None:
    link, owner, far = ends
    link.decoder.max_message_bytes = MAX_UNPROVEN_BYTES
    far.sendall(FRAME * 100)
    for turn in (1, 2):
        link.ready(selectors.EVENT_READ)
        assert owner.messages == turn * MAX_UNPROVEN_BYTES / len(FRAME)


def test_a_client_is_read_once_in_a_poll_and_a_peer_several_times(
    poller: Poller, ends: tuple[Link, Owner, socket.socket]
) -> None:
    link, owner, far = ends
    poller.buffer = poller.buffer[:160]  # ten frames
    far.sendall(FRAME * 300)
    link.ready(selectors.EVENT_READ)
    assert owner.messages == 10
    link.reads_per_poll = PEER_READS_PER_POLL
    link.ready(selectors.EVENT_READ)
    assert owner.messages == 10 + 10 * PEER_READS_PER_POLL


def test_a_link_is_read_a_little_at_a_time_if_it_is_said(ends: tuple[Link, Owner, socket.socket]) -> None:
    link, owner, far = ends
    link.read_bytes = 3 * len(FRAME)
    far.sendall(FRAME * 300)
    link.ready(selectors.EVENT_READ)
    assert owner.messages == 3


def test_nothing_is_read_of_a_link_that_is_held_nor_is_its_end_noticed(
    poller: Poller, ends: tuple[Link, Owner, socket.socket]
) -> None:
    link, owner, far = ends
    link.hold(True)
    far.sendall(FRAME)
    poller.poll(0.0)
    link.queue(0, [FRAME])
    poller.poll(0.0)
    assert owner.messages == 0 and far.recv(100) == FRAME
    link.hold(False)
    poller.poll(0.0)
    assert owner.messages == 1
    link.hold(True)
    far.close()
    poller.poll(0.0)
    with pytest.raises(AssertionError, match="end of stream"):
        link.hold(False)
        poller.poll(0.0)
    link.close()
    link.hold(True)
