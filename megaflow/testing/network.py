"""The simulated transport. It has the interface of the real allocators; the dice decide when a message arrives.

Processes exchange the same bytes as over TCP. Workers of one process exchange references, as threads do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from random import Random

from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.order import Time

Route = tuple[int, int, Lane]  # source, target, lane
Message = bytes | tuple[int, int, object]  # dataflow, number of the channel, body; encoded between processes


class Network:
    """The messages in flight, FIFO on each route; bytes between processes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._routes: dict[Route, deque[Message]] = {}
        self._weights: dict[Route, float] = {}
        self._allocators: dict[int, SimulatedAllocator] = {}
        self._processes: dict[int, int] = {}  # worker -> its process
        self._dead: set[int] = set()
        self.broadcasts: list[tuple[int, int, list[tuple[int, Time, int]]]] = []  # (dataflow, worker, progress batch)

    def add(self, index: int, process: int) -> SimulatedAllocator:
        """Return the allocator of a new worker in this process."""
        self._processes[index] = process
        self._allocators[index] = SimulatedAllocator(index, self)
        return self._allocators[index]

    def allocator(self, index: int) -> SimulatedAllocator:
        """Return the allocator of one worker."""
        return self._allocators[index]

    def put(self, route: Route, content: tuple[int, int, object]) -> None:
        """Send a message: dataflow, number of the channel, body."""
        if route[0] in self._dead or route[1] in self._dead:
            return
        together = self._processes[route[0]] == self._processes.get(route[1])
        message: Message = content if together else encode(content)
        self._routes.setdefault(route, deque()).append(message)
        self._weights.setdefault(route, self._random.random() ** 3 + 0.01)

    def waiting(self) -> Iterable[tuple[Route, float]]:
        """Return the routes that have a message to deliver, with the eagerness of each in this run."""
        return [(route, self._weights[route]) for route, queue in self._routes.items() if queue]

    @property
    def pending(self) -> int:
        """Number of messages in flight."""
        return sum(map(len, self._routes.values()))

    def kill(self, index: int) -> None:
        """Treat a worker as if it had never existed: drop all messages from it and to it."""
        self._dead.add(index)
        for source, target, lane in list(self._routes):
            if index in (source, target):
                del self._routes[source, target, lane]

    def deliver(self, route: Route) -> None:
        """Deliver the oldest message of a route."""
        self._allocators[route[1]].arrived.append(_opened(route, self._routes[route].popleft()))

    def under_way(self, route: Route) -> list[Envelope]:
        """Return the messages in flight on a route, the oldest first."""
        return [_opened(route, sent) for sent in self._routes.get(route, ())]


def _opened(route: Route, message: Message) -> Envelope:
    source, _, lane = route
    dataflow, number, body = decode(message) if isinstance(message, bytes) else message
    return Envelope(Channel(lane, dataflow, number), source, body)


class SimulatedAllocator:
    """One worker's end of the simulated transport. A worker's messages to itself arrive at once, as over TCP."""

    def __init__(self, index: int, network: Network) -> None:
        self.index = index
        self.neighbours: Collection[int] = ()  # also if its process has several workers: broadcasts make no copies
        self.pending_bytes = 0
        self.arrived: deque[Envelope] = deque()  # appended by deliveries, drained by the worker
        self._network = network

    def send(self, target: int, channel: Channel, body: object) -> None:
        """Queue a message, encoded if it is for another process."""
        if target == self.index:
            self.arrived.append(Envelope(channel, self.index, body))
        else:
            self._network.put((self.index, target, channel.lane), (channel.dataflow, channel.number, body))

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        """Queue a message for each target."""
        if channel.is_progress:
            self._network.broadcasts.append((channel.dataflow, self.index, body[1]))  # type: ignore[index]
        for target in targets:
            self.send(target, channel, body)

    def flush(self) -> None:
        """Do nothing: no message is held back."""

    def receive(self, busy: bool = False) -> list[Envelope]:
        """Return the messages that have arrived."""
        arrived = list(self.arrived)
        self.arrived.clear()
        return arrived

    def park(self, seconds: float | None) -> None:
        """Do nothing: a simulated worker never waits."""

    def wake(self) -> None:
        """Do nothing: a simulated worker never sleeps."""

    def promote(self, ids: Collection[int]) -> None:
        """Do nothing: simulated connections are never lost."""

    def forget(self, ids: Collection[int]) -> None:
        """Do nothing: simulated connections need not be closed."""

    def finish(self) -> None:
        """Do nothing: the cluster ends when all workers are done."""

    def abort(self, report: FailureReport) -> None:
        """Raise the reported failure."""
        raise report.error()
