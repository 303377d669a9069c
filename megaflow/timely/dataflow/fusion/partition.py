"""Partition of a dataflow into groups of operators that become one, decided from its shape alone.

A group is an out-tree of stages (`stage`). Batches come in from queues at the *head*. Each stage behind it has one
input, which another member feeds. The group is one operator, run by the head's node. Between its members no record is
queued, no time is tracked and nothing is scheduled. A group is legal if

 1. all members are stages: they keep times (every path inside is the identity) and hold no capability of their own;
 2. only Pipeline channels lead from member to member;
 3. an output inside has exactly one consumer. An output with several readers, a probe included, or with none leaves
    the group and is an *exit*. So the group is a tree, and a record is on one of its branches at a time;
 4. an operator with several inputs is a head. Then every path through the group passes the head, and all its inputs
    come from queues. (The stages before a `concat` form groups of their own.)

A group works record by record, so some stages can only stand at an end. An `inspect_batch` sees batches as they are
sent, so it must be a head. The outputs of a `partition` leave the group, because there may be many. For the same
reason, a `partition` does not follow a `flat_map`: after each portion of a `flat_map`'s results, the generated function
checks the lists of all exits.

The summary of a path inside is composed of its members' summaries and is the identity. So the paths from the head's
inputs to the exits have the same summaries as before, and no frontier outside the group changes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import GraphEdge, Node
from megaflow.timely.dataflow.pact import Pipeline

STAGES_MAX: Final = 64
"""Stages in a group. Python indents up to a hundred levels, and a branch takes one."""

FLAT_MAPS_MAX: Final = 4
"""flat_maps in a row. Each one takes two loops, and Python nests at most twenty."""


@dataclass(slots=True)
class Group:
    """Operators that are to become one. Grows while the partition is computed."""

    members: list[int]  # nodes, in the order of building; the first is the head
    inside: dict[int, int] = field(default_factory=dict)  # output location -> the member that reads it
    loops: dict[int, int] = field(default_factory=dict)  # member -> number of flat_maps up to and including it


def partition(nodes: Sequence[Node], links: Sequence[GraphEdge]) -> list[Group]:
    """Return the groups with more than one member. Cost is linear in the size of the graph.

    Nodes are in the order of building, so each node comes after those whose output it reads. The only exception is the
    node that closes a loop, which is not a stage.
    """
    readers = Counter(link.source for link in links)
    feeds: Mapping[int, GraphEdge] = {link.target: link for link in links}
    makers = {location: node for node in nodes for location in node.sources}
    groups: dict[int, Group] = {}  # member -> its group
    for node in nodes:
        if node.stage is None:
            continue
        if len(node.targets) == 1 and (link := feeds.get(node.targets[0])) is not None:
            maker = makers[link.source]
            group = groups.get(maker.index)
            alone = readers[link.source] == 1 and link.pact == Pipeline.__name__
            if group is not None and alone and _may_follow(group, maker, node):
                group.inside[link.source] = node.index
                group.members.append(node.index)
                group.loops[node.index] = group.loops[maker.index] + _loops(node)
                groups[node.index] = group
                continue
        groups[node.index] = Group([node.index], loops={node.index: _loops(node)})
    return [group for member, group in groups.items() if member == group.members[0] and len(group.members) > 1]


def _may_follow(group: Group, maker: Node, node: Node) -> bool:
    """Return whether `node` can continue record by record after `maker`, a member of the group."""
    before = group.loops[maker.index]
    return (
        maker.stage.kind != "partition"
        and node.stage.kind != "inspect_batch"
        and not (node.stage.kind == "partition" and before)
        and len(group.members) < STAGES_MAX
        and before + _loops(node) <= FLAT_MAPS_MAX
    )


def _loops(node: Node) -> int:
    return int(node.stage.kind == "flat_map")
