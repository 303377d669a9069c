"""The tracker of a dataflow whose times are all root times: each frontier is one number, or none.

For every location l it keeps

    counts(l)   the counts given to `update`
    own(l)      the least time that they count positively
    first(l)    the least of own(l) and, for each edge k → l that adds a, first(k) + a

None stands for “no time”. first(l) is the frontier, so it is the length of a shortest path from the positive
counts to l.

Locations are solved in the topological order of their strongly connected components; a component is looked at
only if an own time in it, or what leads into it, has moved. One without a cycle is a single location, and a look
at its incoming edges gives its answer. One with a cycle is solved anew as a whole, by Dijkstra's algorithm, from
what its members count and what leads into it: what a cycle implied before is forgotten first, for it must not
hold itself up. Cycles advance time (`positions` refuses others), so a shortest path passes none.

`is_behind_another` needs no books of its own. Before first(l) nothing can result; after it something else does.
At t = first(l) another pointstamp can result in (l, t) only over an edge into l, from some k with first(k) + a = t;
and what is implied at k comes from another pointstamp, for if it came from (l, t) itself, round a cycle,
first(k) + a would be later than t.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from megaflow.timely.order import Time, less_than
from megaflow.timely.progress.antichain import Antichain, single
from megaflow.timely.progress.propagation_order import Edge, Position

_Ways: TypeAlias = list[list[tuple[int, int]]]  # location -> (location at the other end, what the edge adds)


class IntegerTracker:
    """A `Tracker` for root times. Cost of `propagate`: linear in the edges of the components that it looks at."""

    def __init__(self, where: Sequence[Position], edges: Iterable[Edge]) -> None:
        self._counts: list[dict[int, int]] = [{} for _ in where]  # location -> time -> count, never zero
        self._own: list[int | None] = [None for _ in where]
        self._first: list[int | None] = [None for _ in where]
        self._frontiers: list[Antichain | None] = [None for _ in where]  # as handed out; None: not asked for since
        self._into: _Ways = [[] for _ in where]
        self._out_of: _Ways = [[] for _ in where]
        for source, target, summary in edges:
            self._into[target].append((source, summary.adds[0]))
            self._out_of[source].append((target, summary.adds[0]))
        self._component = [position[0] for position in where]  # location -> number of its component
        # location -> the other components that it leads to
        self._following = [
            sorted({self._component[target] for target, _ in ways} - {self._component[location]})
            for location, ways in enumerate(self._out_of)
        ]
        self._members: dict[int, list[int]] = {}  # component -> its locations
        for location, component in enumerate(self._component):
            self._members.setdefault(component, []).append(location)
        # component -> its location if no cycle passes it; else None
        self._alone: dict[int, int | None] = {
            component: members[0] if len(where[members[0]]) == 1 else None
            for component, members in self._members.items()
        }
        self._outstanding = 0  # counts that are not zero
        self._buffer: list[tuple[int, Any, int]] = []  # updates since the last propagate; their times are ints

    def update(self, location: int, time: Time, delta: int) -> None:
        """Add to the count of (location, time) at the next `propagate`."""
        self._buffer.append((location, time, delta))

    def extend(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Do `update` for each of (location, time, delta)."""
        self._buffer.extend(changes)

    def propagate(self) -> list[int]:
        """Take in the buffered updates; return the locations whose frontier changed, each once, increasing."""
        if not self._buffer:
            return []
        alone, first, own, into = self._alone, self._first, self._own, self._into
        due = {self._component[location] for location in self._take_in()}  # components to look at
        heap = list(due)
        heapify(heap)
        changed: list[int] = []
        while heap:
            number = heappop(heap)  # no edge leads back to it, so it is looked at once
            location = alone[number]
            if location is None:
                moved = self._solve_cycle(number)
            else:
                least = own[location]
                for source, add in into[location]:
                    time = first[source]
                    if time is not None and (least is None or time + add < least):
                        least = time + add
                if least == first[location]:
                    continue
                first[location] = least
                moved = [location]
            for location in moved:
                self._frontiers[location] = None
                for following in self._following[location]:
                    if following not in due:
                        due.add(following)
                        heappush(heap, following)
            changed += moved
        changed.sort()
        return changed

    def _take_in(self) -> set[int]:
        """Count what is buffered; return the locations whose own least time has moved, perhaps back to where it was."""
        buffer, self._buffer = self._buffer, []
        all_counts, own = self._counts, self._own
        moved = set()
        stale = set()  # of these the least time may be gone
        for location, time, delta in buffer:
            counts = all_counts[location]
            before = counts.get(time, 0)
            after = before + delta
            if after:
                counts[time] = after
                if not before:
                    self._outstanding += 1
            elif before:
                del counts[time]
                self._outstanding -= 1
            if before <= 0 < after:
                least = own[location]
                if least is None or time < least:
                    own[location] = time
                    moved.add(location)
            elif after <= 0 < before and time == own[location]:
                stale.add(location)
        for location in stale:
            counted = [time for time, count in all_counts[location].items() if count > 0]
            own[location] = min(counted) if counted else None
        return moved | stale

    def _solve_cycle(self, component: int) -> list[int]:
        """Bring a component with a cycle up to date; return the locations whose first time has moved."""
        members = self._members[component]
        first, own = self._first, self._own
        before = {member: first[member] for member in members}
        heap: list[tuple[int, int]] = []  # (time, member)
        for member in members:
            least = own[member]
            for source, add in self._into[member]:
                time = first[source]
                if time is not None and source not in before and (least is None or time + add < least):
                    least = time + add
            if least is not None:
                heap.append((least, member))
            first[member] = None
        heapify(heap)
        while heap:
            time, member = heappop(heap)
            if first[member] is None:  # else known from an earlier time
                first[member] = time
                for target, add in self._out_of[member]:
                    if target in before and first[target] is None:
                        heappush(heap, (time + add, target))
        return [member for member in members if first[member] != before[member]]

    def frontier(self, location: int) -> Antichain:
        """Return the lower bound of the times that may still appear at the location, its own counts included.

        Later updates leave it alone; others may share it, so it is not to be inserted into.
        """
        known = self._frontiers[location]
        if known is None:
            first = self._first[location]
            known = self._frontiers[location] = Antichain() if first is None else single(first)
        return known

    def is_behind_another(self, location: int, time: Time) -> bool:
        """Tell whether a pointstamp other than (location, time) itself could result in (location, time).

        While that is so, a decrement there cannot move this location's frontier.
        """
        first = self._first[location]
        if first != time:
            return first is not None and less_than(first, time)
        for source, add in self._into[location]:
            before = self._first[source]
            if before is not None and before + add == time:
                return True
        return False

    def is_complete(self) -> bool:
        """Tell whether there is no count anywhere, neither positive, negative nor buffered."""
        return not self._outstanding and not self._buffer

    def pointstamps(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over (location, time, count) for every count that is not zero, negative ones included."""
        for location, counts in enumerate(self._counts):
            for time, count in counts.items():
                yield location, time, count

    def _check(self) -> None:
        assert self._outstanding == sum(map(len, self._counts)), "counts that are not zero are miscounted"
        for location, counts in enumerate(self._counts):
            assert all(counts.values()), f"a zero count is kept at location {location}: {counts}"
            positive = [time for time, count in counts.items() if count > 0]
            own = self._own[location]
            assert positive == [] if own is None else own == min(positive), f"stale at location {location}"
            known = [own, *(first + add for k, add in self._into[location] if (first := self._first[k]) is not None)]
            least = min((time for time in known if time is not None), default=None)
            assert self._first[location] == least, f"location {location}: {self._first[location]}, should be {least}"
            shown = self._frontiers[location]
            assert shown is None or shown == Antichain(() if least is None else (least,)), f"location {location}"
