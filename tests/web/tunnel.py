"""A TCP tunnel between a browser and a page, which a test cuts, stalls and mends."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.ports import free_ports

CHUNK_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)  # close without a farewell, as a dead network does


class Tunnel:
    """A tunnel from a port of its own to another port of this machine.

    While it is cut, connections are refused. While it is stalled, connections stay open and nothing passes.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        [self.port] = free_ports(1)
        self._lock = threading.Lock()  # guards the connections
        self._open: set[socket.socket] = set()
        self._flows = threading.Event()  # cleared: stalled
        self._flows.set()
        self._listener: socket.socket | None = None
        self.mend()

    def mend(self) -> None:
        """Accept connections, and let bytes pass."""
        self._flows.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Reset all connections, and refuse new ones."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    each.shutdown(socket.SHUT_RDWR)
        self._flows.set()

    def stall(self) -> None:
        """Let nothing pass; connections seem to be alive."""
        self._flows.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # cut
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:
                    self._open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flows.wait()
                target.sendall(data)
        with self._lock:
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                self._open.discard(each)
        source.close()  # the other thread closes the other one


@contextlib.contextmanager
def tunnel_to(port: int) -> Iterator[Tunnel]:
    """Yield a tunnel to a port of this machine; it is cut at the end."""
    made = Tunnel(port)
    try:
        yield made
    finally:
        made.cut()
