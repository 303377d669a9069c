"""Numbered progress batches: where counts meet channels.

Each worker broadcasts what its operators did in one dataflow as batches 0, 1, 2, …;
all workers, the sender included, fold them in the order of their numbers.

Why this is safe
 1. A batch is cut between operator invocations only, so it holds all of what an
    invocation did: consumed, held, released, produced. Batches may be merged (a step's
    invocations are, and what was held back is merged with what comes later), never split.
 2. FIFO per sender: the transport promises it and the numbers check it. That one frame may bring a batch to all
    workers of a process changes neither its number nor its place.
 3. The sender folds its own batch at the moment it hands it to the transport, at the
    same place in its stream as all other workers do.
So every worker's tracker always holds the sum of some prefix of each worker's batches,
which is all that the safety property asks (Naiad section 2.3; Abadi et al., "Formal
analysis of a distributed algorithm for tracking progress").

Capabilities for others. A worker may mint one at a time that it holds itself, for a worker that has joined. A third
worker must not fold the newcomer's release of it before it has folded the batch that minted it, for the release would
cancel the minter's own count. So a *gate* names the minting batch, and whatever the newcomer sends is folded after it.

Capabilities handed over. A worker may also give one away: it tells all that it has done, then another holds it, at the
time t that it had, and nothing is counted. This needs no gate, if all workers have folded the batch that minted it
(there is none for a founder's; for a newcomer's that is so when its join is done). Say that it went through c0 <= ...
<= t at the one and goes on from t at the other. A downgrade is one change, -1 before and +1 after, never split: so in
every prefix of the first one's batches it counts once, at some c <= t. The other's -1 at t, folded early, may cancel
another worker's count at t; but what that one holds back c holds back, too. When the first one's last batch is folded c
is t, and there is one count more at t than is cancelled. What the other sends is at t or after, so behind c as well.

Joining. `restore` starts from the sum of another worker's folded batches, and the numbers that follow them: the sum
of prefixes, as above. Batches of lower numbers may still be on their way here; they are in the sum, and dropped.
`record` is called with each batch as it is folded, for workers that must catch up.

Broadcasting quietly. What was done may be told late, so a batch is *held* while it could
not move any frontier anyway: while each of its negative changes lies behind a different
pointstamp, one that is still counted and could result in it. All is checked again when
something was done or heard.

Why no worker waits for ever. "Could result in" between different pointstamps is a strict
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
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel
from megaflow.timely.log import Log, ProgressReceived, ProgressSent
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker

Changes = ChangeBatch[tuple[int, Time]]  # (location, time) -> delta

_HELD_MAX = 200
"""Changes held at most: each step checks them, and telling early costs no more than traffic."""


class Progcaster:
    """One worker's end of one dataflow's progress stream."""

    def __init__(
        self,
        dataflow: int,
        allocator: Allocator,
        audience: Callable[[], tuple[int, ...]],
        tracker: Tracker,
        log: Log,
        *,
        own: Changes,
        sources: Collection[int],
        eager: bool = False,
    ) -> None:
        """`audience` are the workers that are told, this one perhaps among them; `own` are the capabilities that
        this worker starts with, `sources` the locations where capabilities are.

        `eager`: hold nothing.
        """
        self.batches_sent = 0  # the number of the next
        self._channel = Channel.progress(dataflow)
        self._allocator = allocator
        self._audience = audience
        self._told: tuple[int, ...] = ()  # the audience of the last time, which is another object when it changes
        self._targets: list[int] = []  # of it, all but this worker
        self._tracker = tracker  # written here only
        self._log = log
        self._eager = eager
        self._sources = sources
        self._own = own  # (source, time) -> capabilities of this worker, as told so far
        self._held: Changes = ChangeBatch()  # done here, not told yet, not folded here either
        self._next_from: dict[int, int] = {}  # sender -> number of its next batch to fold
        # sender -> number of its first batch that is not in the sum begun with; None: there is none
        self._contained: dict[int, int] | None = {}
        self._gates: dict[int, list[tuple[int, int]]] = {}  # sender -> (minter, number) to be folded before its batches
        self._gated: dict[int, list[tuple[int, list[tuple[int, Time, int]]]]] = {}  # sender -> bodies that wait
        self.record: Callable[[int, int, list[tuple[int, Time, int]]], None] | None = None  # (sender, number, batch)

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

    def following(self) -> dict[int, int]:
        """Return, for each sender heard, the number of its next batch to fold; for this worker that of its next."""
        return {**self._next_from, self._allocator.index: self.batches_sent}

    def has_folded(self, sender: int, number: int) -> bool:
        """Tell whether that batch is in the counts."""
        if sender == self._allocator.index:
            return number < self.batches_sent
        return number < self._next_from.get(sender, 0)

    def restore(self, changes: list[tuple[int, Time, int]], following: dict[int, int] | None) -> None:
        """Fold the sum of all batches before those that are `following`; nothing was folded here yet.

        None: it is the sum of all that there are, so what comes late changes nothing.
        """
        assert not self._next_from and not self.batches_sent, "it starts from another's sum, not from its own"
        if following is None:
            self._contained = None
        else:
            own = self._allocator.index
            self._next_from = {sender: number for sender, number in following.items() if sender != own}
            self._contained = dict(self._next_from)
        self._tracker.extend(changes)

    def mint(self, location: int, time: Time) -> int:
        """Count a capability for another worker at once, beside one held here; return the number of the batch.

        What was held back goes along.
        """
        self._held.update((location, time), 1)
        self._broadcast()
        self._own.update((location, time), -1)
        return self.batches_sent - 1

    def receive_capability(self, location: int, time: Time) -> None:
        """Note that a capability which another worker minted is this worker's; its batch is folded."""
        self._own.update((location, time), 1)

    def give_capability(self, location: int, time: Time) -> None:
        """Note that a capability of this worker is another's from now on; all that was done with it has been told."""
        self._own.update((location, time), -1)

    def gate(self, sender: int, minter: int, number: int) -> None:
        """Fold nothing more of `sender` before that batch of `minter`'s."""
        if not self.has_folded(minter, number):
            self._gates.setdefault(sender, []).append((minter, number))

    def offer(self, changes: Changes, flush: bool = False) -> bool:
        """Take all of `changes`; broadcast and fold them with what was held, unless all of it may wait; tell which.

        `flush`: it may not.
        """
        self._held.absorb(changes)
        if self._held.is_empty():
            return False
        if not flush and self._others() and not self._eager and len(self._held) <= _HELD_MAX and self._may_wait():
            return False
        self._broadcast()
        return True

    def receive(self, source: int, body: tuple[int, list[tuple[int, Time, int]]]) -> None:
        """Fold a batch of another worker. Raises ProtocolError if one is missing or doubled."""
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
                f"worker {source} sent progress batch {number} of dataflow {self._channel.dataflow}; {expected} was due"
            )
        self._next_from[source] = number + 1
        self._tracker.extend(batch)
        if self.record is not None:
            self.record(source, number, batch)
        if self._log.emit is not None:
            self._log.emit(ProgressReceived(self._channel.dataflow, source, number, tuple(batch)))
        if self._gates:
            self._open_gates()

    def _open_gates(self) -> None:
        for sender, minting in list(self._gates.items()):
            minting[:] = [(minter, number) for minter, number in minting if not self.has_folded(minter, number)]
            if not minting and self._gates.pop(sender, None) is not None:  # else opened by what another let through
                for body in self._gated.pop(sender, []):
                    self.receive(sender, body)

    def _others(self) -> list[int]:
        """Return the audience without this worker."""
        audience = self._audience()
        if audience is not self._told:
            self._told = audience
            self._targets = [member for member in audience if member != self._allocator.index]
        return self._targets

    def _may_wait(self) -> bool:
        behind = self._tracker.is_behind_another
        return all(delta > 0 or behind(location, time) for (location, time), delta in self._held)

    def _broadcast(self) -> None:
        changes = self._held.drain()
        batch = [(*place, delta) for place, delta in changes]
        number = self.batches_sent
        self._allocator.send_all(self._others(), self._channel, (number, batch))
        self.batches_sent += 1
        self._tracker.extend(batch)
        if self.record is not None:
            self.record(self._allocator.index, number, batch)
        for place, delta in changes:
            if place[0] in self._sources:
                self._own.update(place, delta)
        if self._log.emit is not None:
            self._log.emit(ProgressSent(self._channel.dataflow, number, tuple(batch)))
