"""What the outstanding counts of one dataflow imply: the frontier of every location.

A *location* is an output port (a Source, where capabilities are counted) or an input port (a
Target, where unconsumed records are). One flat graph holds all of a dataflow's locations, those of
nested scopes included; edges lead from Sources to Targets along channels and from Targets to
Sources through operators, each with the `Summary` of what it does to times.

The graph is collected here. What follows from the counts is kept by one of two trackers, which
give the same answers: `IntegerTracker` where all times are ints, `ProductTracker` elsewhere.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from megaflow.errors import BuildError
from megaflow.timely.order import Time, coordinates, from_coordinates
from megaflow.timely.path_summary import Summary, identity
from megaflow.timely.progress.antichain import Antichain
from megaflow.timely.progress.integer_tracker import IntegerTracker
from megaflow.timely.progress.product_tracker import ProductTracker
from megaflow.timely.progress.propagation_order import Edge, positions


class Tracker(Protocol):
    """The frontiers of one dataflow, kept up to date with its counts.

    Counts are buffered by `update` and `extend`; everything else speaks of the state after the last `propagate`.
    """

    def update(self, location: int, time: Time, delta: int) -> None:
        """Add to the count of (location, time) at the next `propagate`."""

    def extend(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Do `update` for each of (location, time, delta)."""

    def propagate(self) -> list[int]:
        """Take in the buffered updates; return the locations whose frontier changed, each once, increasing."""

    def frontier(self, location: int) -> Antichain:
        """Return the lower bound of the times that may still appear at the location, its own counts included.

        Later updates leave it alone; others may share it, so it is not to be inserted into.
        """

    def is_behind_another(self, location: int, time: Time) -> bool:
        """Tell whether a pointstamp other than (location, time) itself could result in (location, time).

        While that is so, a decrement there cannot move this location's frontier.
        """

    def is_complete(self) -> bool:
        """Tell whether there is no count anywhere, neither positive, negative nor buffered."""

    def pointstamps(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over (location, time, count) for every count that is not zero, negative ones included."""

    def _check(self) -> None: ...


class GraphBuilder:
    """Locations and edges as they are added; `build` makes the tracker.

    >>> graph = GraphBuilder()
    >>> source, target = graph.add_location(name="input.out"), graph.add_location(name="map.in")
    >>> graph.add_edge(source, target)
    >>> tracker = graph.build([(source, 0, 1)])
    >>> tracker.frontier(target)
    Antichain([0])
    >>> tracker.update(source, 0, -1)
    >>> tracker.update(source, 7, 1)
    >>> tracker.propagate(), tracker.frontier(target)
    ([0, 1], Antichain([7]))
    """

    def __init__(self, least: Time = 0) -> None:
        """`least` is the least time of the root scope."""
        self._least = coordinates(least)
        self.root_depth = len(self._least) - 1
        self.depths: list[int] = []  # location -> coordinates of its times, less one
        self.names: list[str] = []  # location -> name, for messages
        self.edges: list[Edge] = []  # (from, to, summary), in the order added

    def least(self, depth: int) -> Time:
        """Return the least time of this depth, which is that of the root or more."""
        return from_coordinates(self._least + (0,) * (depth - self.root_depth))

    def add_location(self, depth: int = 0, name: str = "") -> int:
        """Add a location whose times have this depth; locations are numbered from 0 in this order."""
        location = len(self.depths)
        self.depths.append(depth)
        self.names.append(name or f"location {location}")
        return location

    def add_edge(self, a: int, b: int, summary: Summary | None = None) -> None:
        """Let what happens at `a` lead to `b`, at the time that the summary gives; None keeps the time.

        There may be several edges between two locations. Raises BuildError for a location that does
        not exist and for a summary that does not lead from the depth of `a` to that of `b`.
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
        """Make the tracker, with (location, time, count) already counted and propagated.

        A frontier is therefore right from the start, and nothing has changed yet. Raises BuildError
        for a cycle that does not advance the time.
        """
        where = positions(self.names, self.edges)
        tracker: Tracker
        if any(self.depths) or type(self._least[0]) is not int:
            tracker = ProductTracker(self.depths, where, self.edges)
        else:
            tracker = IntegerTracker(where, self.edges)
        for location, time, count in initial:
            tracker.update(location, time, count)
        tracker.propagate()
        return tracker
