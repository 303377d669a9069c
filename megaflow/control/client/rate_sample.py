"""What a job did between two looks at it: rates and shares of time, from two status records.

A look is a record of `megaflow.control.coordinator.status`. Its counts only grow, so the difference of two is what
happened in between; clocks are those of the workers, each compared with itself only. Two looks tell nothing of the
workers there are now if somebody came, left or was given bins in between: such a pair is refused, with the reason.
"""

from dataclasses import dataclass
from typing import Any

from megaflow.errors import CommandRefused


@dataclass(frozen=True, slots=True)
class Work:
    """What one stateful operator did, on all workers together."""

    records: float  # applied a second
    useful: float  # seconds a second that its fold took


@dataclass(frozen=True, slots=True)
class Sample:
    """A stretch of a job's life. All figures are of all workers together unless they say otherwise."""

    seconds: float  # how long it was, more than 0
    processes: tuple[tuple[int, ...], ...]  # the workers of each; the coordinator's first, the newest last
    offered: float  # lines a second that were due
    done: float  # lines a second that were worked off to their end
    waiting: int  # lines that are due and not read at its end
    unbounded: bool  # lines wait that no rate has asked for: `offered` counts only those that were read
    busy: dict[int, float]  # worker -> share of the time that it was not waiting for something to do, 0 to 1
    work: dict[str, Work]  # operator -> what it did

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.busy)


def sample(first: dict[str, Any], second: dict[str, Any]) -> Sample:
    """Return what happened between two looks. Raises CommandRefused, with the reason, for a pair that tells nothing."""
    if reason := disturbance(first, second):
        raise CommandRefused(reason)
    before = {worker["id"]: worker for worker in first["workers"]}
    pairs = [(before[worker["id"]], worker) for worker in second["workers"]]
    seconds: dict[int, float] = {old["id"]: new["now"] - old["now"] for old, new in pairs}

    def rate(count: str) -> float:
        return sum(float(new[count] - old[count]) / seconds[old["id"]] for old, new in pairs)

    def useful(operator: str, count: str) -> float:
        nothing = {"records": 0, "s": 0.0}
        return sum(
            float(new["useful"].get(operator, nothing)[count] - old["useful"].get(operator, nothing)[count])
            / seconds[old["id"]]
            for old, new in pairs
        )

    more_waiting = sum(((new["waiting"] or 0) - (old["waiting"] or 0)) / seconds[old["id"]] for old, new in pairs)
    operators = [operator["name"] for operator in second["operators"]]
    return Sample(
        seconds=sum(seconds.values()) / len(seconds),
        processes=processes_of(second),
        offered=max(0.0, rate("lines") + more_waiting),
        done=rate("done"),
        waiting=sum(new["waiting"] or 0 for _, new in pairs),
        unbounded=any(old["waiting"] is None and new["waiting"] is None for old, new in pairs),
        busy={old["id"]: min(1.0, max(0.0, new["busy_s"] - old["busy_s"]) / seconds[old["id"]]) for old, new in pairs},
        work={name: Work(useful(name, "records"), useful(name, "s")) for name in operators},
    )


def disturbance(first: dict[str, Any], second: dict[str, Any]) -> str | None:
    """Return why two looks tell nothing of the workers there are now; None if they do."""
    for record in (first, second):
        if record["state"] != "running":
            return f"job {record['job']!r} is {record['state']}"
        if record["changes"]:
            return f"{record['changes'][0]['change']} is under way"
        if record["pending"] or (record["plan"] is not None and record["plan"]["running"]):
            return "bins are moving"
        if ids := [worker["id"] for worker in record["workers"] if worker["state"] != "running"]:
            return f"worker {ids[0]} is not running yet, or not any more"
    if not second["workers"]:
        return "no worker has answered"
    if sorted(worker["id"] for worker in first["workers"]) != sorted(worker["id"] for worker in second["workers"]):
        return "workers came or left meanwhile"
    if first["ledger"][-1:] != second["ledger"][-1:]:
        return "bins were moved meanwhile"
    before = {worker["id"]: worker["now"] for worker in first["workers"]}
    if any(worker["now"] <= before[worker["id"]] for worker in second["workers"]):
        return "the two looks are one: no time has passed between them"
    return None


def processes_of(record: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Return the workers of each process, sorted: the coordinator's process, which has the least id, comes first."""
    processes: dict[str, list[int]] = {}
    for worker in sorted(record["workers"], key=lambda each: each["id"]):
        processes.setdefault(worker["address"], []).append(worker["id"])
    return tuple(sorted(map(tuple, processes.values())))
