"""Random runs of whole durable jobs, beside what clients ask for; and a restart from each checkpoint of some of them.

Here the test is the launcher as far as checkpoints go: it diverts what processes say of them, and commits, or fails to.
1. What a job has put out before the epoch of any checkpoint that was committed, and what a new job puts out that goes
   on from there, with any number of processes and workers, are what one job would have put out.
2. A job that has come to its end has a checkpoint of that, and a new one that goes on from it puts nothing out.
3. What is put out after a restart has no time before the checkpoint's.
4. After the last checkpoint of a job that is stopped what is put out before its epoch is what a restart does not.
Numbers of words, and sums that timers put out some epochs later, are what is put out.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CommitFailed,
    Committed,
    CutFailed,
    CutWritten,
)
from megaflow.control.launcher_messages import Ended
from megaflow.control.messages import CheckpointJob, Split
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.durable.blocks import Block
from megaflow.durable.commits import Commit, OutputLength, SplitRemainder
from megaflow.durable.incarnation import DurablePart, Incarnation, begin
from megaflow.durable.store import FolderStore
from megaflow.job.launcher.commit_draft import CommitDraft
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.spec import ChildSpec, JoiningProcess
from megaflow.job.splits import plan_splits
from megaflow.job.worker.cut_keeper import CutKeeper
from megaflow.job.worker.kept_state import KeptState
from megaflow.megaphone.unwritten import Piece
from megaflow.program import Worker
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, remove_first
from megaflow.testing.simulated_disk import SimulatedDisk
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_process import SimulatedProcess
from tests.simulation.jobs import BINS, PADDING, WORDS

SECONDS = 0.5  # that all lines take to come
EVERY_SECONDS = 0.01  # between two checkpoints


def dataflow(flow: Any) -> Any:
    """Running counts of words; and each count once more some epochs later, by a timer."""

    def count(word: str, one: int, total: int | None) -> Any:
        total = (total or 0) + one
        return total, [(word, total)]

    def again(word: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
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

    words = flow.lines().map(lambda line: (line.split(" ")[0], 1))
    counted = words.stateful_state_machine(count, bins=BINS, name="count")
    return counted.stateful_unary(again, bins=BINS, name="again")


class SteppedKeeper(CutKeeper):
    """One whose thread's work is done when the dice say so."""

    job: DurableJob
    _clock = staticmethod(lambda: 0.0)

    def write(self, cut: Piece, block: Block | None) -> None:
        if not (pending := self.__dict__.setdefault("pending", deque())):
            self.job.begin(self._work, 0.02)
        pending.append((cut, block))

    def finish(self) -> CutWritten | CutFailed | None:
        self._work()
        return self._final

    def _work(self) -> None:
        pending = self.__dict__.get("pending", ())
        while pending:
            self._pack(*pending.popleft())


class Door(LauncherDoor):
    """A process's door to the launcher, which has the test hear of checkpoints."""

    job: DurableJob

    def send(self, message: object) -> None:
        match message:
            case CheckpointBegun() | CheckpointReady() | CheckpointAbandoned():
                self.job.hear(self, message)
            case Ended(cut=cut):
                if cut is not None:
                    self.job.parts.append(cut)
                super().send(replace(message, cut=None))
            case _:
                super().send(message)


