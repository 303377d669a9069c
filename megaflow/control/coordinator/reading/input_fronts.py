"""The progress of each input's files in event time, and how far inputs may be read ahead of each other: `--max-skew`.

A worker reads the slowest of its own inputs first (`megaflow.job.worker.reading.reading_turns`), and does not know what
other workers read. With a skew, the coordinator sends all workers a limit for each input.

1. The *front* of an input is the greatest bound that any of its files has reached, by the maxima that workers report.
   It never falls. So a late report makes a limit smaller than it could be, but never too great.
2. An input *counts* while a worker has a file of it and its front has risen in the last STILL_SECONDS. Only files
   count, because a worker can read them at any time. The records of a source may be still to come.
3. The limit of an input is the least front of the others that count, plus the skew. A worker reads no batch of a file
   whose bound is above the limit of its input. So while two inputs count, no file of one is ahead of the front of the
   other by more than the skew and the batches that are under way to the operators.
4. No input waits forever. Files of the input with the least front are never above its limit. If its worker is
   absent or busy, or reads a slower input first, that front stands still. After STILL_SECONDS it no longer counts, and
   the other inputs go on.
5. A coordinator that takes over knows no fronts, and lifts the limits until it does.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from megaflow.control.coordinator.base.job_state import TimedOperator
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.reading_messages import ReadLimits
from megaflow.control.watermark_messages import Partition
from megaflow.megaphone.base.event_unit import NEVER

PERIOD_SECONDS: Final = 0.1
"""The least time between two changes of the limits, because each costs a round of progress."""
STILL_SECONDS: Final = 2.0
"""Longer than reports, epochs and limits take together. So an input counts all the time while workers read it."""


def limits_of(fronts: Mapping[str, int], inputs: Iterable[str], skew: int) -> dict[str, int]:
    """Return the limit of each input, given the fronts that count; an input that the result lacks has no limit.

    >>> limits_of({"a": 10, "b": 70}, "abc", 5), limits_of({"a": 10}, "abc", 5)
    ({'a': 75, 'b': 15, 'c': 15}, {'b': 15, 'c': 15})
    """
    least = {each: min((fronts[other] for other in fronts if other != each), default=None) for each in inputs}
    return {each: front + skew for each, front in least.items() if front is not None}


class InputFronts:
    """The fronts of one job. One writer: its watermarks."""

    def __init__(self, skew: int | None, operators: Mapping[str, TimedOperator], lines: LinesToRead) -> None:
        """`skew`: microseconds; None: there are no limits, and this object notes nothing."""
        self._skew = skew
        self._operators = operators
        self._followed = sorted({input for each in operators.values() for input in each.inputs})
        self._lines = lines
        self._inputs: dict[int, str] = {}  # number of a file that was unread at the first report -> its input
        self._fronts: dict[str, int] = {}  # input -> microseconds
        self._rose: dict[str, float] = {}  # input -> seconds, when its front rose last
        self._told: dict[str, int] | None = None  # limits as they were issued last; None: not yet here
        self._issued = float("-inf")  # seconds

    def see(self, operator: str, maxima: Iterable[tuple[Partition, int]], now: float) -> None:
        """Record the maxima that an operator has seen."""
        if self._skew is None:
            return
        if not self._inputs:
            self._inputs = {split.number: split.input for split, _ in self._lines.unread}
        for (kind, number), micros in maxima:
            input = self._inputs.get(number) if kind == "split" and isinstance(number, int) else None
            front = micros - self._operators[operator].out_of_order
            if input is not None and front > self._fronts.get(input, NEVER):
                self._fronts[input], self._rose[input] = front, now

    @property
    def limits(self) -> dict[str, int]:
        """The limits as they were issued last."""
        return self._told or {}

    def due(self, now: float) -> list[ReadLimits]:
        """Return the limits if they have changed. Cost: linear in the files that workers have."""
        if self._skew is None or now - self._issued < PERIOD_SECONDS:
            return []
        self._issued = now
        held = set()
        for split, worker in self._lines.unread:
            if worker is None:
                break  # no worker has the later ones either
            held.add(split.input)
        counting = [each for each in held & self._fronts.keys() if now - self._rose[each] < STILL_SECONDS]
        limits = limits_of({each: self._fronts[each] for each in counting}, self._followed, self._skew)
        if limits == self._told:
            return []
        self._told = limits
        return [ReadLimits(limits)]
