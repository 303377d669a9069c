"""Random runs of durable jobs that lose processes while others stay and roll their memory back.

A seed is a sequence of attempts as in `durable_jobs`, with the same promises. But nearly every attempt loses a process,
and many lose two, one after the other, while clients move bins and processes join and leave. A surviving process must
begin with the state that a new process would read (see `CheckedState`). Some of the jobs shrink: they do not replace a
lost process. Every request for a state during a loss is answered, perhaps by the next attempt; no client waits without
end.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.messages import GetState
from megaflow.testing.simulated_clients import Talk, Waits
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_process import SimulatedProcess
from tests.simulation.durable_jobs import SCRIPTS, SECONDS, Attempts, Plan
from tests.simulation.jobs import WORDS
from tests.simulation.owners import OwningJob

ATTEMPTS = 3


class LosingJob(OwningJob):
    """Job that knows which processes it replaces and which clients wait for an answer."""

    def __init__(self, seen: Counter[str], *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.seen = seen
        self.waiting: list[Talk] = []

    def run(self) -> SimulatedLaunch:
        """Run to the end, then deliver what is under way to the waiting clients; each must have its answer or an end.
        """
        launch = super().run()
        while self.wires.ready:
            (_, lane), (link, _) = min(self.wires.ready.items(), key=lambda item: item[0])
            link.deliver(lane)
        silent = [talk for talk in self.waiting if talk.client is not None and not talk.is_ready]
        assert not silent, f"{len(silent)} wait for an answer that will not come"
        return launch

    def found(self, processes: Sequence[SimulatedProcess]) -> None:
        """Found a job with these processes, once all have met. If it shrinks, no lost process is among them."""
        lost, killed = ({each.address for each in some} for some in (self.killed_members, self.killed))
        self.killed_members.clear()
        addresses = {process.address for process in processes}
        assert not (self.spec.shrink and lost & addresses) or addresses <= killed, f"of {addresses} {lost} were lost"
        super().found(processes)


def ask(talk: Talk) -> Waits:
    """Ask for the state of a word."""
    job: Any = talk.world
    word = job.random.choice([*WORDS, "none"])
    job.waiting.append(talk)
    asked = talk._id
    try:
        answer = yield from talk.ask(GetState("count", word, "json"))
    finally:
        job.waiting.remove(talk)
    assert (answer.operator, answer.key) == ("count", word), answer
    job.seen["answered"] += 1
    job.seen["asked again"] += talk._id > asked + 1


def draw(random: Random, count: int) -> Plan:
    """Draw processes, workers, clients, and the processes to lose."""
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
    plan.options["shrink"] = random.random() < 0.5
    for _ in range(random.choice([0, 1, 2])):
        plan.clients.append((random.random() * SECONDS / 2, [ask] * 20))
    return plan


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        seen = Counter[str]()
        with tempfile.TemporaryDirectory(prefix="megaflow-lost-") as folder:
            attempts = Attempts(seed, Path(folder), (20, 70), partial(LosingJob, seen))
            for _ in range(attempts.random.randint(1, ATTEMPTS)):
                if attempts.live(draw(attempts.random, attempts.count)).outcome == "ended":
                    break
            attempts.end()
            return attempts.seen + seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
