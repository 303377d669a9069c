"""The place of each location of a graph in the order of propagation, and the cycles that are refused.

The tracker handles changes in an order in which every edge leads to a later place. A place is (c, t0, p0, t1, p1, …):
the coordinates of the time, interleaved with the *position* of the location. A position is a tuple (c, p0, p1, …) that
is found level by level:

Level −1. c is the number of the location's strongly connected component, in topological order. An edge to another
component raises c. The position of a component without a cycle ends here.
Level i. Inside a component, edges that advance coordinate i raise t_i and are set aside. Among the remaining edges, p_i
numbers the components again. So an edge between two of them raises p_i and keeps t_0 … t_i. A component that still has
a cycle goes on to level i + 1, where the times must differ.

So a cycle is refused if, at some level, no edge of it advances the coordinate and one of its edges does not pass on the
next coordinate. An edge does not pass it on if its scope has no such coordinate, or if it leaves the scope and enters
it again. A time would return around that cycle unchanged. Interleaving makes the edges of `leave` correct, which drop a
coordinate: at the same t_i, such an edge only increases p_i.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from megaflow.errors import BuildError
from megaflow.timely.order import grouped
from megaflow.timely.path_summary import Summary

Edge: TypeAlias = tuple[int, int, Summary]
Position: TypeAlias = tuple[int, ...]


def positions(names: Sequence[str], edges: Sequence[Edge]) -> list[Position]:
    """Return the position of every location; it has one entry if the location is on no cycle.

    Raises BuildError for a cycle that does not advance the time, and names its locations. The cost is linear in the
    size of the graph for each level of nesting.
    """
    found: list[list[int]] = [[] for _ in names]
    # Members, edges and level of each component with a cycle; at first of the whole graph.
    waiting: list[tuple[Collection[int], Sequence[Edge], int]] = [(range(len(names)), edges, -1)]
    while waiting:
        members, inside, level = waiting.pop()
        remaining = [edge for edge in inside if level < 0 or edge[2].adds[level] == 0]
        components = _components(members, remaining)
        for number, component in enumerate(components):
            for member in component:
                found[member].append(number)
        # number of a component with a cycle -> the edges inside
        cyclic = grouped((found[edge[0]][-1], edge) for edge in remaining if found[edge[0]][-1] == found[edge[1]][-1])
        for number, kept in cyclic.items():
            for source, target, summary in kept:
                if len(summary.adds) < level + 2:
                    raise BuildError(_complaint(names, [source, *_shortest_path(kept, target, source)]))
            waiting.append((components[number], kept, level + 1))
    return [tuple(position) for position in found]


def _components(members: Collection[int], edges: Iterable[Edge]) -> list[list[int]]:
    """Return the strongly connected components in topological order (Kosaraju's algorithm)."""
    forward: dict[int, list[int]] = {member: [] for member in members}
    backward: dict[int, list[int]] = {member: [] for member in members}
    for source, target, _ in edges:
        forward[source].append(target)
        backward[target].append(source)
    # Step 1. Sort the members in the order in which a depth-first search leaves them.
    left: list[int] = []
    seen: set[int] = set()
    for root in members:
        trail = [] if root in seen else [(root, iter(forward[root]))]
        seen.add(root)
        while trail:
            member, targets = trail[-1]
            following = next((target for target in targets if target not in seen), None)
            if following is None:
                left.append(member)
                trail.pop()
            else:
                seen.add(following)
                trail.append((following, iter(forward[following])))
    # Step 2. Start from the member left last. Its component is all members that lead to it and are not taken yet.
    components: list[list[int]] = []
    taken: set[int] = set()
    for root in reversed(left):
        if root in taken:
            continue
        taken.add(root)
        component = [root]
        for member in component:  # grows during the loop
            fresh = [source for source in dict.fromkeys(backward[member]) if source not in taken]
            taken.update(fresh)
            component.extend(fresh)
        components.append(component)
    return components


def _shortest_path(edges: Iterable[Edge], start: int, end: int) -> list[int]:
    """Return the locations on a shortest path along the edges, including both ends. A path must exist."""
    targets = grouped((source, target) for source, target, _ in edges)
    came_from = {start: start}
    queue = deque([start])
    while end not in came_from:
        source = queue.popleft()
        for target in targets[source]:
            if target not in came_from:
                came_from[target] = source
                queue.append(target)
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def _complaint(names: Sequence[str], cycle: Sequence[int]) -> str:
    return (
        f"the cycle {' → '.join(names[location] for location in cycle)} does not advance the time: lead it through a "
        "feedback that adds at least 1, in the scope that contains the whole cycle"
    )
