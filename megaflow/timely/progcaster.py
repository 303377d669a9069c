"""Numbered progress batches: where counts meet channels.

Each worker broadcasts what its operators did in one dataflow as batches 0, 1, 2, …;
everybody, the sender included, folds them in the order of their numbers.

Why this is safe
 1. A batch is cut between operator invocations only, so it holds all of what an
    invocation did: consumed, held, released, produced. Batches may be merged (a step's
    invocations are, and what was held back is merged with what comes later), never split.
 2. FIFO per sender: the transport promises it and the numbers check it.
 3. The sender folds its own batch at the moment it hands it to the transport, at the
    same place in its stream as everybody else.
So every worker's tracker always holds the sum of some prefix of each worker's batches,
which is all that the safety property asks (Naiad section 2.3; Abadi et al., "Formal
analysis of a distributed algorithm for tracking progress").

Broadcasting quietly. What was done may be told late, so a batch is *held* while it could
not move any frontier anyway: while each of its negative changes lies behind a different
pointstamp, one that is still counted and could result in it. All is looked at again when
something was done or heard.

Why nobody waits for ever. "Could result in" between different pointstamps is a strict
order, because every cycle advances time. Say that all is quiet: every worker has folded
the same batches, to the sum C, and some hold batches. Take a least pointstamp p among
the positive ones of C. It is behind no other, so no held batch has a negative at p; what
is held can only add to p, so p is outstanding in truth. Every pointstamp of C is p or
behind such a p: the frontiers that C implies are the true ones, and whoever may act on
them does. A pointstamp whose own count is more than one holds nothing back by that:
two workers that each release one of the two would otherwise wait for each other.
"""

from collections.abc import Callable, Collection, Iterator

from megaflow.errors import ProtocolError
from megaflow.timely.communication.allocator import Allocator, Lane
from megaflow.timely.log import Log, ProgressReceived, ProgressSent
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker

Changes = ChangeBatch[tuple[int, Time]]  # (location, time) -> delta

_HELD_MAX = 200
"""Changes held at most: they are looked at in each step, and telling early costs no more than traffic."""


class Progcaster:
    """One worker's end of one dataflow's progress stream."""

    def __init__(
        self,
        dataflow: int,
        allocator: Allocator,
        members: Callable[[], tuple[int, ...]],
        tracker: Tracker,
        log: Log,
        *,
        own: Changes,
        sources: Collection[int],
        eager: bool = False,
    ) -> None:
        """`own` are the capabilities that this worker starts with, `sources` the locations where capabilities are.

        `eager`: hold nothing.
        """
        self.batches_sent = 0  # the number of the next
        self._channel = (dataflow, 0)
        self._allocator = allocator
        self._members = members
        self._tracker = tracker  # written here only
        self._log = log
        self._eager = eager
        self._sources = sources
        self._own = own  # (source, time) -> capabilities of this worker, as told so far
        self._held: Changes = ChangeBatch()  # done here, not told yet, not folded here either
        self._next_from: dict[int, int] = {}  # sender -> number of its next batch to fold

    @property
    def batches_received(self) -> int:
        """How many batches of others have been folded."""
        return sum(self._next_from.values())

    def held(self) -> Iterator[tuple[tuple[int, Time], int]]:
        """Iterate over what is held back."""
        return iter(self._held)

    def capabilities(self) -> Changes:
        """Return a copy of the sum of the capabilities that this worker has, what it holds back included."""
        return ChangeBatch([*self._own, *((place, delta) for place, delta in self._held if place[0] in self._sources)])

    def is_holding(self) -> bool:
        """Tell whether something is held back."""
        return not self._held.is_empty()

    def offer(self, changes: Changes) -> bool:
        """Take all of `changes`; broadcast and fold them with what was held, unless all of it may wait; tell which."""
        self._held.extend(changes.drain())
        if self._held.is_empty():
            return False
        others = self._others()
        if others and not self._eager and len(self._held) <= _HELD_MAX and self._may_wait():
            return False
        self._broadcast(others)
        return True

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
        if self._log.emit is not None:
            self._log.emit(ProgressReceived(self._channel[0], source, number, tuple(batch)))

    def _others(self) -> list[int]:
        own = self._allocator.index
        return [member for member in self._members() if member != own]

    def _may_wait(self) -> bool:
        behind = self._tracker.is_behind_another
        return all(delta > 0 or behind(location, time) for (location, time), delta in self._held)

    def _broadcast(self, others: list[int]) -> None:
        batch = [(location, time, delta) for (location, time), delta in self._held.drain()]
        number = self.batches_sent
        if others:
            self._allocator.send_all(others, Lane.PROGRESS, self._channel, (number, batch))
        self.batches_sent += 1
        self._fold(batch)
        for location, time, delta in batch:
            if location in self._sources:
                self._own.update((location, time), delta)
        if self._log.emit is not None:
            self._log.emit(ProgressSent(self._channel[0], number, tuple(batch)))

    def _fold(self, batch: list[tuple[int, Time, int]]) -> None:
        update = self._tracker.update
        for location, time, delta in batch:
            update(location, time, delta)
