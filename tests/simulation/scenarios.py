"""Random runs of stateful dataflows on a simulated cluster, and the oracle that judges them.

A seed decides the number of workers, their input, the commands and their times, and the operators in a row (with one
input or two, with timers or without). The oracle is one worker without commands. It must give the same outputs at the
same times. Besides, the owner of a bin at a time must have applied all its records and timers of that time. The ledger
must contain exactly the moves that the commands imply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from megaflow import Map, Move, stable_hash
from megaflow.megaphone.base.routing import apply, difference, initial_table
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import Exchange, Worker
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from tests.simulation import parcels
from tests.simulation.by_hand import bin_of

LOG2_BINS = 3
BINS = 1 << LOG2_BINS
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "the", "cat"]


@dataclass
class Scenario:
    """The input, commands and operators of one run."""

    seed: int
    workers: int
    times: int
    feeds: dict[int, list[tuple[int, Any]]]  # worker -> (time, (word, time))
    commands: list[tuple[int, Any]]
    two_in_a_row: bool
    hold_back: bool  # an operator that keeps records until their time is closed
    kinds: tuple[str, str] = ("machine", "machine")  # of the two operators
    spread: bool = False  # whether the outputs are distributed


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed."""
    random = Random(seed)
    workers, times = random.choice([1, 2, 2, 3, 3, 4]), random.randint(1, 12)
    feeds = {
        worker: [(time, (random.choice(WORDS), time)) for time in _times(random, times, random.randint(0, 25))]
        for worker in range(workers)
    }
    commands = [(time, _command(random, workers)) for time in _times(random, times, random.randint(0, 8))]
    scenario = Scenario(seed, workers, times, feeds, commands, random.random() < 0.4, random.random() < 0.4)
    scenario.kinds = (random.choice(["machine", "unary", "binary"]), random.choice(["machine", "unary", "binary"]))
    scenario.spread = random.random() < 0.25
    return scenario


def _times(random: Random, times: int, count: int) -> list[int]:
    return sorted(random.randrange(times) for _ in range(count))


def _command(random: Random, workers: int) -> Move | Map:
    if random.random() < 0.75:
        return Move(random.randrange(BINS), random.randrange(workers))
    return Map(tuple(random.randrange(workers) for _ in range(BINS)))


@dataclass
class Log:
    """The worker that applied each record: (operator, bin, time, worker)."""

    applied: list[tuple[str, int, int, int]] = field(default_factory=list)
    views: list[tuple[int, Any]] = field(default_factory=list)  # (worker, view of a stateful operator)

    def note(self, operator: str, key: Any, time: int, worker: Worker) -> None:
        """Note that a record or timer of this key was applied."""
        self.applied.append((operator, bin_of(stable_hash(key), LOG2_BINS), time, worker.index))


def run(scenario: Scenario, bounds: Bounds | None = None) -> None:
    """Run a scenario and its oracle. Raise an AssertionError that names the seed if they disagree."""
    log = Log()
    cluster = EngineCluster(scenario.seed, scenario.workers, bounds=bounds)
    with parcels.small(scenario.seed, cluster):
        outputs = cluster.run(lambda *given: build(scenario, log, *given), scenario.feeds, scenario.commands)
    everything = sorted((entry for feed in scenario.feeds.values() for entry in feed), key=lambda entry: entry[0])
    oracle = EngineCluster(scenario.seed, 1, monitor=False)
    expected = oracle.run(lambda *given: build(scenario, Log(), *given), {0: everything})
    assert Counter(outputs) == Counter(expected), f"seed {scenario.seed}: the outputs differ from one worker's"
    check_owners(scenario, log, scenario.commands)
    check_ledger(scenario, log, scenario.commands)
    for worker in cluster.workers:
        assert len({view.table() for view in worker.stateful}) == 1


