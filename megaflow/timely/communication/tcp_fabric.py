"""The TCP transport of one process: links to its peers, inboxes of its workers, and how it ends.

1. One worker polls for all: the first that has not finished. The others queue their bytes and wake it.
2. `_io` is held while polling, so that any worker's thread may take over to finish or to stop.
3. Callbacks of the poller only note a failure. `check`, called before and after each poll, closes down and raises. The
   first failure wins, and goes to all peers before the connections close. So all processes name the same cause, instead
   of the peers that stopped because of it.
4. Normal end: every worker finishes. Each takes itself out under `_state`, which decides which one is the last. The
   last worker says goodbye for all, and the others no longer touch anything. The process's goodbye leaves after
   everything else and shuts its direction. The process reads on until each member's goodbye has come. An end of stream
   without a goodbye is a lost peer. The process does not wait for newcomers and departed peers, but gives them a moment
   to read the last bytes.
5. If the user's code forks the process, the fork first closes its copies of all descriptors and sends nothing. The
   connections belong to the original process alone, and end with it. The fork also shares the set that the kernel's
   selector watches, so it unregisters nothing. It may do anything and exit, but if it returns to the engine, normally
   or by an exception, it is ended there. Its locks are new, since a thread that the fork does not have may have held
   them.
"""

import logging
import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from megaflow.errors import ClusterError, ConfigMismatch
from megaflow.timely.communication.acceptor import HANDSHAKE_SECONDS, Acceptor
from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import MAIL, Envelope
from megaflow.timely.communication.handshake import welcome
from megaflow.timely.communication.local import Inbox
from megaflow.timely.communication.peers import Peer, Peers, Standing
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.rendezvous import PEER_ROLE, PeerAddress, Rendezvous, read_newcomer
from megaflow.timely.communication.role_handlers import Connection, EntryHandler, RoleHandler
from megaflow.timely.communication.tcp import PEER_READS_PER_POLL, Link
from megaflow.timely.communication.wire import pack_failure

LINGER_SECONDS = 1.0  # for peers to read the reason of a failure, for clients to read the last answers
CHECK_INTERVAL_SECONDS = 5.0  # between checks for silent hosts, and for connections that may be closed by now

JOIN_ROLE = "join"

_log = logging.getLogger("megaflow.timely.communication")


