"""The other processes, each with its standing: newcomer, member or departed.

1. A newcomer is connected before it takes part. Messages go both ways, but its loss is only reported to the workers.
2. The loss of a member stops the cluster.
3. The end of a departed peer's connection has no effect, whatever the cause. This process sends the peer a goodbye
   after everything that was queued for it, so that the end is no loss on the peer's side either.

A standing only moves forward in this order. Any worker's thread may move it, and the polling thread finds losses. Both
happen under one lock. So if a loss and a promotion coincide, the later one sees the earlier one, and fails.

Each worker disconnects from a peer by itself: one may already know that the peer has left while another still has to
tell the peer that. The goodbye leaves when the last worker has disconnected.
"""

import threading
from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import Protocol

from megaflow.errors import ClusterError, ConfigMismatch, PeerLost, ProtocolError
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.tcp import LAST_LANE, Link
from megaflow.timely.communication.wire import EVERYBODY, Buffer, Kind, frames, unpack_failure, unpack_message

LANES = len(Lane)  # lower kinds are worker messages; a constant, because each message asks and an enum's len is slow
CHECKS_BEFORE_CLOSE = 2  # of the connection of a newcomer that was refused and keeps it open


class Standing(IntEnum):
    """Standing of another process in the view of this one."""

    NEWCOMER = 0
    MEMBER = 1
    DEPARTED = 2


class Listener(Protocol):
    """The process that owns the peers; the polling thread makes all calls."""

    inboxes: dict[int, Inbox]  # worker of this process -> its inbox; never changed

    def fail(self, error: ClusterError) -> None:
        """The cluster cannot continue."""

    def newcomer_lost(self, peer: "Peer") -> None:
        """A newcomer's connection has ended; called once for each newcomer."""

    def member_done(self, peer: "Peer") -> None:
        """A member's connection has ended after its goodbye."""


class Peer:
    """Another process. Owns the link to it."""

    def __init__(
        self, listener: Listener, lock: threading.Lock, address: PeerAddress, link: Link, change: int | None
    ) -> None:
        self.address = address
        self.link = link
        self.change = change  # the membership change with which it joins; None: it was here before this process
        self.standing = Standing.MEMBER if change is None else Standing.NEWCOMER  # written under the lock
        self.trouble: ClusterError | None = None  # why it is lost; written under the lock, once
        self.goodbye = False  # it has sent everything
        self.forgotten_by: set[int] = set()  # local workers; written under the lock
        self.checks_left = 0  # until a refused newcomer's link is closed even if it is still open; else 0
        self._listener = listener
        self._lock = lock

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Deliver a worker message, or note a goodbye or a failure."""
        if kind == Kind.GOODBYE:
            self.goodbye = True
        elif kind < LANES:
            self._deliver(*unpack_message(kind, payload))
        elif kind == Kind.FAILURE:
            self._end(unpack_failure(payload))
        else:
            raise ProtocolError(f"a frame of kind {kind} from a peer")

    def _deliver(self, source: int, target: int, channel: Channel, body: Buffer) -> None:
        """Put a message into the inbox of its target, unless that worker has forgotten this peer."""
        if source not in self.address.ids:
            raise ProtocolError(f"a message in the name of worker {source}")
        if target in self.forgotten_by:
            return
        inboxes = self._listener.inboxes
        if target == EVERYBODY and channel.lane is Lane.PROGRESS:
            envelope = Envelope(channel, source, decode(body))
            for index, inbox in inboxes.items():
                if index not in self.forgotten_by:
                    inbox.deliver(envelope)
        elif target in inboxes:
            inboxes[target].deliver(Envelope(channel, source, decode(body)))
        else:
            raise ProtocolError(f"a message for worker {target}, which is not in this process")

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Note a loss, unless the peer has said goodbye."""
        if broken:
            self._end(ProtocolError(f"{self.address} broke the protocol: {reason}"))
        elif self.goodbye and self.standing is Standing.MEMBER:
            self._listener.member_done(self)
        else:
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """Note that the peer is lost."""
        self._end(
            PeerLost(
                f"lost {self.address} ({self.address.workers()}): its connection ended without a goodbye ({reason}). "
                "The process crashed or was killed, or its network failed. The state of its workers is lost, so the "
                "job stops. See the last output of that process",
                self.address.ids,
            )
        )

    def is_done(self) -> bool:
        """Return whether both sides have said goodbye."""
        return self.link.closed or (self.goodbye and self.link.is_shut)

    def is_over(self) -> bool:
        """Return whether a departed peer's connection is over in both directions."""
        return self.link.is_shut and self.link.has_ended()

    def part(self) -> None:
        """Say goodbye after everything that is queued. Nothing leaves after that."""
        self.link.queue(LAST_LANE, frames(Kind.GOODBYE, b""))
        self.link.half_close()

    def _end(self, error: ClusterError) -> None:
        with self._lock:
            standing, known = self.standing, self.trouble is not None
            if not known:
                self.trouble = error
        if standing is Standing.MEMBER:
            self._listener.fail(error)
            return
        if standing is Standing.NEWCOMER and self.goodbye:
            self.part()  # it has given up its join
        elif standing is Standing.NEWCOMER or self.is_over():
            self.link.close()
        if standing is Standing.NEWCOMER and not known:
            self._listener.newcomer_lost(self)


