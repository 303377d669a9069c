"""The control stream as its only writer sees it: what is put on it, numbered and timed, and how long an epoch is.

Each issue has an epoch of its own: it is at the stream's present time, and that time is left at once. How long epochs
are otherwise:
1. A command waits for the end of its epoch, and so does what it waits for. While one is in force, while the membership
   changes, and while a batch of Spark's waits to be taken in, epochs are short.
2. They are short, too, while sources have data that came by itself: its latency is that of its epoch.
3. A source that is *saturated* always has more to read than it can: nobody waits for a line of it in particular, and
   what counts is throughput. Where several workers exchange records, each epoch costs a round of progress, and what
   arrives of the next one meanwhile lies in the stash of S until it is cold (measured with two processes: epochs of
   50 ms save a twentieth of the time). So epochs are longer, until something of 1 happens: that ends one at once.
4. An idle job ticks rarely, unless its output is still to come.
"""

from collections.abc import Iterable
from typing import Any

from megaflow.control.coordinator.events import Advance, Inject, Instruction
from megaflow.control.messages import Busy
from megaflow.megaphone.routing import Numbered

TICK_BUSY_SECONDS = 0.010  # the grain of epochs, and the least delay of a command
TICK_SATURATED_SECONDS = 0.050
TICK_IDLE_SECONDS = 0.250  # an idle job shall cost nothing
BUSY_SECONDS = 0.200  # sources report data every 100 ms at most; two of those
LAG_EPOCHS = 3  # a probe this far behind is settled: the source and the way to the probe each hold one


def is_settled(epoch: int, frontier: int | None, ended: bool) -> bool:
    """Tell whether the output is as far as it can be: all before `frontier` is complete, control is at `epoch`.

    `ended`: control is closed, so that all of the output should be complete.

    >>> is_settled(100, 98, False), is_settled(100, 42, False), is_settled(100, 98, True), is_settled(100, None, True)
    (True, False, False, True)
    """
    return frontier is None or (not ended and epoch - frontier <= LAG_EPOCHS)


class Pace:
    """When the next tick is due. All times are seconds of one clock.

    >>> pace = Pace()
    >>> pace.advanced(7.0)
    >>> [pace.due(urgent, lags=False, now=7.0) for urgent in (True, False)]
    [7.01, 7.25]
    """

    def __init__(self) -> None:
        self._advanced_at = float("-inf")
        self._busy_until = float("-inf")
        self._lively_until = float("-inf")  # until then a source is busy that is not saturated

    def busy(self, report: Busy, now: float) -> None:
        """Note that a source has data."""
        self._busy_until = now + BUSY_SECONDS
        if not report.saturated:
            self._lively_until = self._busy_until

    def advanced(self, now: float) -> None:
        """Note that an epoch begins."""
        self._advanced_at = now

    def due(self, urgent: bool, lags: bool, now: float) -> float:
        """Return when the present epoch is to end. `urgent`: something waits for that; `lags`: the output is late."""
        if urgent or now < self._lively_until:
            return self._advanced_at + TICK_BUSY_SECONDS
        if now < self._busy_until:
            return self._advanced_at + TICK_SATURATED_SECONDS
        return self._advanced_at + (TICK_BUSY_SECONDS if lags else TICK_IDLE_SECONDS)


class CommandStream:
    """What was put on the control stream. One writer: the controller."""

    def __init__(self) -> None:
        self.epoch = 0  # its present time
        self.next = 0  # the number of the next command
        self.issued = 0  # the epoch of the last one; at first that by which all have built the dataflow
        self.pace = Pace()

    def begin(self, epoch: int) -> None:
        """Let the stream begin here: its handle has been advanced to that time."""
        self.epoch = self.issued = epoch

    def advance(self, out: list[Instruction], now: float) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.pace.advanced(now)
        out.append(Advance(self.epoch))

    def issue(self, commands: Iterable[Any], out: list[Instruction], now: float) -> int:
        """Inject commands at the present time and leave it; return that time."""
        epoch = self.epoch
        for command in commands:
            out.append(Inject(Numbered(self.next, command)))
            self.next += 1
        self.issued = epoch
        self.advance(out, now)
        return epoch
