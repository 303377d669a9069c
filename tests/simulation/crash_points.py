"""Crashes after every disk operation and every message of short jobs, each followed by a job that resumes.

A script is a job with a few lines, and requests of clients: moves, a join, a leave, a hand-over, a stop, or nothing but
the end of the input. It first runs once without a crash, to count its disk operations and its actions. (An action is a
message that arrives, or a process that acts on one.) Then, with the same seed, it runs for each k up to the k-th disk
operation or the k-th action. At that point the test kills all processes, cuts the power, or kills one process. A kill
leaves the written files as they are; the remains of a power loss are drawn in several ways. The next job runs
undisturbed. It must end with the output of the run without a crash, and start from a checkpoint that was acknowledged
(see `durable_jobs`). The script `recovery` resumes a job that was killed halfway.

By hand: `python -m tests.simulation.crash_points` runs all cases; with a number n, every n-th.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove_first
from tests.simulation.durable_jobs import Attempts, Plan, checkpoint

LINES = 8, 12
RECOVERY_ACTIONS = 150  # of a resumed job; later on it behaves like any other

Script = list[Callable[[Talk], Waits]]
SCRIPTS: dict[str, tuple[dict[str, Any], Script]] = {
    "end": ({"processes": 2, "workers": 2}, [checkpoint]),
    "moves": ({"processes": 2}, [move, checkpoint, move]),
    "join": ({"processes": 1}, [add, checkpoint]),
    "hand-over": ({"processes": 3}, [checkpoint, remove_first, balance]),
    "stop": ({"processes": 2}, [move]),
    "recovery": ({"processes": 2}, [move]),
}


@dataclass(frozen=True)
class Case:
    """One crash."""

    script: str
    place: str  # "steps" on the disk, or "actions"
    number: int
    how: str  # a method of SimulatedJob, or an event on the disk
    draw: int = 0  # selects what a power loss leaves


def play(name: str, folder: Path, case: Case | None = None) -> tuple[int, int]:
    """Run a script with a crash, then to its end. Return the number of disk steps and of actions of its first job."""
    attempts = Attempts(1 + [*SCRIPTS].index(name), folder, LINES)
    storage = attempts.storage
    storage.store.rng = storage.output.rng = Random(0 if case is None else case.draw)
    storage.seconds = 0.01
    options, scripts = SCRIPTS[name]
    plan = Plan({"rate": 40.0, **options}, [(0.02, scripts)])
    if name == "stop":
        plan.actions.append((250, "stop"))
    if name == "recovery":
        attempts.live(Plan({"rate": 40.0, "processes": 3}, [], [(500, "kill_all")]))
    if case is not None:
        (plan.steps if case.place == "steps" else plan.actions).append((case.number, case.how))
        plan.actions.sort(key=lambda each: each[0])
    before = storage.steps
    attempts.live(plan)
    counts = storage.steps - before, attempts.actions
    attempts.end()
    return counts


def run(case: Case) -> None:
    """Run a case. Raise an AssertionError that names it."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-crash-") as folder:
            play(case.script, Path(folder), case)
    except Exception as error:
        raise AssertionError(f"{case}: {error!r}") from error


def cases(*scripts: str) -> Iterator[Case]:
    """Yield all crashes of these scripts, or of all scripts."""
    for name in scripts or SCRIPTS:
        with tempfile.TemporaryDirectory(prefix="megaflow-crash-") as folder:
            steps, actions = play(name, Path(folder))
        for number in range(1, steps + 1):
            yield Case(name, "steps", number, "kill_all")
            yield Case(name, "steps", number, "crash")
            for draw in range(3):
                yield Case(name, "steps", number, "lose_power", draw)
        for number in range(1, min(actions, RECOVERY_ACTIONS if name == "recovery" else actions) + 1):
            yield Case(name, "actions", number, "kill_all")
            yield Case(name, "actions", number, "kill_one")
            yield Case(name, "actions", number, "lose_power")


def main(stride: int = 1, first: int = 0) -> None:
    """Run every `stride`-th case, starting at `first`, and print how many of each kind ran."""
    began, counts, failed = time.process_time(), Counter[str](), 0
    for case in [*cases()][first::stride]:
        counts[f"{case.script}, {case.place}"] += 1
        try:
            run(case)
        except AssertionError as error:
            failed += 1
            print(error)
    print(dict(counts), f"{counts.total()} crashes, {failed} failed, {time.process_time() - began:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
