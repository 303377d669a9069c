"""Random runs of whole jobs with random inputs, requests of clients and killed processes, and the rules that must hold.

The dataflow counts words; a line contains its word, its partition and its place there. In every run
1. The counts of a word appear in the output as 1, 2, 3, …, each once, and epochs never fall. So nothing is counted
   twice, left out, or counted on two workers.
2. A fold sees the lines of one partition that contain its word in order.
3. A job that is not stopped and loses no process counts all lines. A stopped job counts everything that it has read.
4. The answer to a request for a word's state equals the output before the epoch that the answer names.
5. A job that loses a member ends with an error that names it. The output until then satisfies rule 1.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ENOENT
from random import Random
from typing import Any

from megaflow.control.coordinator.reading import lines_to_read
from megaflow.control.messages import GetState, Split
from megaflow.control.reports import StateReport
from megaflow.errors import ClusterError
from megaflow.job.files.split_reader import SplitReader
from megaflow.job.formats.raw_file import reading
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.testing.simulated_clients import Talk, Waits, add, balance, move, remove, remove_first, stop
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.timely.communication.address import address_text

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "cat"]
BINS = 8
PADDING = "." * 3000  # so that a batch has only a line or two
SECONDS = 0.3  # in which all lines arrive


@dataclass
class Plan:
    """The events of one run."""

    seed: int
    options: dict[str, Any]  # of SimulatedJob
    clients: list[tuple[float, list[Callable[[Talk], Waits]]]] = field(default_factory=list)  # (seconds, the requests)
    actions: list[tuple[int, str]] = field(default_factory=list)  # (actions taken, a method of SimulatedJob)
    words: Counter[str] = field(default_factory=Counter)  # of all lines
    answers: list[StateReport] = field(default_factory=list)  # to requests for a word's state

    def ask(self, talk: Talk) -> Waits:
        """Ask for the state of a word, perhaps one that does not occur."""
        word = talk.world.random.choice([*WORDS, "none", "1"])
        answer = yield from talk.ask(GetState("count", word, "json"))
        self.answers.append(answer)

    @property
    def is_stopped(self) -> bool:
        return any(what == "stop" for _, what in self.actions) or any(stop in scripts for _, scripts in self.clients)


def draw(seed: int) -> Plan:
    """Draw lines, and clients that move bins and add and remove processes."""
    random = Random(f"job {seed}")
    count = random.randint(10, 40)
    plan = Plan(seed, {"processes": random.choice([1, 2, 2, 3, 3]), "workers": random.choice([1, 1, 1, 2])})
    plan.options |= _lines(random, count, plan.words)
    if random.random() < 0.8:
        plan.options["rate"] = count / SECONDS
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        scripts = random.choices([move, add, remove, remove_first, balance], [2, 2, 2, 4, 1], k=random.randint(1, 3))
        plan.clients.append((random.random() * SECONDS / 4, scripts))
    if "pushed" in plan.options and random.random() < 0.5:
        plan.options["processes"] = 3
        plan.clients.append((random.random() * SECONDS / 4, [remove_first]))
    if random.random() < 0.15:
        plan.actions.append((random.randint(20, 300), "join_by_hand"))
    if random.random() < 0.1:
        plan.actions.append((random.randint(20, 600), "stop"))
    elif random.random() < 0.1:
        plan.clients.append((random.random() * SECONDS, [stop]))
    asking = Random(f"questions {seed}")
    for _ in range(asking.choice([0, 0, 1, 2])):
        plan.clients.append((asking.random() * SECONDS / 2, [plan.ask] * asking.randint(1, 3)))
    return plan


@contextmanager
def few_held(seed: int) -> Iterator[None]:
    """In most runs, give each reader as few files as possible at a time, so most stay in the pool."""
    before, lines_to_read.HELD_BYTES = lines_to_read.HELD_BYTES, Random(f"held {seed}").choice([0, 0, 10_000, 1 << 20])
    try:
        yield
    finally:
        lines_to_read.HELD_BYTES = before


@contextmanager
def blind(seed: int) -> Iterator[None]:
    """In some runs, let readers not find their files, unless no process has found them."""
    sight, real = Random(f"sight {seed}"), LineQueue.reader
    blindness = sight.choice((0.0, 0.0, 0.4))

    def reader(queue: LineQueue, split: Split) -> SplitReader:
        made = real(queue, split)
        return blinded(made) if sight.random() < blindness else made

    LineQueue.reader = reader  # type: ignore[method-assign]
    try:
        yield
    finally:
        LineQueue.reader = real  # type: ignore[method-assign]


def blinded(reader: SplitReader) -> SplitReader:
    """Return a reader that does not find its file at its first look."""
    real = reader._open

    def look() -> None:
        reader._open = real  # type: ignore[method-assign]
        with reading(reader.split.path):
            raise FileNotFoundError(ENOENT, "No such file or directory")

    reader._open = look  # type: ignore[method-assign]
    return reader


def draw_crash(seed: int) -> Plan:
    """Draw the same plan, and kill a process."""
    plan, random = draw(seed), Random(f"crash {seed}")
    plan.actions.append((random.randint(1, 600), random.choice(["kill_one", "kill_one", "kill_one", "kill_all"])))
    return plan


def _lines(random: Random, count: int, words: Counter[str]) -> dict[str, Any]:
    kind = random.choice(["files", "files", "pushed", "batches"])
    names = ["pushed"] if kind == "pushed" else [f"part{number}" for number in range(random.choice([1, 2, 3, 4, 8]))]
    lines: dict[str, list[str]] = {name: [] for name in names}
    for _ in range(count):
        name, word = random.choice(names), random.choice(WORDS)
        words[word] += 1
        lines[name].append(f"{word} {name} {len(lines[name])} {PADDING}")
    if kind == "files":
        return {"files": lines}
    if kind == "pushed":
        return {"pushed": lines["pushed"]}
    batches, size = [], random.randint(2, 5)
    for start in range(0, count, size):
        if any(batch := [some[start : start + size] for some in lines.values()]):
            batches.append(batch)
    return {"batches": batches}


def dataflow(flow: Any) -> Any:
    """Count words, and check the order of lines."""

    def read(line: str) -> tuple[str, tuple[str, int]]:
        word, name, place, _ = line.split(" ")
        return word, (name, int(place))

    def count(word: str, where: tuple[str, int], state: Any) -> Any:
        total, places = state or (0, {})
        name, place = where
        assert places.get(name, -1) < place, f"line {place} of {name} comes after line {places[name]}"
        return (total + 1, {**places, name: place}), [(word, total + 1)]

    return flow.lines().map(read).stateful_state_machine(count, bins=BINS, name="count")


def run(seed: int, drawn: Callable[[int], Plan] = draw) -> tuple[SimulatedJob, SimulatedLaunch]:
    """Run a seed. Raise an AssertionError that names it if a rule is broken."""
    plan = drawn(seed)
    job = SimulatedJob(seed, dataflow, **plan.options)
    for seconds, scripts in plan.clients:
        job.client(*scripts, seconds=seconds)
    for action, what in plan.actions:
        job.at(action, getattr(job, what))
    with few_held(seed), blind(seed):
        launch = job.run()
    try:
        judge(plan, job, launch)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return job, launch


def run_crash(seed: int) -> tuple[SimulatedJob, SimulatedLaunch]:
    """Run a seed with a crash."""
    return run(seed, draw_crash)


def check_answers(answers: list[StateReport], lines: list[Any]) -> None:
    """Check that each answer agrees with the complete output."""
    for each in answers:
        before = sum(line["record"][0] == each.key for line in lines if line["time"] < each.epoch)
        told = 0 if each.state is None else json.loads(each.state)[0]
        assert told == before, f"{each}, but {before} were counted by then"


def judge(plan: Plan, job: SimulatedJob, launch: SimulatedLaunch) -> None:
    """Raise AssertionError if one of the rules above is broken."""
    content = launch.file.content
    crashed = bool(job.killed)
    lines = [json.loads(line) for line in content.splitlines()]
    assert content.endswith("\n") or not lines, "the last line has no end"
    times = [line["time"] for line in lines]
    assert times == sorted(times), f"epochs fall: {times}"
    counts: Counter[str] = Counter()
    for word, number in (line["record"] for line in lines):
        counts[word] += 1
        assert number == counts[word], f"{word!r} is counted as {number} after {counts[word] - 1}"
    assert counts <= plan.words, f"counted are {counts - plan.words} too many"
    if not crashed:
        check_answers(plan.answers, lines)
    if launch.error is not None:
        assert crashed, f"the job failed: {launch.error}"
        named = any(address_text(process.address) in str(launch.error) for process in job.killed)
        assert isinstance(launch.error, ClusterError) and named, launch.error
    elif not launch.is_killed:
        summary = launch.attempts.loop.summary
        assert not job.killed_members, f"nobody has noticed that {job.killed_members} were killed"
        assert summary.lines == summary.records == len(lines), summary
        assert plan.is_stopped or counts == plan.words, f"not counted: {plan.words - counts}"
