"""What a worker asks of its transport.

1. `send` never blocks; bytes leave in `flush`, `receive` (unless busy), `park` and `finish`.
2. Messages of one (source, target, lane) arrive in the order sent; lanes overtake one another.
3. A body sent to a worker of the same process travels by reference: its sender never changes it again. Workers of
   another process may share what `send_all` sent them on the PROGRESS lane: none of them changes it either.
4. No wake-up is lost: a message put in before `park` checks for some makes it return at once. `park` may return early
   without reason; the caller just takes another step.
5. Once the cluster has failed, `receive`, `park` and `finish` raise the same error in every local worker.
6. Workers of a process that joins are newcomers at first: messages go both ways, and each local worker is told of the
   end of their connection by mail. From `promote` on that end is a failure; after `forget` it is ignored.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from megaflow.errors import PeerFailed
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel, Envelope


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Why a worker raised, in the words that its peers will show."""

    worker: int
    address: str  # host:port of its process, "" in a single process
    text: str  # the formatted traceback

    def error(self) -> PeerFailed:
        """Return the error that the other workers raise.

        >>> print(FailureReport(2, "10.0.0.7:2101", "ValueError: no such word").error())
        worker 2 at 10.0.0.7:2101 failed:
        ValueError: no such word
        """
        place = f" at {self.address}" if self.address else ""
        return PeerFailed(f"worker {self.worker}{place} failed:\n{self.text}")


class Allocator(Protocol):
    """One worker's end of the transport. Only `wake` may be called from another thread."""

    @property
    def index(self) -> int:
        """Return the id of the worker this end belongs to."""

    @property
    def neighbours(self) -> Collection[int]:
        """Return the ids of the workers of this process, which get bodies by reference; this one may be among them."""

    @property
    def pending_bytes(self) -> int:
        """Return the largest number of DATA bytes still queued for one peer process."""

    def send(self, target: int, channel: Channel, body: object) -> None:
        """Queue `body` for `target`, encoded at once if it leaves the process (raises CannotTravel)."""

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        """Do `send` to each target, encoding the body once."""

    def flush(self) -> None:
        """Try once, without blocking, to move what is queued; called at the end of each step."""

    def receive(self, busy: bool = False) -> list[Envelope]:
        """Return all that has arrived, in order of arrival, without blocking; also flushes.

        `busy`: the caller has something else to do, and flushes when it is done. So this does not, and polls the
        sockets only if the last poll was a fraction of a millisecond ago or more.
        """

    def park(self, seconds: float | None) -> None:
        """Block until something arrives, `wake` is or was called, or the time is up; None waits without end."""

    def wake(self) -> None:
        """Make the present or next `park` of this worker return; any thread may call it."""

    def promote(self, ids: Collection[int]) -> None:
        """Make members of newcomers; a second call, or one for workers of this process, does nothing.

        Raises what makes them lost, if they are lost by now.
        """

    def forget(self, ids: Collection[int]) -> None:
        """Have this worker part with others, newcomers or members, for ever; a second call does nothing.

        What it sent to them before still leaves; what it sends later, and what comes from them, is dropped. From the
        first worker's call on, the end of their connection is no loss; after the last worker's, the process says
        goodbye to them.
        """

    def finish(self) -> None:
        """Declare this worker done; the last one of a process waits until every member's process is done too."""

    def abort(self, report: FailureReport) -> None:
        """Stop the cluster: every other worker raises PeerFailed with the report. Later calls do nothing."""
