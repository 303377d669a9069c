"""A thread that detects when a worker of its process has been in one step for long, and reports where.

It looks at each worker twice a second: has its count of steps moved, and if not, what does its thread run? So the
watchdog costs a step nothing, and knows to within LOOK_SECONDS how long a worker is busy. It runs from the start of the
process, so also while the program is imported and the dataflow built.

It runs no user code (see `megaflow.timely.dataflow.running_place`). If it cannot run, as beside C code that holds the
interpreter's lock, its silence shows that.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megaflow.job.heartbeat import Heartbeat, LongStep
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.running_place import place_of

LOOK_SECONDS = 0.5
WATCHDOG = "megaflow-watchdog"  # the thread
LOADING = -1  # in place of a worker's id
BUSY_SECONDS = 1.0  # after which a step is worth reporting


@dataclass(slots=True)
class WatchedWorker:
    """A worker, or a process that loads its program. Written by the watchdog."""

    worker: Worker | None  # None: a process that loads its program
    thread: int
    steps: int = -1  # the count of steps at the last look
    since: float = 0.0  # when it was first seen at this count and doing something


class Watchdog:
    """The watchdog of one process."""

    def __init__(self, tell: Callable[[Heartbeat], None]) -> None:
        """`tell` receives the result of each look, on the watchdog's thread."""
        self._tell = tell
        self._watched: dict[int, WatchedWorker] = {}  # worker or LOADING -> its state; `watching` adds it

    def start(self) -> None:
        """Start the thread, which ends with the process."""
        threading.Thread(target=self._run, name=WATCHDOG, daemon=True).start()

    @contextmanager
    def watching(self, worker: Worker | None = None) -> Iterator[None]:
        """Watch the calling thread during the block; `worker`: whose it is, None while the process loads its program.
        """
        index = LOADING if worker is None else worker.index
        self._watched[index] = WatchedWorker(worker, threading.get_ident())
        try:
            yield
        finally:
            del self._watched[index]

    def look(self, now: float) -> Heartbeat:
        """Return the heartbeat to report, with the long steps."""
        busy = []
        for index, each in sorted(self._watched.copy().items()):
            steps = 0 if each.worker is None else each.worker.steps
            frame = sys._current_frames().get(each.thread) if steps == each.steps else None
            place = None if frame is None else place_of(frame)
            if place is None:
                each.steps, each.since = steps, now
            elif now - each.since >= BUSY_SECONDS:
                if each.worker is None:  # it has no operators yet
                    busy.append(LongStep(None, each.since, place.function, place.where))
                    continue
                found = place.function, place.where, place.operator, place.record, place.waits
                busy.append(LongStep(index, each.since, *found))
        return Heartbeat(now, tuple(busy))

    def _run(self) -> None:
        while True:
            self._tell(self.look(time.monotonic()))
            time.sleep(LOOK_SECONDS)
