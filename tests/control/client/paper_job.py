"""Jobs that exist on paper only: statuses as a job would give them whose costs are known exactly."""

from dataclasses import dataclass, field
from typing import Any

from megaflow.control.reports import JobStatus
from tests.control.status_records import status_of


@dataclass
class PaperJob:
    """A job whose workers apply lines at a known cost, while time passes as told; the newest process leaves first."""

    rate: float  # lines that come a second
    costs: dict[str, float]  # operator -> seconds of useful time a line
    processes: int = 1
    each: int = 1  # workers in a process
    overhead: float = 0.0  # share of each worker's time that lines have nothing to do with
    slowdown: float = 0.0  # by so much does every line cost more for each worker beyond the first
    elsewhere: float = 0.0  # seconds a line outside operators
    selectivity: float = 3.0  # records that an operator is given for a line
    bounded: bool = True  # whether it is known how many lines come
    seconds: float = 0.0
    lines: float = 0.0  # came so far
    done: float = 0.0  # lines
    busy: dict[int, float] = field(default_factory=dict)
    useful: dict[str, float] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)

    @property
    def workers(self) -> int:
        return self.processes * self.each

    @property
    def cost(self) -> float:
        """Seconds of one worker's time that a line costs."""
        return (sum(self.costs.values()) + self.elsewhere) * (1 + self.slowdown * (self.workers - 1))

    @property
    def capacity(self) -> float:
        """Lines a second that can be worked off."""
        return self.workers * (1 - self.overhead) / self.cost if self.cost else float("inf")

    @property
    def load(self) -> float:
        """The share of their time that the workers would have to be busy for what comes; above 1 they cannot."""
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
        """Return its status, its work spread evenly over its workers."""
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
        """Return two statuses, so many seconds apart."""
        first = self.status()
        self.go_on(seconds)
        return first, self.status()