class TcpFabric:
    """The workers of this process, and their connections to the other processes."""

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
        """`entry` serves the role "join". Without it no process can join through this one, nor connect to it later."""
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
        self._joining = False  # this process is not a member yet
        self._rendezvous: Rendezvous | None = None
        self._io = threading.RLock()
        self._closed = False
        self._state = threading.Lock()  # guards the two below
        self._failure: ClusterError | None = None  # the first, never replaced
        self._unfinished = list(local_ids)
        self._acceptor = Acceptor(self.poller, listener, secret, self._admit, handshake_seconds)
        self._is_fork = False  # the connections belong to another process
        os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(self)))

    def connect(self, peers: Sequence[PeerAddress], process: int, workers: int, timeout_seconds: float = 30.0) -> None:
        """Connect to all other processes; `peers` lists every process, including this one.

        Blocks until the timeout at most. Raises ConnectTimeout with the missing processes, ConfigMismatch on both sides
        if the settings differ, PeerLost or PeerFailed if a process that had connected is gone again.
        """
        self._complete(Rendezvous(peers, process, workers, self._connected, self.fail), timeout_seconds)

    def join(
        self, members: Sequence[PeerAddress], own: PeerAddress, change: int, timeout_seconds: float = 30.0
    ) -> None:
        """Connect to all members of a running cluster, as the newcomer that membership change `change` admitted.

        Blocks and raises like `connect`. A failure here does not stop the members.
        """
        self._joining = True
        rendezvous = Rendezvous([*members, own], own.process, len(own.ids), self._connected, self.fail, change)
        self._complete(rendezvous, timeout_seconds)

    def poll(self, seconds: float | None, flush: bool = True) -> None:
        """Move bytes; blocks up to `seconds` if there are none. Without `flush`, queued bytes wait for `flush()`."""
        with self._io:
            if not self.poller.closed:
                self.poller.poll(seconds, flush)

    def flush(self) -> None:
        """Send as much as the kernel takes."""
        with self._io:
            self.poller.flush()

    def fail(self, error: ClusterError) -> None:
        """Note why the cluster cannot continue, and wake every local worker. The first reason wins."""
        with self._state:
            if self._failure is None:
                self._failure = error
        for inbox in self.inboxes.values():
            inbox.wake()
        self.poller.wake()

    def check(self) -> None:
        """Raise the failure that was noted, after passing it on and closing everything."""
        if self._failure is not None:
            self._close_down(self._failure)
            raise type(self._failure)(*self._failure.args)

    def abort(self, report: FailureReport) -> None:
        """Report the failure to every worker, here and elsewhere; takes about LINGER_SECONDS at most."""
        self.fail(report.error())
        if self._failure is not None:
            self._close_down(self._failure)

    def finish(self, index: int) -> None:
        """Take one worker out. With the last one, say goodbye to the peers, wait for theirs, and close."""
        if not self.take_leave(index):
            return
        while not self.has_parted:
            self.poll(None)
            self.check()
        self._linger(self._is_left_alone)
        self.close()

    @property
    def has_parted(self) -> bool:
        """Whether every member has said goodbye and has been sent this process's goodbye."""
        return all(peer.is_done() for peer in self._present() if peer.standing is Standing.MEMBER)

    def take_leave(self, index: int) -> bool:
        """Take one worker out. With the last one, say goodbye to the peers. Return whether it was the last."""
        if index not in self._unfinished:
            return False
        self.check()
        if self._entry is not None:
            self._entry.finished(index)
        for peer in self.peers.finished(index):
            peer.part()
        with self._state:
            self._unfinished.remove(index)
            self.inboxes[index].finish()
            others = bool(self._unfinished)
            if others:
                self.polling = self._unfinished[0]
        if others:
            self.inboxes[self.polling].wake()  # it may be waiting on its inbox instead of polling
            self.poller.wake()
            return False
        for peer in self._present():
            peer.part()
        self.flush()  # often the last bytes leave here
        return True

    def close(self) -> None:
        """Close everything at once, without a goodbye. Workers that still use it raise. A second call does nothing."""
        self._closed = True
        self.fail(ClusterError("this process has closed its connections"))
        with self._io:
            self._acceptor.close()
            self.poller.close()

    def promote(self, ids: Collection[int]) -> None:
        """Make these newcomers members. If local workers are among them, this process has joined."""
        if not self.inboxes.keys().isdisjoint(ids):
            self._joining = False
        trouble = self.peers.promote(ids)
        if trouble is not None:
            self.fail(trouble)
        self.check()

    def forget(self, index: int, ids: Collection[int]) -> None:
        """Disconnect one worker from the processes of other workers, newcomers or members."""
        for peer in self.peers.forget(index, ids):
            peer.part()
            self._report(f"parted with {peer.address} ({peer.address.workers()})")

    def newcomer_lost(self, peer: Peer) -> None:
        """Report to the workers that a joining process is gone."""
        self._report(f"lost {peer.address} ({peer.address.workers()}), which was joining: {peer.trouble}")
        if self._entry is not None:
            self._entry.link_lost(peer.address.ids)

    def member_done(self, peer: Peer) -> None:
        """Report it to the workers if this process is joining: they would wait for this member in vain."""
        if self._joining and self._entry is not None:
            self._entry.link_lost(peer.address.ids)

    def _post(self, worker: int, topic: str, body: object) -> None:
        """Put mail into the inbox of a local worker, as if from that worker."""
        self.inboxes[worker].deliver(Envelope(MAIL, worker, (topic, body)))

    def _complete(self, rendezvous: Rendezvous, timeout_seconds: float) -> None:
        """Poll until all other processes are connected. Raises ConnectTimeout, or the failure of the cluster."""
        self._rendezvous = rendezvous
        self.poller.call_later(CHECK_INTERVAL_SECONDS, self._check_peers)
        rendezvous.dial(self.poller, self._secret)
        deadline = time.monotonic() + timeout_seconds
        while rendezvous.missing:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                self.fail(rendezvous.timeout(timeout_seconds))
            else:
                self.poll(left)
        self.check()

    def _admit(self, link: Link, role: str, hello: dict[str, Any]) -> None:
        """Pass a connection whose handshake is done to the handler of its role. Raises ConfigMismatch to refuse it."""
        if role == PEER_ROLE and self._rendezvous is not None:
            if "change" in hello:
                self._admit_newcomer(link, hello, self._rendezvous)
            else:
                self._rendezvous.admit(link, hello)
            return
        handler = self._roles.get(role)
        if handler is None:
            raise ConfigMismatch(f"this process does not serve the role {role!r:.50}")
        connection = Connection(self.poller, link, handler, self._acceptor.complain)
        handler.connected(connection, hello)
        link.owner = connection
        link.queue(0, [welcome({})])  # on lane 0, ahead of values that the handler has sent

    def _admit_newcomer(self, link: Link, hello: dict[str, Any], rendezvous: Rendezvous) -> None:
        """Accept a joining process. Raises ConfigMismatch if it cannot join."""
        address, workers, change = read_newcomer(hello)
        if self._entry is None or not self._unfinished:
            raise ConfigMismatch("no process can join this cluster: it does not allow joins, or has finished")
        if workers != rendezvous.workers or len(address.ids) != workers:
            raise ConfigMismatch(
                f"{address} has {workers} workers, but the processes here have {rendezvous.workers}: give all "
                "processes the same -w"
            )
        self.peers.check_new(address, change)
        link.queue(0, [welcome(rendezvous.hello)])
        self._connected(address, link, change)

    def _connected(self, address: PeerAddress, link: Link, change: int | None = None) -> None:
        peer = Peer(self, self.peers.lock, address, link, change)
        link.owner, link.reads_per_poll = peer, PEER_READS_PER_POLL
        self.peers.add(peer)
        self._report(f"connected to {address} ({address.workers()})")

    def _present(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.standing is not Standing.DEPARTED]

    def _check_peers(self) -> None:
        """Lose the peers whose host is silent. Close departed peers' links once they are over or kept too long."""
        for peer in self.peers:
            if peer.standing is not Standing.DEPARTED:
                if not peer.is_done() and peer.link.is_silent():
                    peer.lose("its host does not answer")
            elif peer.is_over() or peer.checks_left == 1:
                peer.link.close()
            else:
                peer.checks_left = max(0, peer.checks_left - 1)
        self.poller.call_later(CHECK_INTERVAL_SECONDS, self._check_peers)

    def _is_left_alone(self) -> bool:
        """Return whether everything queued has left and the departed peers have closed their connections."""
        departed = all(peer.link.has_ended() for peer in self.peers if peer.standing is Standing.DEPARTED)
        links = [link for link in self.poller.links if isinstance(link, Link)]
        clients = [link for link in links if isinstance(link.owner, Connection)]
        return departed and all(link.is_drained() for link in clients + [peer.link for peer in self._present()])

    def _linger(self, is_done: Callable[[], bool]) -> None:
        self.flush()
        deadline = time.monotonic() + LINGER_SECONDS
        while not is_done() and time.monotonic() < deadline:
            self.poll(max(0.0, deadline - time.monotonic()))

    def let_go(self) -> None:
        """Close all copies in a fork of the process; the original process is not affected."""
        self._is_fork = True
        self._io, self._state = threading.RLock(), threading.Lock()
        self._failure = ClusterError("this is a fork of a worker's process")  # found by the next `check`
        self._acceptor.listener.close()
        self.poller.let_go()

    def _close_down(self, failure: ClusterError) -> None:
        """Pass the reason on, give the peers a moment to read it, and close. In a fork: end the fork."""
        if self._is_fork:
            raised = traceback.format_exception_only(error) if (error := sys.exc_info()[1]) else []
            _log.error(
                "a fork of a worker's process (pid %d) returned to the engine, so megaflow ended it: call os._exit "
                "in a fork, or start processes with subprocess or multiprocessing%s",
                os.getpid(),
                "".join(["\nit raised ", *raised]).rstrip() if raised else "",
            )
            os._exit(1)
        with self._io:
            if self._closed:
                return
            self._acceptor.close()
            present = self._present()
            for peer in present:
                peer.link.replace_queued(pack_failure(failure))
                peer.link.half_close()
            self._linger(lambda: all(peer.link.has_ended() for peer in present))
            self.close()


def _let_go(fabric: "weakref.ref[TcpFabric]") -> None:
    if (found := fabric()) is not None:
        found.let_go()
