"""A spanning forest of a stream of edges: each worker drops edges within its own trees, worker 0 within all trees.

python apps/unionfind.py [NODES [EDGES]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from collections.abc import Callable

from apps.draws import pairs
from megaflow.timely import (
    Capability,
    Exchange,
    Input,
    OperatorInfo,
    Output,
    Pipeline,
    ProbeHandle,
    Worker,
    execute_from_args,
)

Edge = tuple[int, int]


class Forest:
    """Sets of nodes, each a tree with a root."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}  # node -> parent; a root is absent

    def root(self, node: int) -> int:
        """Return the root of a node's tree; halve the way there, so that the next call is quicker."""
        parents = self._parents
        while node in parents:
            parent = parents[node]
            if parent in parents:
                parents[node] = parents[parent]
            node = parent
        return node

    def unite(self, edge: Edge) -> bool:
        """Join two trees; return False if they were one already."""
        left, right = self.root(edge[0]), self.root(edge[1])
        if left == right:
            return False
        self._parents[max(left, right)] = min(left, right)
        return True


def merges(capability: Capability, info: OperatorInfo) -> Callable[[Input[Edge], Output[Edge]], None]:
    """Pass on the edges that join two trees of this worker."""
    capability.release()
    forest = Forest()

    def logic(input: Input[Edge], output: Output[Edge]) -> None:
        for time, edges in input:
            output.session(time).give_iterator(edge for edge in edges if forest.unite(edge))

    return logic


def main(worker: Worker) -> list[Edge]:
    """Return the edges of the forest, all on worker 0."""
    nodes = int(worker.args[0]) if worker.args else 1000
    edges = int(worker.args[1]) if len(worker.args) > 1 else 1000
    kept: list[Edge] = []
    probe = ProbeHandle()
    with worker.dataflow("unionfind") as scope:
        (
            scope.to_stream(pairs(edges, nodes)[worker.index :: worker.peers])
            .unary(Pipeline(), "LocalForest", merges)
            .unary(Exchange(lambda edge: 0), "Forest", merges)
            .inspect(kept.append)
            .probe_with(probe)
        )
    worker.step_while(lambda: not probe.done())
    print(f"worker {worker.index}: {len(kept)} merges", flush=True)
    return kept


if __name__ == "__main__":
    execute_from_args(main)
