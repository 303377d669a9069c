"""Ports for tests: free ones that no other test is given, and one that is closed and stays so.

Nothing is sure of the port of a listener that was closed: the next test that asks the system for a port may get it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle

_PORTS = range(10_000, 16_000)  # below those that systems give to whoever asks for any port
_PORTS_OF_A_SESSION = 100  # of pytest; several of them run at a time


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    """An address where nobody listens and nobody can: a socket is bound to it."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, and that no other test of this or another session is given."""
    _, numbers = _own_ports()
    found: list[int] = []
    while len(found) < count:
        port = next(numbers)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection that has ended is nobody
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


@cache
def _own_ports() -> tuple[socket.socket, Iterator[int]]:
    """The ports of this session; while it lives it is bound to the one before the first, so that they are its own."""
    for first in _PORTS[::_PORTS_OF_A_SESSION]:
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            return claim, cycle(range(first + 1, first + _PORTS_OF_A_SESSION))
    raise RuntimeError(f"{len(_PORTS) // _PORTS_OF_A_SESSION} sessions of pytest run already")
