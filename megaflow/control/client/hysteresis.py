"""When to grow or shrink a job, by the recommendations that samples of it give.

1. A decision needs several samples in a row: a job grows to the least of the last `GROW_SAMPLES` recommendations and
   shrinks to the greatest of the last `SHRINK_SAMPLES`. Shrinking waits longer, because a wrong decision costs more: a
   job that is too large works, one that is too small falls behind.
2. After each change comes the cool-down; a sample that began before its end does not count.
3. A sample in which workers came or left or bins moved, by any command, does not count, and the samples before it are
   forgotten. So no change begins during another one.
4. If a job that could not keep up processes hardly more after it has grown, growing it further does not help (no more
   processors, one hot key, a slow output). Then it does not grow for `FUTILE_REST` cool-downs, or until clearly more or
   fewer lines come.
"""

from collections import deque
from typing import Literal

from megaflow.control.client.ds2 import TOLERANCE, Goal, Recommendation, recommend
from megaflow.control.client.rate_sample import processes_of, sample
from megaflow.control.reports import JobStatus
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass

GROW_SAMPLES = 2
SHRINK_SAMPLES = 3
FUTILE_REST = 10  # cool-downs
FUTILE_GAIN = 0.25  # of what so many more workers should have brought


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after one sample, and why."""

    action: Literal["grow", "shrink", "stay", "wait"]  # "wait": the sample does not count, or more must agree
    processes: int  # that the job should have
    why: str
    recommendation: Recommendation | None = None


class Autoscaler:
    """When to change a job's size. Has no clock: `now` is given, in seconds, and never goes back."""

    def __init__(self, goal: Goal, cool_down: float) -> None:
        self._goal = goal
        self._cool_down = cool_down
        self._rests_until = float("-inf")
        self._recommended: deque[int] = deque(maxlen=SHRINK_SAMPLES)  # recommended processes, the newest last
        self._growth: Recommendation | None = None  # by which a job grew last that could not keep up

    def judge(self, first: JobStatus, second: JobStatus, now: float) -> Decision:
        """Return what to do by two statuses of the job; after growing or shrinking it, call `changed`."""
        here = len(processes_of(second))
        try:
            advice = recommend(sample(first, second), self._goal)
        except CommandRefused as error:
            self._recommended.clear()
            return Decision("wait", here, f"sample ignored: {error}")
        if (early := self._rests_until - (now - advice.sample.seconds)) > 0:  # the sample began that much too early
            return Decision("wait", here, f"cooling down after the last change: {early:.0f} more seconds", advice)
        self._recommended.append(advice.processes)
        wanted = self._agreed(here)
        if wanted > here:
            if futile := self._futile(advice, now):
                return Decision("stay", here, futile, advice)
            return Decision("grow", wanted, advice.verdict, advice)
        if wanted < here:
            return Decision("shrink", wanted, advice.verdict, advice)
        if advice.processes != here:
            return Decision("wait", here, f"{advice.verdict} Waiting for more samples that agree.", advice)
        return Decision("stay", here, advice.verdict, advice)

    def changed(self, decision: Decision, now: float) -> None:
        """Note that this decision was carried out, or tried, by `now`."""
        self._recommended.clear()
        self._rests_until = now + self._cool_down
        advice = decision.recommendation
        grew = decision.action == "grow" and advice is not None and advice.is_overloaded
        self._growth = advice if grew else None

    def _agreed(self, here: int) -> int:
        """Return the size on which the last samples agree, see 1."""
        recent = list(self._recommended)
        if len(recent) >= GROW_SAMPLES and (least := min(recent[-GROW_SAMPLES:])) > here:
            return least
        if len(recent) >= SHRINK_SAMPLES and (most := max(recent)) < here:
            return most
        return here

    def _futile(self, advice: Recommendation, now: float) -> str | None:
        """Return why growing would not help, see 4; None if it may."""
        last, end = self._growth, self._rests_until + FUTILE_REST * self._cool_down
        if last is None or now > end or not advice.is_overloaded or advice.now <= last.now:
            return None
        if last.rate is not None and advice.rate is not None and abs(advice.rate / last.rate - 1) > TOLERANCE:
            return None
        gain = advice.sample.done / last.sample.done - 1 if last.sample.done > 0 else 1.0
        if gain >= FUTILE_GAIN * (advice.now / last.now - 1):
            return None
        return (
            f"growing from {last.now} to {advice.now} processes changed the rate from {last.sample.done:.0f} to "
            f"{advice.sample.done:.0f} lines per second: more processes do not help (are all processors in use?)"
        )
