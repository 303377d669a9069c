"""A lone worker that tests step by hand, with a clock that they set."""

from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.membership import founding


class Clock:
    """Shows the time it was set to, or `step` seconds more each time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def lone_worker(clock: Clock) -> Worker:
    """A worker without peers."""
    return Worker(LocalFabric([0]).allocator(0), founding([0]), Scope, (clock, clock))


def settle(worker: Worker) -> None:
    """Step until nothing is left to do now."""
    worker.step()
    while worker.has_work():
        worker.step()
