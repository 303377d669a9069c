"""What one worker knows of the progress of one dataflow, and what it tells the others of its own.

Operators write what they do into `changes`; between their runs this goes to the other workers as one batch, and into
the worker's own counts, like the batches that come from the others. The tracker turns counts into frontiers.

Invariants
 1. `changes` is drained between operator invocations only (see `progcaster`).
 2. A frontier is shown to an operator only when the tracker's worklist is empty.
 3. The dataflow is complete when no location has a count and nothing is unsent.
"""

from collections.abc import Iterable
from typing import Any

from megaflow.errors import BuildError
from megaflow.timely.dataflow.context import Context
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.order import Time
from megaflow.timely.progcaster import Progcaster
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import Tracker


class GraphProgress:
    """The counts of one dataflow on one worker. Written by the worker's thread, which alone calls it."""

    def __init__(self, number: int, name: str, context: Context, run_queue: RunQueue) -> None:
        self.changes: ChangeBatch[tuple[int, Time]] = ChangeBatch()  # not broadcast yet; written by operators
        self.watchers: dict[int, int] = {}  # target location -> node to run when its frontier moves
        self.running: Tracker | None = None  # None: the dataflow is being built, or is over
        self._number = number
        self._name = name
        self._context = context
        self._run_queue = run_queue
        self._progcaster: Progcaster | None = None
        self._moved = True  # the tracker has changes that are not propagated

    def start(
        self, tracker: Tracker, own: Iterable[tuple[tuple[int, Time], int]], listeners: dict[int, list[Any]]
    ) -> None:
        """Count from now on. `own`: the initial capabilities here; `listeners`: see `Graph`."""
        self.running = tracker
        self._progcaster = Progcaster(
            self._number,
            self._context.allocator,
            self._context.audience,
            tracker,
            self._context.log,
            own=ChangeBatch(own),
            sources=listeners,
            eager=self._context.eager,
        )

    def stop(self) -> None:
        """Let go of the counts: nothing runs or is sent any more."""
        self.running = None
        self._progcaster = None

    @property
    def tracker(self) -> Tracker:
        """The counts of the running dataflow."""
        if self.running is None:
            raise BuildError(f"dataflow {self._name!r} is not running yet: leave its `with` block first")
        return self.running

    @property
    def caster(self) -> Progcaster:
        """The worker's end of the running dataflow's progress stream."""
        assert self._progcaster is not None, "the dataflow runs"
        return self._progcaster

    def receive(self, source: int, body: Any) -> None:
        """Fold another worker's batch."""
        self.caster.receive(source, body)
        self._moved = True

    def restore(self, changes: list[tuple[int, Time, int]], following: dict[int, int] | None) -> None:
        """Go on from another worker's sum of batches, on top of the initial counts: see `Progcaster.restore`."""
        self.caster.restore(changes, following)
        self._moved = True

    def mint_for_another(self, location: int, time: Time) -> int:
        """Count a capability for another worker, beside one held here; return the number of the progress batch."""
        self.send(flush=True)
        self._moved = True
        return self.caster.mint(location, time)

    def is_active(self) -> bool:
        """Tell whether there is something to show or to send."""
        return self._moved or not self.changes.is_empty()

    def is_complete(self) -> bool:
        """Tell whether nothing can happen any more, on any worker."""
        return (
            self.changes.is_empty()
            and not self._moved
            and not self.caster.is_holding()
            and self.tracker.is_complete()
        )

    def show(self) -> None:
        """Propagate, and put those who watch a moved frontier in the run queue."""
        if self._moved:
            self._moved = False
            for location in self.tracker.propagate():
                watcher = self.watchers.get(location)
                if watcher is not None:
                    self._run_queue.add(watcher)

    def send(self, flush: bool = False) -> None:
        """Broadcast what was done, unless it may wait: see `progcaster`. `flush`: it may not."""
        if self._progcaster is not None and self._progcaster.offer(self.changes, flush):
            self._moved = True
