"""The TCP transport of a simulated process: the real one above its sockets.

Inboxes, peers with their standing, the end of a process that fails and that of one that is done are those of
`TcpFabric`, used through the real `TcpAllocator`. What that does with sockets is left out; its connections are
`SimulatedLink`s, and whoever waits there is stepped here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from megaflow.testing.simulated_links import SimulatedLink
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.peers import Peers
from megaflow.timely.communication.rendezvous import PeerAddress, Rendezvous
from megaflow.timely.communication.tcp_fabric import JOIN_ROLE, TcpFabric
from megaflow.timely.communication.wire import pack_failure
from megaflow.timely.rescale.join_server import JoinDoor


class _NoPoller:
    """Takes the place of the poller, which has nothing to do."""

    closed = False

    def __init__(self) -> None:
        self.dirty: dict[Any, None] = {}
        self.links: set[Any] = set()

    def wake(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class _NoAcceptor:
    """Takes the place of the acceptor: connections come by `SimulatedProcess.admit`."""

    def complain(self, text: str) -> None:
        raise AssertionError(text)


class SimulatedFabric(TcpFabric):
    """The real one, but for what it does with sockets and by waiting."""

    def __init__(self, ids: Sequence[int], roles: dict[str, Any], entry: JoinDoor, joining: bool) -> None:
        poller: Any = _NoPoller()
        acceptor: Any = _NoAcceptor()
        self.inboxes = {index: Inbox() for index in ids}
        self.peers = Peers(ids)
        self.polling = ids[0]
        self.poller, self._acceptor = poller, acceptor
        self._roles = {**roles, JOIN_ROLE: entry}
        self._entry = entry
        entry.attach(self._post)
        self._report = lambda text: None
        self._joining = joining
        self._rendezvous = None
        self._io, self._state = threading.RLock(), threading.Lock()
        self._closed = self._is_fork = False
        self._failure = None
        self._unfinished = list(ids)
        self.links: list[SimulatedLink] = []  # of this process

    def meet(self, rendezvous: Rendezvous) -> None:
        """Know with whom this process is to be connected."""
        self._rendezvous = rendezvous

    def admit(self, link: SimulatedLink, role: str, hello: dict[str, Any]) -> None:
        """Take in a connection. Raises ConfigMismatch."""
        self.links.append(link)
        self._admit(link, role, hello)

    def connected(self, address: PeerAddress, link: SimulatedLink) -> None:
        """Take in a connection to a member."""
        self.links.append(link)
        self._connected(address, link)

    @property
    def has_failed(self) -> bool:
        """Whether the next check raises."""
        return self._failure is not None

    def poll(self, seconds: float | None, flush: bool = True) -> None:
        """Nothing comes by polling."""

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Leave all connections; what was queued still arrives."""
        self._closed = True
        for link in self.links:
            link.leave()

    def _close_down(self, failure: Any) -> None:
        """Pass the reason on, and close; once."""
        if not self._closed:
            for peer in self._present():
                peer.link.replace_queued(pack_failure(failure))
                peer.link.half_close()
            self.close()
