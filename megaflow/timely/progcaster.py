"""Numbered progress batches: where counts meet channels.

Each worker broadcasts the changes of its operators in one dataflow as batches 0, 1, 2, … All workers, including the
sender, fold a sender's batches in the order of their numbers.

Why this is safe
 1. A batch is cut only between operator invocations. So it holds everything that an invocation consumed, held, released
    or produced. Batches may be merged, never split: the invocations of a step are merged, and held changes are merged
    with later ones.
 2. Batches of one sender arrive in FIFO order: the transport guarantees it and the numbers check it. One frame may
    bring a batch to all workers of a process. This changes neither its number nor its place.
 3. The sender folds its own batch when it passes it to the transport, at the same place in its stream as all other
    workers do.
So every worker's tracker always holds the sum of some prefix of each worker's batches. The safety property needs no
more than this (Naiad section 2.3; Abadi et al., "Formal analysis of a distributed algorithm for tracking progress").

Capabilities for others. A worker may mint a capability for a joined worker, the newcomer, at a time that it holds
itself. A third worker must fold the minting batch before the newcomer's release of the capability. Otherwise the
release would cancel the minter's own count. So a *gate* names the minting batch, and everything that the newcomer sends
is folded after it.

Capabilities handed over. A worker, the giver, may also give a capability away. It first broadcasts all its changes.
Then the receiver holds the capability, at the giver's last time t, and no count changes. This needs no gate if all
workers have folded the batch that minted the capability. (A founder's capability has no such batch. For a newcomer's,
all have folded it once its join is done.) Suppose that the capability passed through c0 <= ... <= t at the giver and
continues from t at the receiver.
 1. A downgrade is one change, -1 before and +1 after, and never split. So in every prefix of the giver's batches the
    capability counts once, at some c <= t.
 2. If the receiver's -1 at t is folded early, it may cancel another worker's count at t. But c also holds back
    everything that this count holds back.
 3. When the giver's last batch is folded, c is t, and there is one more count at t than is cancelled.
 4. The receiver sends at t or later, so behind c as well.

Joining. `restore` starts from the sum of another worker's folded batches, and the numbers that follow them: the sum
of prefixes, as above. Batches of lower numbers may still be on their way here. They are in the sum, so they are
dropped. `record` is called with each batch as it is folded, for workers that must catch up.

Broadcasting quietly. Changes may be broadcast late. So a batch is *held* while it could not move any frontier: while
each of its negative changes lies behind a different pointstamp that is still counted and could result in it. The worker
checks all of it again when it has new changes or receives a batch.

Why no worker waits forever. "Could result in" between different pointstamps is a strict order, because every cycle
advances time. Suppose that all is quiet: every worker has folded the same batches, to the sum C, and some hold batches.
Take a least pointstamp p among the positive ones of C. It is behind no other, so no held batch has a negative at p.
Held changes can only add to p, so p really is outstanding. Every pointstamp of C is such a p or behind one. So the
frontiers that C implies are the true ones, and every worker that may act on them does. A pointstamp whose own count is
more than one does not justify holding: otherwise two workers that each release one of the two would wait for each
other.
"""

from collections.abc import Callable, Collection
from dataclasses import field

from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel
from megaflow.timely.log import Log, ProgressReceived, ProgressSent
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker

Changes = ChangeBatch[tuple[int, Time]]  # (location, time) -> delta

_HELD_MAX = 200
"""Most changes that may be held. Each step checks them all, and broadcasting early costs only traffic."""