class DurableJob(SimulatedJob):
    """A job that goes on from the newest commit of a store, whose launcher's part the test plays."""

    def __init__(self, seed: int, folder: Path, disk: SimulatedDisk, splits: Sequence[Split], **options: Any) -> None:
        self._flow = options.pop("dataflow", dataflow)
        super().__init__(seed, self._flow, **options)
        self.parts: list[CutWritten | CutFailed] = []  # of workers that have ended
        self.commits: list[Commit] = []
        self.is_stopped = False
        self.failures = 0  # of checkpoints
        self._dice = Random(f"durable {seed}")
        self._store = FolderStore(disk.open())
        self.incarnation: Incarnation = begin(self._store, "app", 1000)
        self._splits = splits
        self._draft: CommitDraft | None = None
        self._keeper = type("Keeper", (SteppedKeeper,), {"job": self})
        latest = self.incarnation.latest
        self.begun = latest
        self._part = DurablePart(
            str(folder), latest.incarnation, latest.number if latest.checkpoint else None, EVERY_SECONDS
        )

    @contextmanager
    def _input(self) -> Iterator[JobInput]:
        yield JobInput(splits=tuple(self._splits))

    def start(self, spec: ChildSpec) -> SimulatedProcess:
        process = SimulatedProcess(self, replace(spec, durable=self._part), self._flow)
        door = Door()
        door.job = self
        process._child.shared = replace(process._child.shared, launcher=door, keep=self._keep)
        self.processes.append(process)
        if isinstance(spec.part, JoiningProcess):
            process.join()
        return process

    def _keep(self, worker: Worker, part: DurablePart) -> KeptState:
        return KeptState(worker, part, lambda folder: self._store, self._keeper)

    def hear(self, door: Door, message: CheckpointBegun | CheckpointReady | CheckpointAbandoned) -> None:
        """Do what a launcher does."""
        match message:
            case CheckpointBegun():
                assert self._draft is None, f"{message} begins beside {self._draft}"
                self._draft = CommitDraft(message)
            case CheckpointReady(number):
                assert self._draft is not None and self._draft.begun.checkpoint == number
                self._draft.ready = message
                self.begin(lambda: self._commit_when_complete(door), 0.01)
            case CheckpointAbandoned(number):
                assert self._draft is not None and self._draft.begun.checkpoint == number
                self._draft = None
                self.failures += 1

    def _commit_when_complete(self, door: Door) -> None:
        """Commit once all output before its epoch has been written."""
        draft, launch = self._draft, self._launch
        if draft is None or launch.is_over:
            return
        answer: Committed | CommitFailed | None = None
        if launch.lives.loop._merge._least >= draft.begun.epoch and not launch.output.has_work:
            answer = self._commit(draft)
        if answer is None:
            self.begin(lambda: self._commit_when_complete(door), 0.01)
            return
        self._draft = None
        if draft.begun.last and isinstance(answer, Committed):
            self.is_stopped = True
            self.kill_all()
            return
        assert door._launched is not None, "whoever has begun it coordinates until it is answered"
        door._launched(answer)

    def _commit(self, draft: CommitDraft) -> Committed | CommitFailed | None:
        number = draft.begun.checkpoint
        draft.length = 0
        if self._dice.random() < 0.1:
            self.failures += 1
            return CommitFailed(number, "the dice")
        commit, left = draft.commit(self.incarnation.latest, OutputLength("-", 0), 0.0)
        splits = tuple(SplitRemainder(each.number, each.path, each.start, each.end, "") for each in left)
        self.commits.append(self.incarnation.commit(replace(commit, splits=splits)))
        return Committed(number)

    def conclude(self) -> None:
        """Commit the end, if the job has come to it."""
        draft = self._draft
        assert draft is not None and draft.begun.at_end, draft
        assert {part.checkpoint for part in self.parts} == {draft.begun.checkpoint}, self.parts
        draft.parts += [part for part in self.parts if isinstance(part, CutWritten)]
        draft.end()
        draft.length = 0
        commit, left = draft.commit(self.incarnation.latest, OutputLength("-", 0), 0.0)
        assert not left
        self.commits.append(self.incarnation.commit(commit))


@dataclass
class Plan:
    """What one run does."""

    options: dict[str, Any]
    clients: list[tuple[float, list[Callable[[Talk], Waits]]]]
    actions: list[tuple[int, str]]


def checkpoint(talk: Talk) -> Waits:
    """Ask for a checkpoint."""
    yield from talk.ask(CheckpointJob())


def draw(random: Random, count: int) -> Plan:
    """Processes and workers; clients that move bins, add and remove processes; perhaps a stop or a crash."""
    plan = Plan({"processes": random.choice([1, 2, 2, 3]), "workers": random.choice([1, 1, 2])}, [], [])
    if random.random() < 0.9:
        plan.options["rate"] = count / SECONDS
    for _ in range(random.choice([0, 1, 1, 2, 2])):
        scripts = random.choices([move, add, remove, remove_first, balance, checkpoint], [4, 3, 2, 4, 1, 1], k=4)
        plan.clients.append((random.random() * SECONDS / 4, scripts[: random.randint(1, 4)]))
    chance = random.random()
    if chance < 0.2:
        plan.actions.append((random.randint(20, 900), "stop"))
    elif chance < 0.5:
        plan.actions.append((random.randint(100, 1200), random.choice(["kill_one", "kill_all"])))
    return plan


