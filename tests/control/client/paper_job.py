"""Paper jobs, which exist only as numbers: they give the statuses of a job whose costs are known exactly."""

from dataclasses import dataclass, field
from typing import Any

from megaflow.control.reports import JobStatus
from tests.control.status_records import status_of


@dataclass
class PaperJob:
    """A job whose workers process lines at a known cost, on a clock of the test. The newest process leaves first."""

    rate: float  # lines that come per second
    costs: dict[str, float]  # operator -> seconds of useful time per line
    processes: int = 1
    each: int = 1  # workers in a process
    overhead: float = 0.0  # share of each worker's time that does not depend on lines
    slowdown: float = 0.0  # relative rise in the cost of a line for each worker beyond the first
    elsewhere: float = 0.0  # seconds per line outside operators
    selectivity: float = 3.0  # records that an operator receives per line
    bounded: bool = True  # the number of lines that come is known
    seconds: float = 0.0
    lines: float = 0.0  # have come so far
    done: float = 0.0  # processed lines
    busy: dict[int, float] = field(default_factory=dict)
    useful: dict[str, float] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)

    @property
    def workers(self) -> int:
        return self.processes * self.each

    @property
    def cost(self) -> float:
        """Seconds of a worker's time that a line costs."""
        return (sum(self.costs.values()) + self.elsewhere) * (1 + self.slowdown * (self.workers - 1))

    @property
    def capacity(self) -> float:
        """Lines per second that the job can process."""
        return self.workers * (1 - self.overhead) / self.cost if self.cost else float("inf")

    @property
    def load(self) -> float:
        """Share of the workers' time that the incoming lines need. Above 1 they cannot keep up."""
        return self.overhead + self.rate * self.cost / self.workers

    def go_on(self, seconds: float) -> None:
        """Let time pass."""
        came = self.rate * seconds
        done = min(self.lines - self.done + came, self.capacity * seconds)
        slow = 1 + self.slowdown * (self.workers - 1)
        self.seconds += seconds
        self.lines += came
        self.done += done
        for worker in range(self.workers):
            share = done * self.cost / self.workers + self.overhead * seconds
            self.busy[worker] = self.busy.get(worker, 0.0) + share
        for name, cost in self.costs.items():
            self.useful[name] = self.useful.get(name, 0.0) + done * cost * slow

    def status(self, **more: Any) -> JobStatus:
        """Return the job's status, with the work spread evenly over the workers."""
        count = self.workers
        waiting = self.lines - self.done
        names = list(self.costs)
        record = {
            "job": "paper", "state": "running", "epoch": 9, "frontier": 8,
            "workers": [
                {"id": worker, "state": "running", "address": f"h:{worker // self.each}",
                 "lines": self.done / count, "done": self.done / count,
                 "waiting": waiting / count if self.bounded else None if waiting else 0,
                 "now": 100.0 * worker + self.seconds, "busy_s": self.busy.get(worker, 0.0),
                 "useful": {name: {"records": self.selectivity * self.done / count,
                                   "s": self.useful.get(name, 0.0) / count} for name in names}}
                for worker in range(count)
            ],
            "operators": [{"name": name, "bins": 32} for name in names],
            "pending": [], "plan": None, "changes": [], "ledger": list(self.ledger), **more,
        }  # fmt: skip
        return status_of(record)

    def sample(self, seconds: float = 10.0) -> tuple[JobStatus, JobStatus]:
        """Return two statuses, `seconds` apart."""
        first = self.status()
        self.go_on(seconds)
        return first, self.status()
