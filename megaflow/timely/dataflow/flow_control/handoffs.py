"""Handoffs: which queues of a dataflow are bounded, what a full one stops, and how credit travels.

Bounded are the handoffs that carry data: channels on the same worker and channels on the DATA lane. Each has a gate
(see `room`): its `Inlet`, closed while so many records or more wait there; and, between workers, an account for each
worker that it leads to, closed while that one's credit is used up (see `credit`). State, control and progress have
lanes of their own and no gates.

The room after an output is every gate that can be reached from it on this worker: those of its own edges, and behind a
local inlet those of the outputs to which its records lead. So what nobody refuses (F and S, operators that wait for a
frontier, joins, those of users: they take in whatever is there) still stops the source before it. An inlet fed by
other workers has a room, too: credit is given back when its records are taken *and* there is room behind it. So what is
full further down stops senders as well, worker by worker.

To be full is advice. Pushing always succeeds; nothing is refused or lost, and time is never held: a source that is full
reads its control input and moves its capability on. Who obeys: sources, replay, operators that may make more than they
get (a flat_map), and whatever asks `Output.is_full()`. Who returns with batches left is woken by room, nothing else.

Why nobody waits for ever
 1. A gate opens when records are *taken* from an inlet. No rule here waits for a frontier, and no capability waits for
    more than the records that its operator has not taken or not sent yet: progress safety is not touched.
 2. Take the operators with the bounded channels between them, as any worker has them: all have the same graph. Channels
    inside a cycle have no gate, they may grow; so what is left is a partial order, that of the strongly connected
    components. Every channel counts here as if it led through its operator to all outputs, whatever the operator says
    of its times.
 3. Whoever waits at an operator, be it with what it has or with the credit that it owes, waits for gates of later
    components only. Those after the last component are none. So, by induction from the last: the operators there
    take what they have whenever they run, their inlets open, they give back credit; those before them are
    woken (each of the closed gates has been open once), take or send at least a batch, and so on up to the sources.
 4. A message that gives credit back is mail: it queues behind no data, and is read whatever waits.
 5. A worker that leaves works off all it has, as ever, and what it has not given back is forgotten with it; who joins
    has a whole window. A dropped dataflow is never full.

The sending of what is due happens at the end of a step, one message for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from megaflow.errors import ProtocolError
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.dataflow.flow_control.credit import Credits, Debts
from megaflow.timely.dataflow.flow_control.gates import Room
from megaflow.timely.dataflow.flow_control.input_queue import Inlet
from megaflow.timely.dataflow.run_queue import Agenda
from megaflow.timely.dataflow.session import BATCH_RECORDS
from megaflow.timely.order import Summary, feedback
from megaflow.timely.progress.propagation_order import positions


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may wait; the same on all workers."""

    inlet_records: int = 16 * BATCH_RECORDS
    """In one queue: enough for a pass to have something to do, little enough to stay in the cache."""
    window_records: int = 64 * BATCH_RECORDS
    """Under way to one worker over one channel. At a million records a second it lasts 45 ms, and half of it is given
    back at a time; the way there and back takes a step of either side, some milliseconds on a busy machine."""


class End(Protocol):
    """What is needed of the sending end of a channel."""

    lane: Lane
    inlet: Inlet
    credits: Credits | None


@dataclass(frozen=True, slots=True)
class Handoff:
    """One channel: from an output of a node to an input of another."""

    nodes: tuple[int, int]
    source: int  # location
    target: int  # location
    end: End
    local: bool  # whether records stay on their worker


