"""Connections until their handshake is done: those that the port accepts, and those that this process dials.

Whoever has not proved that it knows the secret is a stranger, and costs little:
1. It may send one short message at a time, and is closed at the first that is wrong: `Link` reads no further.
2. There are so many strangers at a time; a further one is let in at the cost of the one that has said nothing for
   longest, see `waiting_room`. What that one has sent is read first: a worker in a long step takes one message between
   two of them, and that is not the other side's fault. So the handshake as a whole has no time limit, either.
3. So many are accepted in a poll as have had the time to come at a fair rate: the worker's own work goes on beside it.
   The others stay in the kernel's backlog.
4. Nothing keeps a connection that is closed: no timer is one connection's own, and log lines are counted.

A connection whose handshake fails is closed with a log line, and nothing else happens.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from megaflow.errors import ConfigMismatch
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.complaints import Complaints
from megaflow.timely.communication.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, refusal
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link, address_text, check_other_end, configure
from megaflow.timely.communication.waiting_room import WaitingRoom
from megaflow.timely.communication.wire import MAX_MESSAGE_BYTES, Buffer

STRANGERS_MAX = 128
MOMENT_SECONDS = 0.25  # for a stranger to say something, even if others wait for its place
ACCEPTED_MIN = 4  # in a poll
ACCEPTED_PER_SECOND = 1_000  # more: in a poll after a long step
HANDSHAKE_SECONDS = 5.0
PAUSE_SECONDS = 1.0  # after accept has failed, for want of file descriptors
REDIAL_SECONDS = 0.1

_log = logging.getLogger("megaflow.wire")


def _step(handshake: ClientHandshake | ServerHandshake, link: Link, kind: int, payload: Buffer) -> None:
    """Give a handshake its next message and send what it replies."""
    reply = handshake.received(kind, payload)
    link.decoder.max_message_bytes = handshake.max_message_bytes
    if reply:
        link.queue(0, [reply])


@dataclass(eq=False, repr=False)  # a secret is nothing to show
class Acceptor:
    """Accepts connections; `admit(link, role, hello)` takes over or raises ConfigMismatch to refuse."""

    poller: Poller
    listener: socket.socket
    secret: bytes
    admit: Callable[[Link, str, dict[str, Any]], None]
    handshake_seconds: float  # for each message
    _closed: bool = False
    _polled: float = 0.0  # when it accepted last
    _waits_for_place: bool = False
    _is_timed: bool = False  # `_expire` will be called

    def __post_init__(self) -> None:
        self.complain = Complaints(self.poller.call_later, _log.warning)
        self.waiting: WaitingRoom[Link] = WaitingRoom(STRANGERS_MAX, MOMENT_SECONDS, self.handshake_seconds)
        self.listener.setblocking(False)
        self.open()

    def open(self) -> None:
        """Accept, if there is somebody to accept."""
        if not self._closed and not self.poller.closed:
            self.poller.watch(self.listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _mask: int) -> None:
        now = time.monotonic()
        allowed = ACCEPTED_MIN + min(STRANGERS_MAX, int((now - self._polled) * ACCEPTED_PER_SECOND))
        self._polled = now
        for _ in range(allowed):
            if self.waiting.is_full and not self._make_room(now):
                self._waits_for_place = True
                self._pause(MOMENT_SECONDS)
                return
            try:
                connection, address = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self.complain(f"cannot accept a connection: {error}; trying again in {PAUSE_SECONDS:g} s")
                self._pause(PAUSE_SECONDS)
                return
            configure(connection)
            pending = PendingConnection(self, ServerHandshake(self.secret, secrets.token_bytes(NONCE_BYTES)))
            link = Link(self.poller, connection, pending, address_text(address))
            link.decoder.max_message_bytes = pending.handshake.max_message_bytes
            self.hear(link)

    def hear(self, link: Link, proven: bool = False) -> None:
        """Give a connection time for its next message."""
        self.waiting.hear(link, time.monotonic(), proven)
        if not self._is_timed:
            self._is_timed = True
            self.poller.call_later(self.handshake_seconds, self._expire)

    def shut_out(self, link: Link, reason: str) -> None:
        """Close a connection whose handshake has failed."""
        self.complain(f"closed a connection from {link.address}: {reason}")
        link.close()
        self.leave(link)

    def leave(self, link: Link) -> None:
        """Note that a connection waits no longer; who waits for its place may come."""
        self.waiting.leave(link)
        if self._waits_for_place:
            self._waits_for_place = False
            self.open()

    def close(self) -> None:
        """Accept nothing any more and close the listener. Nothing the second time."""
        if not self._closed:
            self._closed = True
            self.poller.watch(self.listener, 0, self._accept)
            self.listener.close()
            self.complain.end_period()

    def _make_room(self, now: float) -> bool:
        """Have the stranger leave that has said nothing for longest; False if all may still have a moment."""
        while (link := self.waiting.quietest(now)) is not None:
            link.ready(selectors.EVENT_READ)
            if link is self.waiting.quietest(now):
                self.shut_out(link, "it sent nothing while others waited")
            if not self.waiting.is_full:
                return True
        return False

    def _pause(self, seconds: float) -> None:
        self.poller.watch(self.listener, 0, self._accept)
        self.poller.call_later(seconds, self.open)

    def _expire(self) -> None:
        """Close those whose time is up."""
        self._is_timed = False
        now = time.monotonic()
        for link in self.waiting.overdue(now):
            self.shut_out(link, "the handshake took too long")
        seconds = self.waiting.seconds_to_overdue(now)
        if seconds is not None:
            self._is_timed = True
            self.poller.call_later(seconds, self._expire)


class PendingConnection:
    """Owns a link while its handshake runs."""

    def __init__(self, acceptor: Acceptor, handshake: ServerHandshake) -> None:
        self.handshake = handshake
        self._acceptor = acceptor

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Step the handshake; refuse with a reason where the settings differ."""
        try:
            _step(self.handshake, link, kind, payload)
            self._acceptor.hear(link, self.handshake.is_proven)
            if self.handshake.role is not None:
                self._acceptor.admit(link, self.handshake.role, self.handshake.hello)
                link.decoder.max_message_bytes = MAX_MESSAGE_BYTES
                self._acceptor.leave(link)
        except ConfigMismatch as error:
            link.queue(0, [refusal(str(error))])
            link.flush()
            self._acceptor.shut_out(link, str(error))

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Close."""
        self._acceptor.shut_out(link, reason if broken else f"{reason} during the handshake")


@dataclass(eq=False, repr=False)
class Dialer:
    """Connects to one address until it answers; `connected(link, answer)` takes over.

    A refusal is final and goes to `refused(error)`; any other failure is tried again.
    """

    poller: Poller
    target: tuple[str, int]  # host, port
    new_handshake: Callable[[bytes], ClientHandshake]  # from a nonce
    connected: Callable[[Link, dict[str, Any]], None]
    refused: Callable[[ConfigMismatch], None]
    trouble: str = "no answer"  # why the last attempt failed
    _attempts: int = 0

    def __post_init__(self) -> None:
        self.address = address_text(self.target)
        self.dial()

    def dial(self) -> None:
        """Begin an attempt; a name with several addresses has them tried in turn."""
        if self.poller.closed:
            return
        try:
            found = socket.getaddrinfo(*self.target, type=socket.SOCK_STREAM)
            family, kind, protocol, _, address = found[self._attempts % len(found)]
            self._attempts += 1
            connection = socket.socket(family, kind, protocol)
        except OSError as error:
            self._retry(error.strerror or str(error))
            return
        try:
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(address)
            check_other_end(connection, address)
        except OSError as error:
            connection.close()
            self._retry(error.strerror or str(error))
            return
        configure(connection)
        self._handshake = self.new_handshake(secrets.token_bytes(NONCE_BYTES))
        link = Link(self.poller, connection, self, self.address)
        link.decoder.max_message_bytes = self._handshake.max_message_bytes
        link.queue(0, [self._handshake.start()])

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Step the handshake."""
        try:
            _step(self._handshake, link, kind, payload)
        except ConfigMismatch as error:
            link.close()
            self.refused(ConfigMismatch(f"{self.address}: {error}"))
            return
        if self._handshake.answer is not None:
            link.decoder.max_message_bytes = MAX_MESSAGE_BYTES
            self.connected(link, self._handshake.answer)

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Try again."""
        link.close()
        self._retry(reason)

    def _retry(self, trouble: str) -> None:
        self.trouble = trouble
        self.poller.call_later(REDIAL_SECONDS, self.dial)
