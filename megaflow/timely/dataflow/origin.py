"""Where the records of a batch have come from, or of a stream: sources say it, stateless operators pass it on.

A batch that has an origin is a `Traced`, a list like any other. What an operator makes of it has the same origin, if it
is sent by `alike`: the operators of `linear` and `branching` do so, alone or fused, and `concatenate` sends batches as
they are. Everything else makes plain lists. A source that says nothing costs its readers a comparison of types for each
batch.

So behind a source, with nothing but such operators in between that stay on the worker, every batch has the origin of
its records: `followed` tells of what is built whether it is so.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.graph import Node, Port
from megaflow.timely.dataflow.pact import Pipeline

T = TypeVar("T")


class Traced(list[T]):
    """A batch with its origin, a value that can be hashed.

    >>> batch = Traced([1, 2], origin="left.txt")
    >>> alike([3], batch).origin
    'left.txt'
    """

    __slots__ = ("origin",)

    def __init__(self, records: list[T], origin: Any) -> None:
        super().__init__(records)
        self.origin = origin


def alike(records: list[T], cause: list[Any]) -> list[T]:
    """Return records with the origin of the batch that they were made of, if it has one. Cost then: a copy."""
    if type(cause) is not Traced or records is cause:
        return records
    return Traced(records, cause.origin)


def untraced(batch: list[T]) -> list[T]:
    """Return a batch without an origin, as it may go to other workers."""
    return list(batch) if type(batch) is Traced else batch


def followed(port: Port[Any], inputs: Mapping[tuple[int, int], str], title: str) -> tuple[str, ...]:
    """Return the inputs that the records of a port come from: `inputs` has the names of some nodes' outputs.

    Nothing else that begins in the dataflow is one (`to_stream`, an `InputHandle`). Raises BuildError, of `title`, if
    an operator on the way mixes them. Cost: O(operators x edges).
    """
    graph = port.scope.graph
    makers = {location: (node, number) for node in graph.nodes for number, location in enumerate(node.sources)}
    found: set[str] = set()
    left, seen = [(graph.nodes[port.node], port.output)], {(port.node, port.output)}
    while left:
        node, output = left.pop()
        if (node.index, output) in inputs:
            found.add(inputs[node.index, output])
            continue
        if node.targets and node.stage is None:
            raise BuildError(_mixed(title, node, "keeps records, or changes their times"))
        for edge in (edge for edge in graph.edges if edge.target in node.targets):
            if edge.pact != Pipeline.name:
                raise BuildError(_mixed(title, node, "sends records to other workers"))
            maker, number = makers[edge.source]
            if (maker.index, number) not in seen:
                seen.add((maker.index, number))
                left.append((maker, number))
    return tuple(sorted(found))


def _mixed(title: str, node: Node, does: str) -> str:
    return (
        f"{title}: the operator {node.title!r} ({node.where}) before it {does}, so the file or partition of a record "
        "is unknown here; call it before that operator, with only map, flat_map, filter, branch, concat and similar "
        "operators between it and the source"
    )
