"""The tracker of a dataflow whose times are all root times: each frontier is one number, or none.

For every location l it keeps

    counts(l)   the counts given to `extend`
    own(l)      the least time with a positive count
    first(l)    the least of own(l) and, for each edge k → l that adds a, first(k) + a

None stands for “no time”. first(l) is the frontier. It is the length of a shortest path from the positive counts to l.

The tracker processes the strongly connected components in topological order. It looks at a component only if an own
time in it has moved, or a time that leads into it. A component without a cycle is a single location, whose incoming
edges give the answer. The tracker solves a component with a cycle anew as a whole, by Dijkstra's algorithm. It starts
from the members' own times and the times that lead into the component. First it forgets the times that the cycle
implied before, because the cycle must not hold itself up. Cycles advance time (`positions` refuses others), so a
shortest path does not go around one.

`is_behind_another` needs no data of its own. No pointstamp can result in (l, t) if t is before first(l). If t is after
first(l), some other pointstamp can. At t = first(l) another pointstamp can do so only over an edge into l, from a
location k with first(k) + a = t. If such an edge exists, the time at k comes from another pointstamp: if it came from
(l, t) itself, around a cycle, first(k) + a would be later than t.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

from megaflow.timely.order import Time, grouped, less_than
from megaflow.timely.progress.antichain import Antichain, single
from megaflow.timely.progress.propagation_order import Edge, Position

_Ways: TypeAlias = list[list[tuple[int, int]]]  # location -> (location at the other end, amount that the edge adds)


class IntegerTracker:
    """A `Tracker` for root times. `propagate` costs O(edges of the components that it looks at)."""

    def __init__(self, where: Sequence[Position], edges: Iterable[Edge]) -> None:
        self._counts: list[dict[int, int]] = [{} for _ in where]  # location -> time -> count, never zero
        self._own: list[int | None] = [None for _ in where]
        self._first: list[int | None] = [None for _ in where]
        self._frontiers: list[Antichain | None] = [None for _ in where]  # None: not returned since it last changed
        self._into: _Ways = [[] for _ in where]
        self._out_of: _Ways = [[] for _ in where]
        for source, target, summary in edges:
            self._into[target].append((source, summary.adds[0]))
            self._out_of[source].append((target, summary.adds[0]))
        self._component = [position[0] for position in where]  # location -> number of its component
        # location -> the other components to which its edges lead
        self._following = [
            sorted({self._component[target] for target, _ in ways} - {self._component[location]})
            for location, ways in enumerate(self._out_of)
        ]
        # component -> its locations
        self._members = grouped((component, location) for location, component in enumerate(self._component))
        # component -> its only location; None if it has a cycle
        self._alone: dict[int, int | None] = {
            component: members[0] if len(where[members[0]]) == 1 else None
            for component, members in self._members.items()
        }
        self._outstanding = 0  # number of nonzero counts
        self._buffer: list[tuple[int, Any, int]] = []  # updates since the last propagate; their times are ints

    def extend(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Add to the counts, for each (location, time, delta), at the next `propagate`."""
        self._buffer.extend(changes)

    def propagate(self) -> list[int]:
        """Apply the buffered updates; return the locations whose frontier changed, each once, in increasing order."""
        if not self._buffer:
            return []
        alone, first, own, into = self._alone, self._first, self._own, self._into
        due = {self._component[location] for location in self._take_in()}  # components to look at
        heap = list(due)
        heapify(heap)
        changed: list[int] = []
        while heap:
            number = heappop(heap)  # no edge leads back to it, so each component is processed once
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
        """Count the buffered updates; return the locations whose own least time has moved, even if it moved back."""
        buffer, self._buffer = self._buffer, []
        all_counts, own = self._counts, self._own
        moved = set()
        stale = set()  # locations that may have lost their least time
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
        """Solve a component with a cycle anew; return the locations whose first time has moved."""
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
            if first[member] is None:  # otherwise an earlier time was found
                first[member] = time
                for target, add in self._out_of[member]:
                    if target in before and first[target] is None:
                        heappush(heap, (time + add, target))
        return [member for member in members if first[member] != before[member]]

    def frontier(self, location: int) -> Antichain:
        """Return the lower bound of the times that may still appear at the location, including its own counts.

        Later updates do not change the returned antichain. Others may share it, so do not insert into it.
        """
        known = self._frontiers[location]
        if known is None:
            first = self._first[location]
            known = self._frontiers[location] = Antichain() if first is None else single(first)
        return known

    def is_behind_another(self, location: int, time: Time) -> bool:
        """Return whether a pointstamp other than (location, time) itself could result in (location, time).

        While this holds, a decrement there cannot move the frontier of this location.
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
        """Return whether all counts are zero and no update is buffered."""
        return not self._outstanding and not self._buffer

    def pointstamps(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over all nonzero counts, positive or negative, as (location, time, count)."""
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
