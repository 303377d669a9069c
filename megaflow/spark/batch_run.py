"""Spark jobs, run in sequence on a thread, with the interface of a StreamingQuery; the titles of jobs in Spark."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1  # between attempts to cancel: a Spark job may start after the first one


def task_title(job: str, part: str) -> str:
    """Return how Spark's pages describe the tasks of a part of a job. `job` is its name, "" if it has none yet.

    >>> task_title("totals", "worker process 0"), task_title("", "results")
    ("megaflow: job 'totals', worker process 0", 'megaflow: results')
    """
    return f"megaflow: job {job!r}, {part}" if job else f"megaflow: {part}"


class BatchRun:
    """Spark jobs of one function."""

    def __init__(self, session: Any, title: str, run: Callable[[threading.Event], None]) -> None:
        """Call `run(stopping)`. When `stopping` is set, its Spark jobs are cancelled."""
        self._context = session.sparkContext
        self._title = title
        self._group = f"megaflow-{uuid.uuid4().hex}"
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), name="megaflow-batch", daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[threading.Event], None]) -> None:
        try:
            self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
            run(self._stopping)
        except Exception as error:
            self._error = error

    @property
    def isActive(self) -> bool:
        """Whether it has neither ended nor been asked to stop."""
        return self._thread.is_alive() and not self._stopping.is_set()

    def exception(self) -> Exception | None:
        """Return why it failed, once it has ended. None if it has not failed."""
        return self._error

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self._stopping.set()
        while self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(POLL_SECONDS)
