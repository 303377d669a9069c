"""Figures of a job for the metrics of the query that reads its results.

A thread asks for the job's status once a second, and at once if a query asks (`watch_figures`). The query gets the
answer if it comes soon. Otherwise it gets the figures that are known. After the workers' last reports, these have the
figures of the whole job.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from megaflow.control.launcher_messages import Ended
from megaflow.control.reports import JobStatus
from megaflow.control.results_messages import JobFigures
from megaflow.errors import JobNotFound, MegaflowError
from megaflow.job.job_file import find
from megaflow.job.launcher.processes.wakeups import call_later
from megaflow.job.watching import Wanted, Watcher
from megaflow.rows.row_values import EPOCH_UTC, MICROSECOND, spark_time

TIMEOUT_SECONDS: Final = 10.0  # for the job to answer
PATIENCE_SECONDS: Final = 0.5  # of a query that asks


class ResultFigures:
    """Newest figures of a job.

    >>> figures = ResultFigures()
    >>> figures.note_end(Ended(0, lines=5, records=5, keys=2, state_bytes=80))
    >>> figures.newest.rows_in, figures.newest.state_rows, figures.newest.workers
    (5, 2, 1)
    """

    def __init__(self) -> None:
        self._noted = JobFigures()  # from the job's status; one thread writes it
        self._ended: list[Ended] = []  # of this attempt's workers; the launcher's thread appends
        self._is_watched = False  # whether a thread asks for the status; that thread writes it
        self._wanted = threading.Event()  # a query asks
        self._asking: deque[Callable[[], None]] = deque()  # calls of queries that wait
        self._due = list[Callable[[], None]]()  # of these, those that asked before the next status was asked for

    def note_status(self, status: JobStatus, restarts: int) -> None:
        """Note a status. One thread calls this."""
        if restarts != (self._noted.restarts or 0):
            self._ended = []  # their rows are read again
        if not status.workers:
            return
        loads = [each.load for each in status.operators if each.load is not None]
        watermark = None if status.watermark is None or status.watermark.is_infinite else status.watermark.micros
        self._noted = JobFigures(
            sum(each.lines for each in status.workers) + sum(status.taken_before.values()),
            sum(each.keys for each in status.workers),
            sum(sum(load.bytes) for load in loads),
            sum(used.late for each in status.workers for used in each.useful.values()),
            restarts,
            len(status.workers),
            self._noted.watermark if watermark is None else spark_time(EPOCH_UTC + watermark * MICROSECOND),
        )

    def ask(self, ready: Callable[[], None]) -> None:
        """Call `ready`, perhaps twice, when the figures are new, or will not be soon. Any thread."""
        if not self._is_watched:
            ready()
            return
        self._asking.append(ready)
        self._wanted.set()
        call_later(PATIENCE_SECONDS, ready)

    def watch(self, statuses: Iterable[JobStatus], restarts: Callable[[], int]) -> None:
        """Note statuses until they end."""
        self._is_watched = True
        try:
            for status in statuses:
                self.note_status(status, restarts())
                self._tell(self._due)
        finally:
            self._is_watched = False
            self._tell(list(self._asking))

    def pause(self, seconds: float) -> None:
        """Wait before the next status is asked for, but not if a query asks."""
        self._wanted.wait(seconds)
        self._wanted.clear()
        self._due = list(self._asking)

    def _tell(self, asking: list[Callable[[], None]]) -> None:
        self._due = []
        for ready in asking:
            self._asking.remove(ready)
            ready()

    def note_end(self, ended: Ended) -> None:
        """Note the last report of a worker. The launcher's thread calls this."""
        self._ended.append(ended)

    @property
    def newest(self) -> JobFigures:
        """The figures. Any thread."""
        noted, ended = self._noted, self._ended[:]
        rows = sum(each.lines for each in ended)
        if not ended or rows < (noted.rows_in or 0):  # some workers have not ended
            return noted
        late = sum(sum(each.left_out.late.values()) for each in ended)
        return JobFigures(
            rows, sum(each.keys for each in ended), sum(each.state_bytes for each in ended),
            max(late, noted.late_rows or 0), noted.restarts or 0, noted.workers or len(ended), noted.watermark,
        )  # fmt: skip


def watch_figures(job: str, figures: ResultFigures) -> None:
    """Keep the figures of a job up to date, in a thread of its own, until the job has ended."""

    def work() -> None:
        wanted = Wanted(events=False, tables=False, ledger=False)
        seen = Watcher((job, None, TIMEOUT_SECONDS), wanted, pause=figures.pause).watch()
        with contextlib.suppress(MegaflowError):  # it has ended
            figures.watch((each for each in seen if isinstance(each, JobStatus)), partial(restarts_of, job))

    threading.Thread(target=work, name="megaflow-figures", daemon=True).start()


def restarts_of(job: str) -> int:
    """Return how often a job has restarted after a loss; 0 if it has ended."""
    try:
        return max(0, find(job).attempt - 1)
    except JobNotFound:
        return 0
