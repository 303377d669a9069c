"""Waits for file descriptors of the program's sources, in a thread that begins with the first one.

Not by the poller of the process: that belongs to one of its workers, and what it watches must not be closed by others.
A descriptor is watched once: when it can be read, or is broken, its calls are made, by this thread, and it is
forgotten. Whoever closes it forgets it first, so that the number may stand for another file then: a wait that is under
way with the old one finds no call.
"""

import os
import select
from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeAlias

Call: TypeAlias = Callable[[], None]


class FileWatch:
    """The descriptors that one worker waits for. To be closed."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards the next two
        self._calls: dict[int, list[Call]] = {}  # descriptor -> whom to call when it can be read
        self._closed = False
        self._pipe: tuple[int, int] | None = None  # to end a wait; None: there is no thread yet

    def add(self, fd: int, call: Call) -> None:
        """Call this once, from a thread, when the descriptor can be read; at once if it is none."""
        with self._lock:
            self._calls.setdefault(fd, []).append(call)
        if self._pipe is None:
            self._pipe = os.pipe()
            Thread(target=self._run, name="megaflow-sources", daemon=True).start()
        self._wake()

    def forget(self, fd: int, call: Call) -> None:
        """Make this call for it no more; harmless if it was made."""
        with self._lock:
            calls = self._calls.get(fd, [])
            if call in calls:
                calls.remove(call)
            if not calls:
                self._calls.pop(fd, None)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
        if self._pipe is not None:
            self._wake()

    def _wake(self) -> None:
        assert self._pipe is not None, "the thread has begun"
        os.write(self._pipe[1], b"\0")

    def _run(self) -> None:
        assert self._pipe is not None, "it was made for the thread"
        near, far = self._pipe
        while True:
            with self._lock:
                if self._closed:
                    break
                watched = list(self._calls)
            poller = select.poll()
            for fd in (near, *watched):
                poller.register(fd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd == near:
                    os.read(near, 4096)
                    continue
                with self._lock:
                    calls = self._calls.pop(fd, [])
                for call in calls:
                    call()
        os.close(near)
        os.close(far)
