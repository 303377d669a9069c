"""Points of the charts: one a second for the last 15 minutes, and one for each 20 seconds of the six hours before.

1. A coarse point is the mean of its fine ones, but the greatest of their maxima. It appears when its time is over.
2. Keys are whole seconds since 1970, as text. If two statuses come in one second, the later one wins.
3. A value that is not known is null, and the chart has a gap there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from megaflow.web.patches import rounded

FINE_SECONDS: Final = 15 * 60
COARSE_EVERY_SECONDS: Final = 20
COARSE_SECONDS: Final = 6 * 3600
SERIES: Final = ("rate", "p50", "p99", "max", "lag", "queue", "wait", "memory")
"""Records per second, latencies in milliseconds, the watermark's lag in seconds, lines that wait, the share of time for
which a worker's sources are held back, bytes."""
_MAX: Final = SERIES.index("max")

Values = Sequence[float | None]
Point = dict[str, Any]


class Curves:
    """Points of all charts. One thread uses it."""

    def __init__(self) -> None:
        self.fine: dict[str, Point] = {}
        self.coarse: dict[str, Point] = {}
        self._slot: list[Point] = []  # points of the coarse point under way
        self._slot_start = 0

    def take(self, values: Values, rates: Mapping[int, float], now: float) -> None:
        """Add the values of one status, in the order of `SERIES`, and the records per second of each worker."""
        second = int(now)
        start = second - second % COARSE_EVERY_SECONDS
        if start != self._slot_start:
            if self._slot:
                self.coarse = kept(self.coarse, self._slot_start, mean(self._slot), second - COARSE_SECONDS)
            self._slot, self._slot_start = [], start
        point: Point = {
            "values": [None if value is None else rounded(value) for value in values],
            "rates": {str(worker): rounded(rate) for worker, rate in rates.items()},
        }
        self._slot.append(point)
        del self._slot[: -2 * COARSE_EVERY_SECONDS]
        self.fine = kept(self.fine, second, point, second - FINE_SECONDS)


def kept(points: Mapping[str, Point], second: int, point: Point, oldest: int) -> dict[str, Point]:
    """Return points with a further one, and without those before `oldest`."""
    found = {key: value for key, value in points.items() if int(key) >= oldest}
    found[str(second)] = point
    return found


def mean(points: Sequence[Point]) -> Point:
    """Return the coarse point of some points.

    >>> mean([{"values": [None, 1.0], "rates": {"0": 2.0}}, {"values": [4.0, 2.0], "rates": {"0": 4.0, "1": 1.0}}])
    {'values': [4.0, 1.5], 'rates': {'0': 3.0, '1': 0.5}}
    """
    values = []
    for place, column in enumerate(zip(*(each["values"] for each in points))):
        known = [value for value in column if value is not None]
        values.append(None if not known else max(known) if place == _MAX else average(known))
    workers = dict.fromkeys(worker for each in points for worker in each["rates"])
    rates = {worker: average([each["rates"].get(worker, 0.0) for each in points]) for worker in workers}
    return {"values": values, "rates": rates}


def average(values: Sequence[float]) -> float:
    """Return the mean of some values, rounded."""
    return rounded(sum(values) / len(values))