@dataclass(eq=False, repr=False)
class Progcaster:
    """One worker's end of one dataflow's progress stream."""

    dataflow: int
    allocator: Allocator
    audience: Callable[[], tuple[int, ...]]  # the workers that receive progress, perhaps including this one
    tracker: Tracker  # written here only
    log: Log
    own: Changes  # (source, time) -> capabilities of this worker, as broadcast so far; first those that it starts with
    sources: Collection[int]  # locations of capabilities
    eager: bool  # hold nothing
    batches_sent: int = 0  # the number of the next batch
    record: Callable[[int, int, list[tuple[int, Time, int]]], None] | None = None  # (sender, number, batch)
    held: Changes = field(default_factory=ChangeBatch)  # made here, neither broadcast nor folded yet; written here only
    _told: tuple[int, ...] = ()  # the last audience, which is another object when it changes
    _targets: list[int] = field(default_factory=list)  # its members without this worker
    _next_from: dict[int, int] = field(default_factory=dict)  # sender -> number of its next batch to fold
    # sender -> number of its first batch that is not in the initial sum; None: the sum has all batches
    _contained: dict[int, int] | None = field(default_factory=dict)
    # sender -> (minter, number) to be folded before its batches
    _gates: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _gated: dict[int, list[tuple[int, list[tuple[int, Time, int]]]]] = field(default_factory=dict)  # bodies that wait

    def __post_init__(self) -> None:
        self._channel = Channel.progress(self.dataflow)

    def capabilities(self) -> Changes:
        """Return a copy of the sum of this worker's capabilities, including held changes."""
        return ChangeBatch([*self.own, *((place, delta) for place, delta in self.held if place[0] in self.sources)])

    def following(self) -> dict[int, int]:
        """Return the number of the next batch to fold for each known sender, and of this worker's next batch."""
        return {**self._next_from, self.allocator.index: self.batches_sent}

    def has_folded(self, sender: int, number: int) -> bool:
        """Return whether that batch is in the counts."""
        if sender == self.allocator.index:
            return number < self.batches_sent
        return number < self._next_from.get(sender, 0)

    def restore(self, changes: list[tuple[int, Time, int]], following: dict[int, int] | None) -> None:
        """Fold the sum of all batches before those in `following`. Nothing may have been folded here yet.

        None: the sum has all batches that exist, so late ones change nothing.
        """
        assert not self._next_from and not self.batches_sent, "it starts from another's sum, not from its own"
        if following is None:
            self._contained = None
        else:
            own = self.allocator.index
            self._next_from = {sender: number for sender, number in following.items() if sender != own}
            self._contained = dict(self._next_from)
        self.tracker.extend(changes)

    def mint(self, location: int, time: Time) -> int:
        """Count a capability for another worker at once, beside one held here. Return the number of the batch.

        The batch includes all held changes.
        """
        self.held.update((location, time), 1)
        self._broadcast()
        self.own.update((location, time), -1)
        return self.batches_sent - 1

    def receive_capability(self, location: int, time: Time) -> None:
        """Note that this worker now has a capability that another worker minted. Its batch is already folded."""
        self.own.update((location, time), 1)

    def give_capability(self, location: int, time: Time) -> None:
        """Note that another worker now has a capability of this worker. All changes of it must have been broadcast."""
        self.own.update((location, time), -1)

    def gate(self, sender: int, minter: int, number: int) -> None:
        """Fold no further batch of `sender` before batch `number` of `minter`."""
        if not self.has_folded(minter, number):
            self._gates.setdefault(sender, []).append((minter, number))

    def offer(self, changes: Changes, flush: bool = False) -> bool:
        """Take all of `changes`; broadcast and fold them with held ones unless all may wait; return whether it did so.

        `flush`: they may not wait.
        """
        self.held.absorb(changes)
        if self.held.is_empty():
            return False
        if not flush and self._others() and not self.eager and len(self.held) <= _HELD_MAX and self._may_wait():
            return False
        self._broadcast()
        return True

    def receive(self, source: int, body: tuple[int, list[tuple[int, Time, int]]]) -> None:
        """Fold a batch of another worker. Raises ProtocolError if a batch is missing or repeated."""
        if self._gates and source in self._gates:
            self._gated.setdefault(source, []).append(body)
            return
        number, batch = body
        contained = self._contained
        if contained is None or (contained and number < contained.get(source, 0)):
            return
        expected = self._next_from.get(source, 0)
        if number != expected:
            raise ProtocolError(
                f"worker {source} sent progress batch {number} of dataflow {self.dataflow}; {expected} was due"
            )
        self._next_from[source] = number + 1
        self.tracker.extend(batch)
        if self.record is not None:
            self.record(source, number, batch)
        if self.log.emit is not None:
            self.log.emit(ProgressReceived(self.dataflow, source, number, tuple(batch)))
        if self._gates:
            self._open_gates()

    def _open_gates(self) -> None:
        for sender, minting in list(self._gates.items()):
            minting[:] = [(minter, number) for minter, number in minting if not self.has_folded(minter, number)]
            if not minting and self._gates.pop(sender, None) is not None:  # else a batch let through has opened it
                for body in self._gated.pop(sender, []):
                    self.receive(sender, body)

    def _others(self) -> list[int]:
        """Return the audience without this worker."""
        audience = self.audience()
        if audience is not self._told:
            self._told = audience
            self._targets = [member for member in audience if member != self.allocator.index]
        return self._targets

    def _may_wait(self) -> bool:
        behind = self.tracker.is_behind_another
        return all(delta > 0 or behind(location, time) for (location, time), delta in self.held)

    def _broadcast(self) -> None:
        changes = self.held.drain()
        batch = [(*place, delta) for place, delta in changes]
        number = self.batches_sent
        self.allocator.send_all(self._others(), self._channel, (number, batch))
        self.batches_sent += 1
        self.tracker.extend(batch)
        if self.record is not None:
            self.record(self.allocator.index, number, batch)
        for place, delta in changes:
            if place[0] in self.sources:
                self.own.update(place, delta)
        if self.log.emit is not None:
            self.log.emit(ProgressSent(self.dataflow, number, tuple(batch)))
