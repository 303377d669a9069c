"""The operators `event_time` of a dataflow and the inputs that they follow, as a job's source and coordinator see them.

A job notes which ports carry its inputs, whether or not the program takes timestamps. So this module knows only what an
operator keeps for a job. `event_time.timestamp_assigner` makes the operators.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final, Protocol

from megaflow.megaphone.base.stream_unit import StreamUnit
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Port

NAME: Final = "event_time"
"""The name of an operator that the program does not name."""


class PartitionClock(Protocol):
    """The greatest timestamps that one operator has seen on one worker, by the origin of records: their partition."""

    running: dict[Any, int]  # origin -> greatest timestamp so far, of partitions that are read here

    def take(self) -> tuple[dict[Any, int], dict[Any, int], list[tuple[Any, tuple[tuple[int, int], ...], int]]]:
        """Return the running maxima of the origins from which records have come since the last call.

        Also return the first timestamps of new files, and the counts of records below the maxima.
        """

    def bound(self, origin: Any) -> int:
        """Return the bound of the next records of a partition that is in `running`."""

    def begin_with(self, origin: Any, maximum: int | None) -> None:
        """Begin with a partition that another worker may have read in part; None: it has no maximum yet."""

    def forget(self, origin: Any) -> None:
        """Forget a partition that will send no further records."""

    def cut(self, time: int) -> None:
        """Keep the running maxima as they are before the first batch of this epoch or later; none has come yet."""

    def at_cut(self, time: int) -> dict[Any, int]:
        """Return these maxima, once. If no such batch has come, they are the present ones."""


@dataclass(frozen=True, slots=True)
class EventTimeSpec:
    """One operator `event_time`, the same on all workers except for the unit while that is not known."""

    out_of_order: int  # microseconds by which a record may be below its partition's maximum without being late
    follows: tuple[str, ...]  # the inputs from which its records come, in the order of their names
    unit: StreamUnit
    clock: PartitionClock  # of this worker
    advances: bool = False  # whether event time follows the clock while all partitions are idle


@dataclass(eq=False)
class EventTimes:
    """A dataflow's operators and inputs of event time, on one worker; an extension of its graph."""

    operators: dict[str, EventTimeSpec] = field(default_factory=dict)  # name -> the operator
    inputs: dict[tuple[int, int], str] = field(default_factory=dict)
    """Node and output that carry an input of the job -> its name; written where the sources are built."""


def carries(port: Port[Any], input: str) -> None:
    """Note that a port carries an input of the job."""
    port.scope.graph.extension(EventTimes).inputs[port.node, port.output] = input
