"""Random folds whose timers set timers, compared with a slow reference without epochs: one key, one sorted list.

A run is a list of phases. Each has records and ends with a watermark, the last one with the infinite watermark. The
records and the watermark of a phase are spread over random epochs while bins move. In whatever epochs they arrive, a
key sees its records and timers in the order of the reference, with one call for each timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from megaflow import stable_hash
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Move, Watermark
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from tests.simulation import parcels

BINS = 4
STEP = 10  # microseconds between two watermarks

AtEvent = Callable[[int, Any], None]


@dataclass(frozen=True)
class Phase:
    """The records between two watermarks."""

    records: tuple[tuple[str, int], ...]  # (key, number)
    watermark: int


def draw(random: Random) -> list[Phase]:
    """Draw up to five phases with records of three keys; the last one ends everything."""
    phases = []
    for number in range(random.choice([1, 2, 3, 5])):
        records = [(random.choice("abc"), 1000 * number + place) for place in range(random.choice([0, 1, 3, 6]))]
        phases.append(Phase(tuple(records), STEP * (number + 1)))
    return [*phases, Phase(phases[0].records if random.random() < 0.3 else (), INFINITE)]


def react(key: str, cause: Any, base: int, depth: int, at_event: AtEvent) -> None:
    """Set timers in reaction to a record or timer: up to three steps later, and for a timer also earlier ones."""
    dice = stable_hash((key, cause))
    for which in range(dice >> 8 & 3 if depth else 0):
        delay = (dice >> 16 + 8 * which) % (3 * STEP) - (5 if isinstance(cause, tuple) else -1)
        at_event(base + delay, ((cause, which), base + delay, depth - 1))


# The reference -------------------------------------------------------------------------------------------------------


@dataclass
class OneKey:
    """One key, with its timers as a plain list."""

    key: str
    seen: list[Any] = field(default_factory=list)
    timers: list[tuple[int, Any]] = field(default_factory=list)  # in the order of setting
    limit: int = INFINITE

    def set(self, micros: int, payload: Any) -> None:
        if micros <= self.limit:
            self.timers.append((micros, payload))

    def record(self, number: int, watermark: int) -> None:
        self.seen.append(number)
        react(self.key, number, watermark, 4, self.set)

    def fire(self, watermark: int, before: int) -> None:
        if watermark == INFINITE:
            self.limit = max([before, *(micros for micros, _ in self.timers)])
        while due := [micros for micros, _ in self.timers if micros <= watermark]:
            least = min(due)
            payloads = [payload for micros, payload in self.timers if micros == least]
            self.timers = [each for each in self.timers if each[0] != least]
            self.seen.append([cause for cause, *_ in payloads])
            for cause, micros, depth in payloads:
                react(self.key, cause, micros, depth, self.set)


def expected(phases: list[Phase]) -> dict[str, list[Any]]:
    """Return what each key sees: the numbers of records, and for each call by timers the list of their causes."""
    keys = {key: OneKey(key) for key in "abc"}
    before = 0
    for phase in phases:
        for key, number in phase.records:
            keys[key].record(number, before)
        for each in keys.values():
            each.fire(phase.watermark, before)
        before = phase.watermark
    return {key: each.seen for key, each in keys.items() if each.seen}


# On the engine -------------------------------------------------------------------------------------------------------


def fold(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
    """React as the reference does. Outputs are numbered, so the test knows their order."""
    count, out = state or 0, []
    fired = [value for value in values if isinstance(value, tuple) and isinstance(value[0], tuple)]
    if fired:
        assert fired == values, f"timers and records of {key!r} came together: {values}"
        out.append((key, count, [cause for cause, *_ in fired]))
        count += 1
        for cause, micros, depth in fired:
            react(key, cause, micros, depth, timers.at_event)
    else:
        for number, watermark in values:
            out.append((key, count, number))
            count += 1
            react(key, number, watermark, 4, timers.at_event)
    return count, iter(out)


def run(seed: int) -> None:
    """Run a seed twice, with other epochs and moves. Raise an AssertionError that names the seed."""
    random = Random(f"timer order {seed}")
    phases = draw(random)
    right = expected(phases)
    for attempt in range(2):
        found = executed(random, phases, seed + attempt)
        assert found == right, f"seed {seed}: {found} instead of {right}"


def executed(random: Random, phases: list[Phase], seed: int) -> dict[str, list[Any]]:
    """Return what each key saw on a simulated cluster."""
    workers = random.choice([1, 2, 3])
    feeds: dict[int, list[Any]] = {worker: [] for worker in range(workers)}
    commands: list[tuple[int, Any]] = []
    feeder = {key: random.randrange(workers) for key in "abc"}
    time, before = 0, 0
    for phase in phases:
        for key, number in phase.records:
            time += random.choice([0, 0, 1, 2])
            feeds[feeder[key]].append((time, (key, (number, before))))
        time += random.choice([0, 0, 1, 3])
        commands.append((time, Watermark(phase.watermark)))
        time += random.choice([1, 1, 2])
        before = phase.watermark
    moves = [(random.randrange(time), Move(random.randrange(BINS), random.randrange(workers)))
             for _ in range(random.choice([0, 2, 6]))]  # fmt: skip
    cluster = EngineCluster(seed, workers)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        timed: Stream[Any] = records.event_time(lambda record: 0, unit="us").stateful_unary(
            fold, bins=BINS, name="chain", control=commands
        )
        return timed

    with parcels.small(seed, cluster):
        outputs = cluster.run(build, feeds, sorted([*commands, *moves], key=lambda entry: entry[0]))
    seen: dict[str, list[Any]] = {}
    for key, _, what in sorted((record for _, record in outputs), key=lambda record: record[:2]):
        seen.setdefault(key, []).append(what)
    return seen
