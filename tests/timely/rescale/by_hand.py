"""Cluster whose members join and leave, stepped by hand in one thread: the test says which messages arrive when.

hands = Hands(2)
handles = hands.everywhere(build)      # build(scope) on each member
admission = hands.ask()
joiner = hands.start(admission)[0]     # then build the same, and joiner.bootstrap()
hands.held = lambda route: route[2] is Lane.DATA      # these deliver nothing
hands.settle()                         # run everything else until nothing more can happen

While a call blocks (`bootstrap`, `retire`, `dataflow` during a change), the other workers continue. If nothing that can
happen would end the wait, the call raises `Stuck`.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TypeVar

from megaflow.errors import PeerLost
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.testing import Network
from megaflow.testing.monitor import describe_pointstamps
from megaflow.timely.communication.channel import Lane
from megaflow.timely.membership import founding
from megaflow.timely.rescale.messages import TOPIC, Admission, Denied, Event, JoinAsk, LinkLost, Process

T = TypeVar("T")
Route = tuple[int, int, Lane]  # source, target, lane


class Stuck(AssertionError):
    """A worker waits, and nothing more can happen."""


class Hands:
    """Workers 0, 1, … in processes of `each` workers, and the workers that join them."""

    def __init__(self, workers: int = 2, each: int = 1) -> None:
        self.now = 0.0
        self.network = Network(Random(0))
        self.held: Callable[[Route], bool] = lambda route: False
        self.answers: dict[int, Admission | Denied] = {}  # key of a request -> its answer
        self.events: dict[int, list[Event]] = {}  # worker -> events that it gave its program
        self.parted: list[tuple[int, tuple[int, ...]]] = []  # (worker, the ids that its transport forgot)
        self.promoted: list[tuple[int, tuple[int, ...]]] = []
        self.each = each
        self.processes: dict[int, Process] = {
            process: ("host", process, tuple(range(process * each, (process + 1) * each)))
            for process in range(workers // each)
        }
        self.workers: dict[int, Worker] = {}  # all workers that step, by id
        self._dead: set[int] = set()
        self._parked: list[int] = []  # workers that wait in their programs, the innermost last
        for index in range(workers):
            self._add(index, None)

    # Members

    def ask(self, server: int | None = None, via: int = 0, port: int = 1000, workers: int | None = None) -> int:
        """Let a process ask worker `via` for admission; return the key of the answer."""
        key = len(self.answers) + 100 * port
        ask = JoinAsk(key, "host", port, self.each if workers is None else workers, server)
        self.workers[via].post(via, TOPIC, ask)
        return key

    def admitted(self, server: int | None = None, via: int = 0, port: int = 1000) -> Admission:
        """Ask, and return the admission, which must be granted."""
        key = self.ask(server, via, port)
        self.settle()
        answer = self.answers[key]
        assert isinstance(answer, Admission), answer
        return answer

    def start(self, admission: Admission) -> list[Worker]:
        """Start the workers of an admitted process. They have built nothing yet."""
        return [self._add(index, admission) for index in admission.ids]

    def join(self, build: Callable[[Worker], T], server: int | None = None, via: int = 0, port: int = 1000) -> T:
        """Let a worker join with the dataflows of `build(worker)`; return what that returned."""
        [worker] = self.start(self.admitted(server, via, port))
        built = build(worker)
        assert worker.bootstrap()
        self.settle()
        return built

    def everywhere(self, build: Callable[[Worker], T]) -> dict[int, T]:
        """Call `build(worker)` for each worker; return the results by id."""
        return {index: build(worker) for index, worker in self.workers.items()}

    def die(self, *ids: int) -> None:
        """Kill the process of these workers: its connections end. Raises PeerLost if a worker knows them as members."""
        self._dead.update(ids)
        for index in ids:
            del self.workers[index]
            self.network.kill(index)
        if any(set(ids) & set(members) for _, members in self.promoted):
            raise PeerLost(f"lost {ids}")
        for index, worker in self.workers.items():
            worker.post(index, TOPIC, LinkLost(ids))

    def _add(self, index: int, admission: Admission | None) -> Worker:
        allocator = self.network.add(index, index // self.each if admission is None else admission.process)
        allocator.park = partial(self._park, index)  # type: ignore[method-assign]
        allocator.promote = partial(self._promote, index)  # type: ignore[method-assign]
        allocator.forget = partial(self._forget, index)  # type: ignore[method-assign]
        founders = founding(index for _, _, ids in self.processes.values() for index in ids)
        worker: Worker = Worker(
            allocator,
            founders if admission is None else admission.membership,
            Scope,
            (self._clock, self._clock),
            processes=self.processes if admission is None else admission.processes,
            admission=admission,
            door=self,
        )
        self.events[index] = []
        worker.rescaling.subscribe(self.events[index].append)
        self.workers[index] = worker
        return worker

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Note an answer, as the door of all processes."""
        self.answers[key] = answer

    def _promote(self, index: int, ids: Collection[int]) -> None:
        """Act as the transport: fail if a member is lost, also if it was lost before."""
        if lost := self._dead.intersection(ids):
            raise PeerLost(f"lost {sorted(lost)}")
        self.promoted.append((index, tuple(ids)))

    def _forget(self, index: int, ids: Collection[int]) -> None:
        """Act as the transport: close the connections of rejected joiners."""
        if ids:
            self.parted.append((index, tuple(ids)))
        for newcomer in ids:
            if newcomer in self.workers and self.workers[newcomer].rescaling.joining:
                self.workers[newcomer].post(newcomer, TOPIC, LinkLost((index,)))

    def _clock(self) -> float:
        return self.now

    # Stepping

    def settle(self) -> None:
        """Step and deliver, except on held routes, until nothing more can happen."""
        for _ in range(10_000):
            if not self.go_on():
                return
        raise AssertionError("the workers do not come to rest")

    def deliver(self, source: int, target: int, lane: Lane, count: int = 1) -> None:
        """Deliver the oldest messages of a lane. The target has not read them yet."""
        for _ in range(count):
            self.network.deliver((source, target, lane))

    def waiting(self, source: int, target: int, lane: Lane) -> bool:
        """Return whether a message is under way on a lane."""
        return any(route == (source, target, lane) for route, _ in self.network.waiting())

    @contextmanager
    def holding(self, held: Callable[[Route], bool]) -> Iterator[None]:
        """Hold these routes within the block only."""
        before, self.held = self.held, held
        yield
        self.held = before

    def done(self) -> bool:
        """Return whether all dataflows are complete everywhere."""
        return not any(worker.installed_dataflows for worker in self.workers.values())

    def pointstamps(self) -> list[str]:
        """Describe the remaining pointstamps, for messages."""
        return [
            f"worker {index}, {graph.name}: {describe_pointstamps(graph)}"
            for index, worker in self.workers.items()
            for graph in worker.graphs()
        ]

    def go_on(self) -> bool:
        """Let each worker take one step and each lane deliver one message; return whether anything happened."""
        busy = False
        for index, worker in list(self.workers.items()):
            due = worker.has_work() or self.network.allocator(index).arrived
            if due and index not in self._parked:
                worker.step()
                busy = True
        for route, _ in list(self.network.waiting()):
            if not self.held(route):
                self.network.deliver(route)
                busy = True
        return busy

    def _park(self, index: int, seconds: float | None) -> None:
        allocator = self.network.allocator(index)
        self._parked.append(index)
        try:
            while not allocator.arrived:
                if not self.go_on():
                    raise Stuck(f"worker {index} waits, and nothing happens any more: {self.pointstamps()}")
        finally:
            self._parked.remove(index)
