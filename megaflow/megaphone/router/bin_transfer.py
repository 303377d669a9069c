"""Bins under way: each F sends the bins that leave its worker, a few parcels at a time to each new owner.

    F of the source ── state: parcels of chunks ──▶ S of the target, which installs them on arrival
    F of the source ◀── routing: credit ── the target, when S has installed a parcel

A parcel that is sent and not installed is in no store; it fills buffers. So a source sends each new owner parcels of
about one chunk in total. It sends more only when the owner reports that one of them is installed. The owner reports at
once, whatever else waits there, in a lane that records do not fill. F takes a bin out when the bin's first chunk is
due, and the old owner releases states as it sends them. So a migration needs little more memory than the state, however
much moves at a time.

Why no parcel waits forever, and none is late
 1. Right to send bins. F claims the state output's capability at t when it reads a command that may move bins at t. F
    releases it when its last parcel is sent (rule 2 of `router`). Until then no S applies anything at t or later. So
    once the reconfiguration is installed it does not matter when F takes a bin out: nothing in the bin changes.
 2. Right to give credit. F claims the routing output's capability at t when it reads a command that may bring it a bin
    at t. F releases it when the reconfiguration is installed here and all bins that it brings are whole. A parcel at t
    leaves its source only after control has passed t there, and by then this F has read all commands at t. Credit
    reaches no output (see `router`), so this capability delays no operator.
 3. Credit is due for each parcel except the last that a source sends a target at t. S gives credit as it installs the
    parcel. S installs arrived parcels in its next run and waits for nothing. So each source gets to its last parcel.
 4. A source holds its capability as long as it has something to send. A target holds its own as long as a bin is not
    whole. A source drops credit that comes after its last parcel. Such credit is a message under way: a leaving worker
    and the end of the dataflow wait for it.
 5. Reconfigurations do not overlap. F installs the next one when S's output frontier is not less than its time, and
    parcels at t, sent or not, hold that frontier at t. Credit carries its time, so F never counts it for another
    reconfiguration.
A worker that has joined and has no table yet also receives bins, and gives credit as all others do. By then it has read
the command that brings them, because commands before its Bootstrap do not name it (rule 5 of `bootstrap`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.chunks import Chunk, Freight, chunks
from megaflow.megaphone.base.flat_ends import AnyOutput
from megaflow.megaphone.base.flat_times import FlatTime
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.membership import WorkerId


@dataclass(frozen=True, slots=True)
class Credit:
    """The report that `worker` has installed a parcel of the bins that move at this time, so it can take more."""

    worker: WorkerId


class Shipper:
    """The bins that leave one worker, and the credit that this worker owes for bins that arrive."""

    def __init__(
        self, store: BinStore, output: AnyOutput[Any], worker: WorkerId, wall: Callable[[], float], name: str = ""
    ) -> None:
        """`name`: the name of the stateful operator, for errors."""
        self.claimed: dict[FlatTime, Capability] = {}  # time of a command, until shipped -> the state capability
        self.expected: dict[FlatTime, Capability] = {}  # time at which bins may come -> the routing capability
        self.routing: AnyOutput[Any]  # takes credit and routing states; set if there is control
        self._store = store
        self._output = output
        self._worker = worker
        self._wall = wall
        self._name = name
        self._shipping: FlatTime | None = None  # time of the reconfiguration whose bins leave now
        self._freight: dict[WorkerId, Freight] = {}  # target -> the rest to send to it, never empty
        self._whole: Counter[FlatTime] = Counter()  # expected time -> bins that have come
        self._coming: dict[FlatTime, int] = {}  # expected and installed time -> bins that come

    def claim(self, time: FlatTime) -> None:
        """Claim the right to send, for a command that may take bins from here at this time. Repeating does nothing."""
        if time not in self.claimed:
            self.claimed[time] = self._output.mint(time)

    def expect(self, time: FlatTime) -> None:
        """Claim the right to give credit, for a command that may bring bins at this time. Repeating does nothing."""
        if time not in self.expected:
            self.expected[time] = self.routing.mint(time)

    def ship(self, time: FlatTime, moves: Iterable[tuple[int, WorkerId, WorkerId]]) -> None:
        """Begin to send the bins that leave at this time, which F is installing now; `moves`: (bin, from, to)."""
        assert not self._freight, f"reconfiguration {time} is installed before {self._shipping} is shipped"
        leaving: dict[WorkerId, list[int]] = {}
        coming = 0
        for bin, source, target in moves:
            if source == self._worker:
                leaving.setdefault(target, []).append(bin)
            elif target == self._worker:
                coming += 1
        assert not leaving or time in self.claimed, f"bins leave at time {time}, but came after the command"
        self._shipping = time
        self._freight = {target: Freight(self._take(time, bins)) for target, bins in leaving.items()}
        for target in leaving:
            self._send(target)
        self._finish()
        if time in self.expected:
            self._coming[time] = coming
            self._settle(time)

    def credited(self, time: FlatTime, credit: Credit) -> None:
        """Send more to a worker that has installed a parcel."""
        if time == self._shipping and credit.worker in self._freight:
            self._freight[credit.worker].installed()
            self._send(credit.worker)
            self._finish()

    def installed(self, time: FlatTime, chunk: Chunk) -> None:
        """Give credit for a chunk that has been installed here, if credit is due.

        S calls this, so one progress batch counts both the chunk that S consumed and the credit that it sends.
        """
        if chunk.awaited:
            assert time in self.expected, f"bin {chunk.bin} has come unexpected at {time}"
            self.routing.ship_to(chunk.source, time, [Credit(self._worker)])
        if chunk.last:
            self._whole[time] += 1
            self._settle(time)

    def _take(self, time: FlatTime, bins: list[int]) -> Iterator[Chunk]:
        """Take out these bins, each when its turn comes, for this time."""
        for bin in bins:
            heard = self._store.events.heard(time)
            yield from chunks(bin, self._store.take(bin), self._worker, self._wall(), self._name, heard)

    def _send(self, target: WorkerId) -> None:
        freight, time = self._freight[target], self._shipping
        assert time is not None
        while parcel := freight.pop():
            self._output.ship_to(target, time, parcel)
        if freight.next is None:
            del self._freight[target]

    def _finish(self) -> None:
        """Release the right to send once everything is sent."""
        if not self._freight and self._shipping in self.claimed:
            self.claimed.pop(self._shipping).release()

    def _settle(self, time: FlatTime) -> None:
        """Release the right to give credit once no further credit will be due."""
        if time in self._coming and self._coming[time] == self._whole[time]:
            del self._coming[time], self._whole[time]
            self.expected.pop(time).release()
