"""The load of a stateful operator: records and busy time by bin, and the keys that have most records.

A meter belongs to one operator on one worker and is told of each batch that was applied. That costs a reading of the
clock, whatever the batch's size. What a batch consists of is sampled now and then:

1. Sampling is timed, and the next sample is taken only when 64 times as long was spent on records, or
   `SAMPLE_PAUSE_SECONDS` if that is less. So sampling takes a 65th of the time whatever keys and batches are like.
2. A sample has `SAMPLE_MAX` records of the batch at most, evenly spread. Each stands for an equal share of all the
   records, and of all the busy time, since the last sample: the bins add up to what was noted.
3. The figures are those of two windows, the present one and the one before it: of the last ten to twenty seconds. A
   load of an hour ago says nothing about where a bin should be now.

Keys are counted by space-saving (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements
in data streams, ICDT 2005): however many keys there are, a fixed number is counted, and each that has more than its
share of the records is among them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from heapq import heappush, heapreplace
from itertools import islice
from typing import Any

from megaflow.errors import CannotTravel
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.encode import encode

SAMPLE_MAX = 512  # records of a sample
KEYS_COUNTED = 256  # a key with more than a 256th of the records is found
WINDOW_SECONDS = 10.0
SAMPLE_SHARE = 64  # see 1 above
SAMPLE_PAUSE_SECONDS = 1.0  # busy; after a sample that was interrupted for long its window must get another one
RATE_SECONDS_MIN = 1.0  # a rate over less is chance

SIZED_BINS_MAX = 512  # bins that are measured when sizes are asked for; the others are taken for average ones
SIZED_PAIRS = 4  # keys and states of each
SIZED_BYTES_MAX = 1 << 20  # measuring stops there: it is some ten milliseconds of the worker's time


class SpaceSaving:
    """Counts of the most frequent keys, in bounded space.

    A count is never too low, and too high by its error at most, which is total / capacity at most. A key that is not
    held has at most `floor`. Cost of `add`: logarithmic in the capacity, amortized.

    >>> sketch = SpaceSaving(2)
    >>> for key in "aababcaa":
    ...     sketch.add(key, 1)
    >>> sketch.estimate("a"), sketch.estimate("c"), sketch.estimate("b")
    ((5, 0), (3, 2), (3, 3))
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.counts: dict[Any, float] = {}  # held key -> its count
        self._errors: dict[Any, float] = {}  # key -> by how much its count may be too high
        self._heap: list[tuple[float, int, Any]] = []  # (a count that a held key once had, tie-breaker, key), one each
        self._next = 0  # tie-breaker
        self.total: float = 0  # of all counts

    @property
    def floor(self) -> float:
        """How many records a key may have that is not held; 0 while there is room for all."""
        return self._least()[0] if len(self.counts) >= self._capacity else 0

    def add(self, key: Any, count: float) -> None:
        """Count a key; `count` is more than 0."""
        self.total += count
        self._next += 1
        if key in self.counts:
            self.counts[key] += count
        elif len(self.counts) < self._capacity:
            self.counts[key], self._errors[key] = count, 0
            heappush(self._heap, (count, self._next, key))
        else:
            error, _, evicted = self._least()
            del self.counts[evicted], self._errors[evicted]
            self.counts[key], self._errors[key] = error + count, error
            heapreplace(self._heap, (error + count, self._next, key))

    def estimate(self, key: Any) -> tuple[float, float]:
        """Return the count of any key, held or not, and by how much it may be too high."""
        if key in self.counts:
            return self.counts[key], self._errors[key]
        return self.floor, self.floor

    def _least(self) -> tuple[float, int, Any]:
        """The held key with the lowest count, whose entry in the heap is brought up to date."""
        heap = self._heap
        while True:
            count, number, key = heap[0]
            if self.counts[key] == count:
                return heap[0]
            heapreplace(heap, (self.counts[key], number, key))

    def _check(self) -> None:
        assert self.counts.keys() == self._errors.keys() == {key for _, _, key in self._heap}
        assert len(self._heap) == len(self.counts) <= self._capacity
        assert all(count <= self.counts[key] for count, _, key in self._heap)


@dataclass(frozen=True, slots=True)
class Load:
    """What a meter has seen in the last seconds; everything is per second."""

    bins: dict[int, tuple[float, float]]  # bin -> (records, busy seconds)
    keys: list[tuple[Any, float, float]]  # (key, records, by how much that may be too high), most certain ones first


