"""The load of a stateful operator: records and busy time by bin, and the most frequent keys.

A meter belongs to one operator on one worker. The operator reports each batch that it has applied, which costs one
reading of the clock, whatever the batch's size. Now and then the meter samples the contents of a batch:

1. The meter measures how long sampling takes. It takes the next sample only when records have taken 64 times as long,
   or `SAMPLE_PAUSE_SECONDS` if that is less. So sampling takes a 65th of the time, whatever keys and batches are like.
   An operator with little to do takes the next sample earlier: when 256 times as long, or `IDLE_PAUSE_SECONDS`, has
   passed on the clock. Otherwise a batch of one record would stand for the hundreds of records of some seconds.
2. A sample has at most `SAMPLE_MAX` records of the batch, evenly spread. Each stands for an equal share of all the
   records, and of all the busy time, since the last sample: the bins add up to what was noted.
3. The figures are those of two windows, the present one and the one before it, so of the last ten to twenty seconds. A
   load of an hour ago says nothing about where a bin should be now.

Keys are counted by space-saving (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in
data streams, ICDT 2005). It counts a fixed number of keys, however many there are, and each key with more than its
share of the records is among them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
SAMPLE_SHARE, IDLE_SHARE = 64, 256  # see rule 1
SAMPLE_PAUSE_SECONDS = 1.0  # busy; after a sample that was interrupted for long its window must get another one
IDLE_PAUSE_SECONDS = 0.25  # of the clock, for the same reason
RATE_SECONDS_MIN = 1.0  # a rate over a shorter time is chance

SIZED_BINS_MAX = 512  # bins that are measured when sizes are asked for; the others count as average
SIZED_PAIRS = 4  # keys and states measured in each bin
SIZED_SECONDS = 5.0  # for which a measurement stands: a page asks every second, and encoding took most of an answer
SIZED_BYTES_MAX = 1 << 20  # measuring stops there, after some ten milliseconds of the worker's time


class SpaceSaving:
    """Counts of the most frequent keys, in bounded space.

    A count is never too low. It is too high by at most its error, which is at most total / capacity. A key that is not
    held has at most `floor` records. Cost of `add`: logarithmic in the capacity, amortized.

    >>> sketch = SpaceSaving(2)
    >>> for key in "aababcaa":
    ...     sketch.add(key, 1)
    >>> list(sketch.estimates("acb"))
    [(5, 0), (3, 2), (3, 3)]
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.counts: dict[Any, float] = {}  # held key -> its count
        self._errors: dict[Any, float] = {}  # key -> the most by which its count may be too high
        self._heap: list[tuple[float, int, Any]] = []  # (earlier count of a held key, tie-breaker, key), one per key
        self._next = 0  # tie-breaker
        self.total: float = 0  # of all counts

    @property
    def floor(self) -> float:
        """Greatest number of records of a key that is not held; 0 while there is room for all."""
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

    def estimates(self, keys: Iterable[Any]) -> Iterator[tuple[float, float]]:
        """Yield the count of each key, held or not, and the most by which it may be too high."""
        counts, errors, floor = self.counts, self._errors, self.floor
        return ((counts[key], errors[key]) if key in counts else (floor, floor) for key in keys)

    def _least(self) -> tuple[float, int, Any]:
        """Return the held key with the lowest count, after bringing its entry in the heap up to date."""
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
    """The load that a meter has seen in the last seconds; all figures are per second."""

    bins: dict[int, tuple[float, float]]  # bin -> (records, busy seconds)
    keys: list[tuple[Any, float, float]]  # (key, records, by how much that may be too high), most certain keys first


@dataclass(slots=True)
class _Stretch:
    """The load of one window."""

    start: float  # seconds of the meter's clock
    bins: dict[int, list[float]] = field(default_factory=dict)  # bin -> [records, busy seconds]
    keys: SpaceSaving = field(default_factory=lambda: SpaceSaving(KEYS_COUNTED))


