"""A lone worker that tests step by hand, with a clock that they set."""

from collections.abc import Iterable
from typing import Any, NoReturn

from megaflow.job.worker.process.flow import Flow
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.membership import founding


class Clock:
    """A clock that shows the time it was set to, and advances by `step` seconds at each reading."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Reads:
    """An operator that reads the lines of a flow from records in memory."""

    def __init__(self, scope: Scope, records: Iterable[Any]) -> None:
        self.lines: Port[Any] = scope.to_stream(records).port

    def add_source(self, name: str, source: object) -> NoReturn:
        """Fail, as there are only lines."""
        raise AssertionError(name)


def flow_by_hand(scope: Any, records: Iterable[Any] = (), inputs: NamedInputs | None = None) -> Flow:
    """The argument of a dataflow function whose lines are these records."""
    inputs = NamedInputs() if inputs is None else inputs
    return Flow(None, scope, None, [], lambda flow: Reads(scope, records), inputs)  # type: ignore[arg-type]


def lone_worker(clock: Clock) -> Worker:
    """A worker without peers."""
    return Worker(LocalFabric([0]).allocator(0), founding([0]), Scope, (clock, clock))


def settle(worker: Worker) -> None:
    """Step until there is no work left."""
    worker.step()
    while worker.has_work():
        worker.step()
