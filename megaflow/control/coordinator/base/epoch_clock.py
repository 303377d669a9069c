"""The control stream as its only writer sees it: the numbers and times of its commands, and the length of its epochs.

Each issue of commands has its own epoch. It goes on the stream at the present time, and the stream leaves that time at
once. Otherwise the length of an epoch follows these rules:
1. A command waits for the end of its epoch, and so do the steps on which it depends. So epochs are short while a
   command is in force, the membership changes, or a Spark batch waits to be taken in.
2. Epochs are also short while sources have data that arrived by itself, because its latency is that of its epoch.
3. A *saturated* source always has more to read than it can. No client waits for one particular line of it, so
   throughput counts. If several workers exchange records, each epoch costs a round of progress. Meanwhile records of
   the next epoch lie in the stash of S until they are out of the cache. So epochs are longer (measured with two
   processes: epochs of 50 ms save a twentieth of the time). Anything in rule 1 makes the present epoch short.
4. An idle job ticks rarely, unless its output is incomplete.
"""

from typing import Any

from megaflow.control.coordinator.base.events import Advance, Inject, Instruction
from megaflow.control.messages import Busy
from megaflow.megaphone.base.routing import Numbered

TICK_BUSY_SECONDS = 0.010  # length of a short epoch, and the least delay of a command
TICK_SATURATED_SECONDS = 0.050
TICK_IDLE_SECONDS = 0.250  # long, so that an idle job costs almost nothing
BUSY_SECONDS = 0.200  # two intervals between reports: sources report data at most every 100 ms
LAG_EPOCHS = 3  # a probe this far behind is settled: the source and the path to the probe each hold one


def is_settled(epoch: int, frontier: int | None, ended: bool) -> bool:
    """Tell whether the output, complete before `frontier`, is as far as it can be with control at `epoch`.

    `ended`: control is closed, so all of the output should be complete.

    >>> is_settled(100, 98, False), is_settled(100, 42, False), is_settled(100, 98, True), is_settled(100, None, True)
    (True, False, False, True)
    """
    return frontier is None or (not ended and epoch - frontier <= LAG_EPOCHS)


class Pace:
    """Pace of the ticks: it computes when the next one is due. All times are seconds of one clock.

    >>> pace = Pace()
    >>> pace.advanced(7.0)
    >>> [pace.due(urgent, lags=False, now=7.0) for urgent in (True, False)]
    [7.01, 7.25]
    """

    def __init__(self) -> None:
        self._advanced_at = float("-inf")
        self._busy_until = float("-inf")
        self._lively_until = float("-inf")  # until then an unsaturated source is busy

    def busy(self, report: Busy, now: float) -> None:
        """Record that a source has data."""
        self._busy_until = now + BUSY_SECONDS
        if not report.saturated:
            self._lively_until = self._busy_until

    def advanced(self, now: float) -> None:
        """Record that an epoch begins."""
        self._advanced_at = now

    def due(self, urgent: bool, lags: bool, now: float) -> float:
        """Return when the present epoch should end. `urgent`: something waits for it; `lags`: the output is behind."""
        if urgent or now < self._lively_until:
            return self._advanced_at + TICK_BUSY_SECONDS
        if now < self._busy_until:
            return self._advanced_at + TICK_SATURATED_SECONDS
        return self._advanced_at + (TICK_BUSY_SECONDS if lags else TICK_IDLE_SECONDS)


class CommandStream:
    """Numbers and times of the commands on the control stream. One writer: the controller.

    The commands stand among the other instructions of an event: all parts of the controller add theirs to `out`.
    """

    def __init__(self) -> None:
        self.out: list[Instruction] = []  # of the event that is being handled, in order
        self.now = 0.0  # seconds: the time of that event
        self.epoch = 0  # the stream's present time
        self.next = 0  # the number of the next command
        self.issued = 0  # the epoch of the last command; at first the one by which all workers have built the dataflow
        self.pace = Pace()

    def begin(self, epoch: int) -> None:
        """Begin the stream at this epoch, to which the caller has advanced its handle."""
        self.epoch = self.issued = epoch

    def advance(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.pace.advanced(self.now)
        self.out.append(Advance(self.epoch))

    def issue(self, *commands: Any) -> int:
        """Issue commands at the present time, and leave that time; return it."""
        self.issued = self.epoch
        for command in commands:
            self.out.append(Inject(Numbered(self.next, command)))
            self.next += 1
        self.advance()
        return self.issued
