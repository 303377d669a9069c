"""Random runs of whole durable jobs that several Spark queries feed, with crashes: two streams and a batch DataFrame.

As `durable_spark`, but each query has its own batches, and its own position in each commit. In addition:
1. The rows of the batch DataFrame come first: a fold sees all that its key has before any row of the streams.
2. A query of a batch DataFrame whose batch a commit names is not run again.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.client.conversation import Stopped
from megaflow.control.messages import InputNames, SourceEnded
from megaflow.durable.commits import BATCH, is_of_a_batch, query_of
from megaflow.errors import MegaflowError
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.spec import Address
from megaflow.rows.packed_rows import RowPack, pack_rows
from megaflow.testing.simulated_clients import SimulatedQuery, Waits
from megaflow.testing.simulated_disk import SimulatedDisk
from tests.simulation.durable_spark import (
    ANSWERED_SECONDS,
    ASKED_MAX,
    EVERY_SECONDS,
    batches_of,
    beginning_with,
    check,
    outputs_of,
)
from tests.simulation.durable_spark import dataflow as of_lines
from tests.simulation.played_launcher import PlayedJob, draw

RUNS = 7
FIRST = "first"
STREAMS = "left", "right"
LOOK_SECONDS = 0.01  # between two looks at the first query
SCHEMA = '{"type":"struct","fields":[{"name":"line","type":"string","nullable":true,"metadata":{}}]}'


@dataclass
class Kept:
    """The durable state of a query."""

    input: str
    batches: list[list[list[str]]]
    done: int = 0  # batches whose answer it has noted
    replays: int = 0

    @property
    def name(self) -> str:
        """The name of the query."""
        return query_of(self.input, BATCH if self.input == FIRST else "id")


class KeptQuery(SimulatedQuery):
    """Query that continues the previous one."""

    message_lines = 3  # more than a source takes at a time

    def __init__(self, job: SeveralJob, kept: Kept, change: Callable[[], None], first: KeptQuery | None) -> None:
        super().__init__(job, (), change)
        self.name = kept.name
        self.after = () if first is None else (first.name,)
        self._job, self._kept, self._first = job, kept, first

    def content(self, lines: Sequence[str]) -> tuple[str | bytes, str]:
        return pack_rows(RowPack(self._kept.input, SCHEMA, [list(lines)])), ""

    def _run(self) -> Waits:
        kept, first = self._kept, self._first
        try:
            while first is not None and not first.done and not self._stopping:
                yield LOOK_SECONDS
            if is_of_a_batch(self.name):
                kept.done = max(kept.done, self._newest + 1)
            while kept.done < len(kept.batches) and not self._stopping and (first is None or first.error is None):
                number = kept.done
                kept.replays += number <= self._newest
                with suppress(Stopped):
                    yield from self._feed(number, kept.batches[number])
                    assert number <= self._newest, f"batch {number} is answered, and {self._newest} is durable"
                    yield self._world.random.random() * ANSWERED_SECONDS
                    kept.done = number + 1
            if not self._stopping:  # a query that is stopped has not ended
                yield from self.talk.ask(SourceEnded(self.name))
        except MegaflowError as error:
            self.error = None if self._stopping else error
        self.done = True
        self._change()

    @property
    def _newest(self) -> int:
        return dict(self._job.incarnation.latest.spark).get(self.name, -1)


class Queries:
    """The queries of a job. The loop uses them in place of a `SparkFeed`."""

    def __init__(self, job: SeveralJob, change: Callable[[], None]) -> None:
        self._change = change
        first = KeptQuery(job, job.kept[0], self._ended, None)
        self.all = [first, *(KeptQuery(job, each, self._ended, first) for each in job.kept[1:])]

    @property
    def error(self) -> Exception | None:
        """Why a query failed."""
        return next((each.error for each in self.all if each.error is not None), None)

    @property
    def done(self) -> bool:
        """Whether all queries have ended, or one has failed."""
        return self.error is not None or all(each.done for each in self.all)

    def _ended(self) -> None:
        if self.done:
            self._change()

    def start(self) -> None:
        """Do nothing: the simulation steps them."""

    def stop(self) -> None:
        """Read no further batches."""
        for each in self.all:
            each.stop()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Return True: there is no thread to wait for."""
        return True

    def move(self, coordinator: Address) -> None:
        """Do nothing: each query asks at the address in the job's file."""


