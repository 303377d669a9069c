"""The attempts of a random durable job, each resuming from the remains of the previous one.

Lines or records are numbered within their word, key or partition. After any attempt, the outputs contain the numbers 1,
2, 3, … of each, in that order. After the last attempt nothing is missing.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_storage import JobStorage
from tests.simulation.durable_jobs import check_joins, draw, prepare

ATTEMPTS = 3


def check_all(run: Callable[[int], Counter[str]], seeds: Iterable[int], wanted: Iterable[str]) -> None:
    """Run these seeds. Raise AssertionError if one fails, or if something wanted happens in none of them."""
    seen = sum(map(run, seeds), Counter[str]())
    assert seen.keys() >= {*wanted}, f"the runs have become too tame: {({*wanted} - seen.keys())} in none, {seen}"


def outputs_in_order(storage: JobStorage) -> Counter[tuple[Any, ...]]:
    """Return the outputs. Check the number at the end of each record."""
    text = storage.lines
    records = [tuple(json.loads(line)["record"]) for line in text.splitlines()[: None if text.endswith("\n") else -1]]
    numbers: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for *of, number in records:
        numbers[*of,].append(number)
    for of, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"of {of} came {found}"
    return Counter(records)


def live(
    random: Random, seed: int, dataflow: Callable[[Any], Any], given: JobInput, wanted: Counter[tuple[Any, ...]],
    lived: Callable[[], Counter[str]] = Counter, storage: JobStorage | None = None,
    before_last: Callable[[], None] = lambda: None,
) -> Counter[str]:  # fmt: skip
    """Run a job to its end in several attempts. Return counts of what happened, with those that `lived` returns after
    each.

    `wanted` is the expected final output. `storage` is empty. `before_last` is called before the last attempt.
    """
    storage, seen = storage or JobStorage(random), Counter[str]()
    for attempt in range(ATTEMPTS):
        plan = draw(random, wanted.total() or 1)
        job = SimulatedJob(10 * seed + attempt, dataflow, storage=storage, job_input=given, **plan.options)
        prepare(plan, job, storage)
        launch = job.run()
        storage.store.happenings.clear()
        storage.fill(None)
        storage.store.failing = 0.0
        assert launch.error is None or not plan.is_quiet, launch.error
        check_joins(job)
        outputs_in_order(storage)
        seen[launch.outcome] += 1
        seen["went on"] += any("resumes from" in report for report in launch.reports)
        seen += lived()
        if launch.outcome == "ended":
            break
    before_last()
    launch = SimulatedJob(10 * seed + ATTEMPTS, dataflow, storage=storage, job_input=given).run()
    assert launch.outcome in ("ended", "over"), f"{launch.outcome}: {launch.error}"
    found = outputs_in_order(storage)
    assert found == wanted, f"missing are {wanted - found}, too many {found - wanted}"
    return seen
