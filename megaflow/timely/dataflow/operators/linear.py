"""Stateless operators that keep times: a batch in, at most one batch out, on the same worker.

They hold no capability: what they send leaves in the same invocation that consumed its cause.
While what comes after them is full they leave what they have not taken: see `handoffs`.
The loops name their variables `time` and `record` for `blame`.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, OperatorBuilder, Output
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pact, Pipeline
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")

_LARGEST_BATCH_RECORDS = 4 * BATCH_RECORDS
"""A flat_map's batch may grow to this before it is cut: cutting costs a copy, and a little over is as fast."""


_STAY = Pipeline()


def linear(
    port: Port[T], name: str, apply: Callable[[Time, list[T]], list[Any]], pact: Pact = _STAY
) -> Port[Any]:
    """An operator that turns each batch into another of the same time; an empty one is not sent."""
    builder = OperatorBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact, notify=False)
    output, result = builder.new_output()
    builder.build(lambda capabilities, info: _linear_logic(capabilities[0].release, source, output, apply))
    return result


def _linear_logic(
    release: Callable[[], None],
    source: Input[T],
    output: Output[Any],
    apply: Callable[[Time, list[T]], list[Any]],
) -> Callable[[], None]:
    release()

    def logic() -> None:
        while source.is_waiting() and not output.is_full():
            time, batch = source.take()
            out = apply(time, batch)
            if len(out) <= _LARGEST_BATCH_RECORDS:
                output.ship(time, out)
            else:
                for start in range(0, len(out), BATCH_RECORDS):
                    output.ship(time, out[start : start + BATCH_RECORDS])

    return logic


def map_(port: Port[T], f: Callable[[T], U]) -> Port[U]:
    """Apply `f` to each record."""

    def apply(time: Time, batch: list[T]) -> list[U]:
        left = iter(batch)  # for blame
        return [f(record) for record in left]

    return linear(port, "Map", apply)


def flat_map(port: Port[T], f: Callable[[T], Iterable[U]]) -> Port[U]:
    """Replace each record by the records of the iterable `f(record)`."""

    def apply(time: Time, batch: list[T]) -> list[U]:
        out: list[U] = []
        extend = out.extend
        for record in batch:
            extend(f(record))
        return out

    return linear(port, "FlatMap", apply)


def filter_(port: Port[T], f: Callable[[T], bool]) -> Port[T]:
    """Keep the records for which `f` is true."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        left = iter(batch)  # for blame
        return [record for record in left if f(record)]

    return linear(port, "Filter", apply)


def map_in_place(port: Port[T], f: Callable[[T], None]) -> Port[T]:
    """Let `f` change each record itself; what it returns is dropped.

    The list is copied, its records are not: they are shared with the stream's other consumers.
    """

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(record)
        return list(batch)

    return linear(port, "MapInPlace", apply)


def inspect(port: Port[T], f: Callable[[T], object]) -> Port[T]:
    """Show each record to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(record)
        return batch

    return linear(port, "Inspect", apply)


def inspect_time(port: Port[T], f: Callable[[Time, T], object]) -> Port[T]:
    """Show each record with its time to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(time, record)
        return batch

    return linear(port, "InspectTime", apply)


def inspect_batch(port: Port[T], f: Callable[[Time, list[T]], object]) -> Port[T]:
    """Show each batch, a copy of it, with its time to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        f(time, list(batch))
        return batch

    return linear(port, "InspectBatch", apply)
