"""Random runs of whole durable jobs, with requests of clients and with faults of processes and of the disk.

A seed is a sequence of attempts. Each attempt is a job that resumes from the remains of the previous one, with any
number of processes and workers. An attempt ends by itself, is stopped or killed, or loses a process or its power. This
may happen at any moment, also during recovery; the disk may also be full for a while, or fail. The last attempt runs
undisturbed. Then:
1. The output equals that of one undisturbed job, in order for each word: nothing is lost, nothing appears twice, and no
   timer fires twice.
2. A job recovers the newest acknowledged checkpoint, or the one that was being committed (see `JobStorage`).
3. A job fails only because of an injected fault, and reports it. A message that may not arrive is no reason to fail. A
   fault of the program ends the job at once.
4. A job that ended or was stopped has written exactly its committed output.
5. A job that reached its end is over. The next one finds nothing to do, or reads only new lines.
6. After an attempt has started from a checkpoint, its outputs have that checkpoint's epoch or a later one.
7. No joining process fails by itself, whatever its attempt started with and has removed since.
8. Each attempt starts with the owners of the previous one (see `owners`).
The outputs are running counts of words, and the same counts once more from timers some epochs later.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.messages import CheckpointJob
from megaflow.errors import PeerFailed, ProtocolError
from megaflow.job.files.splits import plan_splits
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, remove_first
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_storage import JobStorage
from tests.simulation.jobs import BINS, PADDING, WORDS, blind, few_held
from tests.simulation.owners import OwningJob

SECONDS = 0.5  # in which all lines arrive
ATTEMPTS = 6


def count(word: str, one: int, total: int | None) -> Any:
    """Count a word."""
    total = (total or 0) + one
    return total, [(word, total)]


def again(word: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """Emit each count, and once more some epochs later."""
    seen = state or {"due": 0, "last": 0}
    outputs: list[Any] = []
    for value in values:
        if isinstance(value, list):
            seen["due"] -= 1
            outputs.append((word, value[0], "again"))
        else:
            assert value == seen["last"] + 1, f"{word!r} has {value} after {seen['last']}"
            seen["due"] += 1
            seen["last"] = value
            timers.at(time + 1 + value % 5, [value])
            outputs.append((word, value, "now"))
    return seen, outputs


def dataflow(flow: Any) -> Any:
    """Emit running counts of words, and each count once more some epochs later by a timer."""
    words = flow.lines().map(lambda line: (line.split(" ")[0], 1))
    counted = words.stateful_state_machine(count, bins=BINS, name="count")
    return counted.stateful_unary(again, bins=BINS, name="again")


def poisoned(flow: Any) -> Any:
    """Run the same dataflow, but fail on a word of the input."""

    def read(line: str) -> str:
        assert not line.startswith("dog"), "poison"
        return line

    words = flow.lines().map(lambda line: (read(line).split(" ")[0], 1))
    counted = words.stateful_state_machine(count, bins=BINS, name="count")
    return counted.stateful_unary(again, bins=BINS, name="again")


def checkpoint(talk: Talk) -> Waits:
    """Ask for a checkpoint."""
    yield from talk.ask(CheckpointJob())


SCRIPTS = [move, add, remove, remove_first, balance, checkpoint]


@dataclass
class Plan:
    """The events of one attempt."""

    options: dict[str, Any]
    clients: list[tuple[float, list[Callable[[Talk], Waits]]]] = field(default_factory=list)
    actions: list[tuple[int, str]] = field(default_factory=list)  # (actions taken, a method of SimulatedJob)
    steps: list[tuple[int, str]] = field(default_factory=list)  # (steps on the disk, the event)
    full: tuple[int, int, int] | None = None  # (first action, last action, bytes left on the disk)
    failing: tuple[int, float] | None = None  # (first action, share of the store's steps that fail)

    by_hand: tuple[int, ...] = ()  # numbers of actions after which a joining process starts
    poison: bool = False  # whether the program has a fault

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens except the clients' requests."""
        return not (self.actions or self.steps or self.full or self.failing)


