"""The frontiers of all locations of one dataflow, as they follow from its outstanding counts.

A *location* is an output port (a Source, where capabilities are counted) or an input port (a Target, where unconsumed
records are counted). One flat graph holds all locations of a dataflow, including those of nested scopes. Edges lead
from Sources to Targets along channels, and from Targets to Sources through operators. Each edge has a `Summary` of its
effect on times.

`GraphBuilder` collects the graph. One of two trackers then computes the frontiers, and both give the same answers:
`IntegerTracker` if all times are ints, otherwise `ProductTracker`.
"""

from collections.abc import Iterable
from typing import TypeAlias

from megaflow.errors import BuildError
from megaflow.timely.order import Time, coordinates, from_coordinates, is_total, sort_key
from megaflow.timely.path_summary import Summary, identity
from megaflow.timely.progress.integer_tracker import IntegerTracker
from megaflow.timely.progress.product_tracker import ProductTracker
from megaflow.timely.progress.propagation_order import Edge, positions

Tracker: TypeAlias = IntegerTracker | ProductTracker
"""The frontiers of one dataflow, kept up to date with its counts.

`extend` buffers counts; `is_complete` takes them into account. All other methods refer to the state after the last
`propagate`.
"""


class GraphBuilder:
    """Collector of locations and edges; `build` makes the tracker.

    >>> graph = GraphBuilder()
    >>> source, target = graph.add_location(name="input.out"), graph.add_location(name="map.in")
    >>> graph.add_edge(source, target)
    >>> tracker = graph.build([(source, 0, 1)])
    >>> tracker.frontier(target)
    Antichain([0])
    >>> tracker.extend([(source, 0, -1), (source, 7, 1)])
    >>> tracker.propagate(), tracker.frontier(target)
    ([0, 1], Antichain([7]))
    """

    def __init__(self, least: Time = 0) -> None:
        """`least` is the least time of the root scope."""
        self._least = coordinates(least)
        self.root_depth = len(self._least) - 1
        self.depths: list[int] = []  # location -> number of coordinates of its times, minus one
        self.names: list[str] = []  # location -> name, for messages
        self.edges: list[Edge] = []  # (from, to, summary), in the order added

    def least(self, depth: int) -> Time:
        """Return the least time of this depth, which must be at least the root's depth."""
        return from_coordinates(self._least + (0,) * (depth - self.root_depth))

    def add_location(self, depth: int = 0, name: str = "") -> int:
        """Add a location whose times have this depth; return its number. Numbers start at 0 and increase."""
        location = len(self.depths)
        self.depths.append(depth)
        self.names.append(name or f"location {location}")
        return location

    def add_edge(self, a: int, b: int, summary: Summary | None = None) -> None:
        """Add an edge: activity at `a` can lead to activity at `b`, at the time that the summary gives.

        None keeps the time. Two locations may have several edges. Raises BuildError if a location does not exist, or if
        the summary does not lead from the depth of `a` to that of `b`.
        """
        for location in (a, b):
            if not 0 <= location < len(self.depths):
                raise BuildError(f"an edge {a} → {b} needs locations among the {len(self.depths)} added so far")
        if summary is None:
            summary = identity(self.depths[a])
        if len(summary.adds) > self.depths[a] + 1 or len(summary.adds) + len(summary.tail) != self.depths[b] + 1:
            raise BuildError(
                f"the edge {self.names[a]} → {self.names[b]} has {summary!r}, which does not lead from times of "
                f"depth {self.depths[a]} to times of depth {self.depths[b]}"
            )
        self.edges.append((a, b, summary))

    def build(self, initial: Iterable[tuple[int, Time, int]] = ()) -> Tracker:
        """Return the tracker, with the counts of `initial`, each (location, time, count), applied and propagated.

        So the frontiers are right from the start, and the first `propagate` does not report these counts as changes.
        Raises BuildError for a cycle that does not advance the time.
        """
        where = positions(self.names, self.edges)
        tracker: Tracker
        if any(self.depths) or type(self._least[0]) is not int:
            total = is_total(sort_key(self.least(self.root_depth)))
            tracker = ProductTracker(self.depths, where, self.edges, total)
        else:
            tracker = IntegerTracker(where, self.edges)
        tracker.extend(initial)
        tracker.propagate()
        return tracker
