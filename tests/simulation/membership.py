"""Random runs in which workers join, get bins, die while joining, coordinate, and leave, compared with an oracle.

The scenario is one of `scenarios`; the changes are drawn from the same seed. One worker without changes must give the
same outputs at the same times. The owner of each record's bin at the record's time must have applied it, and the ledger
must contain exactly the moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster, HandOver, Join, KillJoiner, Leave
from megaflow.testing.membership_driver import Change
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from tests.simulation import parcels
from tests.simulation.scenarios import WORDS, Log, Scenario, build, check_ledger, check_owners, draw

Drawn: TypeAlias = tuple[Scenario, list[tuple[int, Change]]]


def draw_changes(seed: int) -> Drawn:
    """Draw the scenario and the changes of a seed: (records sent, change)."""
    random = Random(seed)
    scenario = draw(seed)
    scenario.workers = max(2, scenario.workers)  # a lone worker sends nothing that the monitor could hear
    scenario.hold_back = random.random() < 0.15  # such an operator is pinned, so no founder may leave
    for feed in scenario.feeds.values():  # more input, so much is under way when the membership changes
        times = sorted(random.randrange(scenario.times, scenario.times + 10) for _ in range(random.randint(0, 20)))
        feed += [(time, (random.choice(WORDS), time)) for time in times]
    scenario.times += 10
    changes: list[tuple[int, Change]] = []
    for _ in range(random.randint(1, 3)):
        record, choice = random.randint(0, 30), random.random()
        if choice < 0.3:
            changes.append((record, Leave()))
            continue
        changes.append((record, Join(random.choice([None, None, 0, 1]))))
        if choice > 0.8:
            changes.append((0, KillJoiner(random.randint(0, 80))))
    return scenario, changes


def draw_hand_overs(seed: int) -> Drawn:
    """Draw the same, with coordinators that hand over or leave in between."""
    scenario, changes = draw_changes(seed)
    random = Random(f"hand-overs of {seed}")
    for _ in range(random.randint(1, 3)):
        last = len(changes)
        places = [place for place in range(last + 1) if place == last or not isinstance(changes[place][1], KillJoiner)]
        change = random.choice([HandOver(), HandOver(), Leave(0), Leave(1)])
        changes.insert(random.choice(places), (random.randint(0, 30), change))
    return scenario, changes


def run(
    seed: int,
    drawn: Callable[[int], Drawn] = draw_changes,
    bounds: Bounds | None = None,
    per_process: int = 1,
    dataflow: Callable[..., Stream[Any]] = build,
) -> EngineCluster:
    """Run a seed and its oracle. Raise an AssertionError that names the seed if they disagree."""
    scenario, changes = drawn(seed)
    scenario.workers *= per_process
    log, cluster = Log(), EngineCluster(seed, scenario.workers, bounds=bounds, per_process=per_process)
    for record, change in changes:
        cluster.at(record, change)

    def spread(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        return dataflow(scenario, log, worker, records.exchange(lambda record: len(record[0])), commands)

    with parcels.small(seed, cluster):
        outputs = cluster.run(spread, scenario.feeds, scenario.commands)
    everything = sorted((entry for feed in scenario.feeds.values() for entry in feed), key=lambda entry: entry[0])
    oracle = EngineCluster(seed, 1, monitor=False)
    expected = oracle.run(lambda *given: dataflow(scenario, Log(), *given), {0: everything})
    assert Counter(outputs) == Counter(expected), f"seed {seed}: the outputs differ from one worker's"
    check_owners(scenario, log, cluster.issued)
    check_ledger(scenario, log, cluster.issued)
    return cluster


def run_processes(seed: int) -> EngineCluster:
    """Run the same with two or three workers in each process, and with coordinators that hand over or leave."""
    return run(seed, draw_hand_overs, per_process=2 + seed % 2)
