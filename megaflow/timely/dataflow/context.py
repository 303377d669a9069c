"""What a dataflow and its operators get from their worker: transport, clocks, log, and ways to be run again."""

from collections.abc import Callable
from typing import Any, Protocol

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.log import Log
from megaflow.timely.membership import Membership

_SHORTEST_SECONDS = 0.001
_LONGEST_SECONDS = 0.02
"""The longest that news can lie unseen; 50 idle runs a second cost two percent of a core (measured, caches cold)."""


class View(Protocol):
    """What an operator shows to the rest of its worker; some floors above, more is known of it."""

    def objection(self) -> str | None:
        """Return why the worker may not leave just now, None if it may."""

    def follow(self) -> None:
        """Learn that the dataflow has begun to run, or of a change of the membership: newcomers count as members, and
        nothing of theirs has come here yet; or it is done; or it was given up."""

    def untold(self) -> int | None:
        """Return the node that keeps records until a Bootstrap comes for this worker; None: none does."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a worker lends to its dataflows; one for all of them."""

    allocator: Allocator
    membership: Callable[[], Membership]  # as of now
    audience: Callable[[], tuple[int, ...]]  # who is told progress: members, and those on their way in or out
    now: Callable[[], float]  # seconds, monotonic
    wall: Callable[[], float]  # seconds since 1970, comparable between machines
    views: list[Any]  # what operators show to the outside; grows as they are built
    activate: Callable[[Callable[[], None]], None]  # from any thread: run this on the worker, soon
    activate_after: Callable[[float, Callable[[], None]], None]  # seconds; from any thread
    log: Log
    eager: bool = False  # broadcast all progress at once: for comparison


class Activator:
    """Puts its operator in the run queue; from any thread. Harmless when the dataflow or the worker has ended."""

    def __init__(self, context: Context, run_queue: RunQueue, index: int) -> None:
        self._context = context
        self._run_queue = run_queue  # of the operator's dataflow
        self._index = index
        self._handed = False  # an activation waits for the worker: another would add nothing

    def activate(self) -> None:
        """Run the operator at the worker's next step; wakes a parked worker."""
        if not self._handed:
            self._handed = True
            self._context.activate(self._add)

    def activate_after(self, seconds: float) -> None:
        """Run the operator once this time has passed; each call counts."""
        self._context.activate_after(seconds, self._add)

    def _add(self) -> None:
        self._handed = False  # first: an activation from now on means a later run
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

    So it waits for an outside that does not announce itself, such as a file that grows.

    Invariant: at most one run is planned at a time, however often `later` is called.
    """

    def __init__(self, activator: Activator, now: Callable[[], float]) -> None:
        self._activator = activator
        self._now = now
        self._due = now()  # of the run planned last, seconds
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
