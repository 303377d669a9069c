"""Spark jobs, run in sequence on a thread, with the interface of a StreamingQuery."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

POLL_SECONDS = 0.1  # how late it is noticed that a job which is to end was not there yet


class BatchRun:
    """The jobs of one function."""

    def __init__(self, session: Any, title: str, run: Callable[[threading.Event], None]) -> None:
        """Call `run(stopping)`; what it has Spark do is ended when that is set."""
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
        """Whether it has not ended."""
        return self._thread.is_alive()

    def exception(self) -> Exception | None:
        """Return why it failed, once it has ended."""
        return self._error

    def stop(self) -> None:
        """End it, and wait for that."""
        self._stopping.set()
        while self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(POLL_SECONDS)