class Peers:
    """All other processes so far. `links` is replaced as a whole, so any thread may read it."""

    def __init__(self, local_ids: Collection[int]) -> None:
        self.links: dict[int, Link] = {}  # worker of another process -> link, until all workers here have forgotten it
        self.lock = threading.Lock()  # guards this object and the standing of each peer
        self._local = frozenset(local_ids)
        self._unfinished = set(local_ids)
        self._all: tuple[Peer, ...] = ()
        self._gone: set[int] = set()  # workers that at least one worker here has forgotten
        self._change_over = -1  # the highest change that is known to be over

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._all)

    def add(self, peer: Peer) -> None:
        """Add a peer that has just connected."""
        with self.lock:
            here = (old for old in self._all if old.standing is not Standing.DEPARTED or not old.link.closed)
            self._all = (*here, peer)
            self.links = {**self.links, **dict.fromkeys(peer.address.ids, peer.link)}

    def check_new(self, address: PeerAddress, change: int) -> None:
        """Raise ConfigMismatch if these workers cannot join with this change."""
        with self.lock:
            over = change <= self._change_over or not self._gone.isdisjoint(address.ids)
            taken = self._local.union(*(peer.address.ids for peer in self._all))
        if over:
            raise ConfigMismatch(f"change {change} of the membership has ended: ask to join again")
        if not taken.isdisjoint(address.ids):
            raise ConfigMismatch(f"process {address.process} with {address.workers()} is already connected")

    def promote(self, ids: Collection[int]) -> ClusterError | None:
        """Make newcomers members; return the trouble of one that is lost already or never connected, or None."""
        with self.lock:
            named = self._named(ids)
            for peer in named:
                if peer.standing is Standing.NEWCOMER:
                    peer.standing = Standing.MEMBER
                    self._note_over(peer)
            unknown = set(ids).difference(self._local, self._gone, *(peer.address.ids for peer in named))
            troubles = [peer.trouble for peer in named if peer.standing is Standing.MEMBER and peer.trouble]
        if unknown:
            return PeerLost(f"the new workers {sorted(unknown)} have never connected to this process")
        return troubles[0] if troubles else None

    def forget(self, worker: int, ids: Collection[int]) -> list[Peer]:
        """Disconnect a local worker from these workers' processes; return the peers that are due a goodbye."""
        with self.lock:
            for peer in self._named(ids):
                if peer.standing is Standing.NEWCOMER:
                    peer.checks_left = CHECKS_BEFORE_CLOSE
                peer.standing = Standing.DEPARTED
                peer.forgotten_by.add(worker)
                self._note_over(peer)
            self._gone.update(set(ids) - self._local)
            return self._let_go()

    def finished(self, worker: int) -> list[Peer]:
        """Note that a local worker no longer needs any peer; return the peers that are due a goodbye."""
        with self.lock:
            self._unfinished.discard(worker)
            return self._let_go()

    def _let_go(self) -> list[Peer]:
        """Remove the peers that all workers here have forgotten from `links`; return them."""
        parting = [
            peer
            for peer in self._all
            if peer.standing is Standing.DEPARTED
            and peer.address.ids[0] in self.links
            and peer.forgotten_by.issuperset(self._unfinished)
        ]
        gone = {index for peer in parting for index in peer.address.ids}
        if gone:
            self.links = {index: link for index, link in self.links.items() if index not in gone}
        return parting

    def _note_over(self, peer: Peer) -> None:
        if peer.change is not None:
            self._change_over = max(self._change_over, peer.change)

    def _named(self, ids: Collection[int]) -> list[Peer]:
        wanted = set(ids)
        return [peer for peer in self._all if not wanted.isdisjoint(peer.address.ids)]
