"""Workers for tests: as threads, or stepped by hand in one thread with a clock that the test sets."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megaflow.program import Worker, execute
from megaflow.scope import Scope
from megaflow.timely.communication.channel import Channel
from megaflow.timely.communication.local import LocalAllocator, LocalFabric
from megaflow.timely.dataflow.capture.capture import Captured
from megaflow.timely.membership import founding
from megaflow.timely.runtime import Config

EVERY = (1, 2, 3)  # numbers of workers that results must not depend on
Batch = tuple[int, int, int, list[Any]]


class Recording(LocalAllocator):
    """Transport that notes the progress batches it sends: (dataflow, sender, number, changes)."""

    def __init__(self, fabric: LocalFabric, index: int, batches: list[Batch]) -> None:
        super().__init__(fabric, index)
        self.batches = batches

    def send_all(self, targets: Iterable[int], channel: Channel, body: Any) -> None:
        told = list(targets)
        if told and channel.is_progress:
            self.batches.append((channel.dataflow, self.index, body[0], list(body[1])))
        super().send_all(told, channel, body)


class ByHand:
    """Cluster without threads: a worker takes a step when the test asks for it."""

    def __init__(self, workers: int = 1, eager: bool = False) -> None:
        self.now = 1000.0
        self.batches: list[Batch] = []
        self.fabric = LocalFabric(range(workers))
        everyone = founding(range(workers))
        self.workers: list[Worker] = [
            Worker(Recording(self.fabric, index, self.batches), everyone, Scope, (self.clock, self.clock), eager=eager)
            for index in everyone.ids
        ]

    def clock(self) -> float:
        """Return the time that the test has set."""
        return self.now

    def settle(self) -> None:
        """Step all workers until nothing is left to do and nothing is under way."""
        for _ in range(1000):
            due = [
                worker
                for worker in self.workers
                if worker.has_work() or self.fabric.inboxes[worker.index].is_due()
            ]
            if not due:
                return
            for worker in due:
                worker.step()
        raise AssertionError("the workers do not come to rest")


def by_hand() -> tuple[ByHand, Worker]:
    """Return a lone worker and its cluster."""
    hand = ByHand()
    return hand, hand.workers[0]


def run(workers: int, main: Callable[[Worker], Any]) -> list[Any]:
    """Run `main` on `workers` threads; return each result, captures as their contents."""
    results = execute(Config.process(workers), main)
    return [result.extract() if isinstance(result, Captured) else result for result in results]


def drain(worker: Worker) -> None:
    """Do what the engine does when a program has ended."""
    worker.close_inputs()
    while worker.installed_dataflows:
        worker.step_or_park(None)


def numbers() -> Iterator[int]:
    """Yield the numbers behind all "random" inputs."""
    state = 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33
