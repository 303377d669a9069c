"""The TCP transport of one process: links to its peers, inboxes of its workers, the way it ends.

1. One worker polls for all: the first that has not finished. The others hand it their bytes and wake it.
2. `_io` is held while polling, so that any worker's thread may take over to finish or to stop.
3. Callbacks of the poller only note a failure; `check`, called before and after each poll, closes down and raises.
   The first failure wins, and is passed on to all peers before the connections close: so everyone names the same
   cause, and not the peers that stopped because of it.
4. Normal end: every worker finishes; the process's goodbye leaves after everything else and shuts its direction;
   the process reads on until each peer's goodbye has come. An end of stream without one is a lost peer.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megaflow.errors import ClusterError, ConfigMismatch, PeerLost, ProtocolError
from megaflow.timely.communication.allocator import Envelope, FailureReport, Lane
from megaflow.timely.communication.codec import decode
from megaflow.timely.communication.door import HANDSHAKE_SECONDS, Door
from megaflow.timely.communication.endpoint import TcpAllocator
from megaflow.timely.communication.handshake import welcome
from megaflow.timely.communication.links import Connection, RoleHandler
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.meeting import PEER_ROLE, Meeting, PeerAddress
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import LAST_LANE, Link
from megaflow.timely.communication.wire import Buffer, Kind, frames, pack_failure, split_address, unpack_failure

LINGER_SECONDS = 1.0  # for peers to take the reason of a failure, for clients to take the last answers
LOOK_SECONDS = 5.0  # between looks for silent hosts

_LANES = tuple(Lane)


class Peer:
    """Owns the link to another process."""

    __slots__ = ("_fabric", "address", "goodbye", "link")

    def __init__(self, fabric: "TcpFabric", address: PeerAddress, link: Link) -> None:
        self.address = address
        self.link = link
        self.goodbye = False  # it has sent everything
        self._fabric = fabric

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Deliver a worker message, or note the end."""
        if kind < len(_LANES):
            source, target, channel, body = split_address(payload)
            if source not in self.address.ids:
                raise ProtocolError(f"a message in the name of worker {source}")
            self._fabric.deliver(target, Envelope(_LANES[kind], channel, source, decode(body)))
        elif kind == Kind.GOODBYE:
            self.goodbye = True
        elif kind == Kind.FAILURE:
            self._fabric.fail(unpack_failure(payload))
        else:
            raise ProtocolError(f"a frame of kind {kind} from a peer")

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Note a loss, unless the peer has taken its leave."""
        if broken:
            self._fabric.fail(ProtocolError(f"{self.address} broke the protocol: {reason}"))
        elif not self.goodbye:
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """Note that the peer is lost."""
        self._fabric.fail(
            PeerLost(
                f"lost {self.address} ({self.address.workers()}): its connection ended without a goodbye ({reason}). "
                "It was killed or crashed, or its network is gone; what its workers held is lost, so the job stops. "
                "Its own last output says more"
            )
        )

    def is_done(self) -> bool:
        """Tell whether both sides have taken their leave."""
        return self.link.closed or (self.goodbye and self.link.is_shut)


class TcpFabric:
    """The workers of this process, reachable from the others."""

    def __init__(
        self,
        listener: socket.socket,
        local_ids: Sequence[int],
        secret: bytes,
        roles: Mapping[str, RoleHandler] | None = None,
        report: Callable[[str], None] | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.inboxes = {index: Inbox() for index in local_ids}  # local worker -> its inbox, never changed
        self.links: dict[int, Link] = {}  # remote worker -> the link to its process
        self.polling = local_ids[0]  # the worker that polls; written by `finish`
        self.poller = Poller()
        self._peers: list[Peer] = []
        self._secret = secret
        self._roles = dict(roles or {})
        self._report = report
        self._meeting: Meeting | None = None
        self._io = threading.RLock()
        self._closed = False
        self._state = threading.Lock()  # guards the two below
        self._failure: ClusterError | None = None  # the first, never replaced
        self._unfinished = list(local_ids)
        self._door = Door(self.poller, listener, secret, self._admit, handshake_seconds)

    def connect(self, peers: Sequence[PeerAddress], process: int, workers: int, timeout_seconds: float = 30.0) -> None:
        """Meet all other processes; `peers` lists every process, this one included.

        Blocks up to the timeout. Raises ConnectTimeout naming who is missing, ConfigMismatch on both sides if the
        settings differ, PeerLost and PeerFailed if a process that had come is gone again.
        """
        self._meeting = meeting = Meeting(peers, process, workers, self._met, self.fail)
        meeting.dial(self.poller, self._secret)
        deadline = time.monotonic() + timeout_seconds
        while meeting.missing:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                self.fail(meeting.timeout(timeout_seconds))
            else:
                self.poll(left)
        self.check()
        if self._peers:
            self.poller.call_later(LOOK_SECONDS, self._look)

    def allocator(self, index: int) -> TcpAllocator:
        """Return the end of local worker `index`."""
        return TcpAllocator(self, index, self.inboxes[index])

    def watch(self, file: Any, callback: Callable[[], None]) -> None:
        """Call back, on the polling thread, whenever the file (a pipe, a socket) can be read."""
        self.poller.watch(file, selectors.EVENT_READ, lambda _mask: callback())

    def unwatch(self, file: Any) -> None:
        """Forget a watched file; call it before closing the file."""
        self.poller.watch(file, 0, lambda _mask: None)

    def deliver(self, target: int, envelope: Envelope) -> None:
        """Put what has come from a peer into a local inbox."""
        inbox = self.inboxes.get(target)
        if inbox is None:
            raise ProtocolError(f"a message for worker {target}, who is not here")
        inbox.deliver(envelope)

    def poll(self, seconds: float | None) -> None:
        """Move bytes; blocks up to `seconds` if there are none."""
        with self._io:
            if not self.poller.closed:
                self.poller.poll(seconds)

    def flush(self) -> None:
        """Send what the kernel takes."""
        with self._io:
            self.poller.flush()

    def fail(self, error: ClusterError) -> None:
        """Note why the cluster cannot go on, and wake every local worker; the first reason wins."""
        with self._state:
            if self._failure is None:
                self._failure = error
        for inbox in self.inboxes.values():
            inbox.wake()
        self.poller.wake()

    def check(self) -> None:
        """Raise what has been noted, after passing it on and closing everything."""
        if self._failure is not None:
            self._close_down(self._failure)
            raise type(self._failure)(*self._failure.args)

    def abort(self, report: FailureReport) -> None:
        """Tell every worker here and elsewhere; takes at most LINGER_SECONDS or so."""
        self.fail(report.error())
        if self._failure is not None:
            self._close_down(self._failure)

    def finish(self, index: int) -> None:
        """Take one worker out; with the last one, take leave of the peers and close."""
        if index not in self._unfinished:
            return
        self.check()
        with self._state:
            self._unfinished.remove(index)
            self.inboxes[index].finish()
            if self._unfinished:
                self.polling = self._unfinished[0]
        if self._unfinished:
            self.inboxes[self.polling].wake()  # it may be waiting as one that does not poll
            self.poller.wake()
            return
        for peer in self._peers:
            peer.link.queue(LAST_LANE, frames(Kind.GOODBYE, b""))
            peer.link.half_close()
        self.flush()  # this may be all that is missing
        while not all(peer.is_done() for peer in self._peers):
            self.poll(None)
            self.check()
        self._linger(lambda: all(connection.is_drained() for connection in self._connections()))
        self.close()

    def close(self) -> None:
        """Close everything at once, without a goodbye; workers that still use it raise. Nothing the second time."""
        self._closed = True
        self.fail(ClusterError("this process has closed its connections"))
        with self._io:
            self._door.close()
            self.poller.close()

    def _admit(self, link: Link, role: str, hello: dict[str, Any]) -> None:
        """Give a connection whose handshake is done to those who know its role."""
        if role == PEER_ROLE and self._meeting is not None:
            self._meeting.admit(link, hello)
            return
        handler = self._roles.get(role)
        if handler is None:
            raise ConfigMismatch(f"nobody here serves the role {role!r}")
        connection = Connection(self.poller, link, handler)
        handler.connected(connection, hello)
        link.owner = connection
        link.queue(0, [welcome({})])  # ahead of what the handler has sent

    def _met(self, address: PeerAddress, link: Link) -> None:
        peer = Peer(self, address, link)
        link.owner = peer
        self._peers.append(peer)
        self.links.update((index, link) for index in address.ids)
        if self._report is not None:
            self._report(f"connected to {address} ({address.workers()})")

    def _look(self) -> None:
        """Lose the peers whose host has fallen silent."""
        for peer in self._peers:
            if not peer.is_done() and peer.link.is_silent():
                peer.lose("its host does not answer")
        self.poller.call_later(LOOK_SECONDS, self._look)

    def _connections(self) -> list[Link]:
        return [link for link in self.poller.links if isinstance(link, Link) and isinstance(link.owner, Connection)]

    def _linger(self, is_done: Callable[[], bool]) -> None:
        self.flush()
        deadline = time.monotonic() + LINGER_SECONDS
        while not is_done() and time.monotonic() < deadline:
            self.poll(max(0.0, deadline - time.monotonic()))

    def _close_down(self, failure: ClusterError) -> None:
        """Pass the reason on, give everyone a moment to take it, and close; once."""
        with self._io:
            if self._closed:
                return
            self._door.close()
            for peer in self._peers:
                peer.link.replace_queued(pack_failure(failure))
                peer.link.half_close()
            self._linger(lambda: all(peer.link.has_ended() for peer in self._peers))
            self.close()
