"""When a job's size is to be changed, by what the policy recommends: growing, shrinking, or neither.

1. Nothing is done about what was not seen several times in a row: a job grows to the least of the last `GROW_LOOKS`
   recommendations, it shrinks to the greatest of the last `SHRINK_LOOKS`. Shrinking waits longer, for it costs more to
   be wrong about: a job that is too large works, one that is too small falls behind.
2. After each change comes the cool-down, and no sample that began before its end counts.
3. No sample counts in which workers came or left or bins moved, whoever asked for that; what was seen before is
   forgotten with it. So no change is begun during another one.
4. When a job that could not keep up works off hardly more after it was grown, growing it further is no help (no more
   processors, one hot key, a slow output). Then it is let be for `FUTILE_REST` cool-downs, or until the lines that come
   are clearly more or fewer.
"""

from collections import deque
from dataclasses import dataclass
from typing import Literal

from megaflow.control.client.ds2 import TOLERANCE, Goal, Recommendation, recommend
from megaflow.control.client.rate_sample import processes_of, sample
from megaflow.control.reports import JobStatus
from megaflow.errors import CommandRefused

GROW_LOOKS = 2
SHRINK_LOOKS = 3
FUTILE_REST = 10  # cool-downs
FUTILE_GAIN = 0.25  # of what as many more workers should have brought


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about one pair of looks, and why."""

    action: Literal["grow", "shrink", "stay", "wait"]  # "wait": there is nothing to judge by, or it is too early
    processes: int  # there are to be
    why: str
    recommendation: Recommendation | None = None


@dataclass(frozen=True, slots=True)
class _Growth:
    """The last growth of a job that could not keep up."""

    processes: int  # before
    done: float  # lines a second, before
    rate: float | None  # lines a second that came
    end: float  # until when it counts, seconds


class Autoscaler:
    """When to change a job's size. No clock: `now` is given in seconds, and never goes back."""

    def __init__(self, goal: Goal, cool_down: float) -> None:
        self._goal = goal
        self._cool_down = cool_down
        self._rests_until = float("-inf")
        self._seen: deque[int] = deque(maxlen=SHRINK_LOOKS)  # recommended processes, the newest last
        self._growth: _Growth | None = None

    def judge(self, first: JobStatus, second: JobStatus, now: float) -> Decision:
        """Return what to do after two looks at the job. One that says so is to be followed by `changed`."""
        here = len(processes_of(second))
        try:
            advice = recommend(sample(first, second), self._goal)
        except CommandRefused as error:
            self._seen.clear()
            return Decision("wait", here, f"{error}: nothing is judged by that")
        if (early := self._rests_until - (now - advice.sample.seconds)) > 0:  # the sample began that much too early
            return Decision("wait", here, f"the last change is to settle: {early:.0f} more seconds", advice)
        self._seen.append(advice.processes)
        wanted = self._agreed(here)
        if wanted > here and (futile := self._futile(advice, now)):
            return Decision("stay", here, futile, advice)
        if wanted > here:
            return Decision("grow", wanted, advice.verdict, advice)
        if wanted < here:
            return Decision("shrink", wanted, advice.verdict, advice)
        if advice.processes != here:
            return Decision("wait", here, f"{advice.verdict} One look is not enough.", advice)
        return Decision("stay", here, advice.verdict, advice)

    def changed(self, decision: Decision, now: float) -> None:
        """Note that this was done, or tried, by `now`."""
        self._seen.clear()
        self._rests_until = now + self._cool_down
        self._growth = None
        advice = decision.recommendation
        if decision.action == "grow" and advice is not None and advice.is_overloaded:
            end = self._rests_until + FUTILE_REST * self._cool_down
            self._growth = _Growth(advice.now, advice.sample.done, advice.rate, end)

    def _agreed(self, here: int) -> int:
        """Return the size on which the last looks agree, see 1."""
        seen = list(self._seen)
        if len(seen) >= GROW_LOOKS and (least := min(seen[-GROW_LOOKS:])) > here:
            return least
        if len(seen) >= SHRINK_LOOKS and (most := max(seen)) < here:
            return most
        return here

    def _futile(self, advice: Recommendation, now: float) -> str | None:
        """Return why it is no use to grow, see 4; None if it may be."""
        last = self._growth
        if last is None or now > last.end or not advice.is_overloaded or advice.now <= last.processes:
            return None
        if last.rate is not None and advice.rate is not None and abs(advice.rate / last.rate - 1) > TOLERANCE:
            return None
        gain = advice.sample.done / last.done - 1 if last.done > 0 else 1.0
        if gain >= FUTILE_GAIN * (advice.now / last.processes - 1):
            return None
        return (
            f"from {last.processes} to {advice.now} processes the lines worked off went from {last.done:.0f} to "
            f"{advice.sample.done:.0f} a second: more processes are no help (are there more processors?)"
        )