class Handoffs:
    """Those of one dataflow on one worker. One writer: the worker's thread."""

    def __init__(self, dataflow: int, allocator: Allocator, agenda: Agenda) -> None:
        self.bounds = Bounds()  # may be changed before the start
        self.started = False
        self.refused = False  # somebody was told "full" since this was cleared
        self._dataflow = dataflow
        self._allocator = allocator
        self._agenda = agenda
        self._runs: Sequence[int] = ()  # node -> node that is run for it
        self._all: list[Handoff] = []  # by channel
        self._after: dict[int, list[Handoff]] = {}  # source location -> those that carry data
        self._inside: dict[int, list[int]] = {}  # target location -> source locations its records lead to
        self._control: set[int] = set()  # nodes that take in more than data: never told "full"
        self._debts: dict[int, Debts] = {}  # channel -> what its inlet owes
        self._behind: dict[int, Room] = {}  # channel -> the room behind its inlet, made when first needed
        self._due: dict[int, None] = {}  # channels that owe enough

    def add(self, handoff: Handoff) -> None:
        """Add the next channel, while the dataflow is built."""
        self._all.append(handoff)

    def start(self, edges: Iterable[tuple[int, int, Summary]], runs: Sequence[int]) -> None:
        """Put up the gates; `edges` are those of the graph of locations, `runs` is node -> node that does its work."""
        self.started, self._runs = True, runs
        for a, b, _ in edges:
            self._inside.setdefault(a, []).append(b)  # of sources, too, which are never looked up
        data = [each for each in self._all if each.end.lane is Lane.DATA]
        self._control = {each.nodes[1] for each in self._all if each.end.lane is not Lane.DATA}
        around = feedback(0, 1)
        component = positions([""] * len(runs), [(*each.nodes, around) for each in data])
        for channel, each in enumerate(self._all):
            if each.end.lane is not Lane.DATA:
                continue
            self._after.setdefault(each.source, []).append(each)
            a, b = each.nodes
            if component[a][0] == component[b][0]:
                continue
            each.end.inlet.mark = self.bounds.inlet_records
            if not each.local:
                each.end.credits = Credits(self.bounds.window_records)
                debts = self._debts[channel] = Debts(self.bounds.window_records, partial(self._owe, channel))
                each.end.inlet.debts = debts

    def room_after(self, source: int, node: int) -> Room:
        """What lies after an output of a node; the node is run when that was full and there is room again."""
        room = Room(partial(self._agenda.add, self._runs[node]))
        if node not in self._control:
            self._fill(room, [source])
        return room

    @property
    def is_due(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._due)

    def settle(self, audience: Callable[[], Collection[int]]) -> None:
        """Give back what is due, where there is room; it waits where there is not."""
        if not self._due:
            return
        returns: dict[int, list[tuple[int, int]]] = {}  # worker -> (channel, records)
        for channel in self._due:
            room = self._behind.get(channel)
            if room is None:
                room = self._behind[channel] = Room(partial(self._owe, channel))
                self._fill(room, self._inside.get(self._all[channel].target, []))
            if not room.is_full():
                room.granted = False
                for worker, records in self._debts[channel].settle():
                    returns.setdefault(worker, []).append((channel, records))
        self._due.clear()
        present = audience()
        for worker, amounts in returns.items():
            if worker in present:
                self._allocator.send(worker, Channel.credit(self._dataflow), tuple(amounts))

    def hear(self, worker: int, returns: Iterable[tuple[int, int]]) -> None:
        """Take in what a worker has given back."""
        for channel, records in returns:
            credits = self._all[channel].end.credits if 0 <= channel < len(self._all) else None
            if credits is None:
                raise ProtocolError(f"worker {worker} gives credit back on channel {channel}, which needs none")
            credits.take_back(worker, records)

    def forget(self, workers: Iterable[int]) -> None:
        """Expect nothing of workers that have left, and owe them nothing."""
        for worker in workers:
            for each in self._all:
                if each.end.credits is not None:
                    each.end.credits.forget(worker)
            for debts in self._debts.values():
                debts.forget(worker)

    def clear(self) -> None:
        """The dataflow is dropped."""
        for table in (self._all, self._after, self._inside, self._debts, self._behind, self._due):
            table.clear()

    def _owe(self, channel: int) -> None:
        self._due[channel] = None

    def _fill(self, room: Room, sources: list[int]) -> None:
        """Put every gate into the room that can be reached from these outputs."""
        seen = set(sources)
        waiting = list(sources)
        while waiting:
            for each in self._after.get(waiting.pop(), ()):
                each.end.inlet.enter(room)
                if each.end.credits is not None:
                    each.end.credits.enter(room)
                fresh = [location for location in self._inside.get(each.target, ()) if location not in seen]
                seen.update(fresh)
                waiting += fresh
