"""Connections until their handshake is done: those that the port accepts, and those that this process dials.

Accepted connections are bounded while they are pending: so many at a time, each so many bytes, and so many seconds for
each message of the handshake. The handshake as a whole has no time limit: a worker in a long step takes one message
between two of them, and that is not the other side's fault. A connection whose handshake fails is closed with one log
line, and nothing else happens. When too many are pending, further ones stay in the kernel's backlog.
"""

import errno
import logging
import os
import secrets
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from megaflow.errors import ConfigMismatch
from megaflow.timely.communication.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, refusal
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link, address_text, configure
from megaflow.timely.communication.wire import MAX_MESSAGE_BYTES, Buffer

MAX_PENDING = 64
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
    pending: int = 0  # connections in their handshake
    _closed: bool = False

    def __post_init__(self) -> None:
        self.listener.setblocking(False)
        self.open()

    def open(self) -> None:
        """Accept again, if there is room."""
        if not self._closed and not self.poller.closed and self.pending < MAX_PENDING:
            self.poller.watch(self.listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _mask: int) -> None:
        while self.pending < MAX_PENDING:
            try:
                connection, address = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.warning("cannot accept a connection: %s; trying again in %g s", error, PAUSE_SECONDS)
                self.poller.watch(self.listener, 0, self._accept)
                self.poller.call_later(PAUSE_SECONDS, self.open)
                return
            configure(connection)
            pending = PendingConnection(self, ServerHandshake(self.secret, secrets.token_bytes(NONCE_BYTES)))
            link = Link(self.poller, connection, pending, address_text(address))
            link.decoder.max_message_bytes = pending.handshake.max_message_bytes
            self.pending += 1
            pending.wait(link)
        self.poller.watch(self.listener, 0, self._accept)

    def close(self) -> None:
        """Accept nothing any more and close the listener. Nothing the second time."""
        self._closed = True
        self.poller.watch(self.listener, 0, self._accept)
        self.listener.close()


class PendingConnection:
    """Owns a link while its handshake runs."""

    def __init__(self, acceptor: Acceptor, handshake: ServerHandshake) -> None:
        self.handshake = handshake
        self._acceptor = acceptor
        self._received = 0  # messages

    def wait(self, link: Link) -> None:
        """Give it time for the next message."""
        self._acceptor.poller.call_later(self._acceptor.handshake_seconds, partial(self.expire, link, self._received))

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Step the handshake; refuse with a reason where the settings differ."""
        self._received += 1
        try:
            _step(self.handshake, link, kind, payload)
            if self.handshake.role is not None:
                self._acceptor.admit(link, self.handshake.role, self.handshake.hello)
                link.decoder.max_message_bytes = MAX_MESSAGE_BYTES
                self._leave()
        except ConfigMismatch as error:
            link.queue(0, [refusal(str(error))])
            link.flush()
            self._close(link, str(error))

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Close."""
        self._close(link, reason if broken else f"{reason} during the handshake")

    def expire(self, link: Link, received: int) -> None:
        """Close if the handshake is not done and no message has come since so many had been received."""
        if link.owner is not self or link.closed:
            return
        if self._received > received:
            self.wait(link)
        else:
            self._close(link, "the handshake took too long")

    def _close(self, link: Link, reason: str) -> None:
        _log.warning("closed a connection from %s: %s", link.address, reason)
        link.close()
        self._leave()

    def _leave(self) -> None:
        self._acceptor.pending -= 1
        self._acceptor.open()


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
        connection.setblocking(False)
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            self._retry(os.strerror(code))
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
