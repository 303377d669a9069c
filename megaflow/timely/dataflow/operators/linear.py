"""Stateless operators that keep times: a batch in, at most one batch out, on the same worker.

They hold no capability: what they send leaves in the same invocation that consumed its cause (a `flat_map` that pauses
is the exception: see `stage`). What is here is how each is run alone; each also registers the stage that `fusion`
makes one operator with its neighbours of. While what comes after them is full they leave what they have not taken: see
`handoffs`. The loops name their variables `time` and `record` for `error_notes`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from megaflow.timely.dataflow.builder import BATCH_RECORDS, Input, NodeBuilder, Output
from megaflow.timely.dataflow.fusion import stage as stages
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pact, Pipeline
from megaflow.timely.order import Time

T = TypeVar("T")
U = TypeVar("U")

_STAY = Pipeline()


def linear(
    port: Port[T],
    name: str,
    apply: Callable[[Time, list[T]], list[Any]],
    pact: Pact = _STAY,
    kind: stages.Kind | None = None,
    f: Any = None,
    stamps: stages.Stamps = stages.NO_STAMPS,
) -> Port[Any]:
    """Build an operator that turns each batch into another of the same time; an empty one is not sent.

    `kind` and `f`: what `apply` does, as a stage; it can be fused only if that is said.
    """

    def make(source: Input[T], output: Output[Any]) -> Callable[[], None]:
        def process(time: Time, batch: list[T]) -> None:
            stages.ship(output, time, apply(time, batch), batch)

        return stages.run_whole([source], [output], process)

    return one_to_one(port, name, make, pact, kind, f, stamps)


def one_to_one(
    port: Port[T],
    name: str,
    make: Callable[[Input[T], Output[Any]], Callable[[], None]],
    pact: Pact = _STAY,
    kind: stages.Kind | None = None,
    f: Any = None,
    stamps: stages.Stamps = stages.NO_STAMPS,
) -> Port[Any]:
    """Build an operator of one input and one output, of which `make` gives the logic; the rest as for `linear`."""
    builder = NodeBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact, notify=False)
    output, result = builder.new_output()

    stage = stages.Stage(kind, f, [source], [output], stamps=stamps) if kind is not None else None
    builder.build_releasing(make(source, output), stage)
    return result


def map_(port: Port[T], f: Callable[[T], U]) -> Port[U]:
    """Apply `f` to each record."""

    def apply(time: Time, batch: list[T]) -> list[U]:
        left = iter(batch)  # for the error's note
        return [f(record) for record in left]

    return linear(port, "Map", apply, kind="map", f=f)


def flat_map(port: Port[T], f: Callable[[T], Iterable[U]]) -> Port[U]:
    """Replace each record by the records of the iterable `f(record)`.

    The iterable is read bit by bit, and pauses while consumers want no more.
    """

    def make(source: Input[T], output: Output[U]) -> Callable[[], None]:
        def process(time: Time, batch: list[T]) -> Iterator[None]:
            out: list[U] = []
            extend, largest = out.extend, stages.LARGEST_BATCH_RECORDS
            for record in batch:
                made = f(record)
                if type(made) is list and len(made) <= BATCH_RECORDS:  # mostly: said first, it saves a fifth
                    extend(made)
                    if len(out) > largest:
                        yield from cut(output, time, out, batch)
                else:
                    for portion in stages.portions(made):
                        extend(portion)
                        if len(out) > largest:
                            yield from cut(output, time, out, batch)
            stages.ship(output, time, out, batch)

        return stages.run_pausable([source], [output], process)

    return one_to_one(port, "FlatMap", make, kind="flat_map", f=f)


def cut(output: Output[U], time: Time, out: list[U], batch: list[Any]) -> Iterator[None]:
    """Send what fills batches, and pause until there is room."""
    stages.ship_full(output, time, out, batch)
    while output.is_full():
        yield


def filter_(port: Port[T], f: Callable[[T], bool]) -> Port[T]:
    """Keep the records for which `f` is true."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        left = iter(batch)  # for the error's note
        return [record for record in left if f(record)]

    return linear(port, "Filter", apply, kind="filter", f=f)


def map_in_place(port: Port[T], f: Callable[[T], None]) -> Port[T]:
    """Let `f` change each record itself, which is this operator's own (`own_records`); what it returns is dropped."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(record)
        return batch

    return linear(port, "MapInPlace", apply, kind="map_in_place", f=f)


def inspect(port: Port[T], f: Callable[[T], object]) -> Port[T]:
    """Show each record to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(record)
        return batch

    return linear(port, "Inspect", apply, kind="inspect", f=f)


def inspect_time(port: Port[T], f: Callable[[Time, T], object]) -> Port[T]:
    """Show each record with its time to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        for record in batch:
            f(time, record)
        return batch

    return linear(port, "InspectTime", apply, kind="inspect_time", f=f)


def inspect_batch(port: Port[T], f: Callable[[Time, list[T]], object]) -> Port[T]:
    """Show each batch, a copy of it, with its time to `f` and pass it on."""

    def apply(time: Time, batch: list[T]) -> list[T]:
        f(time, list(batch))
        return batch

    return linear(port, "InspectBatch", apply, kind="inspect_batch", f=f)
