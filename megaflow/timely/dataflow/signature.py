"""Signature of a dataflow: what must be equal on all workers. Also reports the dataflow's structure to the log."""

from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

from megaflow.errors import GraphMismatch
from megaflow.timely.dataflow.graph import Graph, Node
from megaflow.timely.log import ChannelBuilt, Event, OperatorBuilt, OperatorsFused

SWITCH = "MEGAFLOW_FUSION"
"""An environment variable. `off` builds all dataflows without fusion, as `dataflow(fusion=False)` does for one."""


class Place(NamedTuple):
    """Node and port of a location."""

    node: Node
    side: str  # "input" or "output"
    number: int


def places(graph: Graph) -> dict[int, Place]:
    """Return location -> place."""
    return {
        location: Place(node, side, number)
        for node in graph.nodes
        for side, ports in (("input", node.targets), ("output", node.sources))
        for number, location in enumerate(ports)
    }


def signature(graph: Graph) -> tuple[str, ...]:
    """Return whether operators are fused, the least time, then a line for each operator.

    The result is equal on all workers that run the same program.
    """
    fusion = "fused" if any(node.fused for node in graph.nodes) else "not fused"
    times = f"{graph.builder.least(graph.builder.root_depth)!r}"
    return (fusion, times, *(f"{node.title}({', '.join(node.shape)})/{len(node.sources)}" for node in graph.nodes))


def check_equal(graph: Graph, source: int, named: tuple[str, tuple[str, ...]] | None) -> None:
    """Raise GraphMismatch unless worker `source` built the same dataflow. The error names the first difference.

    `named` is the name and signature there. None if that worker's program ended without building this dataflow.
    """
    own, title = graph.context.allocator.index, f"dataflow {graph.number} ({graph.name!r})"
    if named is None:
        raise GraphMismatch(
            f"{title} was built on worker {own} but not on worker {source}, whose program has ended; every worker must "
            "build the same dataflows, in the same order"
        )
    (fusion, times, *ours), (other_fusion, other_times, *others) = signature(graph), named[1]
    if times != other_times:
        raise GraphMismatch(
            f"{title} differs between workers: its least time is {times} on worker {own} but {other_times} on worker "
            f"{source}; every worker must build it with the same timestamp="
        )
    for index, (mine, other) in enumerate(zip_longest(ours, others, fillvalue="no operator")):
        if mine != other:
            where = f" ({graph.nodes[index].where})" if index < len(ours) else ""
            raise GraphMismatch(
                f"{title} differs between workers: operator {index} is {mine}{where} on worker {own} but {other} on "
                f"worker {source}; every worker must build the same dataflow, in the same order"
            )
    if fusion != other_fusion:
        raise GraphMismatch(
            f"{title} differs between workers: its operators are {fusion} on worker {own} but {other_fusion} on worker "
            f"{source}; every worker must build it with the same fusion=, and with the same {SWITCH} in its environment"
        )


def tell_built(graph: Graph, emit: Callable[[Event], None]) -> None:
    """Report each operator and each channel to the log."""
    where = places(graph)
    for node in graph.nodes:
        emit(OperatorBuilt(graph.number, node.index, node.title, node.where))
    for node in graph.nodes:
        if node.fused:
            emit(OperatorsFused(graph.number, node.index, node.fused))
    for link in graph.edges:
        if link.channel is not None:
            source, target = where[link.source], where[link.target]
            ends = (source.node.index, source.number), (target.node.index, target.number)
            emit(ChannelBuilt(graph.number, link.channel, *ends, link.pact))
