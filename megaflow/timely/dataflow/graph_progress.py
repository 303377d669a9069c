"""Progress of one dataflow on one worker: the counts that the worker knows, and the changes that it broadcasts.

Operators write their changes into `changes`. Between runs of operators, the worker sends these changes to the other
workers as one batch. It also adds them to its own counts, as it does with batches from others. The tracker turns counts
into frontiers.

Invariants
 1. `changes` is drained only between operator invocations (see `progcaster`).
 2. An operator sees a frontier only when the tracker's worklist is empty.
 3. The dataflow is complete when no location has a count and every change has been sent.
"""

from collections.abc import Callable, Iterable
from typing import Any

from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.order import Time
from megaflow.timely.progcaster import Progcaster
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker


class OwnChanges(ChangeBatch[tuple[int, Time]]):
    """Changes that are not broadcast yet. `stir` is called when the first one is added; only `update` adds any."""

    __slots__ = ("_stir",)

    def __init__(self, stir: Callable[[], object]) -> None:
        super().__init__()
        self._stir = stir

    def update(self, item: tuple[int, Time], delta: int) -> None:
        """Add `delta` to the item's sum."""
        sums = self._sums  # the rest repeats `ChangeBatch.update`: a call would cost too much here
        if not sums:
            self._stir()
        total = sums.pop(item, 0) + delta
        if total:
            sums[item] = total


class GraphProgress:
    """Counts of one dataflow on one worker. Only the worker's thread calls and writes them."""

    def __init__(self, number: int, context: Context, run_queue: RunQueue) -> None:
        self.changes: ChangeBatch[tuple[int, Time]] = OwnChanges(run_queue.stir)  # written by operators
        self.watchers: dict[int, int] = {}  # target location -> node to run when its frontier moves
        self.running: Tracker | None = None  # None: the dataflow is still being built, or is over
        self._number = number
        self._context = context
        self._run_queue = run_queue
        self._progcaster: Progcaster | None = None
        self._moved = True  # the tracker has changes that are not yet propagated

    def start(
        self, tracker: Tracker, own: Iterable[tuple[tuple[int, Time], int]], listeners: dict[int, list[Any]]
    ) -> None:
        """Start counting. `own`: this worker's initial capabilities; `listeners`: see `Graph`."""
        self.running = tracker
        context = self._context
        self._progcaster = Progcaster(
            self._number, context.allocator, context.audience, tracker, context.log,
            own=ChangeBatch(own), sources=listeners, eager=context.eager,
        )  # fmt: skip

    def stop(self) -> None:
        """Drop the counts: the dataflow no longer runs or sends anything."""
        self.running = None
        self._progcaster = None

    @property
    def tracker(self) -> Tracker:
        """The counts of the running dataflow."""
        return self.caster.tracker

    @property
    def caster(self) -> Progcaster:
        """The worker's end of the running dataflow's progress stream."""
        assert self._progcaster is not None, "the dataflow runs"
        return self._progcaster

    def receive(self, source: int, body: Any) -> None:
        """Add another worker's batch to the counts."""
        self.caster.receive(source, body)
        self._move()

    def restore(self, changes: list[tuple[int, Time, int]], following: dict[int, int] | None) -> None:
        """Continue from another worker's sum of batches, on top of the initial counts: see `Progcaster.restore`."""
        self.caster.restore(changes, following)
        self._move()

    def mint_for_another(self, location: int, time: Time) -> int:
        """Count a capability for another worker, beside one held here. Return the number of the progress batch."""
        self.send(flush=True)
        self._move()
        return self.caster.mint(location, time)

    def is_active(self) -> bool:
        """Return whether there are changes to show or to send."""
        return self._moved or not self.changes.is_empty()

    def is_complete(self) -> bool:
        """Return whether nothing more can happen on any worker."""
        known = self.changes.is_empty() and not self._moved
        return known and self.caster.held.is_empty() and self.tracker.is_complete()

    def show(self) -> None:
        """Propagate changes, and add the watchers of each moved frontier to the run queue."""
        if self._moved:
            self._moved = False
            for location in self.tracker.propagate():
                watcher = self.watchers.get(location)
                if watcher is not None:
                    self._run_queue.add(watcher)

    def send(self, flush: bool = False) -> None:
        """Broadcast the changes, unless they may wait (see `progcaster`). With `flush` they may not."""
        if self._progcaster is not None and self._progcaster.offer(self.changes, flush):
            self._move()

    def _move(self) -> None:
        """Note that the tracker has changes to propagate."""
        self._moved = True
        self._run_queue.stir()
