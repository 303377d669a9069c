"""`EngineCluster`: what it is fed, and what it refuses."""

import re
from typing import Any

import pytest

from megaflow import Map, Move
from megaflow.errors import UsageError
from megaflow.testing import EngineCluster, HandOver, Join


def count(word: str, one: int, total: int | None) -> Any:
    total = (total or 0) + one
    return total, [(word, total)]


def counts(worker: Any, records: Any, commands: Any) -> Any:
    return records.map(lambda word: (word, 1)).stateful_state_machine(count, control=commands, bins=16)


def test_a_flow_may_be_fed_lines_at_times_of_a_tests_choice() -> None:
    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, len(flow.args))).stateful_state_machine(count)

    feeds = {0: [(0, "a"), (0, "b"), (1, "a")], 1: [(5, "b")]}
    expected = [(0, ("a", 1)), (0, ("b", 1)), (1, ("a", 2)), (5, ("b", 2))]
    for seed in range(5):
        cluster = EngineCluster(seed, workers=2)
        cluster.at(record=2, do=Join())
        outputs = cluster.run(dataflow, feeds, [(1, Map((1, 0) * 128))], args=["x"])
        assert sorted(outputs) == expected, seed
        assert not cluster.refusals and (1, Map((1, 0) * 128)) in cluster.issued


@pytest.mark.parametrize(
    ("feeds", "commands", "message"),
    [
        ([(0, "a")], [], "feeds must be a dict, worker -> [(time, record), …], not [(0, 'a')]"),
        ({2: [(0, "a")]}, [], "There are feeds for workers [2], but the workers are [0, 1]"),
        ({1: [(5, "a"), (2, "b")]}, [], "feeds[1]: Times must be ints in order, from 0 on, but 2 comes after 5"),
        ({0: [(-1, "a")]}, [], "feeds[0]: Times must be ints in order, from 0 on, but -1 comes after 0"),
        ({}, [(0.5, Move(3, 1))], "commands: Times must be ints in order, from 0 on, but 0.5 comes after 0"),
    ],
)
def test_what_would_not_go_in_as_it_stands_is_refused(feeds: Any, commands: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        EngineCluster(seed=1, workers=2).run(lambda worker, records, commands: records, feeds, commands)


@pytest.mark.parametrize("wrong", [Join, "Join", None])
def test_what_is_no_change_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=re.escape("must be one of Join(), Leave(worker), KillJoiner(), ")):
        EngineCluster(seed=1).at(record=3, do=wrong)


def test_a_cluster_makes_one_run_on_one_worker_or_more() -> None:
    cluster = EngineCluster(seed=1, workers=1)
    assert cluster.run(counts, {0: [(0, "a")]}) == [(0, ("a", 1))]
    with pytest.raises(UsageError, match="A cluster makes one run"):
        cluster.run(counts, {0: [(0, "a")]})
    with pytest.raises(UsageError, match="at least 1 worker, not 0"):
        EngineCluster(seed=1, workers=0)


def test_a_coordinator_hands_over_though_all_records_have_entered() -> None:
    cluster = EngineCluster(seed=5, workers=2)
    cluster.at(1000, HandOver())
    assert sorted(cluster.run(counts, {0: [(0, "a")], 1: [(0, "a")]})) == [(0, ("a", 1)), (0, ("a", 2))]
    assert cluster.refusals == []
