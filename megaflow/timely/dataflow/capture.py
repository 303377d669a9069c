"""Capture: keep what a stream carries, in memory."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from megaflow.timely.dataflow.builder import Input, OperatorBuilder
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.order import Time, coordinates

T = TypeVar("T")


class Captured(Generic[T]):
    """What one worker's part of a stream carried."""

    def __init__(self) -> None:
        self._records: dict[Time, list[T]] = {}  # in arrival order within a time

    def add(self, time: Time, batch: list[T]) -> None:
        """Keep one batch."""
        self._records.setdefault(time, []).extend(batch)

    def extract(self) -> list[tuple[Time, list[T]]]:
        """The records so far, by time; within a time sorted where they can be, else in arrival order."""
        return [(time, _sorted(self._records[time])) for time in sorted(self._records, key=coordinates)]


def _sorted(records: list[Any]) -> list[Any]:
    try:
        return sorted(records)
    except TypeError:  # records without an order keep that of their arrival
        return list(records)


def capture(port: Port[T]) -> Captured[T]:
    """Keep the stream's records on each worker; readable at any time, complete when the dataflow is."""
    captured: Captured[T] = Captured()
    builder = OperatorBuilder(port.scope, "Capture")
    source: Input[T] = builder.new_input(port, Pipeline(), notify=False)

    def make(capabilities: object, info: object) -> Callable[[], None]:
        def logic() -> None:
            for time, batch in source.drain():
                captured.add(time, batch)

        return logic

    builder.build(make)
    return captured
