"""Whether the operators of a dataflow are durable, and what a durable one hands over for a checkpoint.

Every operator with a state looks here when it is built. Only durable ones load `snapshot`, which makes the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import field
from typing import TypeAlias

from megaflow.durable.blocks import Block
from megaflow.durable.restored import Restored, StateDescriptor
from megaflow.errors import BuildError
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """What one operator on one worker keeps for one checkpoint: everything before `time` of its bins."""

    number: int  # of the checkpoint
    since: int | None  # number of the committed checkpoint that the deltas follow; None: all bins are written whole
    time: int  # the outer time in a nested scope
    operator: str
    bins: tuple[int, ...]  # owned at the cut, sorted
    at_end: bool = False  # everything that ever happens is before the cut, whatever its time
    windowed: tuple[int, int] = (0, 0)  # as `Core.windowed` at the cut


CutSink: TypeAlias = Callable[[Piece, Block | None], None]
"""Takes the blocks of each cut as they are made; None: the cut has no further block."""


Restore: TypeAlias = Callable[[StateDescriptor, Collection[int]], Restored]
"""(operator, the bins that are wanted) -> their contents."""


LeaveOut: TypeAlias = Callable[[str, Callable[[], str]], None]
"""Counts a partial window that an operator leaves out; the function returns a text, for the first one."""


@dataclass(slots=True)
class Durability:
    """Whether and how the stateful operators of one dataflow are durable: an extension of its graph."""

    sink: CutSink | None = None  # None: they are not durable
    spent: Callable[[], float] | None = None  # processor seconds of the worker's thread; None: use the clock
    restore: Restore | None = None  # returns the contents with which each operator begins; None: it begins empty
    descriptors: dict[str, StateDescriptor] = field(default_factory=dict)  # operators with a state, by name
    partial_until: Callable[[str], int | None] = lambda operator: None  # see `state_migration`
    emits_partial: bool = False  # whether results of partial windows are put out like all others
    leave_out: LeaveOut = lambda operator, text: None

    def admit(self, descriptor: StateDescriptor, hears_commands: bool) -> None:
        """Register an operator with a state. Raises BuildError if it cannot be durable."""
        name = descriptor.name
        if name in self.descriptors:
            raise BuildError(
                f"Two stateful operators of the dataflow have the name '{name}'. A job with --state finds states by "
                f"name: write name='{name}_2' in the second one."
            )
        if not hears_commands:
            raise BuildError(
                f"{name}: it has its own control=, which carries no checkpoints, so its state would not be durable; "
                "remove control="
            )
        self.descriptors[name] = descriptor
