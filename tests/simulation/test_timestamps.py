"""Dataflows whose times are not ints, on simulated workers that join and leave.

A dataflow with int times carries the records of an `EngineCluster`. On each worker, one of its operators sends them
through an `InputHandle` into a second dataflow with times of another kind. Each worker advances along its own path
through those times. The monitor checks the frontiers of both against the brute-force account of all counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import lcm
from random import Random
from typing import Any

import pytest

from megaflow.testing import EngineCluster, HandOver, Join, KillJoiner, Leave
from megaflow.timely import Antichain, InputHandle, Pipeline, Product, Time
from tests.simulation.graphs import admitted
from tests.timely.times import Divisor, Times

SEEDS = 100
_FAST = 10
_SEEDS_PER_TEST = 10
_LARGEST = 10**30

Record = tuple[int, int, int]  # key, turns of the inner loop each time, turns of the outer loop


@dataclass(frozen=True, slots=True)
class Kind:
    """Times of one kind."""

    least: Time
    step: Any  # of the outer loop
    stamp: Callable[[int, int], Any]  # worker and number -> time, increasing with the number
    join: Callable[[Any, Any], Any]  # a time after both


KINDS = (
    Kind((0, 0), (0, 1), lambda worker, number: (number // 3, number), max),
    Kind(
        Product(0, 0),
        Product(0, 1),
        lambda worker, number: Product(number, 0) if worker % 2 else Product(0, number),
        lambda a, b: Product(max(a.outer, b.outer), max(a.inner, b.inner)),
    ),
    Kind(
        Divisor(1),
        Times(5, _LARGEST),
        lambda worker, number: Divisor((2 + worker % 2) ** number),
        lambda a, b: Divisor(lcm(a.number, b.number)),
    ),
    Kind(
        Product(Divisor(1), (0, 0)),
        Product(Times(7, _LARGEST), 0),
        lambda worker, number: Product(Divisor(2 ** (number * (worker % 2))), (number * (1 - worker % 2), 0)),
        lambda a, b: Product(Divisor(lcm(a.outer.number, b.outer.number)), max(a.inner, b.inner)),
    ),
)


def run(seed: int) -> EngineCluster:
    """Draw kind, records and changes, run them, and compare the outputs with the input."""
    random = Random(f"other times {seed}")
    kind = random.choice(KINDS)
    workers = random.choice([2, 2, 3])
    feeds = {
        worker: [
            (time, (random.randrange(50), random.randint(0, 2), random.randint(0, 2)))
            for time in sorted(random.randrange(8) for _ in range(random.randint(0, 10)))
        ]
        for worker in range(workers)
    }
    cluster = EngineCluster(seed, workers)
    for _ in range(random.randint(0, 3)):
        change = random.choice([Join(), Join(), Join(1), Leave(), HandOver()])
        cluster.at(random.randint(0, 15), change)
        if isinstance(change, Join) and random.random() < 0.2:
            cluster.at(0, KillJoiner(random.randint(0, 80)))
    sent: list[int] = []
    came: list[int] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        handle: InputHandle[Record] = InputHandle()
        with worker.dataflow("at other times", timestamp=kind.least) as scope:
            dataflow(scope, scope.input_from(handle), kind).inspect(lambda record: came.append(record[0]))
        return records.unary_frontier(Pipeline, "Bridge", bridge(worker, handle, kind, sent))

    cluster.run(build, feeds)
    assert Counter(came) == Counter(sent), f"seed {seed}: what came out is not what went in"
    assert len(sent) == sum(map(len, feeds.values())) or any(worker.rescaling.left for worker in cluster.workers)
    return cluster


def dataflow(scope: Any, records: Any, kind: Kind) -> Any:
    """Build a loop inside a loop of the root's times, with an operator in between that waits for closed times."""
    outer, again = scope.feedback(kind.step)
    with scope.iterative() as inside:
        inner, rounds = inside.loop_variable(1)
        entered = records.concat(again).map(lambda record: (record, record[1])).enter(inside)
        spread = entered.concat(rounds).exchange(lambda pair: pair[0][0] + pair[1])
        done, going = spread.branch(lambda time, pair: pair[1] > 0)
        going.map(lambda pair: (pair[0], pair[1] - 1)).connect_loop(inner)
        left = done.leave().map(lambda pair: pair[0])
    held = left.exchange(lambda record: record[0] * 3).unary_frontier(Pipeline, "Hold", hold)
    finished, more = held.branch(lambda time, record: record[2] > 0)
    more.map(lambda record: (record[0], record[1], record[2] - 1)).connect_loop(outer)
    return finished


def hold(capability: Any, info: Any) -> Any:
    """Send records when their time is closed."""
    capability.release()
    stash: dict[Any, list[Record]] = {}

    def logic(source: Any, output: Any) -> None:
        frontier: Antichain = source.frontier
        for time, data in admitted(source, [frontier]):
            stash.setdefault(time.retain(), []).extend(data)
        for held in [each for each in stash if not frontier.less_equal(each.time)]:
            with held, output.session(held) as session:
                session.give_iterator(stash.pop(held))

    return logic


def bridge(worker: Any, handle: InputHandle[Record], kind: Kind, sent: list[int]) -> Any:
    """Send records at times of the other kind.

    Send nothing once the engine has closed the handle, as it does in a leaving worker.
    """

    def move(number: int) -> None:
        handle.advance_to(kind.join(handle.time, kind.stamp(worker.index, number)))

    def build(capability: Any, info: Any) -> Any:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, data in source:
                if not handle.closed:
                    move(time.time)
                    handle.send_batch(data)
                    sent.extend(key for key, _, _ in data)
            if source.frontier.is_empty():
                handle.close()
            elif not handle.closed:
                move(source.frontier.elements[0])

        return logic

    return build


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_all_records_come_out_and_no_frontier_excludes_what_may_come_however_the_membership_changes(first: int) -> None:
    changes = 0
    for seed in range(first, first + _SEEDS_PER_TEST):
        cluster = run(seed)
        changes += len({worker.index for worker in cluster.workers if worker.rescaling.left or worker.index > 2})
    assert changes > 0, "workers joined and left"
