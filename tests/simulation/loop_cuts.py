"""Checkpoints of stateful operators in loops: the operators of `loops`, whose times are flat in a cut.

The oracle is one worker that writes all its bins at each checkpoint. It never moves bins, and no worker joins or
leaves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from megaflow.durable.restored import Restored
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.testing.membership_driver import Change
from tests.simulation import loops, parcels
from tests.simulation.cuts import Written, by_time, rebuilt, small_slices, with_checkpoints
from tests.simulation.scenarios import Log, Scenario

NAME = "turn"  # of the operator


def run(seed: int) -> None:
    """Run a seed, and a restart."""
    scenario, changes = loops.draw(seed)
    random = Random(f"checkpoints in loops {seed}")
    scenario.commands = with_checkpoints(random, scenario.commands, range(scenario.times + 3), None, 1)
    feeds = scenario.feeds
    outputs, issued, written = go(scenario, scenario.workers, feeds, scenario.commands, changes)
    times = {command.number: time for time, command in issued if isinstance(command, Checkpoint)}

    everything = sorted((entry for feed in feeds.values() for entry in feed), key=lambda entry: entry[0])
    whole = [(time, Checkpoint(number)) for number, time in times.items()]
    expected, _, plain = go(scenario, 1, {0: everything}, whole, [])
    assert Counter(outputs) == Counter(expected), f"seed {seed}: the outputs differ"
    for number, time in times.items():
        found, due = (contents(rebuilt(each, number, NAME, time)) for each in (written, plain))
        assert found == due, f"seed {seed}: checkpoint {number} at {time} is\n{found}\nand should be\n{due}"

    number, time = random.choice(sorted(times.items()))
    workers = random.randint(1, 4)
    left: dict[int, list[Any]] = {worker: [] for worker in range(workers)}
    for entry in everything:
        if entry[0] >= time:
            left[random.randrange(workers)].append(entry)
    outputs, _, _ = go(scenario, workers, left, [], [], {NAME: rebuilt(written, number, NAME, time)})
    after = Counter(entry for entry in expected if entry[0] >= time)
    assert Counter(outputs) == after, f"seed {seed}: restarted at {time} from {number} with {workers} workers"


def go(
    scenario: Scenario,
    workers: int,
    feeds: Mapping[int, Sequence[tuple[int, Any]]],
    commands: Sequence[tuple[int, Any]],
    changes: Sequence[tuple[int, Change]],
    restored: Mapping[str, Restored] | None = None,
) -> tuple[list[Any], list[Any], Written]:
    """Run the scenario. Return the outputs, the issued commands and the written pieces."""
    written = Written()
    cluster = EngineCluster(scenario.seed, workers)
    for record, change in changes:
        cluster.at(record, change)

    def build(worker: Worker, records: Stream[Any], given: Stream[Any]) -> Stream[Any]:
        durability = records.port.scope.graph.extension(Durability)
        durability.sink = written.sink(worker.index)
        durability.restore = lambda descriptor, bins: (restored or {}).get(descriptor.name, Restored({}, {}))
        return loops.build(scenario, Log(), worker, records.exchange(lambda record: len(record[0])), given)

    with parcels.small(scenario.seed, cluster), small_slices(Random(f"slices {scenario.seed}")):
        return cluster.run(build, feeds, commands), cluster.issued, written


def contents(restored: Restored) -> tuple[Any, Any]:
    """Return the states and timers of all bins."""
    states = {key: state for states in restored.states.values() for key, state in states.items()}
    return states, by_time(each for due in restored.timers.values() for each in due)
