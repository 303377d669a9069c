"""Random runs of whole durable jobs with sinks, whose store or outside system is restored from an earlier moment.

As in `sinks`, with all the faults of `durable_jobs`. Between two attempts, the store with the output, the outside
system, or both go back to what they were after an earlier attempt. The outside system alone may also go back to a copy
that was taken while an attempt delivered. Then
1. if both go back to one moment, the job goes on;
2. if one goes back alone and the job goes on, then in the end each row is outside once, so nothing was lost or doubled;
3. a job is refused only if the sinks have delivered something between the two moments. After that, both halves are of
   one moment again, and the job goes on.
An outside system without any delivery, and a store without a checkpoint, are as new: they are not restored alone.

In some attempts the outside system goes back to an earlier copy while the job runs. Each sink looks for the last
delivery, as `expect` says, and fails without it. The next start is then refused, or each row is outside once when it
has ended.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from megaflow.durable.store import Store
from megaflow.errors import OutputError, StoreError
from megaflow.job.spec import Rehearsal, Rehearsed
from megaflow.job.worker.process.rehearsal import rehearse
from megaflow.testing.simulated_disk import SimulatedDisk
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.timely.order import grouped
from tests.simulation import durable_jobs
from tests.simulation.durable_jobs import Attempts
from tests.simulation.sinks import SINKS, Box, OneBox, Outside, PreparingSink, SinkAttempts

MOMENTS_MAX = 5
ACTIONS_MAX = 900  # of a job before its outside system goes back
COPIES_MAX = 8  # of the last deliveries: nearly all others are older than a later checkpoint
REFUSAL = "is an older copy"
LOST = "the last delivery is gone"
Content: TypeAlias = tuple[dict[str, set[str]], dict[str, list[Any]], dict[str, dict[str, tuple[str, int]]]]


class NotingOutside(Outside):
    """The outside system; it notes the lineage and the checkpoint of each delivery beside its rows."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.notes: dict[str, dict[str, tuple[str, int]]] = {name: {} for name in SINKS}  # sink -> token -> the two
        self.noting = "", 0  # of the delivery under way
        self.copies: list[Content] = []  # taken between two deliveries

    def see(self, sink: str, token: str, rows: list[Any]) -> None:
        super().see(sink, token, rows)
        self.notes[sink][token] = self.noting
        if all(self.marks.values()):  # else a sink would seem to be new
            self.copies.append(self.content())

    def content(self) -> Content:
        return deepcopy((self.marks, self.seen, self.notes))

    def restore(self, content: Content) -> None:
        self.marks, self.seen, self.notes = deepcopy(content)


class Noting:
    """What the sinks have in common."""

    _outside: NotingOutside
    _place: Any
    _wanted: frozenset[str] = frozenset()  # tokens of the last delivery

    def expect(self, tokens: list[str]) -> None:
        self._wanted = frozenset(tokens)

    def delivered(self, lineage: str) -> tuple[int, list[str]] | None:
        notes = grouped((n, token) for token, (of, n) in self._outside.notes[self._place.sink].items() if of == lineage)
        return max(notes.items(), default=None)

    def note(self, n: int) -> None:
        if not self._outside.notes[self._place.sink].keys() >= self._wanted:
            raise OutputError(LOST)
        self._outside.noting = self._place.lineage, n


class NotingRows(Noting, PreparingSink):
    """Sink that prepares rows itself."""

    def commit(self, n: int, token: str) -> None:
        self.note(n)
        super().commit(n, token)


class NotingBox(Noting, Box):
    """Outbox of several workers."""

    def deliver(self, n: int, token: str, records: Any) -> None:
        self.note(n)
        super().deliver(n, token, records)


class NotingOneBox(Noting, OneBox):
    """Outbox of one worker."""

    def deliver(self, n: int, token: str, records: Any) -> None:
        self.note(n)
        super().deliver(n, token, records)


@dataclass
class Moment:
    """Store and outside system between two attempts."""

    disks: list[Any]  # content of those of the store and of the output
    promise: tuple[Any, ...]  # what the storage knows about the store
    outside: Content
    has_checkpoint: bool


class RehearsingJob(SimulatedJob):
    """A job whose launcher compares store and outside system. In other jobs only the founding workers compare them."""

    def rehearse(self, task: Rehearsal) -> Rehearsed:
        assert self.storage is not None
        found = rehearse(task, self.program(), Store(self.storage.store.open()))
        if isinstance(found, StoreError):
            raise found
        return found if isinstance(found, Rehearsed) else Rehearsed()  # a disk has failed: the workers compare


