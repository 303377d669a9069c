"""The machine as the launcher's loop sees it. A simulated job replaces it."""

import selectors
import threading
import time
from collections.abc import Callable

from megaflow.job.job_file import Job
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.line_reader import LineReader
from megaflow.job.launcher.stop_request import Stop
from megaflow.job.launcher.wakeups import Wakeup
from megaflow.job.spec import Address
from megaflow.quick_dataclass import dataclass
from megaflow.spark.source import SparkFeed


def on_a_thread(name: str, call: Callable[[], None]) -> None:
    """Have something done on a thread of its own, as it may take long; nobody waits for it."""
    threading.Thread(target=call, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Machine:
    """Clock, selector, threads; each is made or called as the class or function that it stands for."""

    now: Callable[[], float] = time.monotonic  # seconds of a clock that only goes forward
    wall: Callable[[], float] = time.time  # seconds of a clock that others read, too
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector
    wakeup: Callable[[], Wakeup] = Wakeup
    reader: Callable[..., LineReader] = LineReader
    stop: Callable[..., Stop] = Stop
    feed: Callable[..., SparkFeed] = SparkFeed
    child: Callable[[Address], Child] = Child  # one that was started by hand
    aside: Callable[[str, Callable[[], None]], None] = on_a_thread
    publish: Callable[[Job], None] | None = None  # tells where the job is by now; None: by its file
