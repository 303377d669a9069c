"""The oracle test with a changing membership, and tests that users can write with `megaflow.testing`."""

from collections import Counter
from typing import Any

import pytest

from megaflow import Move
from megaflow.testing import EngineCluster, HandOver, Join, Leave, Violation, engine_cluster
from megaflow.timely import Pipeline
from tests.simulation.membership import draw_hand_overs, run, run_processes

SEEDS = 150
HAND_OVER_SEEDS = 100
_FAST = 25
_SEEDS_PER_TEST = 25
_FAST_HAND_OVERS = 10
SEEDS_OF_SEVERAL = 24
_FAST_OF_SEVERAL = 4


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_outputs_and_their_times_are_those_of_one_worker_however_the_membership_changes(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        run(seed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST_HAND_OVERS else [])
        for first in range(0, HAND_OVER_SEEDS, _FAST_HAND_OVERS)
    ],
)
def test_so_they_are_when_the_coordinator_hands_over_or_leaves(first: int) -> None:
    for seed in range(first, first + _FAST_HAND_OVERS):
        run(seed, draw_hand_overs)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST_OF_SEVERAL else [])
        for first in range(0, SEEDS_OF_SEVERAL, _FAST_OF_SEVERAL)
    ],
)
def test_so_they_are_when_processes_have_several_workers(first: int) -> None:
    for seed in range(first, first + _FAST_OF_SEVERAL):
        run_processes(seed)


def test_the_workers_of_a_process_join_and_leave_together() -> None:
    words = [(time, f"word{number % 40}") for number, time in enumerate(sorted(list(range(100)) * 8))]
    cluster = EngineCluster(seed=1, workers=4, per_process=2)
    for number, change in enumerate([Join(), Leave(1), Join(4), Leave(5), HandOver()]):
        cluster.at(100 * (number + 1), change)
    outputs = cluster.run(counts, {0: words[:200], 3: words[200:]})
    assert not cluster.refusals
    assert [worker.index for worker in cluster.workers if not worker.rescaling.left] == [2, 3, 6, 7]
    assert {worker for _, (worker, _, _) in outputs} >= {*range(6)}
    assert Counter((word, total) for _, (_, word, total) in outputs) == Counter(
        (word, total + 1) for word, times in Counter(word for _, word in words).items() for total in range(times)
    )


def counts(worker: Any, records: Any, commands: Any) -> Any:
    return records.map(lambda word: (word, 1)).stateful_state_machine(
        lambda word, one, total: ((total or 0) + one, [(worker.index, word, (total or 0) + one)]),
        control=commands,
        bins=16,
        name="count",
    )


def test_a_worker_that_joins_at_a_chosen_record_applies_its_share_and_one_that_leaves_none_after() -> None:
    words = [(time, f"word{number % 40}") for number, time in enumerate(sorted(list(range(150)) * 8))]
    cluster = EngineCluster(seed=1, workers=2)
    cluster.at(record=100, do=Join())
    cluster.at(record=300, do=Join(server=2))
    cluster.at(record=600, do=Leave(2))
    outputs = cluster.run(counts, {0: words})
    assert not cluster.refusals
    seen = Counter(worker for _, (worker, _, _) in outputs)
    assert seen.keys() == {0, 1, 2, 3}
    assert Counter((word, total) for _, (_, word, total) in outputs) == Counter(
        (word, total + 1) for word, times in Counter(word for _, word in words).items() for total in range(times)
    )
    [left] = [worker for worker in cluster.workers if worker.rescaling.left]
    assert left.index == 2 and not left.graphs()


def test_the_far_timers_of_a_worker_that_leaves_are_due_elsewhere_once() -> None:
    due: list[tuple[int, str, int]] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        def fold(key: str, time: int, values: list[int], state: None, timers: Any) -> Any:
            if time < 1000:
                timers.at(1000 + values[0], 0)
            else:
                due.append((time, key, worker.index))
            return None, []

        return records.stateful_unary(fold, control=commands, bins=16, name="alarm")

    cluster = EngineCluster(seed=5, workers=3)
    cluster.at(record=40, do=Leave(2))
    cluster.at(record=60, do=Join())
    words = [(time, (f"word{time}", time)) for time in range(80)]
    cluster.run(build, {0: words})
    assert not cluster.refusals
    assert sorted((time, key) for time, key, _ in due) == [(1000 + time, f"word{time}") for time in range(80)]
    assert {worker for _, _, worker in due} == {0, 1, 3}


def test_a_worker_whose_bins_cannot_move_away_stays_and_nothing_is_lost() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return counts(worker, records, None)

    cluster = EngineCluster(seed=3, workers=2)
    cluster.at(record=10, do=Leave(1))
    outputs = cluster.run(build, {0: [(time, f"word{time % 7}") for time in range(40)]})
    [refusal] = cluster.refusals
    assert "worker 1 owns 8 bins of 'count': move them away first" in refusal
    assert len(outputs) == 40 and {worker for _, (worker, _, _) in outputs} == {0, 1}


def test_each_coordinator_may_leave_after_the_other_and_workers_join_in_between() -> None:
    words = [(time, f"word{number % 40}") for number, time in enumerate(sorted(list(range(100)) * 8))]
    cluster = EngineCluster(seed=1, workers=2)
    for number, change in enumerate([Leave(0), Join(), HandOver(), Leave(1), Join(2), Leave(2)]):
        cluster.at(100 * (number + 1), change)
    outputs = cluster.run(counts, {0: words[:200], 1: words[200:]})
    assert not cluster.refusals
    assert [worker.index for worker in cluster.workers if not worker.rescaling.left] == [3]
    assert Counter((word, total) for _, (_, word, total) in outputs) == Counter(
        (word, total + 1) for word, times in Counter(word for _, word in words).items() for total in range(times)
    )


def test_the_same_changes_happen_the_same_way_twice() -> None:
    runs = [run(11) for _ in range(2)]
    assert runs[0].issued == runs[1].issued
    assert [worker.index for worker in runs[0].workers] == [worker.index for worker in runs[1].workers]


@pytest.mark.parametrize("far", [2**20, 2**63 - 1, 2**63, 2**64, 10**30])
def test_times_may_be_far_apart(far: int) -> None:
    feeds = {0: [(0, "a"), (far, "b")], 1: [(5, "a"), (far + 1, "a")]}
    outputs = EngineCluster(seed=1, workers=2).run(counts, feeds, [(far, Move(3, 0))])
    assert [time for time, _ in outputs] == [0, 5, far, far + 1]
    assert sorted((word, total) for _, (_, word, total) in outputs) == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_a_run_without_end_says_what_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_cluster, "_FRUITLESS_ACTIONS_MAX", 500)

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.unary_frontier(Pipeline(), "Restless", restless)

    def restless(capability: Any, info: Any) -> Any:
        return lambda source, output: info.activator.activate()

    with pytest.raises(Violation, match=r"seed 1: no end after \d+ actions .* are left: worker 0: .*Restless"):
        EngineCluster(seed=1, workers=1, monitor=False).run(build, {0: [(0, "a")]})


def test_an_operator_that_wants_to_run_later_does_when_nothing_else_happens() -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.unary_frontier(Pipeline(), "Patient", patient)

    def patient(capability: Any, info: Any) -> Any:
        runs: list[int] = []

        def logic(source: Any, output: Any) -> None:
            runs.append(1)
            if len(runs) < 4:
                info.activator.activate_after(3600.0)
            elif capability.held:
                with capability, output.session(capability) as session:
                    session.give("late")

        return logic

    assert EngineCluster(seed=1, workers=2).run(build, {}) == [(0, "late"), (0, "late")]
