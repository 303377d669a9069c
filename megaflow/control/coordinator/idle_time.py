"""How far event time is while all partitions are idle, a part of `watermarks`.

1. An idle partition does not hold the watermark back. If all are idle, none does: then it advances to the greatest
   bound that any of them has come to. If it stayed where it was, where it stands would depend on which of them was idle
   first. Of several operators that take timestamps it is the least: records that one has not seen yet are not late
   because another is ahead.
2. So a partition that is written to again may have records below the watermark; these are late by it alone, and are
   counted apart (`record_bounds`).
3. Nobody can know whether a quiet partition will have more of the same time, so its last windows stay open. With
   `advance_when_idle` event time follows the clock from then on: the last windows of a quiet partition close when so
   much time has gone by as their end is ahead. It begins at the watermark there is, so a coordinator that takes over
   goes on from there, and never goes back.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from megaflow.megaphone.event_unit import GREATEST, NEVER

MICROS: Final = 1_000_000  # in a second


class IdleTime:
    """Since when all partitions are idle, and where event time is meanwhile. One writer: the watermarks of a job.

    >>> idle = IdleTime(["clicks"])
    >>> bounds = {"clicks": 7, "orders": 9}
    >>> idle.reached(bounds, None, 5.0), idle.reached(bounds, 7, 6.0), idle.reached({"clicks": 7}, 7, 6.0)
    (7, 9, 1000007)
    >>> idle.seconds(6.5), idle.end(), idle.seconds(7.0)
    (1.5, None, None)
    """

    def __init__(self, advancing: Iterable[str]) -> None:
        """`advancing`: the operators for which event time follows the clock."""
        self._advancing = frozenset(advancing)
        self._since: float | None = None  # seconds; None: not all are idle
        self._begun = NEVER  # the watermark then

    def end(self) -> None:
        """Note that not all are idle."""
        self._since = None

    def seconds(self, now: float) -> float | None:
        """Return for how long all have been idle; None: not all are."""
        return None if self._since is None else now - self._since

    def reached(self, bounds: Mapping[str, int], watermark: int | None, now: float) -> int | None:
        """Return how far event time is; None if nothing was seen of any partition.

        `bounds`: operator -> the greatest bound of all partitions that it follows, NEVER if nothing was seen of them.
        """
        if self._since is None:
            self._since, self._begun = now, NEVER if watermark is None else watermark
        gone = round((now - self._since) * MICROS)
        seen = {name: bound for name, bound in bounds.items() if bound > NEVER}
        reached = [
            max(bound, self._begun) + gone if name in self._advancing else bound
            for name, bound in seen.items()
        ]
        return min(*reached, GREATEST) if reached else None
