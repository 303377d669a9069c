"""The TCP transport of one process: links to its peers, inboxes of its workers, the way it ends.

1. One worker polls for all: the first that has not finished. The others hand it their bytes and wake it.
2. `_io` is held while polling, so that any worker's thread may take over to finish or to stop.
3. Callbacks of the poller only note a failure; `check`, called before and after each poll, closes down and raises.
   The first failure wins, and is passed on to all peers before the connections close: so everyone names the same
   cause, and not the peers that stopped because of it.
4. Normal end: every worker finishes; the process's goodbye leaves after everything else and shuts its direction;
   the process reads on until each member's goodbye has come. An end of stream without one is a lost peer. Newcomers
   and those that have parted are not waited for, but given a moment to take what is on its way to them.
"""

import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from megaflow.errors import ClusterError, ConfigMismatch
from megaflow.timely.communication.acceptor import HANDSHAKE_SECONDS, Door
from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import MAIL, Envelope
from megaflow.timely.communication.handshake import welcome
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.peers import Peer, Peers, Standing
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.rendezvous import PEER_ROLE, Meeting, PeerAddress, read_newcomer
from megaflow.timely.communication.role_handlers import Connection, EntryHandler, RoleHandler
from megaflow.timely.communication.tcp import Link
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.wire import pack_failure

LINGER_SECONDS = 1.0  # for peers to take the reason of a failure, for clients to take the last answers
LOOK_SECONDS = 5.0  # between looks for silent hosts, and for connections that have no reason to be open any more

