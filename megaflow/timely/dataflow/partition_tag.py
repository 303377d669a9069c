"""Tag of a batch: the file or partition that its records came from. Sources set it; stateless operators keep it.

A batch with a tag is a `Tagged`, which is otherwise an ordinary list. If an operator sends a batch through `alike`,
the batch gets the tag of the batch that it was made from. The operators of `linear` and `branching` do so, alone or
fused. `concatenate` sends batches unchanged. All other operators produce plain lists. If a source sets no tag, its
readers pay one comparison of types per batch.

So a batch keeps its tag as long as only such operators lie between it and the source, and they stay on the worker.
`followed` checks this for a port of a dataflow under construction.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from megaflow.errors import BuildError
from megaflow.timely.dataflow.graph import Node, Port
from megaflow.timely.dataflow.pact import Pipeline

T = TypeVar("T")


class Tagged(list[T]):
    """A batch with its tag, a hashable value.

    >>> batch = Tagged([1, 2], tag="left.txt")
    >>> alike([3], batch).tag
    'left.txt'
    """

    __slots__ = ("tag",)

    def __init__(self, records: list[T], tag: Any) -> None:
        super().__init__(records)
        self.tag = tag


def alike(records: list[T], cause: list[Any]) -> list[T]:
    """Return `records` with the tag of `cause`, the batch that they were made from. A tag costs a copy."""
    if type(cause) is not Tagged or records is cause:
        return records
    return Tagged(records, cause.tag)


def untagged(batch: list[T]) -> list[T]:
    """Return the batch without its tag, because tags do not travel to other workers."""
    return list(batch) if type(batch) is Tagged else batch


def followed(port: Port[Any], inputs: Mapping[tuple[int, int], str], title: str) -> tuple[str, ...]:
    """Return the inputs that the records of a port come from, sorted. `inputs` names the outputs of some nodes.

    Records that begin inside the dataflow (`to_stream`, an `InputHandle`) add no input. Raises BuildError, prefixed
    with `title`, if an operator on the way mixes records. Cost: O(operators x edges).
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
            if edge.pact != Pipeline.__name__:
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
        "operators between it and the source. For timestamps behind a fold, give the fold stamp="
    )
