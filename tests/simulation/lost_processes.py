"""Random runs of durable jobs that lose processes while others stay: what these remember is rolled back.

A seed is a sequence of lives as in `durable_jobs`, with the same promises; but nearly each loses a process, many two,
one after the other, while clients move bins, and processes come and go. Whoever stays must begin with what a new
process would read (see `CheckedState`).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from tests.simulation.durable_jobs import SCRIPTS, SECONDS, Lives, Plan

LIVES = 3


def draw(random: Random, count: int) -> Plan:
    """Processes and workers, clients, and what they lose."""
    plan = Plan({"processes": random.choice([2, 2, 3]), "workers": random.choice([1, 1, 2]), "rate": count / SECONDS})
    for _ in range(random.choice([0, 1, 2])):
        scripts = random.choices(SCRIPTS, [6, 2, 1, 2, 2, 2], k=4)
        plan.clients.append((random.random() * SECONDS / 4, scripts[: random.randint(1, 4)]))
    first = random.randint(100, 1000)
    plan.actions.append((first, "kill_one"))
    if random.random() < 0.5:
        plan.actions.append((first + random.choice([random.randint(1, 100), random.randint(100, 1000)]), "kill_one"))
    if random.random() < 0.2:
        plan.actions.append((first + random.randint(1, 1000), "kill_all"))
    if random.random() < 0.2:
        plan.failing = random.choice([1, first]), 0.02
    return plan


def run(seed: int) -> Counter[str]:
    """Run a seed; return what was seen. Raises AssertionError, naming it, if something does not hold."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-lost-") as folder:
            lives = Lives(seed, Path(folder), (20, 70))
            for _ in range(lives.random.randint(1, LIVES)):
                if lives.live(draw(lives.random, lives.count)).outcome == "ended":
                    break
            lives.end()
            return lives.seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
