"""What a job lends to the sinks of its dataflow: every job has a host, and few programs write to sinks.

The modules of sinks load with the first sink, behind `writing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from megaflow.connect import writing
from megaflow.megaphone.base.routing import Checkpoint, Numbered
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Port


class Outlet(Protocol):
    """A sink on one worker, as its operator uses it."""

    def begin(self, activate: Callable[[], None]) -> None:
        """Open the sink, in the operator's first run; `activate` has the operator run again, from any thread."""

    def write(self, epoch: int, batch: list[Any]) -> None:
        """Write some records."""

    def cut(self, epoch: int, checkpoint: Checkpoint) -> None:
        """Have all that was written kept by a checkpoint at this epoch."""

    def hand_over(self) -> bool:
        """Have all that was written kept by others, as the worker leaves; return whether that is done."""

    def turn(self) -> float | None:
        """Do what is due after each run; return in how many seconds more is, None if nothing."""


class SinkHost(Protocol):
    """What a job lends to the sinks of its dataflow, on one worker."""

    commands: Port[Numbered]  # the job's control stream, broadcast

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sinks, sorted."""

    def place(self, sink: writing.Sink[Any], name: str, where: str) -> Outlet:
        """Return what a sink is on this worker, declared at that line. Raises BuildError if another has this name."""

    def has_built(self, operator: writing.WriteOperator) -> None:
        """Take note of its operator."""

    def is_leave(self, command: object) -> bool:
        """Tell whether a command has this worker's source close, since it is to leave."""


@dataclass(slots=True)
class Writing:
    """Whether sinks can be written to in a dataflow: an extension of its graph."""

    host: SinkHost | None = None