def build(scenario: Scenario, log: Log, worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
    """Build running counts, perhaps counts of counts, perhaps held back until their time closes, perhaps distributed.
    """
    first, second = scenario.kinds
    counts = OPERATORS[first](records, commands, "count", log, worker)
    if scenario.two_in_a_row:
        parities = counts.map(lambda output: (output[1] % 3, output[2]))
        counts = OPERATORS[second](parities, commands, "again", log, worker)
    if scenario.spread:
        counts = counts.distribute(control=commands, bins=BINS, name="spread").inspect(
            lambda output: log.note("spread", output, output[2], worker)
        )
    log.views += [(worker.index, view) for view in worker.stateful]
    if scenario.hold_back:
        counts = counts.unary_frontier(Exchange(lambda output: stable_hash(output[0])), "HoldBack", hold_back)
    return counts.inspect_time(_check_time)


# Operators: each takes records (key, time) and emits (key, total, time, …) -------------------------------------------


def machine(records: Stream[Any], commands: Stream[Any], name: str, log: Log, worker: Worker) -> Stream[Any]:
    """Count records."""

    def fold(key: Any, time: int, count: int | None) -> tuple[int | None, list[Any]]:
        log.note(name, key, time, worker)
        total = (count or 0) + 1
        return (None if total == 7 else total), [(key, total, time)]  # after the seventh, counting starts again

    return records.stateful_state_machine(fold, control=commands, bins=BINS, name=name)


def unary(records: Stream[Any], commands: Stream[Any], name: str, log: Log, worker: Worker) -> Stream[Any]:
    """Count records and timers. Most records set timers, and some of those set timers again."""

    def fold(key: Any, time: int, records: list[Any], count: int | None, timers: Any) -> tuple[int | None, list[Any]]:
        log.note(name, key, time, worker)
        set_timers(key, time, records, timers)
        total = (count or 0) + len(records)
        return (None if total % 5 == 0 else total), [(key, total, time, tuple(sorted(map(str, records))))]

    return records.stateful_unary(fold, control=commands, bins=BINS, name=name)


def binary(records: Stream[Any], commands: Stream[Any], name: str, log: Log, worker: Worker) -> Stream[Any]:
    """Count records of both inputs. Each input has part of the records, some are in both, and the right one lags."""

    def fold(
        key: Any, time: int, left: list[Any], right: list[Any], count: int | None, timers: Any
    ) -> tuple[int | None, list[Any]]:
        log.note(name, key, time, worker)
        set_timers(key, time, left, timers)
        total = (count or 0) + len(left) + 3 * len(right)
        return (None if total % 5 == 0 else total), [(key, total, time, tuple(sorted(map(str, left))), len(right))]

    left = records.filter(lambda record: record[1] % 3 != 1)
    right = records.filter(lambda record: record[1] % 3 == 1 or record[1] % 2 == 1).exchange(
        lambda record: stable_hash(record[0])
    )
    return left.stateful_binary(right, fold, control=commands, bins=BINS, name=name)


def aggregate(records: Stream[Any], commands: Stream[Any], name: str, log: Log, worker: Worker) -> Stream[Any]:
    """Count records, with one output for each key and time; its time is the latest of its records."""
    pairs = records.map(lambda record: (record[0], record[1]))
    found = pairs.aggregate_by_key((0, -1), counted, both_counted, control=commands, bins=BINS, name=name)
    outputs = found.map(lambda output: (output[0], *output[1]))
    return outputs.inspect(lambda output: log.note(name, output[0], output[2], worker))


def counted(before: tuple[int, int], time: int) -> tuple[int, int]:
    """Count one more record."""
    return before[0] + 1, max(before[1], time)


def both_counted(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Combine two counts."""
    return one[0] + other[0], max(one[1], other[1])


OPERATORS = {"machine": machine, "unary": unary, "binary": binary, "aggregate": aggregate}


def set_timers(key: Any, time: int, records: list[Any], timers: Any) -> None:
    """Set the timers that records (ints, their times) and payloads ("due", how many more) ask for."""
    kinds = [not isinstance(record, tuple) for record in records]
    assert kinds == sorted(kinds), f"payloads come first: {records}"
    for record in records:
        delay = stable_hash((key, time, record)) >> 32
        more = record[1] if isinstance(record, tuple) else delay % 3
        if more:
            timers.at(time + 1 + delay % 5, ("due", more - 1))


def hold_back(capability: Any, info: Any) -> Any:
    """Keep records until their time is closed, then send them."""
    capability.release()
    stash: dict[Any, list[Any]] = {}

    def logic(source: Any, output: Any) -> None:
        for time, data in source:
            stash.setdefault(time.retain(), []).extend(data)
        for held in [each for each in stash if not source.frontier.less_equal(each.time)]:
            with held, output.session(held) as session:
                session.give_iterator(stash.pop(held))

    return logic


def _check_time(time: Any, output: tuple[Any, ...]) -> None:
    assert output[2] == time, f"{output} came out at time {time}"


def _tables(scenario: Scenario, commands: Sequence[tuple[int, Any]]) -> list[tuple[int, ...]]:
    """Return the routing tables in force before time 0, at time 0, at time 1, …"""
    table = initial_table(BINS, range(scenario.workers))
    tables = [table]
    for time in range(max([scenario.times, *(due + 1 for due, _ in commands)])):
        table = apply(table, [command for due, command in commands if due == time])
        tables.append(table)
    return tables


def check_owners(scenario: Scenario, log: Log, commands: Sequence[tuple[int, Any]]) -> None:
    """Check that the owner of each bin at each time applied all its records and timers."""
    tables = _tables(scenario, commands)
    for operator, bin, time, worker in log.applied:
        owner = tables[min(time + 1, len(tables) - 1)][bin]  # timers may be due after everything else
        assert worker == owner, (
            f"seed {scenario.seed}: {operator} applied a record of bin {bin} at time {time} on worker {worker}, "
            f"but worker {owner} owned it then"
        )


def check_ledger(scenario: Scenario, log: Log, commands: Sequence[tuple[int, Any]]) -> None:
    """Check that the ledger contains exactly the moves that the commands imply, and that each bin is at its owner."""
    tables = _tables(scenario, commands)
    expected = Counter(
        (bin, time, source, target)
        for time, (before, after) in enumerate(pairwise(tables))
        for bin, source, target in difference(before, after)
    )
    for name in {view.name for _, view in log.views}:
        rows = [row for _, view in log.views if view.name == name for row in view.take_ledger()]
        told = Counter((row.bin, row.time, row.source, row.target) for row in rows)
        assert told == expected, f"seed {scenario.seed}: the ledger of {name} is not what was commanded"
    for worker, view in log.views:
        owned = [bin for bin, owner in enumerate(tables[-1]) if owner == worker]
        assert view.owned() == owned, f"seed {scenario.seed}: a bin is astray"
