"""What a simulated process is made of: the program that it is given, its report, its threads, as they are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from megaflow.durable.commits import Fingerprint
from megaflow.job.exit_report import ExitReport
from megaflow.job.worker.child import Process as ChildProcess
from megaflow.job.worker.flow import App
from megaflow.job.worker.worker_program import WorkerProgram
from megaflow.program import Worker
from megaflow.timely.communication.local import Inbox

BESIDE_SECONDS = 0.1  # that a source takes to find partitions, at most


class GivenApp(App):
    """A function that needs no loading."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def function(self) -> Callable[[Any], Any]:
        """Return it."""
        assert self._function is not None
        return self._function

    def fingerprint(self, args: Sequence[str]) -> Fingerprint:
        """Return what all processes of the job run."""
        return Fingerprint("app.py:dataflow", tuple(args), {"app.py": "1"})


class ReportingProcess(ChildProcess):
    """The process's own part, whose report goes to the launcher without a pipe."""

    reported: ExitReport | None = None

    def report(self, report: ExitReport) -> None:
        """Keep the first."""
        self.reported = self.reported or report


@dataclass(eq=False)
class Life:
    """What one thread of a process does."""

    waits: Iterator[float | None]  # how long, each time
    program: WorkerProgram | None = None
    worker: Worker | None = None
    due: float | None = None  # seconds of the clock; None: something must come
    ready: Callable[[], bool] = bool  # whether what is waited for, beside messages, is there
    is_stepping: bool = True  # the worker; else only what comes after its end

    def can_go_on(self, now: float, inbox: Inbox | None) -> bool:
        """Tell whether there is something to do."""
        if (self.due is not None and self.due <= now) or self.ready():
            return True
        worker = self.worker
        if worker is None or inbox is None or not self.is_stepping:
            return False
        return bool(inbox._arrived) or inbox._woken or worker.has_work() or worker._scheduled.wait(None) == 0.0

    def due_at(self, now: float) -> float | None:
        """Return when there is something to do if nothing comes; None: never."""
        if self.worker is None or not self.is_stepping:
            return self.due
        wait = self.worker._scheduled.wait(None if self.due is None else max(0.0, self.due - now))
        return None if wait is None else now + wait


def run_beside(
    later: Callable[[Callable[[], None], float], None], task: Callable[[], Any], done: Callable[[], None]
) -> Future[Any]:
    """Run a function in a while, as a thread would; `done` is called afterwards."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(task())
        except Exception as error:
            future.set_exception(error)
        done()

    later(run, BESIDE_SECONDS)
    return future