class SeveralJob(PlayedJob):
    """Durable job that several queries feed."""

    def __init__(self, seed: int, folder: Path, disk: SimulatedDisk, kept: Sequence[Kept], **options: Any) -> None:
        self.kept = kept
        super().__init__(seed, folder, disk, (), dataflow=dataflow, **options)
        self._part = replace(self._part, checkpoint_every=EVERY_SECONDS)

    @contextmanager
    def _input(self) -> Iterator[JobInput]:
        yield JobInput(spark=self._queries, names=InputNames(rows=tuple(sorted(each.input for each in self.kept))))

    def _queries(self, coordinator: Address, change: Callable[[], None]) -> Queries:
        queries = Queries(self, change)
        for each in queries.all:
            self.outside.add(each.waits, self._clock, lambda each=each: each.is_ready)
        return queries


class Lines:
    """A flow whose lines are the rows of all inputs."""

    def __init__(self, flow: Any) -> None:
        self._flow = flow

    def lines(self) -> Any:
        """Return the column of all rows."""
        first, *others = (self._flow.rows(name).map(lambda row: row[0]) for name in (FIRST, *STREAMS))
        return first.concat(*others)


def dataflow(flow: Any) -> Any:
    """Do what `durable_spark` does, and check that the rows of the first input come first."""
    seen = Lines(flow)
    return of_lines(seen, is_first=lambda name: name.startswith(FIRST))


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-durable-") as folder:
            return _run(seed, Path(folder))
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def _run(seed: int, folder: Path) -> Counter[str]:
    random, seen, words = Random(f"several queries {seed}"), Counter[str](), Counter[str]()
    count = random.randint(20, 50)
    whole = batches_of(random, random.choice([0, 6, 12, 20]), words, FIRST)
    parts = max((len(batch) for batch in whole), default=0)
    frame = [[line for batch in whole for line in batch[part]] for part in range(parts)]  # in one batch
    kept = [Kept(FIRST, [frame]), *(Kept(each, batches_of(random, count // 2, words, each)) for each in STREAMS)]
    numbers = [(word, number) for word in words for number in range(1, words[word] + 1)]
    expected = Counter((*each, when) for each in numbers for when in ("now", "again"))
    disk, before = SimulatedDisk(random), list[tuple[Any, ...]]()
    for number in range(RUNS):
        plan = draw(random, count)
        if number == RUNS - 1:
            plan.actions.clear()
        elif not plan.actions:
            plan.actions.append((random.randint(100, 1200), random.choice(["kill_one", "kill_all"])))
        job = SeveralJob(seed * 10 + number, folder, disk, kept, **plan.options)
        for seconds, scripts in plan.clients:
            job.client(*list(dict.fromkeys(scripts))[:ASKED_MAX], seconds=seconds)
        for action, what in plan.actions:
            job.at(action, getattr(job, what))
        launch = job.run()
        crashed = bool(job.killed) or launch.is_killed
        assert crashed or launch.error is None, launch.error
        begun = dict(job.begun.spark)
        seen["resumed several"] += len(begun) > 1
        seen["first was over"] += any(map(is_of_a_batch, begun))
        seen["rests of several"] += any(len({each.query for each in one.untaken}) > 1 for one in job.commits)
        seen["resumed the first's rest"] += any(is_of_a_batch(each.query) for each in job.begun.untaken)
        if launch.error is None and not crashed:
            check(before + outputs_of(job), expected)
            job.conclude()
        commit = job.incarnation.latest
        if commit.checkpoint != job.begun.checkpoint:
            before += outputs_of(job, commit.time if not commit.ended else float("inf"))
        disk = beginning_with(disk, commit, random)
        if commit.ended:
            seen["ended"] += 1
            break
    seen["replayed"] = sum(each.replays for each in kept)
    check(before, expected)
    return seen