@dataclass(slots=True)
class _Stretch:
    """What was seen in ten seconds."""

    start: float  # seconds of the meter's clock
    bins: dict[int, list[float]] = field(default_factory=dict)  # bin -> [records, busy seconds]
    keys: SpaceSaving = field(default_factory=lambda: SpaceSaving(KEYS_COUNTED))


class LoadMeter:
    """The load of one operator on one worker. One writer: the operator, batch by batch."""

    def __init__(self, bin_of_key: Callable[[Any], int], now: Callable[[], float]) -> None:
        """`now` gives seconds that never go back."""
        self._bin_of_key = bin_of_key
        self.now = now
        self.records = 0  # noted so far, or only passed on
        self.busy_seconds = 0.0  # spent on them
        self._seen = (0, 0.0)  # records and busy seconds at the last sample
        self._sample_at = 0.0  # busy seconds at which the next sample is due
        self._window = _Stretch(now())
        self._previous = _Stretch(self._window.start)

    def note(self, batch: Sequence[tuple[Any, Any]], began: float) -> None:
        """Count a batch of (key, value) pairs that was applied from `began` until now, on the meter's clock."""
        now = self.now()
        self.records += len(batch)
        self.busy_seconds += now - began
        if self.busy_seconds >= self._sample_at and batch:
            self._sample(batch, now)
            pause = min(SAMPLE_SHARE * (self.now() - now), SAMPLE_PAUSE_SECONDS)
            self._sample_at = self.busy_seconds + pause

    def load(self) -> Load:
        """Return the load of the last seconds. Cost: linear in the bins that had records."""
        now = self.now()
        self._turn(now)
        old, new = self._previous, self._window
        seconds = max(now - old.start, RATE_SECONDS_MIN)
        bins = {bin: (records / seconds, busy / seconds) for bin, (records, busy) in old.bins.items()}
        for bin, (records, busy) in new.bins.items():
            before = bins.get(bin, (0.0, 0.0))
            bins[bin] = (before[0] + records / seconds, before[1] + busy / seconds)
        found = dict.fromkeys([*new.keys.counts, *old.keys.counts])
        keys = []
        for key in found:
            (count, error), (count_before, error_before) = new.keys.estimate(key), old.keys.estimate(key)
            keys.append((key, (count + count_before) / seconds, (error + error_before) / seconds))
        return Load(bins, sorted(keys, key=lambda each: each[2] - each[1]))

    def _sample(self, batch: Sequence[tuple[Any, Any]], now: float) -> None:
        """Find out what a batch consists of."""
        self._turn(now)
        step = -(-len(batch) // SAMPLE_MAX)
        sample = batch[self.records % step :: step]
        records = (self.records - self._seen[0]) / len(sample)
        busy = (self.busy_seconds - self._seen[1]) / len(sample)
        self._seen = (self.records, self.busy_seconds)
        bins, keys = self._window.bins, self._window.keys
        for key, count in Counter(key for key, _ in sample).items():
            keys.add(key, count * records)
            figures = bins.setdefault(self._bin_of_key(key), [0.0, 0.0])
            figures[0] += count * records
            figures[1] += count * busy

    def _turn(self, now: float) -> None:
        """Begin a new window if it is time."""
        end = self._window.start + WINDOW_SECONDS
        if now >= end + WINDOW_SECONDS:  # nothing was seen in a whole one
            self._previous, self._window = _Stretch(now - WINDOW_SECONDS), _Stretch(now)
        elif now >= end:
            self._previous, self._window = self._window, _Stretch(end)


def bin_sizes(bins: Mapping[int, Collection[Any]], states: Mapping[Any, Any]) -> dict[int, int]:
    """Return bin -> bytes that its keys and states take when they travel, about; `bins` is bin -> keys.

    A few pairs of each bin are encoded and the rest taken for equally large. With many bins, or after a MiB, the other
    bins are taken for equally large by key.
    """
    step = -(-len(bins) // SIZED_BINS_MAX) or 1
    per_key: dict[int, float] = {}
    measured = pairs = 0
    for bin in sorted(bins)[::step]:
        if measured >= SIZED_BYTES_MAX:
            break
        sample = [(key, states[key]) for key in islice(bins[bin], SIZED_PAIRS)]
        if not sample:
            continue
        try:
            size = len(encode(sample))
        except CannotTravel:  # it will be said when the bin moves
            continue
        per_key[bin] = size / len(sample)
        measured += size
        pairs += len(sample)
    average = measured / pairs if pairs else 0.0
    return {bin: round(len(held) * per_key.get(bin, average)) for bin, held in bins.items()}