class RestoredAttempts(SinkAttempts):
    """The attempts of a job; between them, its store or its outside system goes back."""

    kinds = NotingRows, NotingBox, NotingOneBox
    outside: NotingOutside

    def __init__(self, seed: int, folder: Path) -> None:
        Attempts.__init__(self, seed, folder, kind=RehearsingJob if seed % 2 else SimulatedJob)
        self.outside = NotingOutside(Random(f"sinks {seed}"))
        self.dice = Random(f"restored {seed}")
        self.moments: list[Moment] = []

    def note(self) -> None:
        """Keep the present moment."""
        storage, outside = self.storage, self.outside
        disks = [deepcopy((disk.names, disk._durable, disk._changes)) for disk in (storage.store, storage.output)]
        self.moments.append(Moment(
            disks, (storage.acknowledged, storage.tried, storage.begun), outside.content(),
            storage.acknowledged is not None,
        ))  # fmt: skip

    def restore_store(self, moment: Moment) -> None:
        storage = self.storage
        disks: list[SimulatedDisk] = [storage.store, storage.output]
        for disk, content in zip(disks, deepcopy(moment.disks)):
            disk.names, disk._durable, disk._changes = content
        storage.acknowledged, storage.tried, storage.begun = moment.promise

    def go_back(self) -> None:
        """Restore one half, or both, from an earlier moment; if the job is then refused, restore the other half."""
        self.note()
        now, before = self.moments[-1], self.dice.choice(self.moments)
        what = self.dice.choice(["both", "store", "outside", "copy"])
        if what == "copy" and self.outside.copies:
            before = replace(now, outside=self.dice.choice(self.outside.copies[-COPIES_MAX:]))
        if not before.has_checkpoint or (what in ("outside", "copy") and not all(before.outside[0].values())):
            return
        if what in ("both", "store"):
            self.restore_store(before)
        if what != "store":
            self.outside.restore(before.outside)
        if self.start_again(what):
            assert now.outside[0] != before.outside[0], "refused, but nothing was delivered since"
            self.restore_store(before)
            self.outside.restore(now.outside if what == "copy" else before.outside)
            self.moments.clear()

    def start_again(self, what: str) -> bool:
        """Run the job to its end; return whether it is refused instead."""
        self.write(3)  # a job without anything to do starts no process, so only its rehearsal would compare
        self.outside.is_quiet = True
        launch = self.job(processes=self.dice.randint(1, 2)).run()
        is_refused = launch.error is not None and REFUSAL in str(launch.error)
        assert launch.outcome in ("ended", "over") or is_refused, f"{launch.outcome}: {launch.error}"
        self.seen[f"{what} refused" if is_refused else f"{what} goes on"] += 1
        if not is_refused:
            self.check_all()
        return is_refused

    def restore_while_running(self) -> None:
        """Run an attempt; the outside system goes back to a copy meanwhile."""
        self.has_lost = False
        before, plan = self.moments[-1], durable_jobs.draw(self.random, self.count)
        self.outside.is_quiet = plan.is_quiet
        job = self.job(**plan.options)
        durable_jobs.prepare(plan, job, self.storage)
        job.at(self.dice.randint(20, ACTIONS_MAX), self.restore_a_copy)
        launch = job.run()
        self.storage.store.happenings.clear()
        self.storage.fill(None)
        self.storage.store.failing = 0.0
        self.seen["lost while running"] += LOST in str(launch.error)
        self.check_output()
        if self.start_again("running"):
            assert self.has_lost, "refused, but nothing was delivered since the copy"
            if not before.has_checkpoint:  # the store begins anew, with another lineage
                self.outside.copies.clear()
            self.restore_store(before)
            self.outside.restore(before.outside)
            self.moments.clear()

    def restore_a_copy(self) -> None:
        marks = self.outside.marks
        if copies := [each for each in self.outside.copies if all(each[0][sink] <= marks[sink] for sink in SINKS)]:
            copy = self.dice.choice(copies[-COPIES_MAX:])
            self.has_lost = marks != copy[0]
            self.outside.restore(copy)


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-restored-") as folder:
            attempts = RestoredAttempts(seed, Path(folder))
            attempts.note()
            for _ in range(attempts.random.randint(2, MOMENTS_MAX)):
                if attempts.moments and attempts.dice.random() < 0.3:
                    attempts.restore_while_running()
                    attempts.note()
                outcome = attempts.live(durable_jobs.draw(attempts.random, attempts.count)).outcome
                attempts.note()
                if attempts.dice.random() < 0.6:
                    attempts.go_back()
                if outcome == "ended":
                    attempts.write(10)
            attempts.end()
            return attempts.seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
