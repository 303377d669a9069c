"""Launcher played by a test, as far as checkpoints go: it intercepts the processes' checkpoint messages, and commits.

It serves jobs whose real launcher would need more than a simulated disk, such as Spark's record. The jobs of
`durable_jobs` use the real launcher.
"""

from __future__ import annotations

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
from megaflow.durable.commits import Commit, OutputLength, SplitRemainder
from megaflow.durable.incarnation import DurablePart, Incarnation, begin
from megaflow.durable.store import Store
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.store.commit_draft import CommitDraft
from megaflow.job.spec import ChildSpec, JoiningProcess
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.snapshots.state_backend import StateBackend
from megaflow.program import Worker
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, remove_first
from megaflow.testing.simulated_disk import SimulatedDisk
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_process import SimulatedProcess
from megaflow.testing.simulated_storage import SteppedCuts

SECONDS = 0.5  # in which all lines arrive
EVERY_SECONDS = 0.01  # between two checkpoints


class PlayedDoor(LauncherDoor):
    """A process's door to the launcher that passes messages about checkpoints to the test."""

    job: PlayedJob

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


class PlayedJob(SimulatedJob):
    """Job that resumes from the newest commit of a store; the test plays its launcher."""

    def __init__(self, seed: int, folder: Path, disk: SimulatedDisk, splits: Sequence[Split], **options: Any) -> None:
        self._flow = options.pop("dataflow")
        super().__init__(seed, self._flow, **options)
        self.parts: list[CutWritten | CutFailed] = []  # from workers that have ended
        self.commits: list[Commit] = []
        self.is_stopped = False
        self.failures = 0  # number of failed checkpoints
        self._dice = Random(f"durable {seed}")
        self._store = Store(disk.open())
        self.incarnation: Incarnation = begin(self._store, "app", 1000)
        self._splits = splits
        self._draft: CommitDraft | None = None
        self._keeper = type("Keeper", (SteppedCuts,), {"begin": staticmethod(self.later)})
        latest = self.incarnation.latest
        self.begun = latest
        self._part = DurablePart(
            str(folder), latest.incarnation, latest.number if latest.checkpoint else None, EVERY_SECONDS
        )

    @contextmanager
    def _input(self) -> Iterator[JobInput]:
        yield JobInput(splits=tuple(self._splits))

    def start(self, spec: ChildSpec) -> SimulatedProcess:
        process = SimulatedProcess(self, replace(spec, durable=self._part))
        door = PlayedDoor()
        door.job = self
        process._child.shared = replace(process._child.shared, launcher=door, keep=self._keep)
        self.processes.append(process)
        if isinstance(spec.part, JoiningProcess):
            process.join()
        return process

    def _keep(self, worker: Worker, part: DurablePart, memory: None = None) -> StateBackend:
        return StateBackend(worker, part, lambda folder: self._store, self._keeper)

    def hear(self, door: PlayedDoor, message: CheckpointBegun | CheckpointReady | CheckpointAbandoned) -> None:
        """Handle a message as a launcher does."""
        match message:
            case CheckpointBegun():
                assert self._draft is None, f"{message} begins beside {self._draft}"
                self._draft = CommitDraft(message)
            case CheckpointReady(number):
                assert self._draft is not None and self._draft.begun.checkpoint == number
                self._draft.ready = message
                self.later(lambda: self._commit_when_complete(door), 0.01)
            case CheckpointAbandoned(number):
                assert self._draft is not None and self._draft.begun.checkpoint == number
                self._draft = None
                self.failures += 1

    def _commit_when_complete(self, door: PlayedDoor) -> None:
        """Commit once all output before the checkpoint's epoch has been written."""
        draft, launch = self._draft, self.launch
        if draft is None or launch.is_over:
            return
        answer: Committed | CommitFailed | None = None
        if launch.attempts.loop._merge._least >= draft.begun.epoch and not launch.output.has_work:
            answer = self._commit(draft)
        if answer is None:
            self.later(lambda: self._commit_when_complete(door), 0.01)
            return
        self._draft = None
        if draft.begun.last and isinstance(answer, Committed):
            self.is_stopped = True
            self.kill_all()
            return
        assert door.launched is not None, "whoever has begun it coordinates until it is answered"
        door.launched(answer)

    def _commit(self, draft: CommitDraft) -> Committed | CommitFailed | None:
        number = draft.begun.checkpoint
        draft.length = 0
        if self._dice.random() < 0.1:
            self.failures += 1
            return CommitFailed(number, "the dice")
        task = draft.commit(self.incarnation.latest, (OutputLength("-", 0),), 0.0)
        splits = tuple(SplitRemainder(each.number, each.path, each.start, each.end, "") for each in task.left or ())
        self.commits.append(self.incarnation.commit(replace(task.commit, splits=splits)))
        return Committed(number)

    def conclude(self) -> None:
        """Commit the end, if the job has reached it."""
        draft = self._draft
        assert draft is not None and draft.begun.at_end, draft
        assert {part.checkpoint for part in self.parts} == {draft.begun.checkpoint}, self.parts
        draft.parts += [part for part in self.parts if isinstance(part, CutWritten)]
        draft.end()
        draft.length = 0
        task = draft.commit(self.incarnation.latest, (OutputLength("-", 0),), 0.0)
        assert not task.left
        self.commits.append(self.incarnation.commit(task.commit))


@dataclass
class PlayedPlan:
    """The events of one run."""

    options: dict[str, Any]
    clients: list[tuple[float, list[Callable[[Talk], Waits]]]]
    actions: list[tuple[int, str]]


def checkpoint(talk: Talk) -> Waits:
    """Ask for a checkpoint."""
    yield from talk.ask(CheckpointJob())


def draw(random: Random, count: int) -> PlayedPlan:
    """Draw processes, workers, clients that move bins and add and remove processes, and perhaps a stop or a crash."""
    plan = PlayedPlan({"processes": random.choice([1, 2, 2, 3]), "workers": random.choice([1, 1, 2])}, [], [])
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


