"""The end of event time: the last watermark, and whether everything closes then. A part of `watermarks`.

1. When all lines are read and processed, the coordinator asks all sources for the maxima that they have not reported
   (`TellMaxima`). Then the watermark rises to the greatest bound (maximum - out_of_order) of all partitions that the
   job has read, in all its attempts. So it does not depend on which partition was read to its end first, or on when
   workers reported.
2. If the job keeps no state, everything closes then, because nothing else would ever close it. A job that keeps its
   state may continue with more lines. Windows that the watermark has not reached stay open, unless the user asks to
   close them.
3. If the job keeps no state, a stop closes everything, unless the user prevents it. (A job that keeps its state takes
   a last checkpoint instead, and does not use this module.) Operators learn that it was a stop. Some records of a
   window that closes then may be unread, so its result is not final.
4. The last checkpoint of an attempt contains all that is known at its end; every checkpoint contains the greatest
   bound.
"""

from collections.abc import Iterable

from megaflow.control.coordinator.reading.idle_time import MICROS
from megaflow.control.watermark_messages import TellMaxima
from megaflow.megaphone.base.event_unit import INFINITE, NEVER
from megaflow.megaphone.base.routing import Watermark
from megaflow.timely.membership import WorkerId


class EventTimeEnd:
    """What the end of a job needs to know about event time. One writer: `Watermarks`, except for `drains`.

    >>> end = EventTimeEnd(closes=False, bound=None)
    >>> end.see(107, 10), end.see(90, 0), end.bound, end.greatest
    (None, None, 97, 107)
    >>> end.lag(90), end.lag(1_000_000), end.lag(None)
    (1.7e-05, 0.0, None)
    >>> end.ask([0, 1]), end.has_all([0, 1]), end.told(0), end.has_all([0])
    ([TellMaxima()], False, None, True)
    """

    def __init__(self, closes: bool, bound: int | None, furthest: int | None = None) -> None:
        """`closes`: see rule 2; `bound`: the greatest of all partitions that earlier attempts have read.

        `furthest`: the greatest timestamp that they have seen.
        """
        self.closes = closes
        self.drains = True  # whether a stop closes everything; written by the controller
        self.bound = bound  # microseconds, the greatest of all partitions, if any
        self.furthest = furthest  # microseconds, the greatest timestamp in all attempts, if any
        self.greatest: int | None = None  # microseconds, the greatest timestamp in this attempt, if any
        self._owing: set[WorkerId] | None = None  # workers whose sources still owe their maxima; None: not asked

    def see(self, micros: int, out_of_order: int) -> None:
        """Record the maximum of a partition."""
        self.greatest = micros if self.greatest is None else max(micros, self.greatest)
        self.furthest = self.greatest if self.furthest is None else max(self.greatest, self.furthest)
        bound = micros - out_of_order
        self.bound = bound if self.bound is None else max(bound, self.bound)

    def lag(self, micros: int | None) -> float | None:
        """Return by how many seconds a time is behind the greatest timestamp; None if no record was seen."""
        return None if micros is None or self.greatest is None else max(0, self.greatest - micros) / MICROS

    def ask(self, sources: Iterable[WorkerId]) -> list[TellMaxima]:
        """Return the command that asks these sources; nothing if it was issued before."""
        if self._owing is not None:
            return []
        self._owing = {*sources}
        return [TellMaxima()]

    def told(self, source: WorkerId) -> None:
        """Record that a source has reported all its maxima."""
        if self._owing is not None:
            self._owing.discard(source)

    def has_all(self, sources: Iterable[WorkerId]) -> bool:
        """Tell whether all of these sources that were asked have reported."""
        return self._owing is not None and self._owing.isdisjoint(sources)

    def commands(self, stops: bool) -> list[Watermark]:
        """Return the watermark that closes everything, if it must. `stops`: the user stopped the job; else it ended."""
        if not (self.drains if stops else self.closes):
            return []
        return [Watermark(INFINITE, NEVER if self.greatest is None else self.greatest, by_stop=stops)]
