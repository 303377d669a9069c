"""Clusters of real sockets in one test process; each fabric has a thread that drives it."""

import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import pytest

from megaflow.timely.communication import tcp_fabric
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.role_handlers import RoleHandler
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import PeerAddress, TcpFabric
from megaflow.timely.rescale.join_door import JoinDoor

SECRET = b"a secret of the tests"
PATIENCE_SECONDS = 90.0  # how long a test waits for an event that must happen


class Cluster:
    """Some fabrics on separate ports, and threads to drive them."""

    def __init__(
        self, stack: ExitStack, processes: int, workers: int, roles: Mapping[str, RoleHandler], handshake_seconds: float
    ) -> None:
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
        self.peers = [
            PeerAddress(process, *listener.getsockname(), tuple(range(process * workers, (process + 1) * workers)))
            for process, listener in enumerate(self.listeners)
        ]
        self.reports: list[str] = []
        self.doors = [JoinDoor(peer.ids) for peer in self.peers]
        self.fabrics = [
            TcpFabric(listener, peer.ids, SECRET, roles, self.reports.append, handshake_seconds, door)
            for listener, peer, door in zip(self.listeners, self.peers, self.doors)
        ]
        self._stack = stack
        self.ports = [peer.port for peer in self.peers]
        self.workers = workers
        self._pool = stack.enter_context(ThreadPoolExecutor(16))
        for fabric in self.fabrics:
            stack.callback(fabric.close)  # before the pool waits for its threads

    def run(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in a thread."""
        return self._pool.submit(function, *args)

    def connect(self) -> list[Allocator]:
        """Connect all fabrics; return the ends of all workers."""
        meetings = [
            self.run(fabric.connect, self.peers, process, self.workers) for process, fabric in enumerate(self.fabrics)
        ]
        for meeting in meetings:
            meeting.result(PATIENCE_SECONDS)
        return [TcpAllocator(fabric, index) for fabric, peer in zip(self.fabrics, self.peers) for index in peer.ids]

    def newcomer(
        self,
        change: int = 1,
        *,
        process: int | None = None,
        ids: Sequence[int] = (),
        address: tuple[str, int] = ("127.0.0.1", 0),
        secret: bytes = SECRET,
    ) -> "Newcomer":
        """Open another process; by default with the next number, the next ids, and as many workers as the others have.
        """
        listener = socket.create_server(address)
        number = len(self.peers) if process is None else process
        ids = tuple(ids) or tuple(range(number * self.workers, (number + 1) * self.workers))
        own = PeerAddress(number, *listener.getsockname(), ids)
        fabric = TcpFabric(listener, ids, secret, {}, self.reports.append, PATIENCE_SECONDS, JoinDoor(ids))
        self._stack.callback(fabric.close)
        return Newcomer(self, fabric, own, change)


class Newcomer:
    """A joining process."""

    def __init__(self, cluster: Cluster, fabric: TcpFabric, own: PeerAddress, change: int) -> None:
        self.fabric = fabric
        self.own = own
        self.change = change
        self.cluster = cluster

    def join(self, timeout_seconds: float = PATIENCE_SECONDS) -> list["Running"]:
        """Connect to the members, which must be running; return the joiner's running workers."""
        self.fabric.join(self.cluster.peers, self.own, self.change, timeout_seconds)
        return [Running(self.cluster, TcpAllocator(self.fabric, index)) for index in self.own.ids]


class Running:
    """Worker on its own thread, which receives messages and runs the functions given to it."""

    def __init__(self, cluster: Cluster, end: Allocator) -> None:
        self.end = end
        self.index = end.index
        self.arrived: SimpleQueue[Envelope] = SimpleQueue()
        self._orders: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._finished = False
        self._end_of_loop = cluster.run(self._loop)

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function on the worker's thread; return its result or raise its error."""
        result: Future[Any] = Future()
        self._orders.append((result, function, args))
        self.end.wake()
        return result.result(PATIENCE_SECONDS)

    def send(self, target: int, body: object, lane: Lane = Lane.DATA) -> None:
        """Send and flush."""
        self.do(lambda: (self.end.send(target, Channel(lane, 0, 0), body), self.end.flush()))

    def next(self) -> Envelope:
        """Wait for the next message."""
        return self.arrived.get(timeout=PATIENCE_SECONDS)

    def finish(self) -> None:
        """Tell the worker to finish; does not wait."""
        self._finished = True
        self.end.wake()

    def ended(self) -> None:
        """Wait for the end of the thread. Raise the error that ended it, if the worker did not finish."""
        self._end_of_loop.result(PATIENCE_SECONDS)

    def _loop(self) -> None:
        while not self._finished:
            self.end.park(None)
            for envelope in self.end.receive():
                self.arrived.put(envelope)
            while self._orders:
                result, function, args = self._orders.popleft()
                try:
                    result.set_result(function(*args))
                except BaseException as error:
                    result.set_exception(error)
                    raise
        self.end.finish()


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCluster]:
    """Make clusters that are closed at the end of the test. A failing process gives its peers enough time."""
    monkeypatch.setattr(tcp_fabric, "LINGER_SECONDS", PATIENCE_SECONDS)
    with ExitStack() as stack:

        def make(
            processes: int,
            workers: int = 1,
            roles: Mapping[str, RoleHandler] | None = None,
            handshake_seconds: float = PATIENCE_SECONDS,
        ) -> Cluster:
            return Cluster(stack, processes, workers, roles or {}, handshake_seconds)

        yield make


@pytest.fixture
def run_cluster(make_cluster: MakeCluster) -> Callable[..., tuple[Cluster, list[Running]]]:
    """Make a cluster whose workers run on separate threads."""

    def run(processes: int, workers: int = 1) -> tuple[Cluster, list[Running]]:
        cluster = make_cluster(processes, workers)
        return cluster, [Running(cluster, end) for end in cluster.connect()]

    return run


def _collect(end: Allocator, count: int) -> list[Envelope]:
    """Receive exactly `count` envelopes."""
    found: list[Envelope] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        end.park(1.0)
        found += end.receive()
    assert len(found) == count
    return found


def _serve(end: Allocator) -> None:
    """Receive until an error is raised."""
    while True:
        end.park(None)
        end.receive()


@pytest.fixture
def collect() -> Callable[[Allocator, int], list[Envelope]]:
    """Give tests the function that receives a number of envelopes."""
    return _collect


@pytest.fixture
def serve() -> Callable[[Allocator], None]:
    """Give tests the loop of a worker with nothing to do."""
    return _serve


@pytest.fixture
def secret() -> bytes:
    """Give tests the secret of the clusters."""
    return SECRET
