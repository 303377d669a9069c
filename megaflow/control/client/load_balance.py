"""Routing tables with equal loads: few bins move, and no worker has much more than the mean.

Finding the fewest moves is as hard as bin packing, so this is a greedy method with a bound on the result:

1. A bin moves from the heaviest worker to the lightest, if it weighs less than the difference between the two. This
   reduces the sum of the squared loads. Loads are counted in whole units, so the method ends.
2. The careful way moves the largest bin that brings neither of the two past the mean by more than `SLACK`; if there is
   none, the smallest bin. The bold way moves the bin that brings the two nearest to each other, so it moves one heavy
   bin instead of many light ones. Both ways are tried, and the better result is taken.
3. A way ends when the heaviest worker is within `SLACK` of the mean, or when each of its loaded bins weighs at least
   the difference between the heaviest and the lightest worker. The lightest worker never exceeds the mean. So at the
   end, max - mean <= max(SLACK * mean, the lightest loaded bin of the heaviest worker).
4. The number of moves has no bound. Among small cases, where all solutions can be tried, 97 in 100 take the fewest.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence

from sortedcontainers import SortedList

from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import RoutingTable, difference
from megaflow.timely.membership import WorkerId

SLACK = 0.05  # of the mean: loads are measured, so smaller differences are noise
UNITS = 1 << 40  # units in the whole load


def balance_load(table: RoutingTable, members: Collection[WorkerId], loads: Sequence[float]) -> RoutingTable:
    """Return a table that gives the members about the same load and moves few bins; see the module's header.

    `loads` has one figure per bin, 0 or more. Bins of workers that are not members move to members.

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
    """Owners and loads of bins, while bins move from one worker to another."""

    def __init__(self, table: RoutingTable, members: Sequence[WorkerId], weights: Sequence[int]) -> None:
        self._home = table
        self._mean = sum(weights) / len(members)
        self._slack = SLACK * self._mean
        self._table = list(table)
        self._loads: dict[WorkerId, int] = dict.fromkeys(members, 0)
        self._bins = {worker: SortedList() for worker in members}  # (weight, bin)
        counts = Counter(table)
        homeless = []
        for weight, bin in sorted(zip(weights, range(len(table)))):
            owner = table[bin]
            if owner not in self._loads:
                homeless.append((weight, bin))
                continue
            self._loads[owner] += weight
            if weight:
                self._bins[owner].add((weight, bin))
        for weight, bin in reversed(homeless):  # the heaviest first, because lighter ones can even out the rest
            taker = min(members, key=lambda worker: (self._loads[worker], counts[worker], worker))
            counts[taker] += 1
            self._put(weight, bin, taker)

    def even_out(self, is_bold: bool) -> None:
        """Move bins by the rules of the module's header, in the careful or the bold way."""
        while True:
            heaviest = max(self._loads, key=lambda worker: (self._loads[worker], -worker))
            lightest = min(self._loads, key=lambda worker: (self._loads[worker], worker))
            excess, lack = self._loads[heaviest] - self._mean, self._mean - self._loads[lightest]
            if excess <= self._slack:
                break
            apart = self._loads[heaviest] - self._loads[lightest]
            bins = self._bins[heaviest]
            most = apart / 2 if is_bold else min(min(excess, lack) + self._slack, apart - 1)
            place = bins.bisect_right((most, len(self._home)))  # the first that is heavier
            if place == len(bins) or (place and not (is_bold and bins[place][0] + bins[place - 1][0] < apart)):
                place -= 1
            if bins[place][0] >= apart:
                break
            weight, bin = bins.pop(place)
            self._loads[heaviest] -= weight
            self._put(weight, bin, lightest)

    def cost(self) -> tuple[int, int]:
        """Return the heaviest worker's excess over the mean, in units of slack, and the number of moved bins."""
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
            self._bins[worker].add((weight, bin))
