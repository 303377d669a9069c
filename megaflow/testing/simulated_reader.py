"""Inputs that the launcher of a simulated job itself reads: a few lines or items at a time, and sometimes none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megaflow.job.launcher.inputs.line_reader import LineReader
from megaflow.job.launcher.inputs.pulled_source import PulledSource
from megaflow.testing.simulated_process import World

LINES_SECONDS = 0.05  # at most, until more lines arrive
_FEW = 200  # lines; after each of these, `take` may return one line more, so that a run takes seconds


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause among lines or items: the next one comes after this many seconds of the simulated clock."""

    seconds: float


class SimulatedReader(LineReader):
    """Reader that pulls lines or items when the launcher's loop asks for them; there is no thread."""

    def __init__(self, world: World, source: PulledSource, wake: Callable[[], None]) -> None:
        self._items = iter(source)
        self._form: Callable[[Any], str | bytes] = source.form  # type: ignore[attr-defined]  # of lines and of items
        self._left: deque[str | bytes | Wait] = deque()  # pulled but not taken
        self._error: Exception | None = None  # the source's error, which comes after these
        self._has_more = True
        self._count = 0  # number taken
        self._due = 0.0  # clock seconds when more have come
        self._world = world
        self._wake = wake

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def take(self) -> tuple[list[str | bytes], int] | None:
        """Return the next lines, and their bytes; no lines if there are none yet, None after the last one.

        Raises the source's error, after the lines before it are taken.
        """
        self._look_ahead(1)
        if not self._left:
            if self._error is not None:
                raise self._error
            return None
        random, now = self._world.random, self._world.now()
        count = random.randint(1, 3) + self._count // _FEW if now >= self._due else 0
        self._look_ahead(count)
        lines: list[str | bytes] = []
        wait = None
        while self._left and len(lines) < count and wait is None:
            match self._left.popleft():
                case Wait(seconds):
                    wait = seconds
                case line:
                    lines.append(line)
        self._count += len(lines)
        if wait is not None:
            self._due = now + wait
            self._world.later(self._wake, wait, at_most=False)
        elif lines:
            self._due = now + random.random() * LINES_SECONDS
        elif self._due > now + LINES_SECONDS:
            self._world.later(self._wake, self._due - now, at_most=False)
        else:
            self._world.later(self._wake, LINES_SECONDS)
        return lines, sum(map(len, lines)) + len(lines)

    def _look_ahead(self, count: int) -> None:
        while self._has_more and len(self._left) < count:
            try:
                item = next(self._items)
                self._left.append(item if isinstance(item, Wait) else self._form(item))
            except StopIteration:
                self._has_more = False
            except Exception as error:
                self._error, self._has_more = error, False

    @property
    def is_at_work(self) -> bool:
        """Whether something was pulled that is not yet among the lines."""
        return False

    def end(self) -> None:
        """Stop pulling. The items that were pulled can still be taken."""
        self._has_more = False

    def stop(self) -> None:
        """Do nothing: `take` pulls only on request."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""
