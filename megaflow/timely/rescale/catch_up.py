"""What a joining worker learns of the progress made before it came, until it knows as much as the members.

For each dataflow it needs the sum of some prefix of each sender's batches, and the number that follows each prefix. It
gets three parts:
 - the server's *snapshot*: the server's own sum, and the numbers that follow;
 - each member's *marker*: the number of the first batch that the member itself sends to the joiner;
 - a *range* from the server for each sender whose marker is ahead of the snapshot, which closes the gap.
The number of a batch decides what happens to it. Below the number that is due, it is already in the sum and is dropped.
Above that number, it waits. So every batch is added exactly once, in its sender's order, even if the parts overtake
each other.
"""

from collections import defaultdict
from dataclasses import field
from typing import Any

from megaflow.quick_dataclass import dataclass
from megaflow.timely.membership import WorkerId
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.rescale.messages import Marker, RangeAnswer, RangeAsk, Snapshot, Stamps


@dataclass(slots=True)
class DataflowProgress:
    """Progress of one dataflow, as far as the joiner knows it."""

    sum: ChangeBatch[Any] = field(default_factory=ChangeBatch)  # since the initial counts
    following: dict[WorkerId, int] = field(default_factory=dict)  # sender -> number of the batch that is due
    waiting: dict[WorkerId, dict[int, Stamps]] = field(default_factory=dict)  # sender -> number -> batch, not due yet

    def take(self, sender: WorkerId, start: int, end: int, batch: Stamps) -> None:
        """Add the sum of batches `start` to `end - 1` if it is due; keep it if it is early, drop it if it is known."""
        due = self.following.get(sender, 0)
        if start == due:
            self._fold(batch)
            self.following[sender] = end
            self._fold_waiting(sender)
        elif start > due:
            self.waiting.setdefault(sender, {})[start] = batch

    def begin(self, changes: Stamps, following: dict[WorkerId, int]) -> None:
        """Start from a snapshot, then add the batches that came before it."""
        self._fold(changes)
        self.following = dict(following)
        for sender in list(self.waiting):
            self._fold_waiting(sender)

    def _fold(self, batch: Stamps) -> None:
        for location, time, delta in batch:
            self.sum.update((location, time), delta)

    def _fold_waiting(self, sender: WorkerId) -> None:
        waiting = self.waiting.get(sender, {})
        due = self.following.get(sender, 0)
        while due in waiting:
            self._fold(waiting.pop(due))
            due += 1
        self.following[sender] = due
        for number in [number for number in waiting if number < due]:
            del waiting[number]


class Intake:
    """Progress of all dataflows, as one joining worker learns it. One writer: the worker's thread."""

    def __init__(self, change: int, members: frozenset[WorkerId]) -> None:
        self.complete: set[int] = set()  # dataflows that have ended
        self.streams = defaultdict[int, DataflowProgress](DataflowProgress)  # by number of the dataflow
        self.snapshot: Snapshot | None = None
        self._change = change
        self._markers: dict[WorkerId, Marker] = {}
        self._members = members
        self._asked: set[tuple[int, WorkerId]] = set()  # (dataflow, sender) of ranges not received yet

    @property
    def is_ready(self) -> bool:
        """Whether the snapshot, all markers and all ranges have come."""
        return self.snapshot is not None and self.has_markers and not self._asked

    @property
    def has_markers(self) -> bool:
        """Whether every member sends its batches to this worker."""
        return self._markers.keys() >= self._members

    def take_batch(self, dataflow: int, sender: WorkerId, number: int, batch: Stamps) -> None:
        """Take a batch directly from its sender. It waits until the snapshot comes, which tells which batch is due."""
        stream = self.streams[dataflow]
        if self.snapshot is None:
            stream.waiting.setdefault(sender, {})[number] = batch
        else:
            stream.take(sender, number, number + 1, batch)

    def take_snapshot(self, snapshot: Snapshot) -> list[RangeAsk]:
        """Take the server's sum; return the requests for the ranges that are missing."""
        self.snapshot = snapshot
        running = snapshot.running
        self.complete |= set(range(snapshot.built)) - running.keys() - set(snapshot.unbuilt)
        for dataflow in running.keys() | self.streams.keys():
            _, _, changes, following = running.get(dataflow, ("", (), [], {}))
            self.streams[dataflow].begin(changes, following)
        return [ask for marker in self._markers.items() for ask in self._gaps(*marker)]

    def take_marker(self, sender: WorkerId, marker: Marker) -> list[RangeAsk]:
        """Take a member's marker; return the requests for the ranges that are missing."""
        self._markers[sender] = marker
        self.complete |= set(range(marker.built)) - marker.running.keys() - set(marker.unbuilt)
        return self._gaps(sender, marker) if self.snapshot is not None else []

    def take_range(self, answer: RangeAnswer) -> None:
        """Take a range, which closes a gap."""
        self._asked.discard((answer.dataflow, answer.sender))
        if answer.changes is None:
            self.complete.add(answer.dataflow)
        else:
            self.streams[answer.dataflow].take(answer.sender, answer.start, answer.end, answer.changes)

    def _gaps(self, sender: WorkerId, marker: Marker) -> list[RangeAsk]:
        asks = []
        for dataflow, number in marker.running.items():
            due = self.streams[dataflow].following.get(sender, 0)
            if number > due and dataflow not in self.complete:
                self._asked.add((dataflow, sender))
                asks.append(RangeAsk(self._change, dataflow, sender, due, number))
        return asks
