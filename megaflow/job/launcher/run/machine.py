"""What the attempts of a job share: the launcher's access to its machine, and the parts that outlast an attempt.

A simulated job replaces the machine: clocks, selector and threads.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable
from dataclasses import field

from megaflow.job.job_file import Job, republish
from megaflow.job.launcher import store
from megaflow.job.launcher.inputs.line_reader import LineReader
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import DrainLimit
from megaflow.job.launcher.processes.stop_request import Stop
from megaflow.job.launcher.processes.wakeups import Signals, Wakeup
from megaflow.job.reachable import trouble_of
from megaflow.job.spec import Address
from megaflow.quick_dataclass import dataclass
from megaflow.spark import launching as spark
from megaflow.timely.communication.poller import SignalSelector


def on_a_thread(name: str, call: Callable[[], None]) -> None:
    """Call a slow function on a separate thread that nothing waits for."""
    threading.Thread(target=call, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Machine:
    """Clocks, selector and threads. Each attribute has the signature of the class or function that is its default."""

    now: Callable[[], float] = time.monotonic  # seconds of a clock that only goes forward
    wall: Callable[[], float] = time.time  # seconds of a clock that other programs also read
    selector: Callable[[], selectors.BaseSelector] = SignalSelector
    wakeup: Callable[[], Wakeup] = Wakeup
    reader: Callable[..., LineReader] = LineReader
    stop: Callable[..., Stop] = Stop
    feed: Callable[..., spark.SparkFeed] = lambda *given: spark.SparkFeed(*given)  # the first call loads its module
    child: Callable[[Address], Child] = Child  # for a process started by hand
    aside: Callable[[str, Callable[[], None]], None] = on_a_thread
    trouble: Callable[[Address], str] = trouble_of  # with connecting to an address; blocks
    publish: Callable[[Job], None] = republish  # publishes the job's new address


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts of a job that outlast an attempt."""

    children: Children
    output: OutputQueue
    signals: Signals
    report: Callable[[str], None]  # prints for the user
    drain_limit: DrainLimit
    keeper: store.StoreKeeper | None = None  # None: the job is not durable
    machine: Machine = field(default_factory=Machine)

    def published(self, job: Job, news: str = "") -> Job:
        """Publish the job's address, and whether it recovers; return the job. `news` begins the report of a failure."""
        try:
            with self.signals.held():
                self.machine.publish(job)
        except OSError as error:
            self.report(f"{news}the job's file could not be updated: {error}")
        return job
