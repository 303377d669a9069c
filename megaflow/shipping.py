"""What F of one worker has to ship: the right to do so, from the command on, and the bins that leave.

F claims the state output's capability at t when it reads a command that may move bins at t, and gives it up when the
last chunk is sent: rule 2 of `router`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from megaflow.bins import BinStore
from megaflow.migration import Chunk, chunks
from megaflow.timely.dataflow.builder import Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.membership import WorkerId


class Shipper:
    """The bins that leave one worker."""

    def __init__(self, store: BinStore, output: Output[Chunk], worker: WorkerId, wall: Callable[[], float]) -> None:
        self.claimed: dict[int, Capability] = {}  # time of a command that is not shipped -> the state output's
        self._store = store
        self._output = output
        self._worker = worker
        self._wall = wall

    def claim(self, time: int) -> None:
        """Note that a command may move bins at this time; again, it does nothing."""
        if time not in self.claimed:
            self.claimed[time] = mint(self._output, time)

    def ship(self, time: int, moves: Iterable[tuple[int, WorkerId, WorkerId]]) -> None:
        """Take out the bins that leave by the reconfiguration at this time, and send them; `moves`: (bin, from, to)."""
        claimed = self.claimed.pop(time, None)  # none for what a newcomer was told of: it had no bin then
        for bin, source, target in moves:
            if source == self._worker:
                assert claimed is not None, f"bin {bin} is to leave at time {time}, but came after the command"
                for chunk in chunks(bin, self._store.take(bin), self._worker, self._wall()):
                    self._output.ship_to(target, time, [chunk])
        if claimed is not None:
            claimed.release()