def draw(random: Random, count: int) -> Plan:
    """Draw processes, workers, clients that move bins and add and remove processes, and perhaps a fault."""
    plan = Plan({"processes": random.choice([1, 2, 2, 3]), "workers": random.choice([1, 1, 2])})
    if random.random() < 0.9:
        plan.options["rate"] = count / SECONDS
    for _ in range(random.choice([0, 1, 1, 2, 2])):
        scripts = random.choices(SCRIPTS, [4, 3, 2, 4, 1, 1], k=4)
        plan.clients.append((random.random() * SECONDS / 4, scripts[: random.randint(1, 4)]))
    if random.random() < 0.05:
        plan.poison = True
        return plan
    chance = random.random()
    if chance < 0.15:
        plan.actions.append((random.randint(20, 900), "stop"))
    elif chance < 0.4:
        what = random.choice(["kill_one", "kill_one", "kill_all", "lose_power"])
        plan.actions.append((random.randint(1, 1200), what))
    elif chance < 0.5:
        plan.steps.append((random.randint(1, 40), random.choice(["crash", "lose_power"])))  # as it recovers or starts
    elif chance < 0.65:
        plan.steps.append((random.randint(10, 400), random.choice(["crash", "kill_all", "lose_power"])))
    elif chance < 0.75:
        for _ in range(random.choice([1, 1, 2, 5])):
            plan.steps.append((random.randint(1, 300), random.choice(["EIO", "ENOSPC", "done-EIO"])))
    elif chance < 0.95:
        plan.failing = random.choice([1, 100]), random.choice([0.01, 0.03])
        if random.random() < 0.7:
            plan.actions.append((random.randint(300, 1000), random.choice(["kill_all", "lose_power"])))
    else:
        first = random.randint(20, 600)
        plan.full = first, first + random.randint(1, 400), random.randint(0, 1500)
    return plan


def prepare(plan: Plan, job: SimulatedJob, storage: JobStorage) -> None:
    """Schedule a plan's requests and faults in a job."""
    for seconds, scripts in plan.clients:
        job.client(*scripts, seconds=seconds)
    for action, what in plan.actions:
        job.at(action, getattr(job, what))
    for action in plan.by_hand:
        job.at(action, job.join_by_hand)
    for step, what in plan.steps:
        storage.happen(step, what if what in ("crash", "EIO", "ENOSPC", "done-EIO") else getattr(job, what))
    if plan.failing is not None:
        job.at(plan.failing[0], partial(setattr, storage.store, "failing", plan.failing[1]))
    if plan.full is not None:
        first, last, room = plan.full
        job.at(first, partial(storage.fill, room))
        job.at(last, partial(storage.fill, None))


def check_joins(job: SimulatedJob) -> None:
    """Check that no joining process failed by itself; the job may have refused it."""
    failed = [each.failed_to_join for each in job.processes if each.failed_to_join is not None]
    assert not failed, failed


