"""The tracker of any dataflow: times may be nested or partially ordered, so a frontier may have several elements.

For every location l the tracker keeps two `MutableAntichain`s:

    pointstamps(l)    the counts given to `extend`
    implications(l)   the frontier of pointstamps(l), plus, for each edge k → l with summary s,
                      s(t) for every t in the frontier of implications(k)

The frontier of implications(l) is the answer. Both antichains receive only discrete changes of frontiers. This shields
the answer from counts that are negative for a while.

Every edge leads to a later place in the order of `positions`, and `propagate` handles changes in that order: it takes a
place when no place before it is pending. (If times are partially ordered, so are places. But a place depends only on
the places before it.) So all earlier places are final when a place is handled, and each (location, time) is handled at
most once. If a cycle still implies a time from before, `propagate` withdraws it exactly as far as it had spread. So the
work is proportional to the changes. At a location that is on no cycle, the place does not depend on the time, and all
changes are handled at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappush
from typing import Any, TypeAlias

from megaflow.timely.order import Time, pop_first, sort_key
from megaflow.timely.path_summary import identity
from megaflow.timely.progress.antichain import Antichain, MutableAntichain
from megaflow.timely.progress.propagation_order import Edge, Position

# (place in the order, location, time to handle there); None as the time means all times.
_Task: TypeAlias = tuple[tuple[Any, ...], int, Time | None]


class ProductTracker:
    """A `Tracker` for times of any kind and depth; also the oracle for `IntegerTracker`."""

    def __init__(
        self, depths: Sequence[int], where: list[Position], edges: Iterable[Edge], total: bool = True
    ) -> None:
        """If `total`, any two keys of times have an order: see `is_total`."""
        self._pop = pop_first(total)
        self._pointstamps = [MutableAntichain() for _ in where]
        self._implications = [MutableAntichain() for _ in where]
        # location -> (target, function of a time); None instead of a function keeps the time, as most edges do
        self._edges: list[list[tuple[int, Callable[[Time], Time | None] | None]]] = [[] for _ in where]
        for source, target, summary in edges:
            self._edges[source].append((target, None if summary == identity(depths[source]) else summary.apply))
        self._positions = where
        # location -> its only task if it is on no cycle; else None
        self._tasks: list[_Task | None] = [
            (position, location, None) if len(position) == 1 else None for location, position in enumerate(where)
        ]
        self._buffer: dict[int, list[tuple[Time, int]]] = {}  # location -> updates since the last propagate
        self._counted: set[int] = set()  # locations with nonzero counts
        self._heap: list[_Task] = []  # empty between calls of propagate, like `_pending`
        self._pending: list[dict[Time, int]] = [{} for _ in where]  # location -> time -> change of implications

    def extend(self, changes: Iterable[tuple[int, Time, int]]) -> None:
        """Add to the counts, for each (location, time, delta), at the next `propagate`."""
        for location, time, delta in changes:
            self._buffer.setdefault(location, []).append((time, delta))

    def propagate(self) -> list[int]:
        """Apply the buffered updates; return the locations whose frontier changed, each once, in increasing order."""
        if not self._buffer:
            return []
        buffer, self._buffer = self._buffer, {}
        for location, updates in buffer.items():
            counts = self._pointstamps[location]
            for time, delta in counts.update_iter(updates):
                self._offer(location, time, delta)
            if counts.is_empty():
                self._counted.discard(location)
            else:
                self._counted.add(location)
        changed: set[int] = set()
        heap, pop = self._heap, self._pop
        while heap:
            _, location, due = pop(heap)
            pending = self._pending[location]
            if due is None:
                changes = self._implications[location].update_iter(pending.items())
                pending.clear()
            else:
                changes = self._implications[location].update_iter([(due, pending.pop(due))])
            if changes:
                changed.add(location)
                for target, apply in self._edges[location]:
                    for time, delta in changes:
                        end = apply(time) if apply else time
                        if end is not None:
                            self._offer(target, end, delta)
        return sorted(changed)

    def _offer(self, location: int, time: Time, delta: int) -> None:
        """Add a change to the location's pending implications, and schedule the location if necessary."""
        pending = self._pending[location]
        if time in pending:
            pending[time] += delta
            return
        task = self._tasks[location]
        if task is None:
            heappush(self._heap, (_place(self._positions[location], time), location, time))
        elif not pending:
            heappush(self._heap, task)
        pending[time] = delta

    def frontier(self, location: int) -> Antichain:
        """Return the lower bound of the times that may still appear at the location, including its own counts.

        Later updates do not change the returned antichain.
        """
        return self._implications[location].frontier

    def is_behind_another(self, location: int, time: Time) -> bool:
        """Return whether a pointstamp other than (location, time) itself could result in (location, time).

        While this holds, a decrement there cannot move the frontier of this location.
        """
        implied = self._implications[location]
        if implied.frontier.less_than(time):
            return True
        return implied.count_for(time) > (time in self._pointstamps[location].frontier.elements)

    def is_complete(self) -> bool:
        """Return whether all counts are zero and no update is buffered."""
        return not self._counted and not self._buffer

    def pointstamps(self) -> Iterator[tuple[int, Time, int]]:
        """Iterate over all nonzero counts, positive or negative, as (location, time, count)."""
        for location in sorted(self._counted):
            for time, count in self._pointstamps[location].counts():
                yield location, time, count

    def _check(self) -> None:
        assert not self._heap and not any(self._pending), "changes are left over from propagate"
        expected = [MutableAntichain() for _ in self._positions]
        for location, counts in enumerate(self._pointstamps):
            counts._check()
            self._implications[location]._check()
            assert (location in self._counted) != counts.is_empty()
            expected[location].update_iter((time, 1) for time in counts.frontier)
            for target, apply in self._edges[location]:
                for time in self._implications[location].frontier:
                    end = apply(time) if apply else time
                    if end is not None:
                        expected[target].update_iter([(end, 1)])
        for location, implied in enumerate(self._implications):
            assert dict(implied.counts()) == dict(expected[location].counts()), f"location {location}: {implied!r}"


def _place(position: Position, time: Time) -> tuple[Any, ...]:
    """Return (c, t0, p0, t1, p1, …): the component, then time keys and positions in turn, then the remaining keys.

    >>> from megaflow.timely.order import Product
    >>> _place((4, 1), 17), _place((4, 1), Product(17, 2)), _place((4, 1, 0), Product(17, 2))
    ((4, 17, 1), (4, 17, 1, 2), (4, 17, 1, 2, 0))
    """
    place: list[Any] = [position[0]]
    for level, key in enumerate(sort_key(time), start=1):
        place.append(key)
        if level < len(position):
            place.append(position[level])
    return tuple(place)
