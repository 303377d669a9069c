"""Connections until their handshake is done: those that the port accepts, and those that this process dials.

A connection that has not proved that it knows the secret is a stranger. It costs little:
1. It may send one short message at a time, and is closed at the first wrong one: `Link` reads no further.
2. The number of strangers is limited. A further one takes the place of the one that has been silent longest, see
   `WaitingRoom`. Before that one is closed, its bytes are read, and a message among them saves it its place. A worker
   in long steps reads only one message between two of them, and that is not the other side's fault. For the same reason
   the whole handshake has no time limit.
3. Each poll accepts only as many connections as could have come since the last one at a fair rate, so that the worker's
   own work continues. The others stay in the kernel's backlog.
4. Nothing refers to a closed connection: no timer belongs to a single connection, and excess log
   lines are only counted.
5. A stranger that hangs up has done nothing wrong. It checked whether this port is in use, or it is a command that
   reconnects after two seconds because this worker is in a long step. So it causes no warning.

If a handshake fails, the connection is closed with a log line. This has no other effect.
"""

import contextlib
import logging
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

from megaflow.errors import ConfigMismatch
from megaflow.own_files import keep_socket
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, refusal
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link, check_other_end, configure
from megaflow.timely.communication.wire import MAX_MESSAGE_BYTES, Buffer

STRANGERS_MAX = 128
MOMENT_SECONDS = 0.25  # in which a stranger may stay silent, even if others wait for its place
ACCEPTED_MIN = 4  # in a poll
ACCEPTED_PER_SECOND = 1_000  # in addition, for the time since the last poll, which may have been a long step
HANDSHAKE_SECONDS = 5.0
PAUSE_SECONDS = 1.0  # after accept has failed for lack of file descriptors
REDIAL_SECONDS = 0.1
LINES_MAX = 20  # logged in full in each period; further lines are only counted
PERIOD_SECONDS = 10.0
LENGTH_MAX = 500  # characters of a line, parts of which come from the other side

T = TypeVar("T", bound=Hashable)

_log = logging.getLogger("megaflow.timely.communication")


class Complaints:
    """Limited log of one process: a few lines, then a count. One writer: the polling thread.

    Anyone who can reach the port can cause thousands of such lines a second. They must not fill a disk, nor hide the
    job's other messages.

    >>> lines, ends = [], []
    >>> complain = Complaints(lambda seconds, call: ends.append(call), lines.append)
    >>> for number in range(LINES_MAX + 3):
    ...     complain(f"closed connection {number}")
    >>> len(lines) == LINES_MAX, lines[-1]
    (True, 'closed connection 19')
    >>> ends.pop()()
    >>> lines[-1]
    'and 3 more connections within 10 s, the last one: closed connection 22'
    """

    def __init__(self, call_later: Callable[[float, Callable[[], None]], object], log: Callable[[str], None]) -> None:
        """`call_later(seconds, callback)` schedules a call, `log` writes a line."""
        self._call_later = call_later
        self._log = log
        self._count = 0  # lines in this period
        self._last = ""  # the last line

    def __call__(self, text: str) -> None:
        """Log a line, or only count it."""
        if not self._count:
            self._call_later(PERIOD_SECONDS, self.end_period)
        self._count += 1
        self._last = text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "…"
        if self._count <= LINES_MAX:
            self._log(self._last)

    def end_period(self) -> None:
        """Log the number of lines that were not logged, and begin a new period."""
        more, self._count = self._count - LINES_MAX, 0
        if more > 0:
            connections = "1 more connection" if more == 1 else f"{more} more connections"
            self._log(f"and {connections} within {PERIOD_SECONDS:g} s, the last one: {self._last}")


class WaitingRoom(Generic[T]):
    """Strangers and proven connections, by when each was last heard: which must leave, and when.

    One writer: the polling thread.

    1. The room has a fixed number of places for strangers. When it is full, the stranger that has been silent longest
       makes room for the next, but not before it has had a moment. So silent strangers keep no connection out, and one
       that answers is never sent away.
    2. A connection that has proved that it knows the secret frees its place at once, and is never sent away for
       another.
    3. No connection may stay silent for longer than its patience allows when it must send its next message.
    """

    def __init__(self, places: int, moment_seconds: float, patience_seconds: float) -> None:
        self._places = places  # for strangers
        self._moment_seconds = moment_seconds
        self._patience_seconds = patience_seconds
        self._strangers: dict[T, float] = {}  # -> when it was last heard; the longest ago comes first
        self._proven: dict[T, float] = {}  # likewise

    def __len__(self) -> int:
        """Return the number of connections that wait, including the proven ones."""
        return len(self._strangers) + len(self._proven)

    @property
    def is_full(self) -> bool:
        """Whether there is no place for another stranger."""
        return len(self._strangers) >= self._places

    def hear(self, who: T, now: float, proven: bool = False) -> None:
        """Note that a connection has come or sent a message, and whether it has proved that it knows the secret."""
        self.leave(who)
        (self._proven if proven else self._strangers)[who] = now

    def leave(self, who: T) -> None:
        """Forget a connection; do nothing if it is not here."""
        self._strangers.pop(who, None)
        self._proven.pop(who, None)

    def quietest(self, now: float) -> T | None:
        """Return the stranger that must make room; None if each stranger still has its moment.

        >>> room = WaitingRoom(2, 0.25, 5.0)
        >>> for who, when in (("first", 0.0), ("second", 0.1), ("first", 0.2)):
        ...     room.hear(who, when)
        >>> room.is_full, room.quietest(0.3), room.quietest(0.4)
        (True, None, 'second')
        """
        who = next(iter(self._strangers), None)
        return who if who is not None and now - self._strangers[who] >= self._moment_seconds else None

    def overdue(self, now: float) -> Iterator[T]:
        """Yield the connections whose time is up; they may leave meanwhile."""
        for some in (self._strangers, self._proven):
            yield from [who for who, heard in some.items() if now - heard >= self._patience_seconds]

    def seconds_to_overdue(self, now: float) -> float | None:
        """Return the time until the first connection is overdue if all stay silent; None if none waits."""
        firsts = [next(iter(some.values())) for some in (self._strangers, self._proven) if some]
        return max(0.0, min(firsts) + self._patience_seconds - now) if firsts else None


