"""Quiet broadcasting: progress that moves no frontier is held back, but no worker waits without end."""

from collections import Counter
from typing import Any

import pytest

from megaflow.testing import EngineCluster
from megaflow.timely import Capability, InputHandle, Pipeline, ProbeHandle
from tests.simulation.scenarios import Log, Scenario, build, draw
from tests.timely.workers import ByHand

SEEDS = 300
_SEEDS_PER_TEST = 25


def simulate(scenario: Scenario, eager: bool) -> tuple[Counter[Any], int]:
    """Return the outputs of a random run and its number of progress batches; the monitor watches."""
    cluster = EngineCluster(scenario.seed, scenario.workers, eager=eager)
    outputs = cluster.run(lambda *given: build(scenario, Log(), *given), scenario.feeds, scenario.commands)
    return Counter(outputs), cluster.batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _SEEDS_PER_TEST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_quiet_runs_end_with_the_outputs_of_eager_ones_and_fewer_batches(first: int) -> None:
    """Case 44, at random. The monitor checks the frontiers of both runs against the same brute-force account."""
    totals = [0, 0]
    for seed in range(first, first + _SEEDS_PER_TEST):
        scenario = draw(seed)
        quiet, eager = simulate(scenario, False), simulate(scenario, True)
        assert quiet[0] == eager[0], f"seed {seed}"
        totals[0] += quiet[1]
        totals[1] += eager[1]
    assert totals[0] < totals[1]


BATCHES, RECORDS, STEPS = 200, 2_000, 600


def held_input(workers: int, eager: bool) -> tuple[list[int], int, int, int]:
    """Worker 0 holds time 0 and sends through two exchanges. Return the received records and the batches before,
    during, after.
    """
    hand = ByHand(workers, eager)
    handles: list[InputHandle[int]] = []
    probes: list[ProbeHandle] = []
    seen = [0] * workers
    for worker in hand.workers:

        def count(time: Any, batch: list[int], index: int = worker.index) -> None:
            seen[index] += len(batch)

        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            moved = stream.exchange(lambda x: x).map(lambda x: x // 3).exchange(lambda x: x)
            probes.append(moved.inspect_batch(count).probe())
            handles.append(handle)
    for handle in handles[1:]:
        handle.close()
    hand.settle()
    before = len(hand.batches)
    records = list(range(RECORDS))
    for step in range(STEPS):
        if step < BATCHES:
            handles[0].send_batch(records)
        for worker in hand.workers:
            worker.step()
    during = len(hand.batches) - before
    assert all(probe.frontier.elements == (0,) for probe in probes)
    handles[0].close()
    hand.settle()
    assert all(probe.done() for probe in probes)
    assert not any(worker.installed_dataflows for worker in hand.workers)
    return seen, before, during, len(hand.batches) - before - during


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_while_an_input_is_held_quiet_workers_tell_less_and_answer_alike(workers: int) -> None:
    """Case 44."""
    quiet, eager = held_input(workers, False), held_input(workers, True)
    assert quiet[0] == eager[0] and sum(quiet[0]) == BATCHES * RECORDS
    assert quiet[1] <= eager[1] and quiet[2] <= eager[2]
    assert quiet[3] <= 10 * workers, "few after the release"
    if workers > 1:
        assert quiet[2] < eager[2] / 10, "nothing that was produced and consumed behind the input is told"


def test_two_workers_that_hold_one_count_each_do_not_wait_for_each_other() -> None:
    """The pointstamp counts two. A release of one waits for nothing, least of all for the other."""
    hand = ByHand(2)
    handles = []
    for worker in hand.workers:
        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            probe = stream.exchange(lambda x: x).probe()
            handles.append((handle, probe))
    hand.settle()
    for handle, _ in handles:
        handle.advance_to(1)  # each removes one of the two
    hand.settle()
    assert [probe.frontier.elements for _, probe in handles] == [(1,), (1,)]


def test_what_is_held_goes_out_as_soon_as_what_it_waits_for_is_gone() -> None:
    hand = ByHand(2)
    kept: dict[int, Capability] = {}
    ends = []
    for worker in hand.workers:

        def keep(capability: Capability, info: Any) -> Any:
            kept[info.worker] = capability
            return lambda source, output: None

        with worker.dataflow() as scope:
            handle, stream = scope.new_input()
            ends.append((handle, stream.unary(Pipeline(), "Keep", keep).probe()))
    hand.settle()
    before = len(hand.batches)
    kept[1].downgrade(3)  # still behind the inputs, which hold 0
    hand.settle()
    assert len(hand.batches) == before
    for handle, _ in ends:
        handle.advance_to(5)
    kept[0].release()
    hand.settle()
    assert [probe.frontier.elements for _, probe in ends] == [(3,), (3,)]
    kept[1].release()
    hand.settle()
    assert [probe.frontier.elements for _, probe in ends] == [(5,), (5,)]


def test_what_is_held_is_bounded() -> None:
    """A worker whose records' times keep changing reports them now and then, although it need not."""
    hand = ByHand(2)
    kept: dict[int, Capability] = {}
    for worker in hand.workers:

        def spread(capability: Capability, info: Any) -> Any:
            kept[info.worker] = capability
            return lambda source, output: None

        with worker.dataflow() as scope:
            _, stream = scope.new_input()
            stream.unary(Pipeline(), "Spread", spread).probe()
    hand.settle()
    before = len(hand.batches)
    for number in range(1000):
        kept[number] = kept[0].delayed(number + 1)
        hand.settle()
    assert 1 <= len(hand.batches) - before <= 10
    assert all(len(graph.progress.caster.held) <= 200 for worker in hand.workers for graph in worker.graphs())
