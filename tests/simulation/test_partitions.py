"""A key's values of one partition are applied in its order, through moves, joins and leaves; what users write."""

import re
from collections import Counter
from typing import Any

import pytest

from megaflow import Map, Move, tumbling
from megaflow.errors import BuildError, UsageError
from megaflow.testing import HandOver, Join, Leave, SimulatedCluster
from tests.simulation import partitions

SEEDS = 250
_SEEDS_PER_TEST = 20
_FAST = 40


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= _FAST else [])
        for first in range(0, SEEDS, _SEEDS_PER_TEST)
    ],
)
def test_a_keys_values_of_one_partition_are_applied_in_its_order_whatever_moves(first: int) -> None:
    for seed in range(first, first + _SEEDS_PER_TEST):
        partitions.run(seed)


def test_these_runs_see_readers_leave_with_lines_unread() -> None:
    read_on = 0
    for seed in range(20):
        issued = Counter(type(command).__name__ for _, command in partitions.run(seed).issued)
        read_on += issued["AssignSplits"] > 1
    assert read_on > 2, "else the test above shows little"


def count(word: str, one: int, total: int | None) -> Any:
    total = (total or 0) + one
    return total, [(word, total)]


def counts(flow: Any) -> Any:
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=16)


def test_a_flow_sees_all_that_it_sees_in_a_job() -> None:
    seen = []

    def dataflow(flow: Any) -> Any:
        assert flow.lines() is flow.lines()
        seen.append((flow.worker.index, flow.args, flow.worker.peers))
        ticks = flow.control.map(lambda numbered: numbered.number).filter(lambda number: False)
        return flow.lines().concat(flow.scope.to_stream(["one"] if flow.worker.index == 0 else []), ticks)

    outputs = SimulatedCluster(seed=1, workers=2).run(dataflow, lines=["a\n", "b"], args=["--fast", "3"])
    assert sorted(outputs) == ["a", "b", "one"]
    assert seen == [(0, ["--fast", "3"], 2), (1, ["--fast", "3"], 2)]


def test_records_come_by_epoch_so_the_last_count_of_a_word_comes_last() -> None:
    for seed in range(5):
        cluster = SimulatedCluster(seed, workers=3)
        cluster.at(record=30, do=Join())
        cluster.at(record=60, do=Leave(0))
        outputs = cluster.run(counts, lines={"left": ["a", "b"] * 30, "right": iter(["b", "c"] * 30)})
        assert not cluster.refusals
        assert dict(outputs) == {"a": 30, "b": 60, "c": 30} and len(outputs) == 120


def test_bins_move_at_a_chosen_record_and_a_wrong_move_is_refused() -> None:
    cluster = SimulatedCluster(seed=3, workers=2)
    cluster.at(record=10, do=Map((1,) * 16))
    cluster.at(record=20, do=Move(bin=5, worker=0))
    cluster.at(record=20, do=Move(bin=16, worker=0))
    cluster.at(record=20, do=Move(bin=5, worker=7))
    assert dict(cluster.run(counts, lines=["a"] * 40)) == {"a": 40}
    assert [worker.stateful[0].owned() for worker in cluster.workers] == [[5], [*range(5), *range(6, 16)]]
    no_bin, no_worker = cluster.refusals
    assert "there is no bin 16; bins are 0 to 15" in no_bin
    assert "there is no worker 7 that may own bins; the workers are 0, 1" in no_worker


def test_workers_may_be_moved_to_and_leave_in_any_order_though_all_lines_are_read() -> None:
    cluster = SimulatedCluster(seed=5, workers=2)
    for change in [Join(), Move(3, 2), HandOver(), Leave(0), Leave(1), Leave(2)]:
        cluster.at(1000, change)
    assert dict(cluster.run(counts, lines=[["a", "b"], ["a"], []])) == {"a": 2, "b": 1}
    assert [worker.index for worker in cluster.workers if not worker.rescaling.left] == [2]
    assert cluster.refusals == ["there is no worker 2 that could leave"]


def test_there_is_nothing_to_move_without_a_stateful_operator_and_readers_may_leave_all_the_same() -> None:
    cluster = SimulatedCluster(seed=2, workers=2)
    for record, change in enumerate([Move(0, 1), Join(), Leave(0), Leave(1)]):
        cluster.at(record, change)
    outputs = cluster.run(lambda flow: flow.lines().map(str.upper), lines=[["a", "b", "c"] * 10, ["d"] * 10])
    assert Counter(outputs) == {"A": 10, "B": 10, "C": 10, "D": 10}
    [refusal] = cluster.refusals
    assert "no stateful operator, so there are no bins to move" in refusal


def test_a_worker_that_a_job_would_not_let_go_stays() -> None:
    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, 1)).state_machine(count)

    cluster = SimulatedCluster(seed=2, workers=2)
    cluster.at(3, Leave(1))
    assert dict(cluster.run(dataflow, lines=[["a"] * 20, ["b"] * 20])) == {"a": 20, "b": 20}
    [refusal] = cluster.refusals
    assert "operators whose records go to its founding workers" in refusal


def test_no_line_is_no_output() -> None:
    assert SimulatedCluster(seed=1).run(counts, lines=[]) == []
    assert SimulatedCluster(seed=1).run(counts, lines={}) == []