class Attempts:
    """The attempts of one job: its input, its output so far, and its expected output."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        count: tuple[int, int] = (20, 50),
        kind: Callable[..., SimulatedJob] = OwningJob,
    ) -> None:
        self.random = Random(f"durable job {seed}")
        self.seen: Counter[str] = Counter()
        self.storage = JobStorage(self.random)
        self.count = self.random.randint(*count)
        self.actions = 0  # of the last attempt
        self._seed = seed
        self._folder = folder
        self._kind = kind
        self._attempts = 0
        self._words: Counter[str] = Counter()
        self._paths: list[str] = []
        self._written = 0  # files
        self.write(self.count)

    def write(self, count: int) -> None:
        """Write more input, in new files. The job had read all its input, so timers have fired whose times were still
        to come.
        """
        self._begun = self.storage.lines.count("\n")
        random, number = self.random, self._written
        paths = [self._folder / f"part{each}" for each in range(number, number + random.choice([1, 2, 3, 6]))]
        lines: dict[Path, list[str]] = {path: [] for path in paths}
        for _ in range(count):
            word = random.choice(WORDS)
            self._words[word] += 1
            lines[random.choice(paths)].append(f"{word} {PADDING}\n")
        for path, some in lines.items():
            path.write_text("".join(some), encoding="utf-8")
        self._paths += map(str, paths)
        self._written += len(paths)

    def job(self, flow: Callable[[Any], Any] = dataflow, **options: Any) -> SimulatedJob:
        """Make the next job."""
        self._attempts += 1
        seed = self._seed * 10 + self._attempts
        given = JobInput(splits=tuple(plan_splits(self._paths)))
        return self._kind(seed, flow, storage=self.storage, job_input=given, **options)

    def live(self, plan: Plan) -> SimulatedLaunch:
        """Run one attempt by a plan, to its end."""
        job, storage = self.job(poisoned if plan.poison else dataflow, **plan.options), self.storage
        by_hand = Random(f"by hand {job.seed}")
        if by_hand.random() < 0.2:
            plan.by_hand = (by_hand.randint(100, 1000),)
        prepare(plan, job, storage)
        with few_held(self._seed), blind(self._seed):
            launch = job.run()
        self.actions = job.actions
        storage.store.happenings.clear()
        storage.fill(None)
        storage.store.failing = 0.0
        if not plan.poison:
            check_joins(job)
        has_suffered = bool(job.killed) or launch.is_killed or not plan.is_quiet
        error = launch.error
        if plan.poison and isinstance(error, PeerFailed):
            assert "poison" in str(error) and not any("restart" in report for report in launch.reports), launch.reports
        else:
            assert has_suffered or error is None, error
            assert not isinstance(error, ProtocolError), error
            assert not isinstance(error, PeerFailed) or "Input/output" in str(error), error
        if launch.outcome in ("ended", "stopped"):
            assert launch.keeper is not None
            latest, length = launch.keeper.latest, len(storage.lines)
            assert latest.ended is (launch.outcome == "ended"), latest
            assert latest.outputs[0].length == length, f"the output has {length} bytes, not {latest.outputs[0].length}"
        self.check_output()
        went_on = any("resumes from" in report for report in launch.reports)
        self.seen["acknowledged"] += storage.acknowledged is not None
        self.seen[launch.outcome] += 1
        self.seen["failed on its disk"] += launch.outcome == "failed" and not job.killed
        self.seen["failed checkpoints"] += any(" failed: " in report for report in launch.reports)
        self.seen["joined"] += any("joined" in report for report in launch.reports)
        self.seen["joined a resumed job"] += any("joined" in report for report in launch.reports) and went_on
        self.seen["restarted"] += any("restart 1 of" in report for report in launch.reports)
        self.seen["remembered"] += any(process.remembered for process in job.processes)
        self.seen["shrunk"] += any(" with " in report.partition("restart")[2] for report in launch.reports)
        self.seen["went on"] += went_on
        return launch

    def end(self) -> None:
        """Run one more attempt undisturbed, then one that finds nothing to do, then one that reads a few more lines."""
        for outcomes in (("ended", "over"), ("over",), ("ended",)):
            if outcomes == ("ended",):
                self.write(4)
            launch = self.job(processes=self.random.randint(1, 3)).run()
            assert launch.outcome in outcomes, f"{launch.outcome}: {launch.error}"
            self.check_output(whole=True)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The complete lines of the output."""
        text = self.storage.lines
        return [json.loads(line) for line in text.splitlines()[: None if text.endswith("\n") else -1]]

    def check_output(self, whole: bool = False) -> None:
        """Check that the output is in order and contains nothing twice."""
        text, lines = self.storage.lines, self.lines
        times = [line["time"] for line in lines]
        times = times[self._begun :]
        assert not whole or times == sorted(times), f"epochs fall: {times}"
        if (begun := self.storage.begun) is not None:
            later = lines[text[: begun.outputs[0].length].count("\n") :]
            assert all(line["time"] >= begun.time for line in later), f"something comes out before {begun.time} again"
        counts: Counter[tuple[str, str]] = Counter()
        for word, number, when in (line["record"] for line in lines):
            counts[word, when] += 1
            count = counts[word, when]
            assert when == "again" or number == count, f"{word!r} is {number} after {count - 1}"
        if whole:
            found = Counter(tuple(line["record"]) for line in lines)
            expected = Counter(
                (word, number, when)
                for word in self._words for number in range(1, self._words[word] + 1) for when in ("now", "again")
            )  # fmt: skip
            assert found == expected, f"missing are {expected - found}, too many {found - expected}"


def run(seed: int, kind: type[Attempts] = Attempts) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-durable-") as folder:
            attempts = kind(seed, Path(folder))
            for _ in range(attempts.random.randint(1, ATTEMPTS)):
                if attempts.live(draw(attempts.random, attempts.count)).outcome == "ended":
                    break
            attempts.end()
            return attempts.seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
