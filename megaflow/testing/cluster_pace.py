"""The moments at which the lines of a simulated cluster become due, if its seed chooses them.

1. The lines of a run come within a fraction of a second, or within some time per planned change. So a change takes
   place among them.
2. While a change is under way, all other lines come within SLOW_SECONDS, however many there are.
3. Each worker's lines become due in groups of 1, 2, 4, … lines. At a low rate without groups, all workers would read in
   step, line by line. That is almost the order in which the lines are written, so mistakes about the order would hide.
4. The sizes of groups come from dice of their own, one for each worker and attempt. So a draw here changes no draw of
   the job's dice.
5. If the user gives a rate, the lines become due one by one, at that rate.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

from megaflow.job.worker.reading.reading_pace import Schedule

SLOW_SECONDS = 12.0  # time for the rest of the lines during a change, so the change takes place among them
_SECONDS = (0.0, 0.1, 0.3)  # simulated time in which all lines come, if no change is planned
_CHANGE_SECONDS = 0.15  # the same, per change
_GROUP_MAX = 64  # lines
_GROUPS_MIN = 4  # of each worker, so the changes do not come after all lines


class GroupedSchedule(Schedule):
    """A schedule by which groups of lines become due together, each when its last line would be due.

    >>> schedule = GroupedSchedule(rate=10.0, start=5.0, random=Random(1), lines=400)
    >>> [schedule.due(5.0 + n / 10) for n in range(14)], schedule.due_at(3)
    ([0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2], 6.7)
    """

    def __init__(self, rate: float, start: float, random: Random, lines: int) -> None:
        """`lines`: about how many lines this worker will read."""
        super().__init__(rate, start)
        self._random = random
        self._sizes = [1 << power for power in range(_GROUP_MAX.bit_length()) if _GROUPS_MIN << power <= lines] or [1]
        self._ends = [0]  # of the groups so far: numbers of lines

    def due(self, now: float) -> int:
        """Return how many lines are due by `now`."""
        lines = super().due(now)
        self._group(lines)
        return self._ends[bisect_right(self._ends, lines) - 1]  # the groups that end by then

    def due_at(self, line: int) -> float:
        """Return when the line with this number, counted from 0, is due."""
        self._group(line)
        return super().due_at(self._ends[bisect_right(self._ends, line)] - 1)

    def _group(self, line: int) -> None:
        """Draw groups, until one ends after this line."""
        while self._ends[-1] <= line:
            self._ends.append(self._ends[-1] + self._random.choice(self._sizes))


def seconds_for(changes: int, random: Random) -> float:
    """Return the simulated time in which all lines come, with so many planned changes; 0: at once."""
    return changes * _CHANGE_SECONDS or random.choice(_SECONDS)