class LoadMeter:
    """The load of one operator on one worker. One writer: the operator, batch by batch."""

    def __init__(self, bin_of_key: Callable[[Any], int], now: Callable[[], float]) -> None:
        """`now` returns seconds that never go back."""
        self._bin_of_key = bin_of_key
        self.now = now
        self.records = 0  # applied so far, or only passed on
        self.busy_seconds = 0.0  # spent on them
        self._seen = (0, 0.0)  # records and busy seconds at the last sample
        self._sample_at = 0.0  # busy seconds at which the next sample is due
        self._sample_by = 0.0  # seconds of the clock at which it is due at the latest
        self._window = _Stretch(now())
        self._previous = _Stretch(self._window.start)
        self._bytes_per_key: dict[int, float] = {}  # by bin, as measured since `SIZED_SECONDS` before `_sized_until`
        self._sized_until = self._window.start

    def note(self, batch: Sequence[tuple[Any, Any]], began: float) -> None:
        """Count a batch of (key, value) pairs that was applied from `began` until now, on the meter's clock."""
        now = self.now()
        self.records += len(batch)
        self.busy_seconds += now - began
        if batch and (self.busy_seconds >= self._sample_at or now >= self._sample_by):
            self._sample(batch, now)
            took = (end := self.now()) - now
            self._sample_at = self.busy_seconds + min(SAMPLE_SHARE * took, SAMPLE_PAUSE_SECONDS)
            self._sample_by = end + min(IDLE_SHARE * took, IDLE_PAUSE_SECONDS)

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
        keys = [
            (key, (count + count_before) / seconds, (error + error_before) / seconds)
            for key, (count, error), (count_before, error_before)
            in zip(found, new.keys.estimates(found), old.keys.estimates(found))
        ]  # fmt: skip
        return Load(bins, sorted(keys, key=lambda each: each[2] - each[1]))

    def sizes(self, bins: Mapping[int, Collection[Any]], states: Mapping[Any, Any]) -> dict[int, int]:
        """Return bin -> approximate bytes, see `bin_sizes`. Bytes per key may have been measured SIZED_SECONDS ago."""
        now = self.now()
        if now >= self._sized_until:
            self._bytes_per_key, self._sized_until = {}, now + SIZED_SECONDS
        return bin_sizes(bins, states, self._bytes_per_key)

    def _sample(self, batch: Sequence[tuple[Any, Any]], now: float) -> None:
        """Count the contents of a batch."""
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
        if now >= end + WINDOW_SECONDS:  # a whole window has passed without a call
            self._previous, self._window = _Stretch(now - WINDOW_SECONDS), _Stretch(now)
        elif now >= end:
            self._previous, self._window = self._window, _Stretch(end)


def bin_sizes(
    bins: Mapping[int, Collection[Any]], states: Mapping[Any, Any], per_key: dict[int, float]
) -> dict[int, int]:
    """Return bin -> approximate bytes of its keys and states when they travel; `bins` is bin -> keys.

    This encodes a few pairs of each bin and assumes that the others are equally large. If there are many bins, or after
    a MiB, it assumes that the keys of the other bins have average size. `per_key` has the bytes per key of the bins
    that were measured before; those measured now are added.
    """
    step = -(-len(bins) // SIZED_BINS_MAX) or 1
    measured = 0
    for bin in sorted(bins)[::step]:
        if measured >= SIZED_BYTES_MAX:
            break
        if bin in per_key:
            continue
        sample = [(key, states[key]) for key in islice(bins[bin], SIZED_PAIRS)]
        if not sample:
            continue
        try:
            size = len(encode(sample))
        except CannotTravel:  # reported when the bin moves
            continue
        per_key[bin] = size / len(sample)
        measured += size
    average = sum(per_key.values()) / len(per_key) if per_key else 0.0
    return {bin: round(len(held) * per_key.get(bin, average)) for bin, held in bins.items()}
