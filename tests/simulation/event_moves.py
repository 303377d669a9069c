"""Random runs of programs with event time on a simulated cluster, with moves and watermarks at random times.

The scenarios are those of `membership`: bins move, workers join, receive bins and leave, coordinators hand over. Events
and watermarks are drawn independently, so many events are late. The outputs and their times must equal those of the
model in plain Python (`event_model`), which receives the same watermarks and clock readings at the same times.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from megaflow.megaphone.base.routing import Clock, Watermark
from megaflow.program import Worker
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from tests.simulation import event_programs, parcels
from tests.simulation.event_model import INFINITE
from tests.simulation.event_programs import SECOND
from tests.simulation.event_sources import draw_events
from tests.simulation.membership import draw_changes, draw_hand_overs


def draw_commands(random: Random, times: int) -> list[tuple[int, Any]]:
    """Draw watermarks and clock readings, perhaps several at a time, ending with the infinite watermark."""
    commands: list[tuple[int, Any]] = []
    micros, clock = random.randint(90, 110) * SECOND, 0
    for time in sorted(random.choices(range(times), k=random.randint(0, 10))):
        micros += random.choice([0, 1, 2, 5, 15]) * SECOND // 2
        clock += random.choice([0, 10_000, 50_000, 150_000])
        commands.append((time, random.choice([Watermark(micros), Watermark(micros), Clock(clock)])))
    last = Watermark(INFINITE, by_stop=len(commands) % 2 == 1)
    return [*commands, (times + random.randint(0, 2), last)]


def run(seed: int) -> None:
    """Run a seed and its model. Raise an AssertionError that names the seed if they disagree."""
    random = Random(f"event moves {seed}")
    scenario, changes = (draw_hand_overs if seed % 2 else draw_changes)(seed)
    program = event_programs.draw(random, in_order=False)  # a joiner takes over some of the others' input
    event_programs.draw_other(Random(f"two times {seed}"), program, partitions=1)
    event_programs.draw_stamped(Random(f"stamps {seed}"), program)
    feeds: dict[int, list[tuple[int, Any]]] = {}
    for worker, feed in scenario.feeds.items():
        feeds[worker] = [*zip(sorted(time for time, _ in feed), draw_events(random, program, worker, len(feed)))]
    commands = draw_commands(random, scenario.times)
    mixed = [*scenario.commands, *commands] if random.random() < 0.5 else [*commands, *scenario.commands]
    cluster = EngineCluster(seed, scenario.workers)
    for record, change in changes:
        cluster.at(record, change)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        outputs: Stream[Any] = event_programs.build(program, records, control=commands)
        return outputs

    with parcels.small(seed, cluster):
        outputs = cluster.run(build, feeds, sorted(mixed, key=lambda entry: entry[0]))
    found = Counter((time, json.dumps(record)) for time, record in outputs)
    events = sorted((entry for feed in feeds.values() for entry in feed), key=lambda entry: (entry[0], entry[1][1][1]))
    told = [entry for entry in cluster.issued if isinstance(entry[1], Watermark | Clock)]
    right = Counter(event_programs.expected(program, events, told, has_partitions=False))
    assert found == right, f"seed {seed}: missing are {few(right - found)}, too many {few(found - right)}"


def few(counts: Counter[Any]) -> list[Any]:
    """The first of these."""
    return sorted(counts.elements())[:6]
