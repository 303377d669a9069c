"""Ports for tests: free ones that no other test is given, and one that is closed and stays closed.

The port of a closed listener is not safe: the next test that asks the system for a port may get it.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle

_PORTS = range(10_000, 16_000)  # below those that systems assign by themselves
_PORTS_OF_A_SESSION = 100  # a session of pytest; several run at a time


@contextmanager
def closed_port() -> Iterator[tuple[str, int]]:
    """Yield an address at which connections fail. A socket is bound to it, so no other process can listen there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free now, and that no other test of this or another session gets."""
    _, numbers = _own_ports()
    found: list[int] = []
    while len(found) < count:
        port = next(numbers)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection does not count
            probe.bind(("127.0.0.1", port))
            found.append(port)
    return found


@cache
def _own_ports() -> tuple[socket.socket, Iterator[int]]:
    """Return the ports of this session. It reserves them by binding the port before the first while it lives."""
    for first in _PORTS[::_PORTS_OF_A_SESSION]:
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
        else:
            return claim, cycle(range(first + 1, first + _PORTS_OF_A_SESSION))
    raise RuntimeError(f"{len(_PORTS) // _PORTS_OF_A_SESSION} sessions of pytest run already")
