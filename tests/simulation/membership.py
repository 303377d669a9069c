"""Random runs in which workers join, get bins, die on their way in, and leave, held against the oracle.

The scenario is one of `scenarios`; its changes are drawn from the same seed. However the membership changes, one worker
without any change must give the same outputs at the same times, every record must have been applied by the owner of
its bin at its time, and the ledger must tell the moves.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from megaflow.front import Worker
from megaflow.stream import Stream
from megaflow.testing import Join, KillJoiner, Leave, SimulatedCluster
from megaflow.testing.changes import Change
from tests.simulation import parcels
from tests.simulation.scenarios import WORDS, Log, Scenario, build, check_ledger, check_owners, draw


def draw_changes(seed: int) -> tuple[Scenario, list[tuple[int, Change]]]:
    """The scenario and the changes of a seed: (records sent, change)."""
    random = Random(seed)
    scenario = draw(seed)
    scenario.workers = max(2, scenario.workers)  # a lone worker tells nobody, so the monitor would hear nothing
    scenario.hold_back = random.random() < 0.15  # such an operator is pinned: no founder may leave
    for feed in scenario.feeds.values():  # more of it, so that much is under way when the membership changes
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


def run(seed: int) -> SimulatedCluster:
    """Run a seed and its oracle; raise AssertionError, naming the seed, if they disagree."""
    scenario, changes = draw_changes(seed)
    log, cluster = Log(), SimulatedCluster(seed, scenario.workers)
    for record, change in changes:
        cluster.at(record, change)

    def spread(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        return build(scenario, log, worker, records.exchange(lambda record: len(record[0])), commands)

    with parcels.small(seed, cluster):
        outputs = cluster.run(spread, scenario.feeds, scenario.commands)
    everything = sorted((entry for feed in scenario.feeds.values() for entry in feed), key=lambda entry: entry[0])
    oracle = SimulatedCluster(seed, 1, monitor=False)
    expected = oracle.run(lambda *given: build(scenario, Log(), *given), {0: everything})
    assert Counter(outputs) == Counter(expected), f"seed {seed}: the outputs differ from one worker's"
    check_owners(scenario, log, cluster.issued)
    check_ledger(scenario, log, cluster.issued)
    return cluster
