"""Services of a worker for its dataflows and operators: transport, clocks, log, and ways to run an operator again."""

from collections.abc import Callable
from typing import Any, Protocol

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.log import Log
from megaflow.timely.membership import Membership

_SHORTEST_SECONDS = 0.001
_LONGEST_SECONDS = 0.02
"""Longest time that news can go unnoticed. 50 idle runs a second cost two percent of a core (measured, cold caches)."""


class View(Protocol):
    """View of an operator for the rest of its worker. Higher packages know more of it."""

    def objection(self) -> str | None:
        """Return why the worker may not leave just now, None if it may."""

    def follow(self) -> None:
        """Handle the start of the dataflow, or a step of a membership change: newcomers count as members and have sent
        nothing here yet, the change is complete, or it was given up."""

    def untold(self) -> int | None:
        """Return the node that keeps records until this worker gets a Bootstrap. None if there is none."""


@dataclass(frozen=True, slots=True)
class Context:
    """Services that a worker provides to its dataflows, which share one Context."""

    allocator: Allocator
    membership: Callable[[], Membership]  # the current one
    audience: Callable[[], tuple[int, ...]]  # workers that receive progress: members, joiners and leavers
    now: Callable[[], float]  # seconds, monotonic
    wall: Callable[[], float]  # seconds since 1970, comparable between machines
    views: list[Any]  # views of operators for the rest of the worker; grows as they are built
    activate: Callable[[Callable[[], None]], None]  # from any thread: run this on the worker, soon
    activate_after: Callable[[float, Callable[[], None]], None]  # seconds; from any thread
    log: Log
    eager: bool = False  # broadcast all progress at once, for comparison


class Activator:
    """Puts its operator in the run queue, from any thread. Harmless when the dataflow or the worker has ended."""

    def __init__(self, context: Context, run_queue: RunQueue, index: int) -> None:
        self._context = context
        self._run_queue = run_queue  # of the operator's dataflow
        self._index = index
        self._handed = False  # an activation already waits for the worker, so another adds nothing

    def activate(self) -> None:
        """Run the operator at the worker's next step; wakes a parked worker."""
        if not self._handed:
            self._handed = True
            self._context.activate(self._add)

    def activate_after(self, seconds: float) -> None:
        """Run the operator once this time has passed. Each call counts."""
        self._context.activate_after(seconds, self._add)

    def _add(self) -> None:
        self._handed = False  # first, so that an activation from now on leads to a later run
        self._run_queue.add(self._index)


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """Facts about an operator, for the operator itself."""

    index: int  # within the dataflow, equal on all workers
    name: str
    worker: int
    activator: Activator


class Backoff:
    """Runs an operator again after pauses that grow from one millisecond to twenty.

    Use it to wait for something outside that does not announce itself, such as a growing file.

    Invariant: at most one run is planned at a time, however often `later` is called.
    """

    def __init__(self, activator: Activator, now: Callable[[], float]) -> None:
        self._activator = activator
        self._now = now
        self._due = now()  # time of the run planned last, seconds
        self._pause = _SHORTEST_SECONDS

    def later(self) -> None:
        """Run the operator again after a pause, longer than the one before."""
        now = self._now()
        if now >= self._due:
            self._due = now + self._pause
            self._activator.activate_after(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)

    def reset(self) -> None:
        """Make the next pause the shortest again: there was news."""
        self._pause = _SHORTEST_SECONDS
