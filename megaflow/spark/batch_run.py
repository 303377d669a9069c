"""A batch DataFrame that feeds a job: one Spark job stages all of it, as batch 0. It is used as a StreamingQuery is."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1  # how late it is noticed that a job which is to end was not there yet


class BatchRun:
    """The job, on a thread of its own."""

    def __init__(self, frame: Any, stage: Callable[[Any, int], None]) -> None:
        """Start it: `stage(frame, 0)`."""
        self._context = frame.sparkSession.sparkContext
        self._group = f"megaflow-{uuid.uuid4().hex}"
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(frame, stage), name="megaflow-batch", daemon=True)
        self._thread.start()

    def _run(self, frame: Any, stage: Callable[[Any, int], None]) -> None:
        try:
            self._context.setJobGroup(self._group, "rows for a megaflow job", interruptOnCancel=True)
            stage(frame, 0)
        except Exception as error:
            self._error = error

    @property
    def isActive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Return why it failed, once it has ended."""
        return self._error

    def stop(self) -> None:
        """End it, and wait for that."""
        while self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(POLL_SECONDS)
