"""Streams out of values at hand."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from megaflow.timely.dataflow.builder import BATCH_RECORDS, OperatorBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import OperatorInfo
from megaflow.timely.dataflow.graph import Port, ScopeRef

T = TypeVar("T")

_BATCHES_PER_RUN = 16
"""How much an iterable may send before the operators after it get their turn."""


def to_stream(scope: ScopeRef, records: Iterable[T]) -> Port[T]:
    """The records of an iterable, at the least time, on every worker that calls it; read bit by bit."""
    builder = OperatorBuilder(scope, "ToStream")
    output: Output[Any]
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
