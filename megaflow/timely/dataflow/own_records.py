"""Records that an operator changes in place are its own: where others may have them, too, it gets copies.

Records pass between the operators of a process as references, so what `map_in_place` changes would be changed in a
sibling branch, too, there perhaps before they are seen and perhaps after. When a dataflow starts it is looked where the
records of such an operator may come from, backwards along all ways on which records go:
 1. If an output on the way has several readers, or sends to all workers, some of which may be threads of this process,
    others may have the records: each is copied before it is changed, by `copy.deepcopy`.
 2. If not, nobody reads them but the operator itself, and nothing is copied. What an operator before it, a fold or the
    program keeps of what it has sent is not seen here; of states MEGAFLOW_CHECK=aliasing tells.
It is decided for each operator once. The rule errs on the side of copies: whether an operator on the way passes its
records on or makes new ones is not known.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Generic, TypeVar

from megaflow.errors import ProgramError
from megaflow.timely.dataflow.graph import Graph, GraphEdge, Node
from megaflow.timely.dataflow.pact import Broadcast

T = TypeVar("T")


class InPlace(Generic[T]):
    """A function that changes records, and whether it gets copies."""

    def __init__(self, f: Callable[[T], object]) -> None:
        self.f = f
        self.copies = False  # set before the first record

    def on_copy(self, record: T) -> T:
        """Return a copy that `f` has changed; raises ProgramError for a record that cannot be copied."""
        try:
            own = deepcopy(record)
        except Exception as error:
            raise ProgramError(
                f"map_in_place: others may have this {type(record).__qualname__}, too, and it cannot be copied "
                f"({error}); use map, with a function that returns another record"
            ) from error
        self.f(own)
        return own


def give_copies(graph: Graph) -> None:
    """Have those operators of a built dataflow get copies whose records others may have. Cost: O(edges) each."""
    ways: dict[int, list[GraphEdge]] = defaultdict(list)  # target -> what leads there
    for edge in graph.edges:
        if edge.channel is not None:
            ways[edge.target].append(edge)
    readers = Counter(edge.source for edges in ways.values() for edge in edges)
    makers = {location: node for node in graph.nodes for location in node.sources}
    for node in graph.nodes:
        if node.stage is not None and node.stage.kind == "map_in_place" and _may_share(node, ways, readers, makers):
            node.stage.in_place.copies = True
            node.stage = replace(node.stage, kind="map", f=node.stage.in_place.on_copy)


def _may_share(
    node: Node, ways: dict[int, list[GraphEdge]], readers: Counter[int], makers: dict[int, Node]
) -> bool:
    left, seen = [node], {node.index}
    while left:
        for edge in (edge for target in left.pop().targets for edge in ways[target]):
            maker = makers[edge.source]
            if readers[edge.source] > 1 or edge.pact == Broadcast.name:
                return True
            if maker.index not in seen:
                seen.add(maker.index)
                left.append(maker)
    return False
