"""Number of worker processes that a job needs, by DS2's model (Kalavri et al., OSDI 2018), from one sample.

An operator's useful time is the time that it spends on records, without waiting. Records per useful time is its *true*
rate: the rate of a worker that does nothing else, however few records it had. From the true rate and the rate at which
lines arrive, one formula computes how many workers' time each operator needs. Every worker runs every operator, so the
needs add up.

1. Need is linear in the rate of lines: `useful seconds per second x lines that come / lines processed`. The count of an
   operator's records already includes how many it gets per line (its selectivity), so the formula needs no graph.
2. Lines count as processed when their epoch has closed, not when they are read: an overloaded job reads ahead.
3. Time outside of folds (reading, mapping, routing, sending) also counts, as one additional operator. So a worker that
   is never idle never looks half idle.
4. With more workers an operator gets slower, if it changes at all: shared caches, more peers. So a need computed from
   few workers is too low, never too high. Growing approaches the right number from below and shrinking from above,
   without passing it, and each step starts nearer. If work grows linearly, the first step is the last.
5. Between growing and shrinking lies a band in which the size stays. A job that has grown to n shrinks from n only when
   it needs a tenth less; one that has shrunk to n grows from n only when it needs a fifth more. So a rate whose maximum
   is less than a tenth above its minimum never moves the size up and down.

Known limits: more workers cannot spread a skewed load, so the recommendation names the busiest worker, and its excess
keeps the job from shrinking. A thread that waits for the processor, or sleeps inside a fold, counts as busy.
"""

from math import ceil

from megaflow.control.client.rate_sample import Sample
from megaflow.control.wording import quantity
from megaflow.errors import UsageError
from megaflow.quick_dataclass import dataclass

TARGET_UTILIZATION = 0.75  # of a worker's time; the rest is for bursts, catching up, and effects outside the model
TOLERANCE = 0.1  # of the target, in both directions: see 5
BACKLOG_SECONDS = 1.0  # lines that wait longer than this keep a job from shrinking
SKEW = 1.5  # a worker that is so many times as busy as the average gets a remark
MENTIONED = 0.005  # workers; an operator that needs less is left out of the sentences
ELSEWHERE = "everything else"  # stands for reading, mapping, routing and sending


@dataclass(frozen=True, slots=True)
class Goal:
    """Goals for a job."""

    utilization: float = TARGET_UTILIZATION
    rate: float | None = None  # lines per second to process; None: all that arrive
    min: int = 1  # processes
    max: int | None = None  # processes

    def check(self) -> None:
        """Raise UsageError unless some job can meet the goal."""
        if not 0.05 <= self.utilization <= 1.0:
            raise UsageError(
                f"--target-utilization {self.utilization:g}: give a share of a worker's time, from 0.05 to 1"
            )
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"--target-rate {self.rate:g}: give a number of lines per second above 0")
        if self.min < 1 or (self.max is not None and self.max < self.min):
            raise UsageError(f"--min {self.min} and --max {self.max}: --min must be at least 1, --max at least --min")


