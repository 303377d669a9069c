"""Retry: how an operator waits for an outside that does not announce itself, such as a file that grows."""

from collections.abc import Callable

from megaflow.timely.dataflow.activator import Activator

_SHORTEST_SECONDS = 0.001
_LONGEST_SECONDS = 0.02
"""The longest that news can lie unseen; 50 idle runs a second cost two percent of a core (measured, caches cold)."""


class Retry:
    """Runs an operator again after pauses that grow from one millisecond to twenty.

    Invariant: at most one run is planned at a time, however often `later` is called.
    """

    __slots__ = ("_activator", "_due", "_now", "_pause")

    def __init__(self, activator: Activator, now: Callable[[], float]) -> None:
        self._activator = activator
        self._now = now
        self._due = now()  # of the run planned last, seconds
        self._pause = _SHORTEST_SECONDS

    def later(self) -> None:
        """Run the operator again after a pause, longer than the one before."""
        now = self._now()
        if now >= self._due:
            self._due = now + self._pause
            self._activator.activate_after(self._pause)
            self._pause = min(2 * self._pause, _LONGEST_SECONDS)

    def reset(self) -> None:
        """There was something: the next pause is the shortest again."""
        self._pause = _SHORTEST_SECONDS
