"""Connections that are not peers. The handler of its role serves each: control clients, line senders, joiners."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from megaflow.errors import ProtocolError
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link
from megaflow.timely.communication.wire import Buffer, Kind, frames

CLOSE_SECONDS = 5.0  # for the other side to read the rest and close


class RoleHandler(Protocol):
    """Handler of the connections of one role. The polling thread makes all calls.

    A ProtocolError closes the connection and logs a line. Any other exception reaches the worker.
    """

    def connected(self, connection: "Connection", hello: dict[str, Any]) -> None:
        """Greet a connection whose handshake is done. ConfigMismatch refuses the connection with its text."""

    def received(self, connection: "Connection", value: Any) -> None:
        """Take one value."""

    def lost(self, connection: "Connection") -> None:
        """The other side has closed or broken the protocol. Not called after this side's own close."""


Post: TypeAlias = Callable[[int, str, object], None]
"""Called with a local worker, a topic and a body, which that worker receives as mail from itself."""


class EntryHandler(RoleHandler, Protocol):
    """The handler for processes that want to join. It also reports to the workers the links that end meanwhile."""

    def attach(self, post: Post) -> None:
        """Set the function that reaches the workers of this process; called once, before anything else."""

    def link_lost(self, ids: tuple[int, ...]) -> None:
        """Report to every worker of this process that the link to these workers ended while a process was joining."""

    def finished(self, worker: int) -> None:
        """Note that this worker no longer reads mail; called on that worker's thread."""


class Connection:
    """One client of a role; used by the polling thread only."""

    def __init__(self, poller: Poller, link: Link, handler: RoleHandler, complain: Callable[[str], None]) -> None:
        self.peer = link.address  # host:port of the other side
        self.trouble = ""  # why it ended, unless this side closed it
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
        """Return whether the kernel has taken everything that was sent."""
        return self._link.is_drained()

    def read_little(self, read_bytes: int) -> None:
        """Read at most so many bytes in each poll from now on. Its messages take more time than their length says."""
        self._link.read_bytes = read_bytes

    def hold(self, held: bool) -> None:
        """Stop reading while `held`, so that its end goes unnoticed too; values already read are still delivered."""
        self._link.hold(held)

    def send(self, value: object) -> None:
        """Queue one value, encoded at once (raises CannotTravel). It leaves at the next flush. No-op once closed."""
        if not self._closing:
            self._link.queue(Kind.DATA, frames(Kind.VALUE, encode(value)))

    def close(self) -> None:
        """Close once everything sent has left. Values that arrive from now on are dropped."""
        if not self._closing:
            self._closing = True
            self._link.half_close()
            self._forget_timer = self._poller.call_later(CLOSE_SECONDS, self._link.close)

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Pass a value to the handler."""
        if self._closing:
            return
        if kind != Kind.VALUE:
            raise ProtocolError(f"a frame of kind {kind} where a value was expected")
        self._handler.received(self, decode(payload))

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Close the link, and call the handler's `lost` unless this side closed first."""
        if broken:
            self._complain(f"closed the connection from {self.peer}: {reason}")
        link.close()
        self.trouble = reason
        self._forget_timer()
        if not self._closing:
            self._closing = True
            self._handler.lost(self)