def outputs_of(job: DurableJob, end: float = float("inf")) -> list[tuple[Any, ...]]:
    lines = [json.loads(line) for line in job._launch.file.getvalue().splitlines()]
    assert all(line["time"] >= job.begun.time for line in lines), "something is put out before the checkpoint"
    return [tuple(line["record"]) for line in lines if line["time"] < end]


def run(seed: int) -> Counter[str]:
    """Run a seed; return what was seen. Raises AssertionError, naming it, if something does not hold."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-durable-") as folder:
            return _run(seed, Path(folder))
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def _run(seed: int, folder: Path) -> Counter[str]:
    random, seen = Random(f"durable job {seed}"), Counter[str]()
    words: Counter[str] = Counter()
    paths = [folder / f"part{number}" for number in range(random.randint(1, 3))]
    count = random.randint(20, 50)
    lines: dict[Path, list[str]] = {path: [] for path in paths}
    for _ in range(count):
        word = random.choice(WORDS)
        words[word] += 1
        lines[random.choice(paths)].append(f"{word} {PADDING}\n")
    for path, some in lines.items():
        path.write_text("".join(some), encoding="utf-8")
    numbers = [(word, number) for word in words for number in range(1, words[word] + 1)]
    expected = Counter((*each, when) for each in numbers for when in ("now", "again"))
    splits: list[Split] = plan_splits(map(str, paths))
    disk, before = SimulatedDisk(random), list[tuple[Any, ...]]()
    for run in range(6):
        plan = draw(random, count)
        if run == 5:
            plan.actions.clear()
        job = DurableJob(seed * 10 + run, folder, disk, splits, **plan.options)
        for seconds, scripts in plan.clients:
            job.client(*scripts, seconds=seconds)
        for action, what in plan.actions:
            job.at(action, getattr(job, what))
        launch = job.run()
        crashed = bool(job.killed) or launch.is_killed
        assert crashed or launch.error is None, launch.error
        seen["committed"] += len(job.commits)
        seen["stopped"] += job.is_stopped
        seen["crashed"] += crashed and not job.is_stopped
        seen["failed"] += job.failures
        seen["joined"] += any("joined" in report for report in launch.reports)
        if launch.error is None and not crashed:
            check(before + outputs_of(job), expected)
            job.conclude()
        commit = job.incarnation.latest
        if job.commits and not job.is_stopped and random.random() < 0.3:
            commit = random.choice(job.commits)
            seen["went back"] += 1
        if commit.checkpoint != job.begun.checkpoint:
            before += outputs_of(job, commit.time if not commit.ended else float("inf"))
            splits = [Split(each.number, each.path, each.start, each.end) for each in commit.splits]
        disk = beginning_with(job, disk, commit, random)
        if commit.ended:
            seen["ended"] += 1
            break
    last = DurableJob(seed * 10 + 9, folder, disk, splits, processes=random.randint(1, 3))
    launch = last.run()
    assert launch.error is None, launch.error
    check(before + outputs_of(last), expected)
    return seen


def check(outputs: Sequence[tuple[Any, ...]], expected: Counter[Any]) -> None:
    everything = Counter(outputs)
    assert everything == expected, f"missing are {expected - everything}, too many {everything - expected}"


def beginning_with(job: DurableJob, disk: SimulatedDisk, commit: Commit, random: Random) -> SimulatedDisk:
    """A disk with the segments that there are, and this commit."""
    old, new = FolderStore(disk.open()), SimulatedDisk(random)
    store = FolderStore(new.open())
    for segment in commit.segments:
        store.put(segment.name, [old.read(segment.name)])
    alone = replace(commit, kept=())
    name = f"{commit.number:012}.commit"
    assert store.commit(name, alone.to_bytes())
    return new
