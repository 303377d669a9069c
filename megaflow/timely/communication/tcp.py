"""Sockets: one non-blocking link for each connection.

1. Nothing here blocks. Any thread may call `Link.queue`; only the polling thread may call anything else.
2. An urgent lane waits for at most one frame's worth of bytes from other lanes, besides the bytes that the kernel
   holds.
3. A send that fails does not mean that nothing is left to read. So only the reading side reports a loss.
4. One link takes only a small part of a poll. A stranger is read once, for at most the length of a handshake message. A
   client is read once, and only a peer several times.
"""

import contextlib
import errno
import os
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from megaflow.errors import ProtocolError
from megaflow.own_files import keep_socket
from megaflow.timely.communication.poller import READ_BYTES, Poller
from megaflow.timely.communication.wire import MAX_FRAME_BYTES, Buffer, FrameDecoder

LAST_LANE = 4  # below the worker lanes: its frames leave after everything else
PEER_READS_PER_POLL = 16  # then the other links have their turn; a link that is not a peer has one read
SENDS_PER_FLUSH = 16  # likewise
BUFFERS_PER_SEND = 512  # sendmsg takes at most 1024
UNSENT_BYTES = 512 * 1024  # the most unsent bytes that the kernel holds, so that urgent lanes stay urgent
SILENT_MS = 30_000  # a host that acknowledges nothing for this long is lost

_PER_CONNECTION = (  # level, name (not every system has all), value
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
    (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_BYTES),
)
_TCP_INFO_BYTES = 60  # up to and including last_ack_recv


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free port. Raises OSError."""
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256)


def configure(connection: socket.socket) -> None:
    """Set the options that every connection needs: no delay, and keepalive, which the kernel answers for a busy worker.

    A fork does not get the connection (`megaflow.own_files`): otherwise its other end would not notice our end.

    TCP_USER_TIMEOUT is not set. It would also end a connection to a worker that is only too busy to read (its window
    stays shut). `is_silent` distinguishes the two cases.
    """
    keep_socket(connection)
    for level, name, value in _PER_CONNECTION:
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(level, option, value)


def check_other_end(connection: socket.socket, target: Any) -> None:
    """Raise ConnectionRefusedError if a connection to `target` is connected to itself: no process listens there.

    The kernel may give a port of its ephemeral range that has no listener to the very socket that dials it.
    """
    if connection.getsockname() == target:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def is_silent(tcp_info: bytes) -> bool:
    """Return, from Linux's `struct tcp_info`, whether the other host has stopped acknowledging what is sent to it.

    Keepalive only watches an idle connection. A shut window is not silence: the host answers its probes.
    """
    retransmits, probes = tcp_info[2], tcp_info[3]
    (last_ack_ms,) = struct.unpack_from("=I", tcp_info, _TCP_INFO_BYTES - 4)
    return bool(last_ack_ms > SILENT_MS and (retransmits > 0 or probes > 1))


def hears_nothing(connection: socket.socket) -> bool:
    """Return whether the other host has stopped acknowledging; always False if the kernel does not report it."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return False
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO_BYTES)
    except OSError:
        return False
    return len(info) == _TCP_INFO_BYTES and is_silent(info)


class Owner(Protocol):
    """Receiver of a link's messages. The poller's thread makes all calls."""

    def message(self, link: "Link", kind: int, payload: Buffer) -> None:
        """Take one message. The payload is valid only during the call. Raises ProtocolError for a wrong message."""

    def ended(self, link: "Link", reason: str, broken: bool) -> None:
        """Nothing more will come: end of stream, a reset, or (`broken`) bytes that break the protocol."""


class _Nobody:
    """Owner of a closed link. It breaks a reference cycle that would last until a garbage collection, which is rare."""

    def message(self, link: "Link", kind: int, payload: Buffer) -> None:
        pass

    def ended(self, link: "Link", reason: str, broken: bool) -> None:
        pass


