"""Distance of each node of a graph from node 0, by a loop in a nested scope, one level per round.

python apps/bfs.py [NODES [EDGES]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from apps.draws import pairs
from megaflow.timely import (
    Capability,
    Exchange,
    Input,
    OperatorInfo,
    Output,
    ProbeHandle,
    Product,
    Worker,
    execute_from_args,
)

Edge = tuple[int, int]
Reached = tuple[int, int, list[int]]  # node, level, where its edges lead


def reach(capability: Capability, info: OperatorInfo) -> Callable[[Input[Edge], Input[int], Output[Reached]], None]:
    """Keep the edges of this worker's nodes; pass each node on once, at its first level."""
    capability.release()
    edges: defaultdict[int, list[int]] = defaultdict(list)
    seen: set[int] = set()
    stash: dict[Capability, list[int]] = {}  # of nodes that some edge leads to

    def first_time(nodes: Iterable[int], level: int) -> Iterable[Reached]:
        for node in nodes:
            if node not in seen:
                seen.add(node)
                yield node, level, edges[node]

    def logic(graph: Input[Edge], nodes: Input[int], output: Output[Reached]) -> None:
        for _, batch in graph:
            for source, target in batch:
                edges[source].append(target)
        for time, found in nodes:
            stash.setdefault(time.retain(), []).extend(found)
        for held in list(stash):
            assert isinstance(held.time, Product)
            if not graph.frontier.less_equal(held.time) and not nodes.frontier.less_equal(held.time):
                with held:
                    output.session(held).give_iterator(first_time(stash.pop(held), held.time.inner))

    return logic


def main(worker: Worker) -> tuple[dict[int, int], int]:
    """Return the levels of this worker's nodes, and how often an edge or the root led to a node."""
    nodes = int(worker.args[0]) if worker.args else 1000
    edges = int(worker.args[1]) if len(worker.args) > 1 else 4000
    levels: dict[int, int] = {}
    candidates = 0
    probe = ProbeHandle()

    def see(time: object, batch: list[int]) -> None:
        nonlocal candidates
        candidates += len(batch)

    with worker.dataflow("bfs") as scope:
        graph = scope.to_stream(pairs(edges, nodes)[worker.index :: worker.peers])
        roots = scope.to_stream([0] if worker.index == 0 else [])
        with scope.iterative("levels") as loop:
            handle, found = loop.loop_variable(1)
            leads = roots.enter(loop).concat(found).inspect_batch(see)
            by_source, by_node = Exchange(lambda edge: edge[0]), Exchange(lambda node: node)
            reached = graph.enter(loop).binary_frontier(leads, by_source, by_node, "Reach", reach)
            reached.flat_map(lambda one: one[2]).connect_loop(handle)
            distances = reached.map(lambda one: (one[0], one[1])).leave()
        distances.inspect(lambda pair: levels.update([pair])).probe_with(probe)
    worker.step_while(lambda: not probe.done())
    for level, count in sorted(Counter(levels.values()).items()):
        print(f"worker {worker.index}: {count} nodes at level {level}\n", end="", flush=True)
    print(f"worker {worker.index}: {candidates} candidates\n", end="", flush=True)
    return levels, candidates


if __name__ == "__main__":
    execute_from_args(main)
