"""Random runs in which workers join a program that derives its commands from its records and sends no Bootstrap.

One worker, any of them, receives the commands. When a worker joins, within an epoch, all, some or none of them may have
arrived. Two operators follow them. The counts must be correct, and in the end all workers must route alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from megaflow import Map, Move
from megaflow.testing import EngineCluster, Join
from megaflow.testing.membership_driver import SimulatedWorker
from megaflow.timely.rescale.messages import Admission

BINS, WORDS, TIMES = 8, 12, 8


def build_steering(log: list[tuple[int, Any]]) -> Callable[..., Any]:
    """Build running counts; a record ("move", numbers) moves bins among the members of the worker that reads it."""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def order(record: tuple[str, Any]) -> Any:
            peers, numbers = worker.peer_ids, record[1]
            log.append((worker.index, peers))
            if len(numbers) == BINS:
                return Map(tuple(peers[number % len(peers)] for number in numbers))
            return Move(numbers[0] % BINS, peers[numbers[1] % len(peers)])

        def count(word: str, one: int, total: int | None) -> Any:
            more = (total or 0) + one
            return more, [(word, more)]

        orders = records.filter(lambda record: record[0] == "move").map(order)
        words = records.filter(lambda record: record[0] != "move")
        once = words.exchange(lambda record: len(record[0])).stateful_state_machine(count, control=orders, bins=BINS)
        return once.map(lambda output: (output[0], 1)).stateful_state_machine(count, control=orders, bins=BINS)

    return build


class Eager(EngineCluster):
    """Cluster whose first joiner sends a command at once, before all workers have heard that the join is complete."""

    moves: Sequence[tuple[int, Any]] = ()

    def _admit(self, admission: Admission) -> list[SimulatedWorker]:
        newcomers = super()._admit(admission)
        newcomers[0].unsent_records.extend(self.moves)
        return newcomers


def draw(seed: int) -> tuple[int, dict[int, list[tuple[int, Any]]]]:
    """Draw the number of workers and their input."""
    random = Random(f"introductions of {seed}")
    workers = random.choice([2, 2, 3, 4])
    feeds: dict[int, list[tuple[int, Any]]] = {
        worker: [(time, (f"word{random.randrange(WORDS)}", 1)) for time in range(TIMES) for _ in range(3)]
        for worker in range(workers)
    }
    first, last = random.choice([(0, 0), (0, 2), (2, 3), (4, 5), (0, TIMES), (2, TIMES), (4, TIMES), (6, TIMES)])
    injected = [
        (time, ("move", tuple(random.randrange(60) for _ in range(random.choice([2, 2, BINS])))))
        for time in range(first, last)
        for _ in range(random.randint(1, 3))
    ]
    injector = random.randrange(1, workers)  # not 0, whose records are shared with joiners
    feeds[injector] = sorted([*feeds[injector], *injected], key=lambda entry: entry[0])
    return workers, feeds


def run(seed: int) -> None:
    """Run a seed. Raise an AssertionError that names it if the counts are wrong."""
    workers, feeds = draw(seed)
    cluster = EngineCluster(seed, workers)
    random = Random(f"joins of {seed}")
    for _ in range(random.choice([1, 2, 3])):
        cluster.at(random.randrange(workers * TIMES * 3), Join(random.choice([None, 0, 1])))
    outputs = cluster.run(build_steering([]), feeds)
    check(seed, cluster, feeds, outputs)
    assert len(cluster.workers) > workers, f"seed {seed}"


def run_own(seed: int) -> None:
    """Run a seed in which only the joiner moves bins, as soon as it may, also to itself."""
    random = Random(f"own moves of {seed}")
    workers = random.choice([1, 2, 3])
    feeds = {
        worker: [(time, (f"word{random.randrange(WORDS)}", 1)) for time in range(TIMES) for _ in range(3)]
        for worker in range(workers)
    }
    cluster = Eager(seed, workers)
    cluster.moves = [
        (time, ("move", tuple(random.randrange(60) for _ in range(random.choice([2, 2, BINS])))))
        for time in range(TIMES)
        for _ in range(4)
    ]
    cluster.at(random.randrange(workers * TIMES), Join())
    check(seed, cluster, feeds, cluster.run(build_steering([]), feeds))


def check(seed: int, cluster: EngineCluster, feeds: dict[int, list[tuple[int, Any]]], outputs: list[Any]) -> None:
    """Raise AssertionError unless the counts are correct and all workers route alike."""
    words = Counter(word for feed in feeds.values() for _, (word, _) in feed if word != "move")
    expected = Counter((word, number + 1) for word, total in words.items() for number in range(total))
    assert Counter(output for _, output in outputs) == expected, f"seed {seed}: the counts are not the plain ones"
    views = [view for worker in cluster.workers for view in worker.stateful]
    assert all(view.ready for view in views), f"seed {seed}"
    assert len({view.table() for view in views}) == 1, f"seed {seed}: not all route alike"