JOIN_ROLE = "join"


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
        entry: EntryHandler | None = None,
    ) -> None:
        """`entry` serves the role "join"; without it nobody can join through this process, nor once it runs."""
        self.inboxes = {index: Inbox() for index in local_ids}  # local worker -> its inbox, never changed
        self.peers = Peers(local_ids)
        self.polling = local_ids[0]  # the worker that polls; written by `finish`
        self.poller = Poller()
        self._secret = secret
        self._roles = dict(roles or {})
        self._entry = entry
        if entry is not None:
            self._roles[JOIN_ROLE] = entry
            entry.attach(self._post)
        self._report = report or (lambda text: None)
        self._joining = False  # this process is no member yet
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
        meeting = Meeting(peers, process, workers, self._met, self.fail)
        self._meet(meeting, timeout_seconds)

    def join(
        self, members: Sequence[PeerAddress], own: PeerAddress, change: int, timeout_seconds: float = 30.0
    ) -> None:
        """Connect to all members of a running cluster, as the newcomer that `change` of the membership let in.

        Blocks and raises as `connect`; the members go on, whatever comes of it.
        """
        self._joining = True
        meeting = Meeting([*members, own], own.process, len(own.ids), self._met, self.fail, change)
        self._meet(meeting, timeout_seconds)

    def allocator(self, index: int) -> TcpAllocator:
        """Return the end of local worker `index`."""
        return TcpAllocator(self, index, self.inboxes[index])

    def watch(self, file: Any, callback: Callable[[], None]) -> None:
        """Call back, on the polling thread, whenever the file (a pipe, a socket) can be read."""
        self.poller.watch(file, selectors.EVENT_READ, lambda _mask: callback())

    def unwatch(self, file: Any) -> None:
        """Forget a watched file; call it before closing the file."""
        self.poller.watch(file, 0, lambda _mask: None)

    def poll(self, seconds: float | None) -> None:
        """Move bytes; blocks up to `seconds` if there are none."""
        with self._io:
            if not self.poller.closed:
                self.poller.poll(seconds)

    def look(self) -> None:
        """Take in what has come, and leave what is to go to the next `flush`."""
        with self._io:
            if not self.poller.closed:
                self.poller.look()

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
        if self._entry is not None:
            self._entry.finished(index)
        with self._state:
            self._unfinished.remove(index)
            self.inboxes[index].finish()
            if self._unfinished:
                self.polling = self._unfinished[0]
        for peer in self.peers.finished(index):
            peer.part()
        if self._unfinished:
            self.inboxes[self.polling].wake()  # it may be waiting as one that does not poll
            self.poller.wake()
            return
        for peer in self._present():
            peer.part()
        self.flush()  # this may be all that is missing
        while not all(peer.is_done() for peer in self._present() if peer.standing is Standing.MEMBER):
            self.poll(None)
            self.check()
        self._linger(self._is_left_alone)
        self.close()

    def close(self) -> None:
        """Close everything at once, without a goodbye; workers that still use it raise. Nothing the second time."""
        self._closed = True
        self.fail(ClusterError("this process has closed its connections"))
        with self._io:
            self._door.close()
            self.poller.close()

    def promote(self, ids: Collection[int]) -> None:
        """Make members of newcomers; with own workers among them, this process is no newcomer any more."""
        if not self.inboxes.keys().isdisjoint(ids):
            self._joining = False
        trouble = self.peers.promote(ids)
        if trouble is not None:
            self.fail(trouble)
        self.check()

    def forget(self, index: int, ids: Collection[int]) -> None:
        """Have one worker part with the processes of others, newcomers or members."""
        for peer in self.peers.forget(index, ids):
            peer.part()
            self._report(f"parted with {peer.address} ({peer.address.workers()})")

    def newcomer_lost(self, peer: Peer) -> None:
        """Tell the workers that somebody who was joining is gone."""
        self._report(f"lost {peer.address} ({peer.address.workers()}), which was joining: {peer.trouble}")
        self._tell_lost(peer)

    def member_done(self, peer: Peer) -> None:
        """Tell the workers if they are newcomers, who will wait in vain for this member."""
        if self._joining:
            self._tell_lost(peer)

    def _tell_lost(self, peer: Peer) -> None:
        if self._entry is not None:
            self._entry.link_lost(peer.address.ids)

    def _post(self, worker: int, topic: str, body: object) -> None:
        """Put mail into a local inbox, as from its owner."""
        self.inboxes[worker].deliver(Envelope(MAIL, worker, (topic, body)))

    def _meet(self, meeting: Meeting, timeout_seconds: float) -> None:
        self._meeting = meeting
        self.poller.call_later(LOOK_SECONDS, self._look)
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

    def _admit(self, link: Link, role: str, hello: dict[str, Any]) -> None:
        """Give a connection whose handshake is done to those who know its role."""
        if role == PEER_ROLE and self._meeting is not None:
            if "change" in hello:
                self._admit_newcomer(link, hello, self._meeting)
            else:
                self._meeting.admit(link, hello)
            return
        handler = self._roles.get(role)
        if handler is None:
            raise ConfigMismatch(f"nobody here serves the role {role!r}")
        connection = Connection(self.poller, link, handler)
        handler.connected(connection, hello)
        link.owner = connection
        link.queue(0, [welcome({})])  # ahead of what the handler has sent

    def _admit_newcomer(self, link: Link, hello: dict[str, Any], meeting: Meeting) -> None:
        """Take in a process that joins; raises ConfigMismatch if it cannot."""
        address, workers, change = read_newcomer(hello)
        if self._entry is None or not self._unfinished:
            raise ConfigMismatch("nobody can join this process's cluster (any more)")
        if workers != meeting.workers or len(address.ids) != workers:
            raise ConfigMismatch(
                f"{address} has {workers} workers, the processes here {meeting.workers}: give all the same -w"
            )
        self.peers.check_new(address, change)
        link.queue(0, [welcome(meeting.hello)])
        self._met(address, link, change)

    def _met(self, address: PeerAddress, link: Link, change: int | None = None) -> None:
        peer = Peer(self, self.peers.lock, address, link, change)
        link.owner = peer
        self.peers.add(peer)
        self._report(f"connected to {address} ({address.workers()})")

    def _present(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.standing is not Standing.PARTED]

    def _look(self) -> None:
        """Lose the peers whose host has fallen silent; close what nobody needs, or a newcomer, sent away, keeps."""
        for peer in self.peers:
            if peer.standing is not Standing.PARTED:
                if not peer.is_done() and peer.link.is_silent():
                    peer.lose("its host does not answer")
            elif peer.is_over() or peer.looks_left == 1:
                peer.link.close()
            else:
                peer.looks_left = max(0, peer.looks_left - 1)
        self.poller.call_later(LOOK_SECONDS, self._look)

    def _is_left_alone(self) -> bool:
        """Tell whether everything sent to others than members is on its way, and those parted have closed, too."""
        left_alone = all(
            peer.link.has_ended() if peer.standing is Standing.PARTED else peer.link.is_drained() for peer in self.peers
        )
        return left_alone and all(connection.is_drained() for connection in self._connections())

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
            present = self._present()
            for peer in present:
                peer.link.replace_queued(pack_failure(failure))
                peer.link.half_close()
            self._linger(lambda: all(peer.link.has_ended() for peer in present))
            self.close()
