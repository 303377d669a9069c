"""Stateful operators in loops of nested scopes, while bins move and workers join and leave.

The scenarios are those of `membership`. The outputs of the operators go round a loop, in a scope or in a scope within
another, until the hash of an output ends the loop. The folds know the times of their records and check that a key's
records arrive in order: by outer time, then by round. Both this order and the outputs must be the same as on one worker
without commands. A second test runs an app that labels nodes with their components. Its answers at each time must equal
those of a plain union of sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

from apps.components import connect
from megaflow import stable_hash
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing import EngineCluster, Join, Leave
from megaflow.timely.order import Product, Time, coordinates
from tests.simulation import parcels
from tests.simulation.membership import Drawn, draw_changes
from tests.simulation.membership import run as run_membership
from tests.simulation.scenarios import BINS, WORDS, Log, Scenario

ROUNDS_MAX = 5


def draw(seed: int) -> Drawn:
    """Draw the scenario and the changes of a seed."""
    scenario, changes = draw_changes(seed)
    for worker, feed in scenario.feeds.items():  # records go round, so half are enough
        scenario.feeds[worker] = feed[::2]
    scenario.kinds = (Random(f"kind {seed}").choice(["machine", "unary", "binary"]),) * 2
    return scenario, changes


def run(seed: int) -> EngineCluster:
    """Run a seed and its oracle."""
    return run_membership(seed, draw, dataflow=build)


def build(scenario: Scenario, log: Log, worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
    """Build a stream of (key, total, coordinates of the time, …) whose records went round a few times."""
    with Scope(records.port.scope).scoped("loop") as loop:
        entered = records.map(lambda record: (record[0], (record[1], 0))).enter(loop)
        if scenario.seed % 3:
            outputs = turn(loop, scenario, log, worker, entered, commands)
        else:
            with loop.iterative("within") as within:
                inside = entered.map(lambda record: (record[0], (*record[1], 0))).enter(within)
                outputs = turn(within, scenario, log, worker, inside, commands).leave()
        log.views += [(worker.index, view) for view in worker.stateful]
        return outputs.leave().inspect_time(check_time)


def turn(
    loop: Scope, scenario: Scenario, log: Log, worker: Worker, records: Stream[Any], commands: Stream[Any]
) -> Stream[Any]:
    """Build a stateful operator in the loop; records are (key, (coordinates of the time))."""
    handle, again = loop.loop_variable(1)
    given = records.concat(again)
    fold = Folds(log, worker)
    if scenario.kinds[0] == "machine":
        outputs = given.stateful_state_machine(fold.machine, control=commands, bins=BINS, name="turn")
    elif scenario.kinds[0] == "unary":
        outputs = given.stateful_unary(fold.unary, control=commands, bins=BINS, name="turn")
    else:
        left, right = given.branch(lambda time, record: stable_hash(record) % 3 == 0)
        outputs = left.stateful_binary(right, fold.binary, control=commands, bins=BINS, name="turn")
    if scenario.spread:
        outputs = outputs.distribute(control=commands, bins=BINS, name="spread")
    going = outputs.filter(lambda output: output[2][-1] < ROUNDS_MAX and stable_hash(output[:3]) % 5 < 3)
    going.map(lambda output: (WORDS[stable_hash(output[:2]) % len(WORDS)], next_round(output[2]))).connect_loop(handle)
    return outputs


def next_round(time: tuple[int, ...]) -> tuple[int, ...]:
    return (*time[:-1], time[-1] + 1)


class Folds:
    """Folds that keep running totals; a state is (total, the time of the last record)."""

    def __init__(self, log: Log, worker: Worker) -> None:
        self._log = log
        self._worker = worker

    def machine(self, key: Any, time: tuple[int, ...], state: Any) -> Any:
        return self._add(key, time, 1, state)

    def unary(self, key: Any, time: Time, records: list[Any], state: Any, timers: Any) -> Any:
        return self.binary(key, time, records, [], state, timers)

    def binary(self, key: Any, time: Time, left: list[Any], right: list[Any], state: Any, timers: Any) -> Any:
        now = coordinates(time)
        for record in (*left, *right):
            assert record in (now, "due"), f"{record} was applied at {now}"
        for record in left:
            delay = stable_hash((key, now)) >> 32
            if record != "due" and delay % 3 == 0:
                assert isinstance(time, Product)
                step = delay // 3 % 3
                timers.at(Product(later(time.outer, step), time.inner + (1 if step == 0 else delay % 2)), "due")
        state, outputs = self._add(key, now, len(left) + 3 * len(right), state)
        return state, [(*output, tuple(sorted(map(str, left))), len(right)) for output in outputs]

    def _add(self, key: Any, time: Any, count: int, state: Any) -> Any:
        total, last = state or (0, ())
        assert last <= time, f"{key} was applied at {last} and then at {time}"
        self._log.note("turn", key, time[0], self._worker)
        total += count
        return (None if total % 7 == 0 else (total, time)), [(key, total, time)]


def later(time: Time, step: int) -> Time:
    """Return the time that is `step` outer times later."""
    return Product(later(time.outer, step), time.inner) if isinstance(time, Product) else time + step  # type: ignore


def check_time(time: Any, output: tuple[Any, ...]) -> None:
    assert output[2][0] == time, f"{output} came out at time {time}"


def run_components(seed: int) -> None:
    """Run the app, which receives edges at eight times; compare its output at each with a union of sets."""
    random = Random(f"components {seed}")
    nodes = [f"n{number:02}" for number in range(random.randint(3, 25))]
    feeds = {
        worker: [(time, (random.choice(nodes), random.choice(nodes))) for time in range(8) if random.random() < 0.8]
        for worker in range(random.choice([2, 2, 3]))
    }
    scenario, _ = draw_changes(seed)
    cluster = EngineCluster(seed, len(feeds))
    for change in random.sample([Join(), Join(), Leave()], random.randint(0, 3)):
        cluster.at(random.randint(0, 12), change)
    commands = [(time, command) for time, command in scenario.commands if time < 10]
    with parcels.small(seed, cluster):
        outputs = cluster.run(
            lambda worker, edges, control: connect(Scope(edges.port.scope), edges, control=control, bins=BINS),
            feeds,
            commands,
        )
    edges = [entry for feed in feeds.values() for entry in feed]
    assert Counter(outputs) == Counter(told(edges)), f"seed {seed}: a node was told another component"


def told(edges: Iterable[tuple[int, tuple[str, str]]]) -> list[tuple[int, tuple[str, str]]]:
    """Return (time, (node, the least node of its component)) where that is new."""
    given = list(edges)
    components: dict[str, frozenset[str]] = {}
    labels: dict[str, str] = {}
    expected = []
    for time in sorted({time for time, _ in given}):
        for _, (a, b) in (entry for entry in given if entry[0] == time):
            both = components.get(a, frozenset([a])) | components.get(b, frozenset([b]))
            components.update(dict.fromkeys(both, both))
        for node, component in components.items():
            if labels.get(node) != min(component):
                labels[node] = min(component)
                expected.append((time, (node, labels[node])))
    return expected
