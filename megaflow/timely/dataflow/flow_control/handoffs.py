"""Handoffs: which queues of a dataflow are bounded, what a full queue stops, and how credit travels.

The handoffs that carry data are bounded: channels within a worker and channels on the DATA lane. Each has gates (see
`gates`). One is its `InputQueue`, closed at its mark. If the channel leads to other workers, there is also a
`WorkerCredit` for each of them, closed while that credit is used up (see `credit`). State, control and progress have
lanes of their own and no gates.

The `Downstream` of an output is every gate that can be reached from it on this worker: the gates of its own edges, and
behind a local queue those of the outputs to which its records lead. So an operator that never refuses records (F and S,
operators that wait for a frontier, joins, users' operators) still stops the source before it. A queue that other
workers feed also has a `Downstream`: credit is given back when its records are taken *and* there is room behind it.
So a full queue further down also stops senders, worker by worker. A handoff that the program has placed (`place`: see
`operators.buffering`) has its own mark, or none. It ends the `Downstream` of everything before it, because it is meant
to fill.

Fullness is advice. Pushing always succeeds. Nothing is refused or lost, and time is never held: a source that gets the
answer "full" still reads its control input and advances its capability. The operators that obey are sources, replay,
operators that may make more records than they get (a flat_map), and all others that ask `Output.is_full()`. An operator
that asked, got "full" and returned with batches left in its queues is woken only by room.

Why no operator waits forever
 1. A gate opens when records are *taken* from a queue. No rule here waits for a frontier, and no capability waits for
    more than the records that its operator has not yet taken or sent. So progress safety is not affected.
 2. Consider the graph of operators and the channels between them. It is the same on all workers. Channels inside a
    cycle have no gate and may grow. The other channels are bounded and lead from one strongly connected component to
    another, so they form a partial order of the components. Every channel counts here as if it led through its operator
    to all outputs, whatever the operator declares about its times.
 3. An operator that waits, with its records or with the credit that it owes, waits only for gates of later components.
    After the last component there are none. So the proof is by induction from the last component: its operators take
    what they have whenever they run, their queues open, and they give back credit. Operators before them are woken
    (each of the closed gates has been open once) and take or send at least a batch, and so on up to the sources.
 4. A message that gives credit back is mail: it queues behind no data, and is read whatever else waits.
 5. A leaving worker processes all that it has, as usual. Credit that it has not given back is forgotten with it. A
    joining worker has a full window. A dropped dataflow is never full.

Credit that is due is sent at the end of a step, in one message for each worker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from megaflow.errors import ProtocolError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.allocator import Allocator
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.dataflow.flow_control.credit import Credits, Debts
from megaflow.timely.dataflow.flow_control.gates import Downstream
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.dataflow.session import BATCH_RECORDS
from megaflow.timely.path_summary import Summary, feedback
from megaflow.timely.progress.propagation_order import positions


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of what may wait, equal on all workers."""

    queue_records: int = 16 * BATCH_RECORDS
    """In one queue: enough to keep a pass busy, small enough to stay in the cache."""
    window_records: int = 64 * BATCH_RECORDS
    """Under way to one worker over one channel. At a million records a second it lasts 45 ms. Half of it is given back
    at a time. The round trip takes a step on either side, some milliseconds on a busy machine."""


class End(Protocol):
    """Sending end of a channel, as this module uses it."""

    lane: Lane
    queue: InputQueue
    credits: Credits | None


@dataclass(frozen=True, slots=True)
class Handoff:
    """One channel: from an output of a node to an input of another."""

    nodes: tuple[int, int]
    source: int  # location
    target: int  # location
    end: End
    local: bool  # records stay on their worker


