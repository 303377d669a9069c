"""Histograms of lateness: how much later records come than a later record of their partition.

The lateness of a record is its partition's running maximum less its timestamp, in microseconds. Only records below the
maximum have one, so records in order cost nothing and are not counted. Users choose `out_of_order` by these counts.

Counts are kept by bucket, not by record. A bucket is a sixteenth of a power of two, so a quantile is at most a
sixteenth too great. A quantile below 32 microseconds is exact, and so is the greatest lateness. There are fewer than a
thousand buckets. Histograms add up, wherever the records were read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from megaflow.event_time.record_bounds import with_bound

_BITS: Final = 4  # of a lateness, after its first bit, that tell buckets apart


def bucket_of(micros: int) -> int:
    """Return the number of the bucket of a lateness. Greater latenesses have greater numbers.

    >>> [bucket_of(micros) for micros in (1, 31, 32, 33, 34, 10**9)]
    [1, 31, 32, 32, 33, 429]
    """
    shift = micros.bit_length() - 1 - _BITS
    return (shift << _BITS) + (micros >> shift) if shift > 0 else micros


def greatest_of(bucket: int) -> int:
    """Return the greatest lateness of a bucket.

    >>> greatest_of(31), greatest_of(32), greatest_of(33)
    (31, 33, 35)
    """
    shift = max((bucket >> _BITS) - 1, 0)
    return (bucket - (shift << _BITS) + 1 << shift) - 1


class LatenessHistogram:
    """Histogram of the latenesses of one partition's records, in microseconds. One writer.

    >>> seen = LatenessHistogram()
    >>> below = seen.counting(slack=10)
    >>> below(1_000, 1_005), below(1_000, 1_050) > 1_000
    (1000, True)
    >>> seen.settle()
    >>> seen.records, seen.quantile(0.5), seen.quantile(1.0), seen.greatest
    (2, 5, 50, 50)
    """

    __slots__ = ("_exact", "counts", "greatest")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # bucket -> records, never 0
        self.greatest = 0
        self._exact: defaultdict[int, int] = defaultdict(int)  # lateness -> records that are not in buckets yet

    @property
    def records(self) -> int:
        """Number of records that were below the maximum."""
        return sum(self.counts.values())

    def counting(self, slack: int) -> Callable[[int, int], int]:
        """Return a function that counts a timestamp below a maximum, and makes its stamp: see `record_bounds`, rule 4.

        A record that is late by more than `slack` carries its bound.
        """
        exact = self._exact  # measured: finding the bucket of each record would take twice as long

        def below(micros: int, maximum: int) -> int:
            late = maximum - micros
            exact[late] += 1
            return with_bound(micros, maximum - slack) if late > slack else micros

        return below

    def settle(self) -> None:
        """Put counts into buckets. Call this after each batch, so that few exact values are kept."""
        if self._exact:
            self.merge(((bucket_of(late), records) for late, records in self._exact.items()), max(self._exact))
            self._exact.clear()

    def merge(self, counts: Iterable[tuple[int, int]], greatest: int) -> None:
        """Add the counts of another histogram."""
        for bucket, records in counts:
            self.counts[bucket] = self.counts.get(bucket, 0) + records
        self.greatest = max(greatest, self.greatest)

    def take(self) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return the contents of the buckets, as `merge` takes them, and start to count anew."""
        taken = tuple(self.counts.items()), self.greatest
        self.counts, self.greatest = {}, 0
        return taken

    def quantile(self, q: float) -> int:
        """Return the lateness that a fraction `q` of the records does not exceed, at most a sixteenth too great.

        It is 0 for no records.
        """
        wanted = q * self.records
        for bucket in sorted(self.counts):
            wanted -= self.counts[bucket]
            if wanted <= 0:
                return min(greatest_of(bucket), self.greatest)
        return self.greatest
