"""How event time ends: what the last watermark is, and whether everything closes then. A part of `watermarks`.

1. When all lines are read and worked off, all sources are asked for the maxima that they have not reported
   (`TellMaxima`). Then the watermark rises to the greatest bound (maximum - out_of_order) of all partitions that the
   job has read, in all its lives. So it does not depend on which partition was read to its end first, or on when
   workers reported.
2. Then everything closes if the job keeps nothing, as nothing else would ever close it. A job that keeps its state may
   go on with more lines: what the watermark has not reached stays open, unless the user wants it to be closed.
3. A stop of a job that keeps nothing closes everything, unless the user does not want that. (One that keeps its state
   takes a last checkpoint instead, and comes here no more.)
4. All that is known at the end of a life is in its last checkpoint, and the greatest bound is in every one.
"""

from collections.abc import Iterable

from megaflow.control.coordinator.idle_time import MICROS
from megaflow.control.watermark_messages import TellMaxima
from megaflow.megaphone.event_unit import INFINITE, NEVER
from megaflow.megaphone.routing import Watermark
from megaflow.timely.membership import WorkerId


class EventTimeEnd:
    """What the end of a job needs to know of event time. One writer: `Watermarks`, but for `drains`.

    >>> end = EventTimeEnd(closes=False, bound=None)
    >>> end.see(107, 10), end.see(90, 0), end.bound, end.greatest
    (None, None, 97, 107)
    >>> end.lag(90), end.lag(1_000_000), end.lag(None)
    (1.7e-05, 0.0, None)
    >>> end.ask([0, 1]), end.has_all([0, 1]), end.told(0), end.has_all([0])
    ([TellMaxima()], False, None, True)
    """

    def __init__(self, closes: bool, bound: int | None) -> None:
        """`closes`: see rule 2; `bound`: the greatest of all partitions that were read before."""
        self.closes = closes
        self.drains = True  # whether a stop closes everything; written by the controller
        self.bound = bound  # microseconds, the greatest of all partitions; None: nothing was seen
        self.greatest: int | None = None  # timestamp that was seen in this life, in microseconds; None: likewise
        self._owing: set[WorkerId] | None = None  # whose sources have still to tell their maxima; None: not asked

    def see(self, micros: int, out_of_order: int) -> None:
        """Take in the maximum of a partition."""
        self.greatest = micros if self.greatest is None else max(micros, self.greatest)
        bound = micros - out_of_order
        self.bound = bound if self.bound is None else max(bound, self.bound)

    def lag(self, micros: int | None) -> float | None:
        """Return by how many seconds a time is behind the greatest timestamp; None: nothing was seen."""
        return None if micros is None or self.greatest is None else max(0, self.greatest - micros) / MICROS

    def ask(self, sources: Iterable[WorkerId]) -> list[TellMaxima]:
        """Return what is to be issued to ask these sources, once."""
        if self._owing is not None:
            return []
        self._owing = {*sources}
        return [TellMaxima()]

    def told(self, source: WorkerId) -> None:
        """Note that a source has told all."""
        if self._owing is not None:
            self._owing.discard(source)

    def has_all(self, sources: Iterable[WorkerId]) -> bool:
        """Tell whether all of these sources that were asked have told."""
        return self._owing is not None and self._owing.isdisjoint(sources)

    def commands(self, stops: bool) -> list[Watermark]:
        """Return what closes everything, if that is to be done. `stops`: the job was told to, else it has ended."""
        if not (self.drains if stops else self.closes):
            return []
        return [Watermark(INFINITE, NEVER if self.greatest is None else self.greatest)]