def test_what_is_no_dataflow_is_refused_as_a_job_refuses_it() -> None:
    for wrong, message in [
        (lambda flow: None, "must return its output, a Stream; it returned None"),
        (lambda flow: flow.lines().event_time(float).window(tumbling(60)), "becomes of the windows: .count()"),
        (lambda flow: flow.scope.empty(), "never called flow.lines()"),
    ]:
        with pytest.raises(BuildError, match=re.escape(message)):
            SimulatedCluster(seed=1).run(wrong, lines=["a"])
    for wrong, name in [("app.py", "'app.py'"), (lambda word, n, total: None, "<lambda>(word, n, total)")]:
        message = f"must be a function of one argument, the flow, as in dataflow(flow), not {name}"
        with pytest.raises(UsageError, match=re.escape(message)):
            SimulatedCluster(seed=1).run(wrong, lines=["a"])  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("books/*.txt", "reads no files: lines must be an iterable of str, .* not 'books/.*' \\(str\\)"),
        (3, "not 3 \\(int\\)"),
        (["a", 3], "one is 3 \\(int\\)"),
        ([["a"], "b"], "one is \\['a'\\] \\(list\\)"),
        ({"left": "abc"}, "a partition must be an iterable of str, not 'abc' \\(str\\)"),
        ([["a"], [b"b"]], "one is b'b' \\(bytes\\)"),
    ],
)
def test_what_are_no_lines_is_refused(lines: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SimulatedCluster(seed=1).run(counts, lines=lines)


def test_a_run_has_lines_or_feeds() -> None:
    for given in [{}, {"lines": ["a"], "feeds": {0: [(0, "a")]}}]:
        with pytest.raises(UsageError, match="and not both"):
            SimulatedCluster(seed=1).run(counts, **given)  # type: ignore[call-overload]


def test_a_flow_may_be_fed_lines_at_times_of_ones_choice() -> None:
    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word, len(flow.args))).stateful_state_machine(count)

    feeds = {0: [(0, "a"), (0, "b"), (1, "a")], 1: [(5, "b")]}
    expected = [(0, ("a", 1)), (0, ("b", 1)), (1, ("a", 2)), (5, ("b", 2))]
    for seed in range(5):
        cluster = SimulatedCluster(seed, workers=2)
        cluster.at(record=2, do=Join())
        outputs = cluster.run(dataflow, feeds, [(1, Map((1, 0) * 128))], args=["x"])
        assert sorted(outputs) == expected, seed
        assert not cluster.refusals and (1, Map((1, 0) * 128)) in cluster.issued


def test_an_exception_of_the_dataflow_comes_out_with_its_notes() -> None:
    def dataflow(flow: Any) -> Any:
        return flow.lines().map(int)

    with pytest.raises(ValueError, match="invalid literal") as raised:
        SimulatedCluster(seed=1).run(dataflow, lines=["1", "x"])
    assert any("'x'" in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("feeds", "commands", "message"),
    [
        ([(0, "a")], [], "feeds must be a dict, worker -> [(time, record), …], not [(0, 'a')]"),
        ({2: [(0, "a")]}, [], "there are feeds for workers [2]; the workers are [0, 1]"),
        ({1: [(5, "a"), (2, "b")]}, [], "feeds[1]: times must be ints in order, from 0 on; 2 comes after 5"),
        ({0: [(-1, "a")]}, [], "feeds[0]: times must be ints in order, from 0 on; -1 comes after 0"),
        ({}, [(0.5, Move(3, 1))], "commands: times must be ints in order, from 0 on; 0.5 comes after 0"),
    ],
)
def test_what_would_not_go_in_as_it_stands_is_refused(feeds: Any, commands: Any, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        SimulatedCluster(seed=1, workers=2).run(lambda worker, records, commands: records, feeds, commands)


@pytest.mark.parametrize("wrong", [Join, "Join", None])
def test_what_is_no_change_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match=re.escape("must be one of Join(), Leave(worker), KillJoiner(), ")):
        SimulatedCluster(seed=1).at(record=3, do=wrong)


def test_a_cluster_makes_one_run_on_one_worker_or_more() -> None:
    cluster = SimulatedCluster(seed=1, workers=1)
    assert cluster.run(counts, lines=["a"]) == [("a", 1)]
    with pytest.raises(UsageError, match="a cluster makes one run"):
        cluster.run(counts, lines=["a"])
    with pytest.raises(UsageError, match="at least 1 worker, not 0"):
        SimulatedCluster(seed=1, workers=0)


def test_the_source_of_lines_is_declared_where_the_program_calls_for_them() -> None:
    places = set()

    def dataflow(flow: Any) -> Any:
        lines = flow.lines()
        places.update(node.where for node in flow.scope.ref.graph.nodes if node.name == "Lines")
        return lines

    assert SimulatedCluster(seed=1).run(dataflow, lines=["a"]) == ["a"]
    [place] = places
    assert place.startswith(f"{__file__}:")


def test_a_state_that_refers_to_one_object_twice_is_the_same_state_after_a_move() -> None:
    def visit(key: str, word: str, visits: Any) -> Any:
        visits = visits or {"all": []}
        if len(visits["all"]) % 3 == 0:
            visits["all"].append(visits.setdefault("last", []))
        visits["last"].append(word)
        if len(visits["last"]) == 4:
            visits["last"] = []
            visits["all"].append(visits["last"])
        return visits, [[list(each) for each in visits["all"]]]

    def dataflow(flow: Any) -> Any:
        return flow.lines().map(lambda word: (word[0], word)).stateful_state_machine(visit, bins=16)

    lines = [f"a{n}" for n in range(40)]
    still = SimulatedCluster(seed=1, workers=2).run(dataflow, lines=lines)
    for seed in range(5):
        cluster = SimulatedCluster(seed, workers=2)
        for record in range(3, 40, 5):
            cluster.at(record, Map(((record // 5) % 2,) * 16))
        assert cluster.run(dataflow, lines=lines) == still
        assert not cluster.refusals
