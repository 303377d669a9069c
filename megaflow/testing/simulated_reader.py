"""Inputs that the launcher of a simulated job reads itself: lines or items, a few at a time, and sometimes none yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megaflow.job.launcher.line_reader import LineReader
from megaflow.job.launcher.pulled_source import PulledSource
from megaflow.testing.simulated_process import World

LINES_SECONDS = 0.05  # at most, until more lines have come
_FEW = 200  # lines; after each so many it gives one more at a time, so that a run takes seconds


@dataclass(frozen=True, slots=True)
class Wait:
    """Pause among lines or items: the next one comes so many seconds later, by the simulated clock."""

    seconds: float


class SimulatedReader(LineReader):
    """Pulls lines or items when the launcher's loop asks for them; there is no thread."""

    def __init__(self, world: World, source: PulledSource, wake: Callable[[], None]) -> None:
        self._items = iter(source)
        self._form: Callable[[Any], str | bytes] = source.form  # type: ignore[attr-defined]  # of lines and of items
        self._left: deque[str | bytes | Wait] = deque()  # that were pulled and not taken
        self._error: Exception | None = None  # what the source has raised behind these
        self._has_more = True
        self._count = 0  # that were taken
        self._due = 0.0  # seconds of the clock: when more have come
        self._world = world
        self._wake = wake

    def start(self) -> None:
        """Begin."""

    def take(self) -> tuple[list[str | bytes], int] | None:
        """Return the next lines, and their bytes; no lines if there are none yet, None after the last one.

        Raises what the source has raised, once the lines before are taken.
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
        """Whether something was pulled that is not among the lines."""
        return False

    def end(self) -> None:
        """Stop pulling. The items that were pulled can still be taken."""
        self._has_more = False

    def stop(self) -> None:
        """Read no more."""

    def close(self) -> None:
        """There is nothing to close."""
