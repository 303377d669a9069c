"""The interface of a worker to its transport.

1. `send` never blocks. Bytes leave in `flush`, `receive` (unless busy), `park` and `finish`.
2. Messages of one (source, target, lane) arrive in the order in which they were sent. Lanes overtake one another.
3. A body sent to a worker of the same process travels by reference, so its sender must never change it again. Workers
   of another process may share a body that `send_all` sent them on the PROGRESS lane, so none of them may change it.
4. No wake-up is lost: if a message arrives before `park` checks for messages, `park` returns at once. `park` may also
   return early without a reason. The caller just takes another step.
5. Once the cluster has failed, `receive`, `park` and `finish` raise the same error in every local worker.
6. Workers of a process that joins are newcomers at first. Messages go both ways. If their connection ends, mail reports
   that to each local worker. After `promote` the end of the connection is a failure; after `forget` it is ignored.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from megaflow.errors import PeerFailed
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.channel import Channel, Envelope


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The reason why a worker raised, in the words that its peers will show."""

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
        """Return the id of the worker that this end belongs to."""

    @property
    def neighbours(self) -> Collection[int]:
        """Return the ids of the workers of this process, possibly with this one; they get bodies by reference."""

    @property
    def pending_bytes(self) -> int:
        """Return the largest number of DATA bytes still queued for one peer process."""

    def send(self, target: int, channel: Channel, body: object) -> None:
        """Queue `body` for `target`. It is encoded at once if it leaves the process (raises CannotTravel)."""

    def send_all(self, targets: Iterable[int], channel: Channel, body: object) -> None:
        """Call `send` for each target, but encode the body only once."""

    def flush(self) -> None:
        """Try once, without blocking, to move the queued bytes; called at the end of each step."""

    def receive(self, busy: bool = False) -> list[Envelope]:
        """Return the messages that have arrived, in order of arrival, without blocking. Also flushes.

        If `busy`, the caller has other work and will flush when it is done. So this call does not flush, and it polls
        the sockets only if the last poll is at least a fraction of a millisecond ago.
        """

    def park(self, seconds: float | None) -> None:
        """Block until something arrives, `wake` is or was called, or the time is up; None waits without limit."""

    def wake(self) -> None:
        """Make the present or next `park` of this worker return. Any thread may call it."""

    def promote(self, ids: Collection[int]) -> None:
        """Make these newcomers members. A second call, or one for workers of this process, does nothing.

        Raises the reason if their connection has already been lost.
        """

    def forget(self, ids: Collection[int]) -> None:
        """Permanently disconnect this worker from others, newcomers or members. A second call does nothing.

        Earlier messages to them still leave. Later messages to them, and all messages from them, are dropped. After the
        first worker's call, the end of their connection is no loss. After the last worker's call, the process says
        goodbye to them.
        """

    def finish(self) -> None:
        """Declare this worker done. The last worker of a process waits until every member's process is done."""

    def abort(self, report: FailureReport) -> None:
        """Stop the cluster: every other worker raises PeerFailed with the report. Later calls do nothing."""