class Link:
    """One non-blocking connection: a decoder for incoming bytes, lanes of outgoing frames."""

    def __init__(self, poller: Poller, connection: socket.socket, owner: Owner, address: str) -> None:
        self.address = address  # of the other side
        self.owner = owner  # replaced when the handshake is done
        self.decoder = FrameDecoder()
        self.reads_per_poll = 1  # more for a peer
        self.read_bytes = READ_BYTES  # the most in one read
        self.closed = False
        self._poller = poller
        self._socket = connection
        self._lock = threading.Lock()  # guards the three below; `pending` may be read without it
        self._lanes: tuple[deque[bytes], ...] = tuple(deque() for _ in range(LAST_LANE + 1))
        self.pending = [0] * (LAST_LANE + 1)  # lane -> bytes in it
        self._leaving: deque[Buffer] = deque()  # taken from the lanes; the first may be part of a frame
        self._readable = True  # until the end of the stream
        self._held = False  # reading is paused
        self._trouble = "end of stream"  # the reason to report if the stream ends
        self._half_closing = False  # shut the outgoing direction once drained
        self.is_shut = False  # the outgoing direction has ended
        connection.setblocking(False)
        poller.links.add(self)
        self._update_watch()

    def queue(self, lane: int, frames: Iterable[bytes]) -> int:
        """Append frames to a lane; return its bytes. Does nothing on a closed link. Any thread may call it."""
        with self._lock:
            if not self.closed:
                for frame in frames:
                    self._lanes[lane].append(frame)
                    self.pending[lane] += len(frame)
            pending = self.pending[lane]
        self._poller.dirty[self] = None
        return pending

    def is_drained(self) -> bool:
        """Return whether the kernel has taken everything queued, or the link is closed."""
        return not self._leaving and not any(self.pending)

    def has_ended(self) -> bool:
        """Return whether no more bytes will come and everything has left."""
        return self.closed or (not self._readable and self.is_drained())

    def replace_queued(self, frames: Iterable[bytes]) -> None:
        """Drop the frames that have not begun to leave, and queue `frames` after the one that has."""
        with self._lock:
            self._drop_lanes()
            begun = 1 if self._leaving and isinstance(self._leaving[0], memoryview) else 0
            while len(self._leaving) > begun:
                self._leaving.pop()
        self.queue(0, frames)

    def flush(self) -> None:
        """Send as much as the kernel takes, the most urgent lane first."""
        if self.closed:
            return
        with self._lock:
            for _ in range(SENDS_PER_FLUSH):
                self._take()
                if not self._leaving or not self._send():
                    break
        if self._half_closing and not self.is_shut and self.is_drained():
            self.is_shut = True
            with contextlib.suppress(OSError):  # the other side has reset it; reading finds that
                self._socket.shutdown(socket.SHUT_WR)
        self._update_watch()

    def hold(self, held: bool) -> None:
        """Stop reading while `held`: bytes that come stay with the kernel, and then with the sender."""
        self._held = held
        self._update_watch()

    def half_close(self) -> None:
        """Shut the outgoing direction once everything queued has left."""
        self._half_closing = True
        self._poller.dirty[self] = None

    def ready(self, mask: int) -> None:
        """Move bytes; this is the poller's callback."""
        if mask & selectors.EVENT_READ:  # first, because reading finds the reason why a connection failed
            for _ in range(self.reads_per_poll):
                if self.closed or not self._readable or not self._read():
                    break
        if mask & selectors.EVENT_WRITE:
            self.flush()

    def is_silent(self) -> bool:
        """Return whether the other host has stopped acknowledging; see `hears_nothing`."""
        return not self.closed and hears_nothing(self._socket)

    def close(self) -> None:
        """Close at once, and drop everything that is queued."""
        if self.closed:
            return
        with self._lock:
            self.closed = True
            self._drop_lanes()
            self._leaving.clear()
        self.owner = _Nobody()
        self._poller.links.discard(self)
        self._poller.watch(self._socket, 0, self.ready)
        self._socket.close()

    def let_go(self) -> None:
        """Close this copy of the link, in a fork of the process: nothing leaves, and the connection stays open."""
        self._lock = threading.Lock()
        self.closed = True
        self._socket.close()

    def _take(self) -> None:
        """Take about one frame's worth of bytes from the lanes to send next, unless some are left from before."""
        if self._leaving:
            return
        size = 0
        for lane, frames in enumerate(self._lanes):
            while frames and (size == 0 or size + len(frames[0]) <= MAX_FRAME_BYTES):
                if len(self._leaving) == BUFFERS_PER_SEND:
                    return
                frame = frames.popleft()
                self.pending[lane] -= len(frame)
                self._leaving.append(frame)
                size += len(frame)
            if frames:
                return

    def _send(self) -> bool:
        """Offer the taken bytes to the kernel; return whether it took all of them."""
        leaving = self._leaving
        try:
            sent = self._socket.sendmsg(leaving)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:  # the other side no longer reads; the reading side decides whether that is a loss
            self._trouble = error.strerror or str(error)
            self._drop_lanes()
            leaving.clear()
            return False
        while leaving and sent >= len(leaving[0]):
            sent -= len(leaving.popleft())
        if sent:
            leaving[0] = memoryview(leaving[0])[sent:]
        return not leaving

    def _read(self) -> bool:
        """Process the bytes of one read; return whether there may be more."""
        buffer = self._poller.buffer[: min(self.read_bytes, self.decoder.max_message_bytes)]
        try:
            size = self._socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(error.strerror or str(error), broken=False)
            return False
        if not size:
            self._end(self._trouble, broken=False)
            return False
        try:
            for kind, payload in self.decoder.feed(buffer[:size]):
                self.owner.message(self, kind, payload)
                if self.closed:
                    return False
        except ProtocolError as error:
            self._end(str(error), broken=True)
        return size == len(buffer)

    def _end(self, reason: str, broken: bool) -> None:
        self._readable = False
        self._update_watch()
        self.owner.ended(self, reason, broken)

    def _drop_lanes(self) -> None:
        for lane, frames in enumerate(self._lanes):
            frames.clear()
            self.pending[lane] = 0

    def _update_watch(self) -> None:
        if not self.closed:
            write = 0 if self.is_drained() else selectors.EVENT_WRITE
            read = selectors.EVENT_READ if self._readable and not self._held else 0
            self._poller.watch(self._socket, write | read, self.ready)
