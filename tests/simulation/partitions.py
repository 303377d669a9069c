"""Random runs of a `dataflow(flow)` that reads partitions, checked for the promised order.

Lines are numbered in their partition, and each key gets lines of several partitions. In some runs an engine program
replaces the job, and a partition is the input of one worker. Other runs have two inputs, each with every other
partition. Bins move, and workers join and leave with the partitions that they read. Still a key's values of one
partition must be applied in order, each once, and to the state that the previous values left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import Any

from megaflow import Map, Move
from megaflow.megaphone.folds import stateful
from megaflow.stream import Stream
from megaflow.testing import EngineCluster, HandOver, Join, Leave, SimulatedCluster
from megaflow.testing.changes import Change
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from tests.simulation import parcels

KEYS = "ab"
BINS = 8
Applied = tuple[str, int, int, int]  # key, partition, number there, how many of the key's values were applied


def draw(random: Random) -> tuple[list[list[str]], int, list[tuple[int, Change]]]:
    """Draw partitions, workers, and changes: (lines read, change)."""
    partitions = [
        [f"{random.choice(KEYS)} {partition} {number}" for number in range(random.choice([0, 5, 50, 100]))]
        for partition in range(random.randint(1, 4))
    ]
    workers, count = random.choice([2, 3, 4]), sum(map(len, partitions))
    changes: list[tuple[int, Change]] = []
    kinds = random.choice([["join", "leave", "leave", "move", "map"], ["leave"]])
    for _ in range(random.randint(2, 5)):
        record = random.randint(0, count // 2)
        change: Change
        match random.choice(kinds):
            case "join":
                change = Join()
            case "leave":
                change = Leave(random.choice([None, 0, 1, 2]))
            case "move":
                change = Move(random.randrange(BINS), random.randrange(workers + 1))
            case _:
                change = Map(tuple(random.randrange(workers) for _ in range(BINS)))
        changes.append((record, change))
    return partitions, workers, sorted(changes, key=lambda each: each[0])


def fold(key: str, value: tuple[int, int], count: int | None) -> tuple[int, list[Applied]]:
    """Count a value."""
    count = (count or 0) + 1
    return count, [(key, *value, count)]


def fold_closed(key: str, time: int, values: list[Any], count: int | None, timers: Any) -> tuple[int, list[Applied]]:
    """Count all values of a time."""
    outputs: list[Applied] = []
    for value in values:
        count, more = fold(key, value, count)
        outputs += more
    assert count is not None
    return count, outputs


def fold_both(
    key: str, time: int, left: list[Any], right: list[Any], count: int | None, timers: Any
) -> tuple[int, list[Applied]]:
    """Count all values of a time from two inputs."""
    for values, rest in ((left, 0), (right, 1)):
        assert all(partition % 2 == rest for partition, _ in values), f"{key!r} was given {left} and {right}"
    return fold_closed(key, time, left + right, count, timers)


def join(flow: Any) -> Any:
    """Read and join two inputs."""
    left, right = (flow.lines(name).map(parse) for name in ("left", "right"))
    return left.stateful_binary(right, fold_both, bins=BINS)


def parse(line: str) -> tuple[str, tuple[int, int]]:
    key, partition, number = line.split()
    return key, (int(partition), int(number))


def run(seed: int) -> SimulatedCluster | EngineCluster:
    """Run a seed. Raise an AssertionError that names it if a promise is broken."""
    random = Random(f"partitions {seed}")
    partitions, workers, changes = draw(random)
    closed = random.random() < 0.3

    def apply(lines: Stream[str], control: Stream[Any]) -> Stream[Any]:
        pairs = lines.map(parse)
        if closed:
            return pairs.stateful_unary(fold_closed, control=control, bins=BINS)
        return pairs.stateful_state_machine(fold, control=control, bins=BINS)

    def dataflow(flow: Any) -> Any:
        return apply(flow.lines(), flow.control)

    turn, stateful.TURN_SECONDS = stateful.TURN_SECONDS, random.choice([stateful.TURN_SECONDS, 0.0])
    cluster: SimulatedCluster | EngineCluster
    try:
        if random.random() < 0.3:
            partitions = partitions[:workers]
            cluster, outputs = run_engine(random, seed, workers, partitions, changes, apply)
        else:
            cluster = SimulatedCluster(seed, workers)
            for record, change in changes:
                cluster.at(record=record, do=change)
            if random.random() < 0.25:
                outputs = cluster.run(join, lines={"left": partitions[::2], "right": partitions[1::2]})
            else:
                outputs = cluster.run(dataflow, lines=partitions)
    finally:
        stateful.TURN_SECONDS = turn
    check(f"seed {seed}", partitions, outputs)
    return cluster


def run_engine(
    random: Random, seed: int, workers: int, partitions: list[list[str]], changes: list[tuple[int, Change]], apply: Any
) -> tuple[EngineCluster, list[Applied]]:
    """Feed each worker a partition. No worker joins, since a joiner would take over part of another's input."""
    bounds = Bounds(random.randint(1, 3), random.randint(1, 3)) if random.random() < 0.3 else None
    cluster = EngineCluster(seed, workers, bounds=bounds)
    for record, change in changes:
        if isinstance(change, Leave | Move | Map):
            cluster.at(record, change)
            if random.random() < 0.3:
                cluster.at(record, HandOver())
    feeds = {worker: at_times(random, lines) for worker, lines in enumerate(partitions)}
    with parcels.small(seed, cluster):
        timed = cluster.run(lambda worker, records, commands: apply(records, commands), feeds)
    return cluster, [applied for _, applied in timed]


def at_times(random: Random, lines: list[str]) -> list[tuple[int, str]]:
    """Assign times to the lines, in order."""
    times = sorted(random.randrange(6) for _ in lines)
    return list(zip(times, lines))


def check(title: str, partitions: list[list[str]], outputs: list[Applied]) -> None:
    """Check for each key that values are numbered as applied, and that each partition's values are complete and in
    order.
    """
    counts: Counter[str] = Counter()
    seen = defaultdict[tuple[str, int], list[int]](list)  # (key, partition) -> numbers
    for key, partition, number, count in outputs:
        counts[key] += 1
        assert count == counts[key], f"{title}: value {counts[key]} of key {key!r} met the state of {count - 1} values"
        seen[key, partition].append(number)
    wanted = defaultdict[tuple[str, int], list[int]](list)
    for line in (line for partition in partitions for line in partition):
        key, (partition, number) = parse(line)
        wanted[key, partition].append(number)
    for key, partition in wanted.keys() | seen.keys():
        applied = seen[key, partition]
        assert applied == wanted[key, partition], f"{title}: of partition {partition} key {key!r} was given {applied}"