@dataclass(frozen=True, slots=True)
class Need:
    """Need of one operator, on all workers together."""

    operator: str
    offered: float  # records per second to apply (lines, for `ELSEWHERE`)
    true_rate: float | None  # records per second of a worker's useful time; None: it had none
    utilization: float  # share of the workers' time that it used
    workers: float  # in full time of a worker


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommended number of processes for a job, with the reasons."""

    sample: Sample
    needs: tuple[Need, ...]
    rate: float | None  # lines per second that it must process; None: unknown, and more than are read
    workers: float | None  # needed in total, at full use; None: unknown
    processes: int  # recommended
    facts: tuple[str, ...]  # of the sample, in sentences
    verdict: str  # the conclusion
    remarks: tuple[str, ...] = ()  # further hints

    @property
    def now(self) -> int:
        """Current number of processes."""
        return len(self.sample.processes)

    @property
    def utilization(self) -> float:
        """Share of their time that the workers are busy, on average."""
        return sum(self.sample.busy.values()) / self.sample.workers

    @property
    def is_overloaded(self) -> bool:
        """Whether clearly more lines arrive than the job processes, so that they pile up."""
        return self.rate is None or self.sample.done < self.rate * (1 - TOLERANCE / 2)


def recommend(sample: Sample, goal: Goal) -> Recommendation:
    """Return how many processes the job should have. The same sample and goal give the same answer."""
    rate = goal.rate if goal.rate is not None else None if sample.unbounded else sample.offered
    growth = 1.0 if rate is None else _growth(rate, sample.done)
    comes = _what_comes(sample, goal, rate)
    if growth is None:
        verdict = (
            f"No line was completely processed in {sample.seconds:.1f} seconds, so no rate was measured. `megaflow "
            "control explain` shows what holds the output back."
        )
        return Recommendation(sample, (), rate, None, len(sample.processes), (comes,), verdict)
    needs = _needs(sample, growth)
    facts = (comes, *(_sentence(need, sample.workers) for need in needs if need.workers >= MENTIONED))
    workers = sum(need.workers for need in needs)
    wanted, why = _processes(sample, goal, workers, rate)
    processes, limit = _within(wanted, goal)
    return Recommendation(sample, needs, rate, workers, processes, facts, why + limit, _remarks(sample, rate))


def _growth(rate: float, done: float) -> float | None:
    """Return the factor by which the work would grow at the wanted rate; None: not known."""
    if done > 0:
        return rate / done
    return None if rate > 0 else 1.0  # no lines arrive: the work stays the same


def _needs(sample: Sample, growth: float) -> tuple[Need, ...]:
    shares = [(name, work.records, work.useful) for name, work in sample.work.items()]
    rest = max(0.0, sum(sample.busy.values()) - sum(useful for _, _, useful in shares))
    return tuple(
        Need(name, count * growth, count / useful if useful > 0 else None, useful / sample.workers, useful * growth)
        for name, count, useful in (*shares, (ELSEWHERE, sample.done, rest))
    )


def _processes(sample: Sample, goal: Goal, workers: float, rate: float | None) -> tuple[int, str]:
    """Return how many processes the job needs, without the limits, and why."""
    now, each = len(sample.processes), max(map(len, sample.processes))
    load = workers / sample.workers
    low, high = goal.utilization * (1 - TOLERANCE), goal.utilization * (1 + TOLERANCE)
    total = f"Together they need the full time of {workers:.2f} workers"
    if load > high:
        wanted = max(now, _up(workers / goal.utilization / each))
        least = " at least" if rate is None else ""
        return wanted, f"{total}:{least} {_count(wanted, each)} at {goal.utilization:.0%} utilization."
    if (wanted := max(1, _up(workers / low / each))) < now:
        if because := _why_not_shrink(sample, high, rate):
            return now, f"{total}, which {_count(wanted, each)} could provide; but {because}."
        return wanted, f"{total}: {_count(wanted, each)} can provide it at {low:.0%} utilization or less."
    right = f"{total}: {_count(now, each)} would be {load:.0%} busy"
    if load >= low:
        return now, f"{right}, close enough to the target of {goal.utilization:.0%}."
    if now == 1:
        return now, f"{right}, and there can be no fewer."
    return now, f"{right}, one process fewer {workers / (sample.workers - each):.0%}."


def _why_not_shrink(sample: Sample, high: float, rate: float | None) -> str | None:
    """Return why the job must not shrink although the numbers permit it; None if it may."""
    busiest = max(sample.busy, key=lambda worker: sample.busy[worker])
    if sample.busy[busiest] > high:
        return f"worker {busiest} is {sample.busy[busiest]:.0%} busy: move bins away from it first"
    if sample.waiting > BACKLOG_SECONDS * max(sample.done, 1.0):
        return f"{sample.waiting} lines wait and must be processed first"
    return "an unknown number of lines wait" if rate is None else None


def _within(wanted: int, goal: Goal) -> tuple[int, str]:
    """Return the number of processes within the limits, and the limit that changed it as text."""
    if wanted < goal.min:
        return goal.min, f" --min sets it to {goal.min}."
    if goal.max is not None and wanted > goal.max:
        return goal.max, f" --max limits it to {goal.max}."
    return wanted, ""


def _remarks(sample: Sample, rate: float | None) -> tuple[str, ...]:
    """Return further hints for the reader."""
    mean = sum(sample.busy.values()) / sample.workers
    busiest = max(sample.busy, key=lambda worker: sample.busy[worker])
    if sample.workers > 1 and sample.busy[busiest] > max(0.5, SKEW * mean):
        return (
            f"Worker {busiest} is {sample.busy[busiest]:.0%} busy, the average is {mean:.0%}: more workers "
            "would not help; move its hottest bins.",
        )
    if mean < 0.5 and (rate is None or sample.done < rate * (1 - TOLERANCE)) and sample.waiting:
        return ("Lines wait although no worker is busy: something else limits the job, perhaps its output's reader.",)
    return ()


def _what_comes(sample: Sample, goal: Goal, rate: float | None) -> str:
    done = f"{sample.done:.0f} per second are processed"
    if goal.rate is not None:
        return f"The target is {goal.rate:.0f} lines per second; {done}."
    if rate is None:
        return (
            f"More lines wait than are read, and no --rate gives the arrival rate; {done}. Give --target-rate for an "
            "exact answer."
        )
    waiting = f"; {sample.waiting} wait" if sample.waiting else ""
    return f"{sample.offered:.0f} lines per second arrive; {done}{waiting}."


def _sentence(need: Need, workers: int) -> str:
    assert need.true_rate is not None
    what = "lines" if need.operator == ELSEWHERE else "records"
    return (
        f"{need.operator}: {need.offered:.0f} {what} per second; a worker applies {need.true_rate:.0f} per second of "
        f"useful time, so it needs {need.workers:.2f} workers (it used {need.utilization:.0%} of {workers})."
    )


def _up(number: float) -> int:
    return ceil(number - 1e-9)


def _count(processes: int, each: int) -> str:
    """Return "1 process" or "2 processes with 3 workers each"."""
    noun = quantity(processes, "process")
    return noun if each == 1 else f"{noun} with {each} workers each"
