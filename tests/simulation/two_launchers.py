"""Two launchers of one durable job: the first is suspended with its processes, and wakes beside its successor.

They share the store without a lock between them, as on some network file systems. They do not share the output, which
only a lock could protect. The successor takes the store over at any moment of the first launcher, and both continue in
any order. Then
1. the first launcher acknowledges nothing more, and fails by itself (see `JobStorage`);
2. the successor and all later launchers give the output of a job that was alone.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from megaflow.errors import StoreFenced
from megaflow.testing.simulated_job import SimulatedJob
from tests.simulation.durable_jobs import Attempts, draw


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-two-") as folder, ExitStack() as stack:
            return _run(seed, Path(folder), stack)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def _run(seed: int, folder: Path, stack: ExitStack) -> Counter[str]:
    attempts, seen = Attempts(seed, folder, (15, 30)), Counter[str]()
    random, storage = attempts.random, attempts.storage
    if random.random() < 0.5:  # there is a checkpoint to begin with
        plan = draw(random, attempts.count)
        plan.poison, plan.actions = False, [(random.randint(200, 800), "kill_all")]
        if attempts.live(plan).outcome == "ended":
            attempts.write(10)

    def begin() -> SimulatedJob:
        job = attempts.job(processes=random.randint(1, 3), rate=attempts.count / 0.5)
        job.begin(stack.enter_context(job._input()))
        return job

    jobs = [begin()]
    for _ in range(random.randint(0, 900)):
        if not jobs[0].launch.is_over:
            jobs[0].act()
    if not jobs[0].launch.is_over:
        storage.copy_output()
        jobs.append(begin())
        sleepy = random.choice([0.02, 0.5, 1.0])
        while going := [job for job in jobs if not job.launch.is_over]:
            random.choices(going, [sleepy if job is jobs[0] else 1.0 for job in going])[0].act()
        first = jobs[0].launch
        assert first.outcome == "failed", f"the first one has {first.outcome}"
        seen["fenced"] += isinstance(first.error, StoreFenced)
        seen["took over"] += 1
    last = jobs[-1].launch
    assert last.error is None, last.error
    seen["checkpoints"] += storage.acknowledged is not None
    attempts.end()
    return seen
