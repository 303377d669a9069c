"""Connections that are not peers, each served by the handler of its role: control clients, line senders, joiners."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link
from megaflow.timely.communication.wire import Buffer, Kind, frames

CLOSE_SECONDS = 5.0  # for the other side to read what is left and to close, too


class RoleHandler(Protocol):
    """What a process does with connections of one role; called by the polling thread.

    A ProtocolError closes that connection with a log line; any other exception reaches the worker.
    """

    def connected(self, connection: "Connection", hello: dict[str, Any]) -> None:
        """Greet a connection whose handshake is done; ConfigMismatch refuses it with its text."""

    def received(self, connection: "Connection", value: Any) -> None:
        """Take one value."""

    def lost(self, connection: "Connection") -> None:
        """Learn that the other side has closed or broken the protocol; not called after our own close."""


Post: TypeAlias = Callable[[int, str, object], None]
"""Called with a local worker, a topic and a body, which that worker then gets as mail from itself."""


class EntryHandler(RoleHandler, Protocol):
    """The role handler for processes that want to join; it also tells the workers of links that end meanwhile."""

    def attach(self, post: Post) -> None:
        """Learn how to reach the workers of this process; called once, before anything else."""

    def link_lost(self, ids: tuple[int, ...]) -> None:
        """Tell every worker of this process that the link to these ended while a process was joining."""

    def finished(self, worker: int) -> None:
        """Learn, on that worker's thread, that it reads no more mail."""


class Connection:
    """One client of a role; used by the polling thread only."""

    def __init__(self, poller: Poller, link: Link, handler: RoleHandler, complain: Callable[[str], None]) -> None:
        self.peer = link.address  # host:port of the other side
        self.trouble = ""  # why it has ended, by the other side or by itself
        self._poller = poller
        self._link = link
        self._handler = handler
        self._complain = complain
        self._closing = False
        self._forget_timer: Callable[[], object] = lambda: None

    @property
    def pending_bytes(self) -> int:
        """Return the bytes queued and not yet taken by the kernel."""
        return self._link.pending[Kind.DATA]

    @property
    def is_drained(self) -> bool:
        """Tell whether everything sent is with the kernel."""
        return self._link.is_drained()

    def read_little(self, read_bytes: int) -> None:
        """Read so few bytes of it in a poll from now on: its messages cost more time than their length tells."""
        self._link.read_bytes = read_bytes

    def hold(self, held: bool) -> None:
        """Read nothing of it, nor learn that it has ended, until it is held no more; what was read still comes."""
        self._link.hold(held)

    def send(self, value: object) -> None:
        """Queue one value, encoded at once (raises CannotTravel); it leaves at the next flush. No-op once closed."""
        if not self._closing:
            self._link.queue(Kind.DATA, frames(Kind.VALUE, encode(value)))

    def close(self) -> None:
        """Close once everything sent has left; nothing is received any more."""
        if not self._closing:
            self._closing = True
            self._link.half_close()
            self._forget_timer = self._poller.call_later(CLOSE_SECONDS, self._link.close)

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Hand a value to the handler."""
        if self._closing:
            return
        if kind != Kind.VALUE:
            raise ProtocolError(f"a frame of kind {kind} where a value was expected")
        self._handler.received(self, decode(payload))

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Close, and tell the handler unless it has closed itself."""
        if broken:
            self._complain(f"closed the connection from {self.peer}: {reason}")
        link.close()
        self.trouble = reason
        self._forget_timer()
        if not self._closing:
            self._closing = True
            self._handler.lost(self)
