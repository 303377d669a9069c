"""A sample of a job: rates and shares of time, from two of its statuses.

The counts of a status only grow, so the difference of two statuses is what happened in between; each worker's clock is
compared with itself only. If workers came or left or bins moved in between, the two say nothing about the workers that
are there now: then there is no sample, and `CommandRefused` says why.
"""


from megaflow.control.reports import JobStatus, UsefulTime
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What one stateful operator did, on all workers together."""

    records: float  # applied per second
    useful: float  # seconds per second that its fold took


@dataclass(frozen=True, slots=True)
class Sample:
    """A stretch of a job's life. All figures are of all workers together unless they say otherwise."""

    seconds: float  # how long it was, more than 0
    processes: tuple[tuple[int, ...], ...]  # the workers of each; the coordinator's first, the newest last
    offered: float  # lines per second that were due
    done: float  # lines per second that were processed to their end
    waiting: int  # lines that were due and not read at its end
    unbounded: bool  # more lines wait, and no rate says how many: `offered` counts only those that were read
    busy: dict[int, float]  # worker -> share of the time in which it had something to do, 0 to 1
    work: dict[str, Work]  # operator -> what it did

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.busy)


def sample(first: JobStatus, second: JobStatus) -> Sample:
    """Return what happened between two statuses. Raises CommandRefused, with the reason, if they do not tell that."""
    if reason := disturbance(first, second):
        raise CommandRefused(reason)
    before = {worker.id: worker for worker in first.workers}
    pairs = [(before[worker.id], worker, worker.now - before[worker.id].now) for worker in second.workers]
    operators = [operator.name for operator in second.operators]
    work = {name: [0.0, 0.0] for name in operators}
    for old, new, seconds in pairs:
        for name in operators:
            was, is_ = old.useful.get(name, UsefulTime()), new.useful.get(name, UsefulTime())
            work[name][0] += (is_.records - was.records) / seconds
            work[name][1] += (is_.useful_seconds - was.useful_seconds) / seconds
    came = (new.lines - old.lines + (new.waiting or 0) - (old.waiting or 0) for old, new, _ in pairs)
    return Sample(
        seconds=sum(seconds for _, _, seconds in pairs) / len(pairs),
        processes=processes_of(second),
        offered=max(0.0, sum(lines / seconds for lines, (_, _, seconds) in zip(came, pairs))),
        done=sum((new.done - old.done) / seconds for old, new, seconds in pairs),
        waiting=sum(new.waiting or 0 for _, new, _ in pairs),
        unbounded=any(old.waiting is None and new.waiting is None for old, new, _ in pairs),
        busy={
            new.id: min(1.0, max(0.0, new.busy_seconds - old.busy_seconds) / seconds) for old, new, seconds in pairs
        },
        work={name: Work(*figures) for name, figures in work.items()},
    )


def disturbance(first: JobStatus, second: JobStatus) -> str | None:
    """Return why two statuses say nothing about the workers there are now; None if they do."""
    for status in (first, second):
        if status.state != "running":
            return f"job {status.job!r} is {status.state}"
        if status.changes:
            return f"{status.changes[0].change} is under way"
        if status.pending or (status.plan is not None and status.plan.running):
            return "bins are moving"
        if ids := [worker.id for worker in status.workers if worker.state != "running"]:
            return f"worker {ids[0]} is not running yet or no longer running"
    if not second.workers:
        return "no worker has answered"
    before = {worker.id: worker.now for worker in first.workers}
    if before.keys() != {worker.id for worker in second.workers}:
        return "workers joined or left in the meantime"
    if first.ledger[-1:] != second.ledger[-1:]:
        return "bins moved in the meantime"
    if any(worker.now <= before[worker.id] for worker in second.workers):
        return "no time has passed between the two statuses"
    return None


def processes_of(status: JobStatus) -> tuple[tuple[int, ...], ...]:
    """Return the workers of each process, sorted: the coordinator's process, which has the least id, comes first."""
    processes: dict[str, list[int]] = {}
    for worker in sorted(status.workers, key=lambda each: each.id):
        processes.setdefault(worker.address, []).append(worker.id)
    return tuple(sorted(map(tuple, processes.values())))
