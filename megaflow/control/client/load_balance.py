"""A routing table by load: few bins move, and no worker has much more than the mean.

The fewest moves are as hard to find as a bin packing, so this is a greedy method with a bound on the result:

1. A bin moves from the heaviest worker to the lightest one, if it weighs less than they are apart. Then the squares of
   the loads add up to less than before; loads are counted in whole units, so this ends.
2. It is the largest that brings neither of the two past the mean by more than `SLACK`, or, if there is none, the
   smallest. This is the careful way. The bold way takes the one that brings the two nearest to each other, which moves
   one heavy bin instead of many light ones. Both are tried, and the better result is taken.
3. It ends when the heaviest worker is within `SLACK` of the mean, or each of its bins that has a load weighs as much
   as the heaviest and the lightest are apart; and the lightest has the mean at most. So, in the end,
   max - mean <= max(SLACK * mean, the lightest loaded bin of the heaviest worker).
4. For few moves there is no bound. Of small cases, where all can be tried, 97 in 100 take the fewest.
"""

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Collection, Sequence

from megaflow.errors import CommandRefused
from megaflow.megaphone.routing import RoutingTable, difference
from megaflow.timely.membership import WorkerId

SLACK = 0.05  # of the mean: loads are measured, smaller differences are noise
UNITS = 1 << 40  # that the whole load is counted in


def balance_load(table: RoutingTable, members: Collection[WorkerId], loads: Sequence[float]) -> RoutingTable:
    """Return a table in which the members have about the same load, with few bins moved; see above.

    `loads` has a figure per bin, 0 or more. Bins of workers that are no members move to members.

    >>> balance_load((0, 0, 0, 1), {0, 1}, [5.0, 1.0, 4.0, 2.0])
    (0, 0, 1, 1)
    """
    if not members:
        raise CommandRefused("no worker can own the bins")
    total = sum(loads)
    if not total:
        raise CommandRefused(
            "no load was measured in the last few seconds: balance by number of bins, without --by load"
        )
    weights = [round(load / total * UNITS) for load in loads]
    ways = []
    for is_bold in (False, True):
        scales = _Scales(table, sorted(members), weights)
        scales.even_out(is_bold)
        ways.append(scales)
    return min(ways, key=_Scales.cost).table


class _Scales:
    """Who owns which bin while bins move from one worker to another."""

    def __init__(self, table: RoutingTable, members: Sequence[WorkerId], weights: Sequence[int]) -> None:
        self._home = table
        self._mean = sum(weights) / len(members)
        self._slack = SLACK * self._mean
        self._table = list(table)
        self._loads: dict[WorkerId, int] = dict.fromkeys(members, 0)
        self._bins: dict[WorkerId, list[tuple[int, int]]] = {worker: [] for worker in members}  # sorted (weight, bin)
        counts = Counter(table)
        homeless = []
        for weight, bin in sorted(zip(weights, range(len(table)))):
            owner = table[bin]
            if owner not in self._loads:
                homeless.append((weight, bin))
                continue
            self._loads[owner] += weight
            if weight:
                self._bins[owner].append((weight, bin))
        for weight, bin in reversed(homeless):  # the heaviest first: lighter ones even out what they leave uneven
            taker = min(members, key=lambda worker: (self._loads[worker], counts[worker], worker))
            counts[taker] += 1
            self._put(weight, bin, taker)

    def even_out(self, is_bold: bool) -> None:
        """Move bins as said above, in the careful or the bold way."""
        while True:
            heaviest = max(self._loads, key=lambda worker: (self._loads[worker], -worker))
            lightest = min(self._loads, key=lambda worker: (self._loads[worker], worker))
            excess, lack = self._loads[heaviest] - self._mean, self._mean - self._loads[lightest]
            if excess <= self._slack:
                break
            apart = self._loads[heaviest] - self._loads[lightest]
            bins = self._bins[heaviest]
            most = apart / 2 if is_bold else min(min(excess, lack) + self._slack, apart - 1)
            place = bisect_right(bins, (most, len(self._home)))  # the first that is heavier
            if place == len(bins) or (place and not (is_bold and bins[place][0] + bins[place - 1][0] < apart)):
                place -= 1
            if bins[place][0] >= apart:
                break
            weight, bin = bins.pop(place)
            self._loads[heaviest] -= weight
            self._put(weight, bin, lightest)

    def cost(self) -> tuple[int, int]:
        """Return how far the heaviest worker is above the mean, in units of slack, then how many bins have moved."""
        excess = max(self._loads.values()) - self._mean
        return math.ceil(excess / self._slack), len(difference(self._home, self.table))

    @property
    def table(self) -> RoutingTable:
        """Bin -> worker."""
        return tuple(self._table)

    def _put(self, weight: int, bin: int, worker: WorkerId) -> None:
        self._table[bin] = worker
        self._loads[worker] += weight
        if weight:
            insort(self._bins[worker], (weight, bin))
