"""Starting a dataflow: gives stages their functions, and replaces groups of stages by one operator each.

`partition` finds the groups. `codegen` writes a function for each group and for each stage outside of groups, so the
code of an operator exists once. This module compiles the function and installs it. All operators, outputs, inputs and
channels keep their numbers, so pictures, logs and errors match what the user wrote. A group differs in three ways:
 1. The head's node runs the function. The other nodes are never in the run queue.
 2. Edges inside the group are removed: no batch is queued there and the tracker has no edge. Instead, the head's inputs
    lead directly to the exits, by the identity.
 3. Outputs inside have no capability at the start. Every operator of the group released its own while it was built.
    So each such output has a +1 for each founding worker and a -1 of this worker. Both are removed before counting
    starts.
A worker that fused differently would count differently. So the signature that workers compare includes whether they
fuse.
"""

import linecache
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any
from zlib import crc32

from megaflow.errors import BuildError
from megaflow.timely.dataflow import checks
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from megaflow.timely.dataflow.error_notes import CALL_SITES, GENERATED
from megaflow.timely.dataflow.fusion import stage as stages
from megaflow.timely.dataflow.fusion.codegen import FusedFunction, Operation
from megaflow.timely.dataflow.fusion.partition import Group, partition
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.own_records import give_copies
from megaflow.timely.dataflow.signature import SWITCH
from megaflow.timely.path_summary import identity
from megaflow.timely.progress.propagation_order import Edge, positions

_GLOBALS = {
    "BATCH_RECORDS": BATCH_RECORDS,
    "LARGEST_BATCH_RECORDS": stages.LARGEST_BATCH_RECORDS,
    "portions": stages.portions,
    "ship": stages.ship,
    "ship_full": stages.ship_full,
}


def start(graph: Graph, fusion: bool = True) -> None:
    """Start a built dataflow. Fuses its stages unless `fusion` is False or the environment switches fusion off.

    Raises BuildError for a cycle that does not advance time, naming its operators. Also raises it if the environment
    variable for fusion is set to anything but off or on, or if the environment asks for an unknown check.
    """
    checks.wanted()
    give_copies(graph)
    asked = os.environ.get(SWITCH) or "on"
    if asked not in ("on", "off"):
        raise BuildError(f"{SWITCH}={asked}: it must be off; or on, or not set, for what dataflow(fusion=…) says")
    edges = list(graph.builder.edges)
    groups = partition(graph.nodes, graph.edges) if fusion and asked == "on" else []
    fuse(graph, groups)
    for node in graph.nodes:
        if node.stage is not None and node.logic is None and node.within is None:
            node.logic = _make_logic(graph, Group([node.index]), node.sources)
    try:
        graph.start()
    except BuildError:
        if groups:
            positions(graph.builder.names, edges)  # raises the error that names all operators of the user
        raise


def fuse(graph: Graph, groups: Sequence[Group]) -> None:
    """Make each group run as one operator."""
    inner: set[int] = set()  # locations inside
    members: set[int] = set()
    paths: list[Edge] = []
    for group in groups:
        nodes = [graph.nodes[member] for member in group.members]
        head = nodes[0]
        exits = [location for node in nodes for location in node.sources if location not in group.inside]
        head.logic, head.fused = _make_logic(graph, group, exits), tuple(group.members)
        for node in nodes[1:]:
            node.within = head.index
        inner.update(location for node in nodes[1:] for location in node.targets)
        inner.update(group.inside)
        members.update(location for node in nodes for location in node.targets)
        same = identity(head.scope.depth)
        paths += [(target, location, same) for target in head.targets for location in exits]
    # Remove the paths through members, which begin at their inputs, and the edges that end inside.
    edges = [edge for edge in graph.builder.edges if edge[0] not in members and edge[1] not in inner]
    graph.builder.edges[:] = edges + paths
    graph.initial[:] = [each for each in graph.initial if each[0] not in inner]
    for (location, time), delta in graph.changes.drain():
        if location not in inner:
            graph.changes.update((location, time), delta)
    for location in inner & graph.listeners.keys():
        graph.listeners[location].clear()


def _make_logic(graph: Graph, group: Group, exits: list[int]) -> Callable[[], None]:
    nodes = [graph.nodes[member] for member in group.members]
    numbers = {node.index: number for number, node in enumerate(nodes)}
    follow = {location: -1 - number for number, location in enumerate(exits)}  # or the member that reads the location
    follow |= {location: numbers[reader] for location, reader in group.inside.items()}
    members = [
        Operation(stage.kind, node.name, node.where, tuple(map(follow.__getitem__, node.sources)), stage.stamps)
        for node, stage in ((node, node.stage) for node in nodes)
    ]
    outputs = {output.location: output for node in nodes for output in node.stage.outputs}
    leaving = [outputs[location] for location in exits]
    text = FusedFunction(members, [bool(graph.listeners[location]) for location in exits])
    known = {**_GLOBALS, CALL_SITES: text.call_sites}
    for node in nodes:
        known |= node.stage.names
    exec(_compiled("+".join(member.name for member in members[:4]), str(text)), known)
    process: Any = known["make"](*(node.stage.f for node in nodes), *leaving)  # type: ignore[operator]
    for number, node in enumerate(nodes):
        if node.stage.kind == "map_in_place":
            stages.check_first_change(process, f"f{number}")
    run = stages.run_pausable if text.pauses else stages.run_whole
    return run(nodes[0].stage.inputs, leaving, process)


@lru_cache(maxsize=1024)
def _compiled(name: str, text: str) -> CodeType:
    """Compile the text under a unique file name, which also lets tracebacks find the text."""
    filename = f"{GENERATED}{name} {crc32(text.encode()):08x}>"
    linecache.cache[filename] = len(text), None, text.splitlines(keepends=True), filename
    return compile(text, filename, "exec")
