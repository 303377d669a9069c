"""How far event time is on a simulated cluster: what a job's coordinator would issue, of partitions that never idle.

As in `megaflow.control.coordinator.watermarks`: the least of (maximum - out_of_order), over all operators that take
timestamps and all partitions that they follow and that are not read to their ends; nothing as long as one of these has
not begun.

A report comes at once, and a watermark may follow at once: whoever has seen a record at an epoch had heard from control
that this has begun, so the watermark's own epoch is not before it, and what it makes late is in later ones. That a
partition is read to its end is heard when control has passed the epoch of its last record.
"""

from collections.abc import Mapping

from megaflow.control.watermark_messages import MaximaSeen, Partition
from megaflow.megaphone.event_clock import EventTimeSpec
from megaflow.megaphone.event_unit import INFINITE, NEVER
from megaflow.megaphone.routing import Watermark


class SimulatedWatermarks:
    """What is known of event time. One writer: the simulated lines.

    >>> watermarks = SimulatedWatermarks({0: "clicks"})
    >>> watermarks.due()       # nobody takes timestamps
    []
    """

    def __init__(self, inputs: Mapping[int, str]) -> None:
        """`inputs` has the name of the input of each partition that has lines, by number."""
        self.operators: Mapping[str, EventTimeSpec] = {}  # by name; the dataflow's
        self._unread: dict[Partition, str] = {("split", number): name for number, name in inputs.items()}
        self._maxima: dict[tuple[str, Partition], int] = {}
        self._micros = NEVER  # of the last watermark

    def learn(self, report: MaximaSeen) -> None:
        """Hear what an operator has seen."""
        for partition, micros in report.maxima:
            key = report.operator, partition
            self._maxima[key] = max(micros, self._maxima.get(key, NEVER))

    def read(self, number: int) -> None:
        """Hear that a partition is read to its end."""
        self._unread.pop(("split", number), None)

    def due(self) -> list[Watermark]:
        """Return the next watermark, if it rises."""
        reached = (
            self._maxima[name, partition] - operator.out_of_order if (name, partition) in self._maxima else NEVER
            for name, operator in self.operators.items()
            for partition, input in self._unread.items()
            if input in operator.follows
        )
        return self._risen(min(reached, default=NEVER))

    def at_end(self) -> list[Watermark]:
        """Return the last one, when all lines are read."""
        return self._risen(INFINITE)

    def _risen(self, micros: int) -> list[Watermark]:
        if micros <= self._micros:
            return []
        self._micros = micros
        return [Watermark(micros)]
