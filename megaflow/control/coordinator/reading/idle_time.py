"""The progress of event time while all partitions are idle, a part of `watermarks`.

1. An idle partition does not hold the watermark back. If all are idle, the watermark advances to the greatest bound
   that any of them has reached. If it stood still instead, its value would depend on which partition became idle first.
   If several operators take timestamps, the least of their bounds counts. So one operator that is ahead does not make
   records late that another has not seen yet. An operator that has seen no record at all does not count.
2. So a partition that receives records again may have some below the watermark. These are late only because of the
   watermark, and are counted apart (`record_bounds`).
3. The job cannot know whether a quiet partition will have more records of the same time, so its last windows stay open.
   With `advance_when_idle`, event time follows the clock from then on. The last windows of a quiet partition close once
   as much time has passed as their ends were ahead of event time. The time that passes is added to the greatest bound,
   or to the watermark of that moment if that is greater. So a coordinator that takes over never goes back. A job that
   resumes knows only its watermark until a record comes. The clock then starts from there if all operators follow it.
4. So an operator without `advance_when_idle` stops the others at its own bound. A status names it (`stands_at`).
5. A partition that is gone, such as a removed file, counts as an idle one, with the bounds that it had reached. So if
   only idle partitions are left, or none, event time advances as if it were still there. If it was not idle when it
   ended, event time waits for the idle timeout, because its source may go on in another partition at once.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from megaflow.megaphone.base.event_unit import GREATEST, NEVER

MICROS: Final = 1_000_000  # in a second


class IdleTime:
    """Event time while all partitions are idle, and since when they are. One writer: the watermarks of a job.

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
        self._begun = NEVER  # the watermark at that time
        self.stands_at: str | None = None  # the operator of rule 4
        self.gone: dict[str, int] = {}  # operator -> the greatest bound of partitions that are gone
        self._gone_from = float("-inf")  # seconds: until then, event time waits by rule 5

    def leave(self, bounds: Mapping[str, int], counts_from: float) -> None:
        """Record the bounds of a partition that is gone, by operator; it counts as idle from this time on."""
        self.gone |= {name: max(bound, self.gone.get(name, NEVER)) for name, bound in bounds.items()}
        self._gone_from = max(counts_from, self._gone_from)

    def waits(self, now: float) -> float:
        """Return for how many seconds event time still waits by rule 5; 0.0 if it does not."""
        return max(0.0, self._gone_from - now)

    def end(self) -> None:
        """Record that not all partitions are idle."""
        self._since, self.stands_at = None, None

    def seconds(self, now: float) -> float | None:
        """Return for how many seconds all partitions have been idle; None if not all are."""
        return None if self._since is None else now - self._since

    def reached(self, bounds: Mapping[str, int], watermark: int | None, now: float) -> int | None:
        """Return how far event time has advanced; None if no record of any partition was seen.

        `bounds`: operator -> the greatest bound of all partitions that it follows, NEVER if none of their records was
        seen.
        """
        if self._since is None:
            self._since, self._begun = now, NEVER if watermark is None else watermark
        gone = round((now - self._since) * MICROS)
        seen = {name: bound for name, bound in bounds.items() if bound > NEVER}
        reached = {
            name: max(bound, self._begun) + gone if name in self._advancing else bound
            for name, bound in seen.items()
        }
        if not reached and self._begun > NEVER and bounds.keys() <= self._advancing:
            return min(self._begun + gone, GREATEST)
        least = min(reached, key=reached.__getitem__, default=None)
        is_behind = least is not None and reached[least] < max(reached.values())
        self.stands_at = least if is_behind and least not in self._advancing else None
        return None if least is None else min(reached[least], GREATEST)
