"""What a worker lends to its part in membership changes, and what the program above may have to say in them."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Envelope
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.membership import WorkerId
from megaflow.timely.rescale.messages import Admission, Denied


class Door(Protocol):
    """The port's end of a process that wants in."""

    def answer(self, key: int, answer: Admission | Denied) -> None:
        """Send it the coordinator's answer; nothing happens if it is gone."""


class Supervisor(Protocol):
    """The program that coordinates, as the engine sees it. All is called on the coordinating worker's thread.

    It answers each process that is due with one call of `Coordination.rule`, at once or later; or it hands over. It
    hears of each change that has ended before it is told who is due next.
    """

    def join_due(self, ids: tuple[WorkerId, ...], address: tuple[str, int]) -> None:
        """Learn that the process that listens there is to join with workers of these ids.

        No change begins before the ruling. If that grants the join, giving it up when it takes too long is the
        program's, too: see `Coordination.call_off`.
        """

    def leave_due(self, ids: tuple[WorkerId, ...]) -> None:
        """Learn that the process of these is to leave; joins go on before the ruling."""

    def reported(self, source: WorkerId, body: Any) -> None:
        """Learn what a worker's program has said by `Member.report`."""


@dataclass(frozen=True, slots=True)
class Host:
    """One worker. All is called on its thread."""

    allocator: Allocator
    graphs: dict[int, Graph]  # running, by number; written by the worker
    building: Collection[int]  # dataflows whose blocks have not ended
    built: Callable[[], int]  # dataflows built or begun
    now: Callable[[], float]  # seconds, monotonic
    after: Callable[[float, Callable[[], None]], None]  # call back in so many seconds
    post: Callable[[WorkerId, str, object], None]  # mail
    redeliver: Callable[[list[Envelope]], None]  # take these in as if they came now
    door: Door | None = None

    @property
    def index(self) -> WorkerId:
        """This worker's id."""
        return self.allocator.index

    def unbuilt(self) -> tuple[int, ...]:
        """The dataflows that are being built."""
        return tuple(sorted(self.building))
