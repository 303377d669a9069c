"""TCP transport of a simulated process: the real one above its sockets.

Inboxes, peers with their standing, and the ends of processes that fail or finish are those of `TcpFabric`, used through
the real `TcpAllocator`. The socket code of `TcpFabric` is left out. Its connections are `SimulatedLink`s, and the
simulation steps the code that would wait there.
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
from megaflow.timely.rescale.join_door import JoinDoor


class _NoPoller:
    """Stand-in for the poller, which has nothing to do."""

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
    """Stand-in for the acceptor: connections arrive through `SimulatedProcess.admit`."""

    def complain(self, text: str) -> None:
        raise AssertionError(text)


class SimulatedFabric(TcpFabric):
    """`TcpFabric` without sockets and waits."""

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
        """Set the processes to which this one must connect."""
        self._rendezvous = rendezvous

    def admit(self, link: SimulatedLink, role: str, hello: dict[str, Any]) -> None:
        """Accept a connection. Raises ConfigMismatch."""
        self.links.append(link)
        self._admit(link, role, hello)

    def connected(self, address: PeerAddress, link: SimulatedLink) -> None:
        """Accept a connection to a member."""
        self.links.append(link)
        self._connected(address, link)

    @property
    def has_failed(self) -> bool:
        """Whether the next check raises."""
        return self._failure is not None

    def poll(self, seconds: float | None, flush: bool = True) -> None:
        """Do nothing: nothing arrives by polling."""

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def close(self) -> None:
        """Leave all connections; queued messages still arrive."""
        self._closed = True
        for link in self.links:
            link.leave()

    def _close_down(self, failure: Any) -> None:
        """Pass the reason on to the peers, and close. Later calls do nothing."""
        if not self._closed:
            for peer in self._present():
                peer.link.replace_queued(pack_failure(failure))
                peer.link.half_close()
            self.close()
