"""Random runs of whole durable jobs that a Spark query feeds, with crashes; each job resumes from the last commit.

The test plays the launcher, as far as checkpoints go (see `played_launcher`). It also plays the durable part of Spark,
which knows which batches were answered. Spark may not have noted the last answer; it then replays that batch.
1. The outputs of all jobs before the epochs of their last commits equal the outputs of one job.
2. A batch is answered only after a commit names it.
3. A fold sees the lines of each partition in order, across batches, moves and restarts.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from megaflow.control.client.conversation import Stopped
from megaflow.control.messages import SourceEnded
from megaflow.durable.commits import Commit
from megaflow.durable.store import Store
from megaflow.errors import MegaflowError
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.spec import Address
from megaflow.testing.simulated_clients import SimulatedQuery, Waits
from megaflow.testing.simulated_disk import SimulatedDisk
from tests.simulation.jobs import BINS, PADDING, WORDS
from tests.simulation.played_launcher import PlayedJob, draw

RUNS = 6
ASKED_MAX = 2  # by one client: more processes would make the test too slow
EVERY_SECONDS = 0.04  # between two periodic checkpoints
ANSWERED_SECONDS = 0.02  # at most, until Spark has noted an answer


@dataclass
class Spark:
    """The durable state of a query."""

    batches: list[list[list[str]]]
    done: int = 0  # batches whose answer it has noted
    replays: int = 0


class KeptQuery(SimulatedQuery):
    """Query that continues the previous one."""

    message_lines = 3  # more than a source takes at a time

    def __init__(self, job: SparkJob, change: Callable[[], None]) -> None:
        super().__init__(job, (), change)
        self._job = job

    def _run(self) -> Waits:
        job, spark = self._job, self._job.spark
        try:
            while spark.done < len(spark.batches) and not self._stopping:
                number = spark.done
                spark.replays += number <= job.newest
                with suppress(Stopped):
                    yield from self._feed(number, spark.batches[number])
                    assert number <= job.newest, f"batch {number} is answered, and {job.newest} is durable"
                    yield self._world.random.random() * ANSWERED_SECONDS
                    spark.done = number + 1
            if not self._stopping:  # a query that is stopped has not ended
                yield from self._between()
            if not self._stopping:
                yield from self.talk.ask(SourceEnded("query"))
        except MegaflowError as error:
            self.error = None if self._stopping else error
        self.done = True
        self._change()


    def _between(self) -> Waits:
        """Do what the query does when it has no further batch."""
        yield from ()


def dataflow(flow: Any, is_first: Callable[[str], bool] = lambda name: False) -> Any:
    """Emit running counts, each once more some epochs later by a timer, and check the order of lines.

    `is_first` tells of a partition whether its lines come before those of all others.
    """

    def count(word: str, where: tuple[str, int], state: Any) -> Any:
        total, places = state or (0, {})
        name, place = where
        assert places.get(name, -1) < place, f"line {place} of {name} comes after line {places[name]}"
        assert not is_first(name) or all(map(is_first, places)), f"line {place} of {name} comes after {places}"
        return (total + 1, {**places, name: place}), [(word, total + 1)]

    def again(word: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        outputs: list[Any] = []
        for value in values:
            if isinstance(value, list):
                outputs.append((word, value[0], "again"))
            else:
                timers.at(time + 1 + value % 5, [value])
                outputs.append((word, value, "now"))
        return (state or 0) + 1, outputs

    def read(line: str) -> tuple[str, tuple[str, int]]:
        word, name, place, _ = line.split(" ")
        return word, (name, int(place))

    counted = flow.lines().map(read).stateful_state_machine(count, bins=BINS, name="count")
    return counted.stateful_unary(again, bins=BINS, name="again")


class SparkJob(PlayedJob):
    """Durable job that a query feeds."""

    query: type[KeptQuery] = KeptQuery
    dataflow: Callable[[Any], Any] = staticmethod(dataflow)

    def __init__(self, seed: int, folder: Path, disk: SimulatedDisk, spark: Spark, **options: Any) -> None:
        self.spark = spark
        super().__init__(seed, folder, disk, (), dataflow=self.dataflow, **options)
        self._part = replace(self._part, checkpoint_every=EVERY_SECONDS)

    @property
    def newest(self) -> int:
        """The newest durable batch, or -1."""
        return dict(self.incarnation.latest.spark).get("query", -1)

    @contextmanager
    def _input(self) -> Iterator[JobInput]:
        yield JobInput(spark=self._query)

    def _query(self, coordinator: Address, change: Callable[[], None]) -> SimulatedQuery:
        query = self.query(self, change)
        self.outside.add(query.waits, self._clock, lambda: query.is_ready)
        return query


def batches_of(random: Random, count: int, words: Counter[str], begin: str = "part") -> list[list[list[str]]]:
    """Draw batches of lines in partitions. A line contains its word, its partition and its place there."""
    names = [f"{begin}{number}" for number in range(random.randint(1, 4))]
    places, batches = Counter[str](), []
    while count > 0:
        batch: list[list[str]] = [[] for _ in names]
        for _ in range(min(count, random.choice([0, 3, 6, 12]))):
            partition, word = random.randrange(len(names)), random.choice(WORDS)
            name = names[partition]
            words[word] += 1
            batch[partition].append(f"{word} {name} {places[name]} {PADDING}")
            places[name] += 1
            count -= 1
        batches.append(batch)
    return batches


def outputs_of(job: PlayedJob, end: float = float("inf")) -> list[tuple[Any, ...]]:
    lines = [json.loads(line) for line in job.launch.file.getvalue().splitlines()]
    assert all(line["time"] >= job.begun.time for line in lines), "something is put out before the checkpoint"
    return [tuple(line["record"]) for line in lines if line["time"] < end]


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random, words = Random(f"durable spark {seed}"), Counter[str]()
    batches = batches_of(random, random.randint(20, 50), words)
    numbers = [(word, number) for word in words for number in range(1, words[word] + 1)]
    expected = Counter((*each, when) for each in numbers for when in ("now", "again"))
    return run_job(seed, random, SparkJob, batches, expected)


def run_job(
    seed: int, random: Random, kind: type[SparkJob], batches: list[list[list[str]]], expected: Counter[Any],
    shown: Callable[[tuple[Any, ...]], Any] = lambda output: output,
) -> Counter[str]:  # fmt: skip
    """Run jobs of a kind until all batches are folded, and compare the outputs. `shown` makes an output hashable."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-durable-") as folder:
            return _run(seed, random, Path(folder), kind, Spark(batches), expected, shown)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def _run(
    seed: int, random: Random, folder: Path, kind: type[SparkJob], spark: Spark, expected: Counter[Any],
    shown: Callable[[tuple[Any, ...]], Any],
) -> Counter[str]:  # fmt: skip
    seen, count = Counter[str](), sum(len(part) for batch in spark.batches for part in batch)
    disk, before = SimulatedDisk(random), list[tuple[Any, ...]]()
    for number in range(RUNS):
        plan = draw(random, count)
        if number == RUNS - 1:
            plan.actions.clear()
        elif not plan.actions:
            plan.actions.append((random.randint(100, 1200), random.choice(["kill_one", "kill_all"])))
        job = kind(seed * 10 + number, folder, disk, spark, **plan.options)
        for seconds, scripts in plan.clients:
            job.client(*list(dict.fromkeys(scripts))[:ASKED_MAX], seconds=seconds)
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
        seen["half taken"] += any(commit.untaken for commit in job.commits)
        seen["went on with a half"] += bool(job.begun.untaken)
        if launch.error is None and not crashed:
            check(map(shown, before + outputs_of(job)), expected)
            job.conclude()
        commit = job.incarnation.latest
        if commit.checkpoint != job.begun.checkpoint:
            before += outputs_of(job, commit.time if not commit.ended else float("inf"))
        disk = beginning_with(disk, commit, random)
        if commit.ended:
            seen["ended"] += 1
            break
    seen["replayed"] = spark.replays
    check(map(shown, before), expected)
    return seen


def check(outputs: Iterable[Any], expected: Counter[Any]) -> None:
    everything = Counter(outputs)
    assert everything == expected, f"missing are {expected - everything}, too many {everything - expected}"


def beginning_with(disk: SimulatedDisk, commit: Commit, random: Random) -> SimulatedDisk:
    """Return a new disk with this commit and the files that it names."""
    old, new = Store(disk.open()), SimulatedDisk(random)
    store = Store(new.open())
    for segment in commit.files:
        store.put(segment.name, [old.read(segment.name)])
    assert store.commit(f"{commit.number:012}.commit", replace(commit, kept=()).to_bytes())
    return new