def _step(handshake: ClientHandshake | ServerHandshake, link: Link, kind: int, payload: Buffer) -> None:
    """Pass a handshake its next message, and send its reply."""
    reply = handshake.received(kind, payload)
    link.decoder.max_message_bytes = handshake.max_message_bytes
    if reply:
        link.queue(0, [reply])


@dataclass(eq=False, repr=False)  # repr must not show the secret
class Acceptor:
    """Acceptor of connections. `admit(link, role, hello)` takes a link over, or refuses it with ConfigMismatch."""

    poller: Poller
    listener: socket.socket
    secret: bytes
    admit: Callable[[Link, str, dict[str, Any]], None]
    handshake_seconds: float  # for each message
    _closed: bool = False
    _polled: float = 0.0  # time of its last poll
    _waits_for_place: bool = False
    _is_timed: bool = False  # `_expire` will be called

    def __post_init__(self) -> None:
        self.complain = Complaints(self.poller.call_later, _log.warning)
        self.waiting: WaitingRoom[Link] = WaitingRoom(STRANGERS_MAX, MOMENT_SECONDS, self.handshake_seconds)
        keep_socket(self.listener).setblocking(False)
        self.open()

    def open(self) -> None:
        """Watch the listener for new connections, unless closed."""
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
        """Close a connection whose handshake has failed, and log the reason."""
        self.complain(f"closed a connection from {link.address}: {reason}")
        link.close()
        self.leave(link)

    def leave(self, link: Link) -> None:
        """Note that a connection no longer waits. Accept again if accepting had stopped for lack of a place."""
        self.waiting.leave(link)
        if self._waits_for_place:
            self._waits_for_place = False
            self.open()

    def close(self) -> None:
        """Stop accepting and close the listener. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.poller.watch(self.listener, 0, self._accept)
            self.listener.close()
            self.complain.end_period()

    def _make_room(self, now: float) -> bool:
        """Close the strangers that have been silent longest until there is room.

        Return False if each of the others may still have its moment.
        """
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
        """Close the connections whose time is up."""
        self._is_timed = False
        now = time.monotonic()
        for link in self.waiting.overdue(now):
            self.shut_out(link, "the handshake took too long")
        seconds = self.waiting.seconds_to_overdue(now)
        if seconds is not None:
            self._is_timed = True
            self.poller.call_later(seconds, self._expire)


class PendingConnection:
    """Owner of a link while its handshake runs."""

    def __init__(self, acceptor: Acceptor, handshake: ServerHandshake) -> None:
        self.handshake = handshake
        self._acceptor = acceptor

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Advance the handshake; refuse the connection, with a reason, if the settings differ."""
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
        """Close the link; log no warning if the other side has only hung up: see rule 5."""
        if broken:
            self._acceptor.shut_out(link, reason)
            return
        _log.debug("%s hung up during the handshake: %s", link.address, reason)
        link.close()
        self._acceptor.leave(link)


@dataclass(eq=False, repr=False)
class Dialer:
    """Repeated attempts to connect to one address until it answers; `connected(link, answer)` takes the link over.

    A refusal is final and goes to `refused(error)`. After any other failure it tries again.
    """

    poller: Poller
    target: tuple[str, int]  # host, port
    new_handshake: Callable[[bytes], ClientHandshake]  # called with a nonce
    connected: Callable[[Link, dict[str, Any]], None]
    refused: Callable[[ConfigMismatch], None]
    trouble: str = "no answer"  # why the last attempt failed
    _attempts: int = 0

    def __post_init__(self) -> None:
        self.address = address_text(self.target)
        self.dial()

    def dial(self) -> None:
        """Begin an attempt. If a name has several addresses, the attempts take them in turn."""
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
        """Advance the handshake."""
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
