"""What a worker lends to its dataflows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.log import Log
from megaflow.timely.membership import Membership


@dataclass(frozen=True, slots=True)
class Context:
    """One for all dataflows of a worker."""

    allocator: Allocator
    membership: Callable[[], Membership]  # as of now
    audience: Callable[[], tuple[int, ...]]  # who is told progress: members, and those on their way in or out
    now: Callable[[], float]  # seconds, monotonic
    wall: Callable[[], float]  # seconds since 1970, comparable between machines
    views: list[Any]  # what operators show to the outside; grows as they are built
    activate: Callable[[Callable[[], None]], None]  # from any thread: run this on the worker, soon
    activate_after: Callable[[float, Callable[[], None]], None]  # seconds; from the worker's own thread
    log: Log
    eager: bool = False  # broadcast all progress at once: for comparison
