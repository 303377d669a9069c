"""Random runs with requests for states during moves, joins, leaves and hand-overs; half of them with checkpoints.

The plans, the operators and the oracle are those of `cuts`. Each requested key is answered once, by one worker, with
the oracle's state before the time of the request.
"""

from __future__ import annotations

from random import Random
from typing import Any

from megaflow import stable_hash
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.routing import Lookup
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from tests.simulation import parcels
from tests.simulation.by_hand import bin_of
from tests.simulation.cuts import Plan, Written, build_operator, for_next, names, oracle, plan, small_slices
from tests.simulation.scenarios import LOG2_BINS


def with_lookups(drawn: Plan, random: Random) -> None:
    """Insert requests among the commands of a plan, each for some keys of any operator."""
    times = [time for feed in drawn.feeds.values() for time, _ in feed]
    keys = sorted({record[0] for feed in drawn.feeds.values() for _, record in feed} | {"none"}, key=str)
    again = ["none", *(f"again{number}" for number in range(5))]
    found = []
    for number in range(random.randint(1, 8)):
        operator = random.choice(names(drawn.kinds))
        asked = random.choices(keys if operator == names(drawn.kinds)[0] else again, k=random.randint(1, 3))
        places = tuple((key, bin_of(stable_hash(key), LOG2_BINS)) for key in asked)
        found.append((random.randint(0, max(times, default=0) + 2), Lookup(number, operator, places, "text")))
    drawn.commands = sorted([*found, *drawn.commands], key=lambda entry: entry[0])


def run(seed: int) -> None:
    """Run a seed. Raise an AssertionError that names it if an answer differs from the oracle's."""
    drawn, random = plan(seed), Random(f"lookups of {seed}")
    with_lookups(drawn, random)
    is_durable, written = random.random() < 0.5, Written()
    cluster = EngineCluster(seed, drawn.workers)
    for record, change in drawn.changes:
        cluster.at(record, change)
    views: list[Any] = []

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        graph = records.port.scope.graph
        if is_durable:
            graph.extension(Durability).sink = written.sink(worker.index)
        flowing = records.exchange(lambda record: len(record[0]))
        for number, kind in enumerate(drawn.kinds):
            flowing = build_operator(kind, flowing.map(for_next) if number else flowing, commands, f"{kind} {number}")
        views.extend(graph.views)
        return flowing

    with parcels.small(seed, cluster), small_slices(random):
        cluster.run(build, drawn.feeds, drawn.commands)

    asked = {command.number: (time, command) for time, command in cluster.issued if isinstance(command, Lookup)}
    everything = sorted((entry for feed in drawn.feeds.values() for entry in feed), key=lambda entry: entry[0])
    snapshots, _ = oracle(drawn.kinds, everything, sorted({time for time, _ in asked.values()}))
    actions = [view.barrier_actions for view in views if view.barrier_actions is not None]
    answers = [answer for each in actions for answer in each.take_answers()]
    found = {(answer.lookup, answer.place): answer.text for answer in answers}
    assert len(found) == len(answers), f"seed {seed}: some keys are answered twice: {answers}"
    for number, (time, lookup) in asked.items():
        states = snapshots[time][lookup.operator][0]
        for place, (key, _) in enumerate(lookup.places):
            due = repr(states[key]) if key in states else None
            where = f"seed {seed}: {key!r} of {lookup.operator!r} before {time}"
            assert (number, place) in found, f"{where} is not answered"
            assert found[number, place] == due, f"{where} is {found[number, place]} and should be {due}"
