"""A thread that sees when a worker of its process is in one step for long, and says where.

It looks at each worker twice a second: whether its count of steps has moved and, if not, what its thread runs. So a
step costs nothing for it, and how long a worker is busy is known to LOOK_SECONDS. The thread is at work from the start
of the process, also while the program is imported and the dataflow built.

It runs no code of the user's (see `megaflow.timely.dataflow.running_place`), and where it cannot run, as beside C code
that holds the interpreter's lock, its silence tells.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megaflow.job.sign_of_life import LongStep, SignOfLife
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.running_place import place_of

LOOK_SECONDS = 0.5
WATCHDOG = "megaflow-watchdog"  # the thread
BUSY_SECONDS = 1.0  # of one step, from when it is worth telling


@dataclass(slots=True)
class WatchedWorker:
    """A worker; written by the watchdog."""

    worker: Worker
    thread: int
    steps: int = -1  # that it had done
    since: float = 0.0  # when it was first seen to have done so many, and to do something


class Watchdog:
    """Watches the workers of one process."""

    def __init__(self, tell: Callable[[SignOfLife], None]) -> None:
        """`tell` is told each time, on the watchdog's thread."""
        self._tell = tell
        self._watched: dict[int, WatchedWorker] = {}  # worker -> what is known; put and taken out by the workers

    def start(self) -> None:
        """Begin; it ends with the process."""
        threading.Thread(target=self._run, name=WATCHDOG, daemon=True).start()

    @contextmanager
    def watching(self, worker: Worker) -> Iterator[None]:
        """Watch a worker, which calls this on its own thread, during the block."""
        self._watched[worker.index] = WatchedWorker(worker, threading.get_ident())
        try:
            yield
        finally:
            del self._watched[worker.index]

    def look(self, now: float) -> SignOfLife:
        """Return what is to be told."""
        busy = []
        for index, each in sorted(self._watched.copy().items()):
            steps = each.worker.steps
            frame = sys._current_frames().get(each.thread) if steps == each.steps else None
            place = None if frame is None else place_of(frame)
            if place is None:
                each.steps, each.since = steps, now
            elif now - each.since >= BUSY_SECONDS:
                busy.append(LongStep(index, each.since, place.function, place.where, place.operator, place.record))
        return SignOfLife(now, tuple(busy))

    def _run(self) -> None:
        while True:
            self._tell(self.look(time.monotonic()))
            time.sleep(LOOK_SECONDS)
