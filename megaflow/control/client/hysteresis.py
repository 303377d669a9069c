"""Decisions when to grow or shrink a job, from the recommendations of its samples.

1. A decision needs several samples in a row. A job grows to the least of the last `GROW_SAMPLES` recommendations and
   shrinks to the greatest of the last `SHRINK_SAMPLES`. Shrinking waits longer because a wrong decision costs more: a
   job that is too large works, but one that is too small falls behind.
2. A cool-down follows each change. Samples that began before its end do not count.
3. If workers came or left or bins moved during a sample, by any command, the sample does not count, and all earlier
   samples are forgotten. So no change begins during another one.
4. If an overloaded job processes hardly more after it has grown, growing it further does not help (all processors are
   in use, one key is hot, an output is slow). Then it does not grow for `FUTILE_REST` cool-downs, or until clearly more
   or fewer lines arrive.
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
FUTILE_GAIN = 0.25  # of the gain that so many more processes should have brought


@dataclass(frozen=True, slots=True)
class Decision:
    """Action to take after one sample, and why."""

    action: Literal["grow", "shrink", "stay", "wait"]  # "wait": the sample does not count, or more must agree
    processes: int  # that the job should have
    why: str
    recommendation: Recommendation | None = None


class Autoscaler:
    """Policy for a job's size. It has no clock: `now` is an argument, in seconds, and never decreases."""

    def __init__(self, goal: Goal, cool_down: float) -> None:
        self._goal = goal
        self._cool_down = cool_down
        self._rests_until = float("-inf")
        self._recommended: deque[int] = deque(maxlen=SHRINK_SAMPLES)  # recommended processes, the newest last
        self._growth: Recommendation | None = None  # by which an overloaded job grew last

    def judge(self, first: JobStatus, second: JobStatus, now: float) -> Decision:
        """Return the action that two statuses of the job call for; after growing or shrinking, call `changed`."""
        here = len(processes_of(second))
        try:
            advice = recommend(sample(first, second), self._goal)
        except CommandRefused as error:
            self._recommended.clear()
            return Decision("wait", here, f"sample ignored: {error}")
        if (early := self._rests_until - (now - advice.sample.seconds)) > 0:  # seconds that the sample began too early
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
        """Note that this decision was carried out, or tried; it ended at `now`."""
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
