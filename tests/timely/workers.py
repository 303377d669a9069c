"""Workers for tests: as threads, or stepped by hand in one thread with a clock that the test sets."""

from collections.abc import Callable, Iterator
from typing import Any

from megaflow.front import Worker, execute
from megaflow.scope import Scope
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.execute import Config
from megaflow.timely.membership import founding

EVERY = (1, 2, 3)  # numbers of workers that results must not depend on


class ByHand:
    """A cluster without threads: a worker takes a step when the test says so."""

    def __init__(self, workers: int = 1) -> None:
        self.now = 1000.0
        ids = range(workers)
        self.fabric = LocalFabric(ids)
        clock = lambda: self.now  # noqa: E731
        self.workers: list[Worker] = [
            Worker(self.fabric.allocator(index), founding(ids), Scope, (clock, clock)) for index in ids
        ]

    def settle(self) -> None:
        """Step everyone until nothing is left to do and nothing is under way."""
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
    """A lone worker, and what steps it."""
    hand = ByHand()
    return hand, hand.workers[0]


def run(workers: int, main: Callable[[Worker], Any]) -> list[Any]:
    """Run `main` on so many threads; what each returned, captures as their contents."""
    return [getattr(result, "extract", lambda result=result: result)() for result in execute(Config.process(workers), main)]


def drain(worker: Worker) -> None:
    """What the engine does when a program has ended."""
    worker.close_inputs()
    while worker.installed_dataflows:
        worker.step_or_park(None)


def numbers() -> Iterator[int]:
    """The generator of all "random" inputs."""
    state = 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        yield state >> 33
