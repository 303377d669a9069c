"""Bounds change no result.

Queues and windows hold one to three records, and sources wait for room. Still everything completes, with the outputs of
one worker without bounds. If an operator never gets room, the cluster stops with pointstamps left.
"""

from random import Random

import pytest

from megaflow.megaphone.folds import stateful
from megaflow.testing import EngineCluster, Leave
from megaflow.timely.dataflow.flow_control.credit import Credits, Debts
from megaflow.timely.dataflow.flow_control.gates import Downstream
from megaflow.timely.dataflow.flow_control.handoffs import Bounds, Handoffs
from tests.simulation import graphs, membership, scenarios
from tests.simulation.membership import draw_changes, draw_hand_overs

SEEDS = 200
_SEEDS_PER_TEST = 20
_FAST = 20

SEEDS_FROM = pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S apply one batch at a time, with a turn of everything else in between."""
    monkeypatch.setattr(stateful, "TURN_SECONDS", 0.0)


def tiny(seed: int) -> Bounds:
    """Draw bounds of a few records."""
    random = Random(f"bounds {seed}")
    return Bounds(random.randint(1, 3), random.randint(1, 3))


@SEEDS_FROM
def test_random_graphs_with_loops_come_to_their_end(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        graphs.run(seed, tiny(seed))


@SEEDS_FROM
@pytest.mark.usefixtures("short_turns")
def test_so_do_stateful_operators_whose_bins_move(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        scenarios.run(scenarios.draw(seed), tiny(seed))


@pytest.mark.slow
@SEEDS_FROM
@pytest.mark.usefixtures("short_turns")
def test_so_do_clusters_that_workers_join_and_leave_and_whose_coordinators_change(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST // 2):
        membership.run(seed, draw_changes, tiny(seed))
        membership.run(seed, draw_hand_overs, tiny(seed))


def test_sources_are_told_that_there_is_no_room_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    told, ask = [], Downstream.is_full
    monkeypatch.setattr(Downstream, "is_full", lambda downstream: told.append(ask(downstream)) or told[-1])
    for seed in range(5):
        scenarios.run(scenarios.draw(seed), tiny(seed))
    assert sum(told) > 100, "else the tests above show nothing"


def test_credit_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Credits, "take_back", lambda credits, worker, records: None)
    cluster = EngineCluster(1, 2, bounds=Bounds(1, 1))
    words = [(time, f"word{time}") for time in range(20)]
    with pytest.raises(AssertionError, match=r"no end after|nothing can happen any more"):
        cluster.run(lambda worker, records, commands: records.exchange(len), {0: words, 1: words})


def test_credit_that_is_not_owed_is_missed_when_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Debts.add
    monkeypatch.setattr(Debts, "add", lambda debts, worker, records: add(debts, worker, records - 1))
    words = [(time, f"word{time}") for time in range(20)]
    with pytest.raises(AssertionError, match=r"of worker \d, which keeps|more than nothing"):
        EngineCluster(1, 2).run(lambda worker, records, commands: records.exchange(len), {0: words, 1: words})


def test_everybody_forgets_the_account_of_a_worker_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten, forget = [], Handoffs.forget

    def note(handoffs: Handoffs, workers: tuple[int, ...]) -> None:
        forget(handoffs, workers)
        forgotten.append(workers)
        accounts = [each.end.credits for each in handoffs._all if each.end.credits is not None]
        assert accounts and not any(credits.used(worker) for credits in accounts for worker in workers)

    monkeypatch.setattr(Handoffs, "forget", note)
    cluster = EngineCluster(1, 3, bounds=Bounds(2, 2))
    cluster.at(20, Leave(2))
    words = [(time, f"word{time}") for time in range(40)]
    outputs = cluster.run(lambda worker, records, commands: records.exchange(len), {0: words, 1: words})
    assert not cluster.refusals and len(outputs) == 80
    assert forgotten == [(2,)] * 3, "itself, too"
