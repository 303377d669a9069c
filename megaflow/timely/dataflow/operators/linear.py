"""Stateless operators that keep times: a batch in, at most one batch out, on the same worker.

They hold no capability, because they send in the same invocation that consumed the input. A `flat_map` that pauses is
the exception: see `stage`. Except for `linear`, the functions here only describe an operator as a stage. When the
dataflow starts, `fusion` writes a function for each stage, or one for several neighbours. While their consumers are
full, operators leave the remaining input in the queue: see `handoffs`.

With the stamps `STAMPED`, the records carry timestamps (`operators.stamped`), and `f` sees only the record.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from megaflow.timely.dataflow.argument_checks import function
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.fusion.stage import NO_STAMPS, Kind, Stage, Stamps, run_whole, ship
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Pact, Pipeline
from megaflow.timely.order import Time

T = TypeVar("T")

_STAY = Pipeline()


def linear(port: Port[T], name: str, apply: Callable[[Time, list[T]], list[Any]], pact: Pact = _STAY) -> Port[Any]:
    """Build an operator that turns each batch into another one of the same time. An empty result is not sent.

    It is no stage, so it runs alone. A loop in `apply` names its variable `record` for `error_notes`.
    """
    builder = NodeBuilder(port.scope, name)
    source: Input[T] = builder.new_input(port, pact, notify=False)
    output, result = builder.new_output()

    def process(time: Time, batch: list[T]) -> None:
        ship(output, time, apply(time, batch), batch)

    builder.build_releasing(run_whole([source], [output], process))
    return result


def staged(
    port: Port[Any],
    name: str,
    kind: Kind,
    f: Any = None,
    stamps: Stamps = NO_STAMPS,
    pact: Pact = _STAY,
    count: int = 1,
    names: Mapping[str, object] = MappingProxyType({}),
) -> list[Port[Any]]:
    """Build an operator with `count` outputs that consists of a stage; `Stage` describes `kind`, `f` and `names`."""
    builder = NodeBuilder(port.scope, name)
    source: Input[Any] = builder.new_input(port, pact, notify=False)
    made = [builder.new_output() for _ in range(count)]
    stage = Stage(kind, f, [source], [output for output, _ in made], names, stamps)
    builder.build_releasing(None, stage)
    return [result for _, result in made]


def stateless(port: Port[Any], kind: Kind, f: Callable[..., Any], stamps: Stamps = NO_STAMPS) -> Port[Any]:
    """Build the operator of a stream's method: `kind` is its name, `f` the program's function."""
    return split(port, kind, f, 1, stamps)[0]


def split(
    port: Port[Any],
    kind: Kind,
    f: Callable[..., Any],
    count: int = 2,
    stamps: Stamps = NO_STAMPS,
    names: Mapping[str, object] = MappingProxyType({}),
) -> list[Port[Any]]:
    """Build the operator of a stream's method that returns `count` streams. Raises BuildError for a wrong `f`."""
    name = kind.title().replace("_", "")
    return staged(port, name, kind, function(kind, f), stamps, count=count, names=names)
