"""Bins under way between the workers: each F sends the bins that leave it, a few parcels at a time to each new owner.

    F of the source ── state: parcels of chunks ──▶ S of the target, which installs them on arrival
    F of the source ◀── routing: credit ── the target, when S has installed a parcel

What is sent and not installed is in no store; it fills buffers. So a source sends each new owner parcels of about one
chunk together, and more only when the owner reports that one of them is installed. The owner reports at once, whatever
else waits there, in a lane that records do not fill. A bin is taken out when its first chunk is due, and its old owner
gives its states up as it sends them: a migration needs little more memory than the state, however much moves at a time.

Why no parcel waits for ever, and none is late
 1. Right to send bins. F claims the state output's capability at t when it reads a command that may move bins at t, and
    releases it when its last parcel is sent: rule 2 of `router`. Until then no S applies anything at t or later. So
    once the reconfiguration is installed it makes no difference when a bin is taken out: nothing changes in it.
 2. Right to give credit. F claims the routing output's capability at t when it reads a command that may bring it a bin
    at t. It releases it when the reconfiguration is installed here and all bins that it brings are whole. A parcel at t
    leaves its source when control has passed t there, so when this F has read all commands at t. What goes that way
    reaches no output (see `router`), so this capability delays no operator.
 3. Credit is due for each parcel but a source's last one for a target at t. S gives it as it installs the parcel: S
    installs what has arrived in its next run and waits for nothing. So each source comes to its last parcel.
 4. A source has its capability as long as it has something to send, and a target its own as long as a bin is not whole.
    Credit that comes after a source has sent its last parcel is dropped; as a message under way it is waited for by a
    worker that leaves and by the end of the dataflow.
 5. Reconfigurations do not overlap: the next one is installed when S's output frontier is not less than its time, and
    parcels at t, sent or not, hold that frontier at t. Credit names its time, so it is never taken for another one's.
A worker that has joined and has no table yet is sent bins, too, and gives credit as all others do; by then it has read
the command that brings them, for those before its Bootstrap do not name it (rule 5 of `bootstrap`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.chunks import Chunk, Freight, chunks
from megaflow.megaphone.flat_ends import AnyOutput
from megaflow.megaphone.flat_times import FlatTime
from megaflow.megaphone.routing import Clock, Watermark
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.membership import WorkerId


@dataclass(frozen=True, slots=True)
class Credit:
    """The report that `worker` has installed a parcel of the bins that move at this time: it may be sent more."""

    worker: WorkerId


class Shipper:
    """The bins that leave one worker, and the credit that it owes for those that come."""

    def __init__(
        self, store: BinStore, output: AnyOutput[Any], worker: WorkerId, wall: Callable[[], float], name: str = ""
    ) -> None:
        """`name`: the stateful operator's, for errors."""
        self.claimed: dict[FlatTime, Capability] = {}  # time of a command that is not shipped -> the state output's
        self.expected: dict[FlatTime, Capability] = {}  # time at which bins may still come -> the routing output's
        self.routing: AnyOutput[Any]  # takes credit and routing states; set if there is control
        self._store = store
        self._output = output
        self._worker = worker
        self._wall = wall
        self._name = name
        self._shipping: FlatTime | None = None  # time of the reconfiguration whose bins leave now
        self._freight: dict[WorkerId, Freight] = {}  # target -> what it has still to be sent, never empty
        self._whole: Counter[FlatTime] = Counter()  # expected time -> bins that have come
        self._coming: dict[FlatTime, int] = {}  # expected and installed time -> bins that come

    def claim(self, time: FlatTime) -> None:
        """Note that a command may take bins from here at this time; again, it does nothing."""
        if time not in self.claimed:
            self.claimed[time] = self._output.mint(time)

    def expect(self, time: FlatTime) -> None:
        """Note that a command may bring bins at this time; again, it does nothing."""
        if time not in self.expected:
            self.expected[time] = self.routing.mint(time)

    def ship(self, time: FlatTime, moves: Iterable[tuple[int, WorkerId, WorkerId]]) -> None:
        """Begin to send the bins that leave at this time, which is being installed; `moves`: (bin, from, to)."""
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

    def mark(self, time: FlatTime, command: Watermark | Clock) -> None:
        """Note a command that was read, and send S here a marker, if it is to have any: rule 2 of `event_timers`."""
        if self._store.events.is_heard:
            self._store.events.read(time, command)
            self._output.ship_to(self._worker, time, [command])

    def credited(self, time: FlatTime, credit: Credit) -> None:
        """Send more to a worker that has installed a parcel."""
        if time == self._shipping and credit.worker in self._freight:
            self._freight[credit.worker].installed()
            self._send(credit.worker)
            self._finish()

    def installed(self, time: FlatTime, chunk: Chunk) -> None:
        """Give credit for what has been installed here, if it is due.

        S calls this: what it has consumed and what is sent here are counted in one progress batch.
        """
        if chunk.awaited:
            assert time in self.expected, f"bin {chunk.bin} has come unexpected at {time}"
            self.routing.ship_to(chunk.source, time, [Credit(self._worker)])
        if chunk.last:
            self._whole[time] += 1
            self._settle(time)

    def _take(self, time: FlatTime, bins: list[int]) -> Iterator[Chunk]:
        """Take out one bin after another, when its turn comes, for this time."""
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
        """Release the right to send once all is sent."""
        if not self._freight and self._shipping in self.claimed:
            self.claimed.pop(self._shipping).release()

    def _settle(self, time: FlatTime) -> None:
        """Release the right to give credit once no more will be due."""
        if time in self._coming and self._coming[time] == self._whole[time]:
            del self._coming[time], self._whole[time]
            self.expected.pop(time).release()
