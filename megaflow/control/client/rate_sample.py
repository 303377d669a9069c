"""What lies between two statuses of a job: rates and shares of time of the whole job, and the work of each worker.

The counts of a status only grow, so the difference of two statuses is the work in between. Each worker's clock is
compared only with itself. If workers came or left or bins moved in between, the two statuses do not describe the
current workers. Then there is no sample, and `CommandRefused` gives the reason. `busy_share` and `work_text` need only
that a worker is in both.
"""

from megaflow.control.reports import JobStatus, UsefulTime, WorkerStatus
from megaflow.errors import CommandRefused
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped

BUSY_SHARE = 0.5  # of the time, from which `work_text` names an operator


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one stateful operator, on all workers together."""

    records: float  # applied per second
    useful: float  # seconds per second that its fold took


@dataclass(frozen=True, slots=True)
class Sample:
    """A stretch of a job's life. Figures cover all workers together, except as noted."""

    seconds: float  # its length, more than 0
    processes: tuple[tuple[int, ...], ...]  # the workers of each process; the coordinator's first, the newest last
    offered: float  # lines per second that were due
    done: float  # lines per second that were processed to their end
    waiting: int  # lines that were due and not read at the end
    unbounded: bool  # more lines wait, and no rate gives their number: `offered` counts only lines that were read
    busy: dict[int, float]  # worker -> share of the time in which it had something to do, 0 to 1
    work: dict[str, Work]  # operator -> its work

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.busy)


def sample(first: JobStatus, second: JobStatus) -> Sample:
    """Return the work between two statuses. Raises CommandRefused with the reason if they do not determine it."""
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
        busy={new.id: _busy(old, new) for old, new, _ in pairs},
        work={name: Work(*figures) for name, figures in work.items()},
    )


def disturbance(first: JobStatus, second: JobStatus) -> str | None:
    """Return why two statuses do not describe the current workers; None if they do."""
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
    """Return the workers of each process, sorted: the coordinator's process, which has the lowest id, comes first."""
    processes = grouped((each.address, each.id) for each in sorted(status.workers, key=lambda each: each.id))
    return tuple(sorted(map(tuple, processes.values())))


def busy_share(before: WorkerStatus | None, now: WorkerStatus) -> float | None:
    """Return the share of the time between two statuses of a worker that it worked; None if it is not known."""
    if before is None or before.pid != now.pid or now.now <= before.now:
        return None
    return _busy(before, now)


def work_text(before: WorkerStatus | None, now: WorkerStatus) -> str:
    """Return which operator took most of a worker's time between two statuses; "" if the worker was mostly idle."""
    share = busy_share(before, now)
    if before is None or share is None or share < BUSY_SHARE:
        return ""
    spent = {name: _since(before.useful.get(name, UsefulTime()), used) for name, used in now.useful.items()}
    name, (records, seconds) = max(spent.items(), key=lambda each: each[1][1], default=("", (0, 0.0)))
    if not records or seconds < BUSY_SHARE * (now.now - before.now):
        return ""
    return f"{name!r} takes {_short(seconds / records)} a record"


def _since(before: UsefulTime, now: UsefulTime) -> tuple[int, float]:
    return now.records - before.records, now.useful_seconds - before.useful_seconds


def _short(seconds: float) -> str:
    """Return a duration with two digits.

    >>> _short(0.151), _short(0.00025), _short(2.0)
    ('150 ms', '250 µs', '2 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{float(f'{seconds / size:.2g}'):g} {unit}"
    return "less than 1 µs"


def _busy(before: WorkerStatus, now: WorkerStatus) -> float:
    return min(1.0, max(0.0, (now.busy_seconds - before.busy_seconds) / (now.now - before.now)))
