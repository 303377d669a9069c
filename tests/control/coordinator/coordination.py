"""What surrounds each part of the coordinator in its tests."""

from typing import Any

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Inject, Instruction
from megaflow.control.coordinator.base.roster import Roster
from megaflow.timely.membership import founding


class Coordination:
    """A roster of two processes with a worker each, the command stream, and a clock that the test sets."""

    def __init__(self) -> None:
        self.roster = Roster(founding([0, 1]))
        self.stream = CommandStream()
        self.now = 0.0

    def taken(self) -> list[Instruction]:
        """Return the instructions since the last call."""
        instructions = [*self.stream.out]
        self.stream.out.clear()
        return instructions

    def commands(self) -> list[Any]:
        """Return the commands among these instructions."""
        return issued(self.taken())


def issued(instructions: list[Any]) -> list[Any]:
    """Return the commands among instructions."""
    return [each.command.command for each in instructions if isinstance(each, Inject)]
