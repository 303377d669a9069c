"""Timers that wait for one number to rise: the watermark, or the job's clock. See `event_timers`."""

from heapq import heapify, heappop, heappush
from typing import Any

from megaflow.megaphone.base.event_unit import INFINITE


class TimerLine:
    """Timers that wait for one number, ordered by it and then by setting; costs depend on what is due or moves.

    Invariant: `_bins` has no empty heap. `_firsts` has the least number of each heap, and perhaps outdated numbers.
    """

    def __init__(self) -> None:
        self._bins: dict[int, list[tuple[int, int, Any, Any]]] = {}  # bin -> heap of (micros, order, key, payload)
        self._firsts: list[tuple[int, int]] = []  # heap of (micros, bin)
        self._order = 0  # of the next timer

    def __bool__(self) -> bool:
        return bool(self._bins)

    def add(self, micros: int, bin: int, key: Any, payload: Any) -> None:
        """Set a timer. Cost: logarithmic."""
        heap = self._bins.setdefault(bin, [])
        if not heap or micros < heap[0][0]:
            self._put_first(micros, bin)
        heappush(heap, (micros, self.next_order(), key, payload))

    def least(self) -> int:
        """Return the least number for which a timer waits; INFINITE + 1 if there is none. Cost: O(1), amortised."""
        firsts, bins = self._firsts, self._bins
        while firsts:
            micros, bin = firsts[0]
            if bin in bins and bins[bin][0][0] == micros:
                return micros
            heappop(firsts)
        return INFINITE + 1

    def next_order(self) -> int:
        """Return the order for a timer that is set now and kept elsewhere."""
        self._order += 1
        return self._order - 1

    def pop(self, limit: int) -> list[tuple[int, int, Any, Any]]:
        """Remove the timers for at most `limit`; return (micros, order of setting, key, payload), in order."""
        due: list[tuple[int, int, Any, Any]] = []
        while self.least() <= limit:
            _, bin = heappop(self._firsts)
            heap = self._bins[bin]
            while heap and heap[0][0] <= limit:
                due.append(heappop(heap))
            if heap:
                self._put_first(heap[0][0], bin)
            else:
                del self._bins[bin]
        due.sort()  # no two have the same order
        return due

    def of(self, bin: int) -> list[tuple[int, Any, Any]]:
        """Return the (micros, key, payload) of each timer of a bin, in order; the timers stay."""
        return [(micros, key, payload) for micros, _, key, payload in sorted(self._bins.get(bin, ()))]

    def count(self) -> int:
        """Return how many timers wait."""
        return sum(map(len, self._bins.values()))

    def take(self, bin: int) -> None:
        """Remove the timers of a bin."""
        self._bins.pop(bin, None)

    def _put_first(self, micros: int, bin: int) -> None:
        heappush(self._firsts, (micros, bin))
        if len(self._firsts) > 2 * len(self._bins) + 8:  # otherwise outdated numbers would fill it
            self._firsts = [(heap[0][0], other) for other, heap in self._bins.items() if heap]
            self._firsts.append((micros, bin))
            heapify(self._firsts)

    def _check(self) -> None:
        assert all(self._bins.values()), "an empty heap is kept"
        assert {(heap[0][0], bin) for bin, heap in self._bins.items()} <= set(self._firsts)