class Handoffs:
    """Handoffs of one dataflow on one worker. Only the worker's thread writes them."""

    def __init__(self, dataflow: int, allocator: Allocator, run_queue: RunQueue) -> None:
        self.bounds = Bounds()  # may be changed before the start
        self.started = False
        self.refused = False  # an operator has got the answer "full" since this was cleared
        # Target location of each handoff of the program -> its queue's mark, None for that of `bounds`; written by
        # buffers before the start.
        self.placed: dict[int, int | None] = {}
        self._dataflow = dataflow
        self._allocator = allocator
        self._run_queue = run_queue
        self._runs: Sequence[int] = ()  # node -> node that runs for it
        self._all: list[Handoff] = []  # by channel
        self._after: dict[int, list[Handoff]] = {}  # source location -> its handoffs that carry data
        self._inside: dict[int, list[int]] = {}  # target location -> source locations its records lead to
        self._control: set[int] = set()  # nodes that take more than data: they never get the answer "full"
        self._debts: dict[int, Debts] = {}  # channel -> what its queue owes
        self._behind: dict[int, Downstream] = {}  # channel -> gates behind its queue, made on first use
        self.due: dict[int, None] = {}  # channels that owe enough, so that `settle` has work
        self._waiting: list[tuple[int, Downstream]] = []  # node that runs -> gates after one of its outputs

    def add(self, handoff: Handoff) -> None:
        """Add the next channel, while the dataflow is built."""
        self._all.append(handoff)

    def start(self, edges: Iterable[tuple[int, int, Summary]], runs: Sequence[int]) -> None:
        """Set up the gates. `edges` are those of the graph of locations; `runs` is node -> node that does its work."""
        self.started, self._runs = True, runs
        for a, b, _ in edges:
            if a not in self.placed:
                self._inside.setdefault(a, []).append(b)  # also keyed by sources, which are never looked up
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
            mark = self.placed.get(each.target)
            if not each.end.queue.trims:
                each.end.queue.mark = self.bounds.queue_records if mark is None else mark
            if not each.local:
                each.end.credits = Credits(self.bounds.window_records)
                debts = self._debts[channel] = Debts(self.bounds.window_records, partial(self._owe, channel))
                each.end.queue.debts = debts

    def downstream_of(self, source: int, node: int) -> Downstream:
        """Return the gates after an output of a node. The node runs when they were full and have room again."""
        downstream = Downstream(partial(self._run_queue.add, self._runs[node]))
        if node not in self._control:
            self._fill(downstream, [source])
        self._waiting.append((self._runs[node], downstream))
        return downstream

    def settle(self, audience: Callable[[], Collection[int]]) -> None:
        """Give back the credit that is due wherever there is room. The rest waits for room."""
        if not self.due:
            return
        returns: dict[int, list[tuple[int, int]]] = {}  # worker -> (channel, records)
        for channel in self.due:
            downstream = self._behind.get(channel)
            if downstream is None:
                downstream = self._behind[channel] = Downstream(partial(self._owe, channel))
                self._fill(downstream, self._inside.get(self._all[channel].target, []))
            if not downstream.is_full():
                downstream.granted = False
                for worker, records in self._debts[channel].settle():
                    returns.setdefault(worker, []).append((channel, records))
        self.due.clear()
        present = audience()
        for worker, amounts in returns.items():
            if worker in present:
                self._allocator.send(worker, Channel.credit(self._dataflow), tuple(amounts))

    def hear(self, worker: int, returns: Iterable[tuple[int, int]]) -> None:
        """Add the credit that a worker has given back."""
        for channel, records in returns:
            credits = self._all[channel].end.credits if 0 <= channel < len(self._all) else None
            if credits is None:
                raise ProtocolError(f"worker {worker} gives credit back on channel {channel}, which needs none")
            credits.take_back(worker, records)

    def forget(self, workers: Iterable[int]) -> None:
        """Expect nothing from workers that have left, and owe them nothing."""
        for worker in workers:
            for each in self._all:
                if each.end.credits is not None:
                    each.end.credits.forget(worker)
            for debts in self._debts.values():
                debts.forget(worker)

    def clear(self) -> None:
        """Discard everything: the dataflow is dropped."""
        for table in (self._all, self._after, self._inside, self._debts, self._behind, self.due, self._waiting):
            table.clear()

    def credit_in_use(self, worker: int) -> dict[int, int]:
        """Return channel -> records for which a worker has not given credit back. Cost: O(channels)."""
        bounded = ((channel, each.end.credits) for channel, each in enumerate(self._all))
        return {channel: credits.used(worker) for channel, credits in bounded if credits is not None}

    def credit_kept(self, worker: int) -> dict[int, int]:
        """Return channel -> records from a worker that wait here or are owed to it. Cost: O(waiting batches)."""
        return {
            channel: self._all[channel].end.queue.queued_from(worker) + debts.owed(worker)
            for channel, debts in self._debts.items()
        }

    def _check(self) -> None:
        """Check the invariants between steps of a running dataflow. Cost: O(waiting batches and operators)."""
        waiting = {node for node, downstream in self._waiting if downstream.wanted}
        for each in self._all:
            queue = each.end.queue
            queue._check()
            assert not queue.batches or queue.node in self._run_queue or queue.node in waiting, "it will run"
            if each.end.credits is not None:
                each.end.credits._check()
        for channel, debts in self._debts.items():
            debts._check()
            behind = self._behind.get(channel)
            assert not debts.due or channel in self.due or (behind is not None and behind.wanted), "it will go back"
        for downstream in (*self._behind.values(), *(each for _, each in self._waiting)):
            downstream._check()

    def _owe(self, channel: int) -> None:
        self.due[channel] = None
        self._run_queue.stir()

    def _fill(self, downstream: Downstream, sources: list[int]) -> None:
        """Make every gate that can be reached from these outputs part of `downstream`."""
        seen = set(sources)
        waiting = list(sources)
        while waiting:
            for each in self._after.get(waiting.pop(), ()):
                each.end.queue.enter(downstream)
                if each.end.credits is not None:
                    each.end.credits.enter(downstream)
                fresh = [location for location in self._inside.get(each.target, ()) if location not in seen]
                seen.update(fresh)
                waiting += fresh
