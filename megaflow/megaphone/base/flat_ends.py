"""The inputs and outputs of F and S: in a nested scope they translate flat times, at the root they are the bare ones.

The choice is made when the operator is built, so the root pays nothing. `flat_times` explains why times are flat.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.megaphone.base.flat_times import FlatTime, flattened
from megaflow.timely.dataflow.builder import Input, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.order import from_coordinates
from megaflow.timely.progress.antichain import Antichain, single

T = TypeVar("T")


class FlatInput(Generic[T]):
    """An input in a nested scope, with times of that scope or of the root."""

    def __init__(self, made: Input[T], length: int) -> None:
        self._made = made
        self._length = length  # of flat times

    @property
    def frontier(self) -> Antichain:
        """The least flat time that may still appear here; empty if none may."""
        elements = self._made.frontier.elements  # sorted in the flat order
        return single(flattened(elements[0], self._length)) if elements else Antichain()

    def drain(self) -> list[tuple[FlatTime, list[T]]]:
        """Take all queued batches, see `Input.drain`."""
        return [(flattened(time, self._length), batch) for time, batch in self._made.drain()]

    def is_waiting(self) -> bool:
        """Tell whether a batch is queued."""
        return self._made.is_waiting()

    def take(self) -> tuple[FlatTime, list[T]]:
        """Take the first queued batch, see `Input.take`."""
        time, batch = self._made.take()
        return flattened(time, self._length), batch


class FlatOutput(Generic[T]):
    """An output in a nested scope."""

    def __init__(self, made: Output[T]) -> None:
        self._made = made

    def ship(self, time: FlatTime, batch: list[T]) -> None:
        """Send a batch to all listeners, see `Output.ship`."""
        self._made.ship(from_coordinates(time), batch)

    def ship_to(self, worker: int, time: FlatTime, batch: list[T]) -> None:
        """Send a batch to one worker, see `Output.ship_to`."""
        self._made.ship_to(worker, from_coordinates(time), batch)

    def mint(self, time: FlatTime) -> Capability:
        """Return a new capability, see `Output.mint`."""
        return self._made.mint(from_coordinates(time))


AnyInput: TypeAlias = Input[T] | FlatInput[T]
AnyOutput: TypeAlias = Output[T] | FlatOutput[T]


def flat_input(made: Input[T], scope: ScopeRef) -> AnyInput[T]:
    """Return an input of an operator in `scope` in the form that F and S read."""
    return FlatInput(made, scope.depth + 1) if scope.rounds else made


def flat_output(made: Output[Any], scope: ScopeRef) -> AnyOutput[Any]:
    """Return an output of an operator in `scope` in the form by which F and S send."""
    return FlatOutput(made) if scope.rounds else made
