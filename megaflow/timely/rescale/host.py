"""What the modules of this package need from their worker, and the hooks for the program above it."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Envelope
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import Admission, Denied


class Door(Protocol):
    """Connection to a process that asks to join, at the port that it contacted."""

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Send it the coordinator's answer; do nothing if the process is gone."""


class Supervisor(Protocol):
    """The program that coordinates, as the engine sees it. The coordinating worker's thread makes all calls.

    The program answers each process that is due with one call of `Coordination.rule`, at once or later, or it hands
    over. It hears that a change has ended before it learns which process is due next.
    """

    def join_due(self, ids: tuple[WorkerId, ...], address: tuple[str, int]) -> None:
        """A process that listens at this address wants to join, with workers of these ids.

        No change begins before the ruling. If the program grants the join, it must also abort the join if that takes
        too long: see `Coordination.call_off`.
        """

    def leave_due(self, ids: tuple[WorkerId, ...]) -> None:
        """The process with these workers wants to leave. Joins continue before the ruling."""

    def reported(self, source: WorkerId, body: Any) -> None:
        """A worker's program has sent this body with `Member.report`."""


@dataclass(frozen=True, slots=True)
class Host:
    """One worker, as this package uses it. All calls are made on its thread."""

    allocator: Allocator
    graphs: dict[int, Graph]  # running, by number; written by the worker
    building: Collection[int]  # dataflows whose `with` blocks have not ended
    built: Callable[[], int]  # dataflows built or begun
    now: Callable[[], float]  # seconds, monotonic
    after: Callable[[float, Callable[[], None]], None]  # call back in so many seconds
    post: Callable[[WorkerId, str, object], None]  # send mail
    redeliver: Callable[[list[Envelope]], None]  # process these as if they arrived now
    door: Door | None = None

    @property
    def index(self) -> WorkerId:
        """This worker's id."""
        return self.allocator.index

    def unbuilt(self) -> tuple[int, ...]:
        """The dataflows that are being built."""
        return tuple(sorted(self.building))
