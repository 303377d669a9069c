"""Parts of a simulated process: its given program, its report, and its threads, which are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from megaflow.durable.commits import Fingerprint
from megaflow.job.exit_report import ExitReport
from megaflow.job.worker.process.child import Process as ChildProcess
from megaflow.job.worker.process.program_loading import App
from megaflow.job.worker.process.worker_program import WorkerProgram
from megaflow.program import Worker
from megaflow.timely.communication.local import Inbox

BESIDE_SECONDS = 0.1  # at most, for a source to find partitions


class GivenApp(App):
    """Function that needs no loading."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def function(self) -> Callable[[Any], Any]:
        """Return the function."""
        assert self._function is not None
        return self._function

    def fingerprint(self, args: Sequence[str]) -> Fingerprint:
        """Return the same fingerprint in all processes of the job."""
        return Fingerprint("app.py:dataflow", tuple(args), {"app.py": "1"})


class ReportingProcess(ChildProcess):
    """The process's own part. It reports to the launcher without a pipe."""

    reported: ExitReport | None = None

    def report(self, report: ExitReport) -> None:
        """Keep the first report."""
        self.reported = self.reported or report


@dataclass(eq=False)
class Life:
    """Steps of one thread of a process."""

    waits: Iterator[float | None]  # seconds of each wait
    program: WorkerProgram | None = None
    worker: Worker | None = None
    due: float | None = None  # seconds of the clock; None: something must arrive
    ready: Callable[[], bool] = bool  # whether something other than messages has arrived
    is_stepping: bool = True  # step the worker; otherwise only the work after its end is left

    def can_go_on(self, now: float, inbox: Inbox | None) -> bool:
        """Return whether there is something to do."""
        if (self.due is not None and self.due <= now) or self.ready():
            return True
        worker = self.worker
        if worker is None or inbox is None or not self.is_stepping:
            return False
        return bool(inbox._arrived) or inbox._woken or worker.has_work() or worker._scheduled.wait(None) == 0.0

    def due_at(self, now: float) -> float | None:
        """Return when there is something to do if nothing arrives; None: never."""
        if self.worker is None or not self.is_stepping:
            return self.due
        wait = self.worker._scheduled.wait(None if self.due is None else max(0.0, self.due - now))
        return None if wait is None else now + wait


def run_beside(
    later: Callable[[Callable[[], None], float], None], task: Callable[[], Any], done: Callable[[], None]
) -> Future[Any]:
    """Run a function after a while, as a thread would; then call `done`."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except Exception as error:
            future.set_exception(error)
        done()

    later(run, BESIDE_SECONDS)
    return future
