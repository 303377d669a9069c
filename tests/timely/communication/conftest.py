"""Clusters of real sockets within one test process: each fabric is driven by its own thread."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from megaflow.timely.communication.allocator import Allocator, Envelope
from megaflow.timely.communication.fabric import PeerAddress, TcpFabric
from megaflow.timely.communication.links import RoleHandler

SECRET = b"a secret of the tests"
PATIENCE_SECONDS = 30.0  # how long a test waits for what must happen


class Cluster:
    """Some fabrics on ports of their own, and threads to drive them."""

    def __init__(self, stack: ExitStack, processes: int, workers: int, roles: Mapping[str, RoleHandler]) -> None:
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
        self.peers = [
            PeerAddress(process, *listener.getsockname(), tuple(range(process * workers, (process + 1) * workers)))
            for process, listener in enumerate(self.listeners)
        ]
        self.reports: list[str] = []
        self.fabrics = [
            TcpFabric(listener, peer.ids, SECRET, roles, self.reports.append, handshake_seconds=0.2)
            for listener, peer in zip(self.listeners, self.peers)
        ]
        self.ports = [peer.port for peer in self.peers]
        self.workers = workers
        self._pool = stack.enter_context(ThreadPoolExecutor(16))
        for fabric in self.fabrics:
            stack.callback(fabric.close)  # before the pool waits for its threads

    def run(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call in a thread."""
        return self._pool.submit(function, *args)

    def connect(self) -> list[Allocator]:
        """Connect all fabrics; return the ends of all workers."""
        meetings = [
            self.run(fabric.connect, self.peers, process, self.workers) for process, fabric in enumerate(self.fabrics)
        ]
        for meeting in meetings:
            meeting.result(PATIENCE_SECONDS)
        return [fabric.allocator(index) for fabric, peer in zip(self.fabrics, self.peers) for index in peer.ids]


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Make clusters that are closed at the end of the test."""
    with ExitStack() as stack:

        def make(processes: int, workers: int = 1, roles: Mapping[str, RoleHandler] | None = None) -> Cluster:
            return Cluster(stack, processes, workers, roles or {})

        yield make


def _collect(end: Allocator, count: int) -> list[Envelope]:
    """Take in exactly `count` envelopes."""
    found: list[Envelope] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        end.park(1.0)
        found += end.receive()
    assert len(found) == count
    return found


def _serve(end: Allocator) -> None:
    """Go on until an error is raised."""
    while True:
        end.park(None)
        end.receive()


@pytest.fixture
def collect() -> Callable[[Allocator, int], list[Envelope]]:
    """Give tests the function that takes in a number of envelopes."""
    return _collect


@pytest.fixture
def serve() -> Callable[[Allocator], None]:
    """Give tests the loop of a worker with nothing to do."""
    return _serve


@pytest.fixture
def secret() -> bytes:
    """Give tests the secret of the clusters."""
    return SECRET
