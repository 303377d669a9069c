"""Which operators become one: the partition of a dataflow into groups, decided from its shape alone.

A group is an out-tree of stages (`stage`): the *head*, where batches come in from queues, and behind it stages whose
one input is fed by another member. The group is one operator, run by the head's node; between its members no record is
queued, no time is tracked and nothing is scheduled. It is legal where

 1. all members are stages: they keep times (every path inside is the identity) and hold no capability of their own;
 2. what leads from member to member is a Pipeline channel;
 3. an output inside has that one consumer: what several read, a probe included, leaves the group, as what is not read
    does (an *exit*). So it is a tree, and a record is on one of its branches at a time;
 4. an operator with several inputs is a head: then every way through the group passes the head, and what leads into it
    from outside comes from a queue. (The stages before a `concat` are groups of their own.)

Some stages can only be at an end, since a group goes record by record. An `inspect_batch` is shown batches as they are
sent, and so is a head. What leaves a `partition` leaves the group, for its outputs may be many; and it stands behind no
`flat_map`, after each portion of which all lists are looked at.

A path inside has the summary of its parts, the identity; so what leads from the head's inputs to the exits is what the
members' own paths lead to, and no frontier outside of the group changes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import GraphEdge, Node
from megaflow.timely.dataflow.pact import Pipeline

STAGES_MAX: Final = 64
"""In a group: Python indents up to a hundred levels, and a branch takes one."""

FLAT_MAPS_MAX: Final = 4
"""One behind the other: each is two loops, of which Python nests twenty."""


@dataclass(slots=True)
class Group:
    """Operators that are to be one. Grows while it is found."""

    members: list[int]  # nodes, in the order of building; the first is the head
    inside: dict[int, int] = field(default_factory=dict)  # output location -> the member that reads it
    loops: dict[int, int] = field(default_factory=dict)  # member -> flat_maps up to and with it

    @property
    def head(self) -> int:
        """The node that runs it."""
        return self.members[0]


def partition(nodes: Sequence[Node], links: Sequence[GraphEdge]) -> list[Group]:
    """Return the groups of more than one; cost is linear in the size of the graph.

    Nodes are in the order of building, so each comes after those whose output it reads, but for what closes a loop;
    and that is no stage.
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
            alone = readers[link.source] == 1 and link.pact == Pipeline.name
            if group is not None and alone and _may_follow(group, maker, node):
                group.inside[link.source] = node.index
                group.members.append(node.index)
                group.loops[node.index] = group.loops[maker.index] + _loops(node)
                groups[node.index] = group
                continue
        groups[node.index] = Group([node.index], loops={node.index: _loops(node)})
    return [group for member, group in groups.items() if member == group.head and len(group.members) > 1]


def _may_follow(group: Group, maker: Node, node: Node) -> bool:
    """Tell whether `node` can go on record by record where `maker`, a member, ends."""
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
