"""Streams from outside the dataflow: from an iterable, or sent by the program at any times it holds capabilities for.

A program that sends time by time uses an `InputHandle`. An operator without inputs is a `source` in `generic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

from megaflow.errors import CapabilityError
from megaflow.timely.dataflow.builder import BATCH_RECORDS, NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Activator, OperatorInfo
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.session import Session
from megaflow.timely.order import Time
from megaflow.timely.progress.change_batch import ChangeBatch

T = TypeVar("T")

_BATCHES_PER_RUN = 16
"""How many batches an iterable may send before the operators after it run."""


def to_stream(scope: ScopeRef, records: Iterable[T]) -> Port[T]:
    """Send the records of an iterable at the least time, on every worker that calls it. Reads it piece by piece."""
    builder = NodeBuilder(scope, "ToStream")
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        capability, remaining = capabilities[0], iter(records)

        def logic() -> None:
            for _ in range(_BATCHES_PER_RUN):
                if not capability.held or output.is_full():
                    return
                batch = list(islice(remaining, BATCH_RECORDS))
                output.ship(capability.time, batch)
                if len(batch) < BATCH_RECORDS:
                    capability.release()
                    return
            info.activator.activate()

        return logic

    builder.build(make)
    return result


class UnorderedHandle(Generic[T]):
    """The program's end of a stream without a current time. Capabilities state the times at which it may send.

    It closes when the worker's program ends. Capabilities still held then lose their right to send.
    """

    def __init__(self, output: Output[T], holdings: _Holdings, activator: Activator, graph: Graph) -> None:
        self._output = output
        self._holdings = holdings
        self._activator = activator
        self._graph = graph

    def session(self, capability: Capability) -> Session[T]:
        """Send at the capability's time, in a `with` block. The session ends at the worker's next step at the latest.

        Raises CapabilityError if the capability is released or belongs to another operator, or if the input is closed.
        """
        if self._holdings.closed:
            raise CapabilityError(f"session: {self._output.title} was closed; it can no longer send")
        self._graph.check_started("session")
        self._activator.activate()
        return self._output.session(capability)

    def close(self) -> None:
        """Give up all capabilities of this input. A second call is harmless."""
        self._output.end_sessions()
        self._holdings.close()


class _Holdings(ChangeBatch[tuple[int, Time]]):
    """Sum of the program's capabilities: location and time -> count. Passes changes on to the dataflow."""

    def __init__(self, output: Output[Any], initial: Capability) -> None:
        super().__init__()
        self._output = output
        self._changes = output.changes
        self.closed = False  # once True, capabilities no longer count
        if initial.held:  # the dataflow has already counted it
            super().update((output.location, initial.time), 1)

    def update(self, item: tuple[int, Time], delta: int) -> None:
        if item[0] != self._output.location:  # a count of records
            self._changes.update(item, delta)
            return
        if delta < 0:
            self._output.end_sessions()  # nothing may be sent after the right to send it is gone
        if not self.closed:
            super().update(item, delta)
            self._changes.update(item, delta)

    def close(self) -> None:
        """Take back all held capabilities."""
        self.closed = True
        for item, total in self.drain():
            self._changes.update(item, -total)


def new_unordered_input(scope: ScopeRef) -> tuple[UnorderedHandle[Any], Capability, Port[Any]]:
    """Return a handle, the capability for the least time, and the stream of records sent through the handle."""
    builder = NodeBuilder(scope, "UnorderedInput")
    output, result = builder.new_output()
    made: list[tuple[UnorderedHandle[Any], Capability]] = []

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        holdings = _Holdings(output, capabilities[0])
        output.changes = holdings
        handle: UnorderedHandle[Any] = UnorderedHandle(output, holdings, info.activator, scope.graph)
        made.append((handle, capabilities[0]))
        return output.end_sessions

    builder.build(make, stop=lambda: made[0][0].close())
    return *made[0], result
