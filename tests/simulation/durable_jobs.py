"""Random runs of whole durable jobs, beside what clients ask for, and with what happens to them and to their disk.

A seed is a sequence of lives: each is a job that goes on from what the one before has left, with any number of
processes and workers. It ends by itself, is stopped or killed, loses a process or its power, at any moment, that of its
recovery included; the disk is full for a while, or fails. The last one is left alone. Then
1. the output has what one job would have put out that nothing happened to, in the order of each word: nothing is lost,
   nothing comes twice, no timer fires twice;
2. what is recovered is the newest acknowledged checkpoint, or the one that was being committed (see `JobStorage`);
3. a job fails only if something has happened to it, and then says so: a message that may not come is no reason; the
   program's own fault is, at once;
4. one that has ended or was stopped has put out what is committed, and no more;
5. a job that has come to its end is over: the next one finds nothing to do, or reads what is new and no more;
6. what a life puts out after it has begun with a checkpoint has that one's epoch or a later one;
7. no process that joins fails by itself, whatever its life began with and has removed since;
8. each life begins with the owners of the one before (see `owners`).
Numbers of words, and sums that timers put out some epochs later, are what is put out.
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
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.splits import plan_splits
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, remove_first
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_storage import JobStorage
from tests.simulation.jobs import BINS, PADDING, WORDS, few_held
from tests.simulation.owners import OwningJob

SECONDS = 0.5  # that all lines take to come
LIVES = 6


def count(word: str, one: int, total: int | None) -> Any:
    """Count."""
    total = (total or 0) + one
    return total, [(word, total)]


def again(word: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """Put each count out, and once more some epochs later."""
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
    """Running counts of words; and each count once more some epochs later, by a timer."""
    words = flow.lines().map(lambda line: (line.split(" ")[0], 1))
    counted = words.stateful_state_machine(count, bins=BINS, name="count")
    return counted.stateful_unary(again, bins=BINS, name="again")


def poisoned(flow: Any) -> Any:
    """The same, with a fault of its own."""

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
    """What happens in one life."""

    options: dict[str, Any]
    clients: list[tuple[float, list[Callable[[Talk], Waits]]]] = field(default_factory=list)
    actions: list[tuple[int, str]] = field(default_factory=list)  # (actions taken, a method of SimulatedJob)
    steps: list[tuple[int, str]] = field(default_factory=list)  # (steps on the disk, what happens there)
    full: tuple[int, int, int] | None = None  # from when to when, in actions, the disk has no more room than this
    failing: tuple[int, float] | None = None  # from when on, in actions, this share of all steps on the store fails

    by_hand: tuple[int, ...] = ()  # actions taken, when a process is started that joins
    poison: bool = False  # whether the program has a fault

    @property
    def is_quiet(self) -> bool:
        """Whether nothing happens but what clients ask for."""
        return not (self.actions or self.steps or self.full or self.failing)


def draw(random: Random, count: int) -> Plan:
    """Processes and workers; clients that move bins, add and remove processes; and perhaps something bad."""
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
        plan.steps.append((random.randint(1, 40), random.choice(["crash", "lose_power"])))  # it recovers, or begins
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
    """Have a job do and suffer what is planned."""
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
    """No process that was to join has failed by itself; it may have been turned away."""
    failed = [each.failed_to_join for each in job.processes if each.failed_to_join is not None]
    assert not failed, failed


class Lives:
    """The lives of one job: what it reads, what it has written, and what it is to write in the end."""

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
        self.actions = 0  # of the last life
        self._seed = seed
        self._folder = folder
        self._kind = kind
        self._lives = 0
        self._words: Counter[str] = Counter()
        self._paths: list[str] = []
        self.write(self.count)

    def write(self, count: int) -> None:
        """Have more to read, in new files. All was read, and timers have fired at the end, whose times were to come."""
        self._begun = self.storage.lines.count("\n")
        random, number = self.random, len(self._paths)
        paths = [self._folder / f"part{each}" for each in range(number, number + random.choice([1, 2, 3, 6]))]
        lines: dict[Path, list[str]] = {path: [] for path in paths}
        for _ in range(count):
            word = random.choice(WORDS)
            self._words[word] += 1
            lines[random.choice(paths)].append(f"{word} {PADDING}\n")
        for path, some in lines.items():
            path.write_text("".join(some), encoding="utf-8")
        self._paths += map(str, paths)

    def job(self, flow: Callable[[Any], Any] = dataflow, **options: Any) -> SimulatedJob:
        """Make the next one."""
        self._lives += 1
        seed = self._seed * 10 + self._lives
        given = JobInput(splits=tuple(plan_splits(self._paths)))
        return self._kind(seed, flow, storage=self.storage, job_input=given, **options)

    def live(self, plan: Plan) -> SimulatedLaunch:
        """Let one follow a plan, to its end."""
        job, storage = self.job(poisoned if plan.poison else dataflow, **plan.options), self.storage
        by_hand = Random(f"by hand {job.seed}")
        if by_hand.random() < 0.2:
            plan.by_hand = (by_hand.randint(100, 1000),)
        prepare(plan, job, storage)
        with few_held(self._seed):
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
        """Let one more live undisturbed, then one that finds nothing to do, then one that reads a few lines more."""
        for outcomes in (("ended", "over"), ("over",), ("ended",)):
            if outcomes == ("ended",):
                self.write(4)
            launch = self.job(processes=self.random.randint(1, 3)).run()
            assert launch.outcome in outcomes, f"{launch.outcome}: {launch.error}"
            self.check_output(whole=True)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What is put out."""
        text = self.storage.lines
        return [json.loads(line) for line in text.splitlines()[: None if text.endswith("\n") else -1]]

    def check_output(self, whole: bool = False) -> None:
        """What is put out is in order, and nothing of it is twice there."""
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


def run(seed: int, kind: type[Lives] = Lives) -> Counter[str]:
    """Run a seed; return what was seen. Raises AssertionError, naming it, if something does not hold."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-durable-") as folder:
            lives = kind(seed, Path(folder))
            for _ in range(lives.random.randint(1, LIVES)):
                if lives.live(draw(lives.random, lives.count)).outcome == "ended":
                    break
            lives.end()
            return lives.seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
