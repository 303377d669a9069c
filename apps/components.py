"""Connected components of a graph: a line "a b" is an edge, and each node finds the least name that it can reach.

megaflow run apps/components.py --lines EDGES [--processes N]

Labels go round in a loop until no node has a better one. Meanwhile the nodes' states move between workers: at an epoch,
after the last round of the one before it.
"""

from collections.abc import Iterable
from typing import Any

from megaflow import Flow, Stream, Timers
from megaflow.timely import Scope

Node = tuple[str, list[str]]  # label and neighbours
Edge = tuple[str, str]
Said = tuple[str, str, str]  # "tell", whom, label; or "is", node, label


def spread(name: str, message: tuple[str, str], node: Node | None) -> tuple[Node, Iterable[Said]]:
    """Send the node's label to a new neighbor, and a better label to all neighbors."""
    kind, other = message
    label, neighbours = node or (name, [])
    said = [("is", name, label)] if node is None else []
    if kind == "edge":
        neighbours.append(other)
        said.append(("tell", other, label))
    elif other < label:
        label = other
        said.append(("is", name, label))
        said += [("tell", neighbour, label) for neighbour in neighbours]
    return (label, neighbours), said


def settled(name: str, epoch: int, labels: list[str], state: None, timers: Timers) -> tuple[None, list[Edge]]:
    """Return the best of a node's labels of an epoch. Every label here is better than the earlier ones."""
    return None, [(name, min(labels))]


def connect(scope: Scope, edges: Stream[Edge], **options: Any) -> Stream[Edge]:
    """Return the stream of (node, least node of its component), at each time for the nodes that have a new one."""
    both = edges.flat_map(lambda edge: [(edge[0], ("edge", edge[1])), (edge[1], ("edge", edge[0]))])
    with scope.iterative("rounds") as rounds:
        handle, told = rounds.loop_variable(1)
        said = both.enter(rounds).concat(told).stateful_state_machine(spread, name="components", **options)
        news, more = said.branch(lambda time, each: each[0] == "tell")
        more.map(lambda each: (each[1], ("label", each[2]))).connect_loop(handle)
        labels = news.map(lambda each: (each[1], each[2])).leave()
    best: Stream[Edge] = labels.stateful_unary(settled, **options)
    return best


def dataflow(flow: Flow) -> Stream[Edge]:
    """The job."""
    pairs = flow.lines().map(lambda line: line.split()).filter(lambda words: len(words) == 2)
    return connect(flow.scope, pairs.map(lambda words: (words[0], words[1])))
