"""Numbered progress batches: where counts meet channels.

Each worker broadcasts what its operators did in one dataflow as batches 0, 1, 2, …;
everybody, the sender included, folds them in the order of their numbers.

Why this is safe
 1. A batch is cut between operator invocations only, so it holds all of what an
    invocation did: consumed, held, released, produced. Batches may be merged (a step's
    invocations are), never split.
 2. FIFO per sender: the transport promises it and the numbers check it.
 3. The sender folds its own batch at the moment it hands it to the transport, at the
    same place in its stream as everybody else.
So every worker's tracker always holds the sum of some prefix of each worker's batches,
which is all that the safety property asks (Naiad section 2.3; Abadi et al., "Formal
analysis of a distributed algorithm for tracking progress").
"""

from collections.abc import Callable

from megaflow.errors import ProtocolError
from megaflow.timely.communication.allocator import Allocator, Lane
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker

Changes = ChangeBatch[tuple[int, Time]]  # (location, time) -> delta


class Progcaster:
    """One worker's end of one dataflow's progress stream."""

    def __init__(
        self, dataflow: int, allocator: Allocator, members: Callable[[], tuple[int, ...]], tracker: Tracker
    ) -> None:
        self._channel = (dataflow, 0)
        self._allocator = allocator
        self._members = members
        self._tracker = tracker  # written here only
        self._next_to_send = 0
        self._next_from: dict[int, int] = {}  # sender -> number of its next batch to fold

    def broadcast(self, changes: Changes) -> None:
        """Send all of `changes` as the next batch and fold it. Does not block."""
        batch = [(location, time, delta) for (location, time), delta in changes.drain()]
        own = self._allocator.index
        others = [member for member in self._members() if member != own]
        if others:
            self._allocator.send_all(others, Lane.PROGRESS, self._channel, (self._next_to_send, batch))
        self._next_to_send += 1
        self._fold(batch)

    def receive(self, source: int, body: tuple[int, list[tuple[int, Time, int]]]) -> None:
        """Fold a batch of another worker. Raises ProtocolError if one is missing or doubled."""
        number, batch = body
        expected = self._next_from.get(source, 0)
        if number != expected:
            raise ProtocolError(
                f"worker {source} sent progress batch {number} of dataflow {self._channel[0]}; {expected} was due"
            )
        self._next_from[source] = number + 1
        self._fold(batch)

    def _fold(self, batch: list[tuple[int, Time, int]]) -> None:
        update = self._tracker.update
        for location, time, delta in batch:
            update(location, time, delta)
