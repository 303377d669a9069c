"""Folding: count, accumulate and aggregate for each closed time; state_machine over all times."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.errors import ProgramError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import InputHandle, Product, example, less_than
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.cluster.processes import run_processes
from tests.results import check_equal
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY, by_hand

SEEDS = range(4)


def add(key: Any, value: int, total: int | None) -> int:
    return (total or 0) + value


def append(key: Any, value: Any, values: list[Any] | None) -> list[Any]:
    return [*(values or []), value]


def running(key: Any, value: int, total: int | None) -> tuple[int, list[Any]]:
    return (total or 0) + value, [(key, (total or 0) + value)]


def pair(key: Any, state: Any) -> Any:
    return key, state


def by_parity(worker: Worker, scope: Scope) -> Stream[tuple[int, int]]:
    """Build each worker's share of 0 to 9, as (parity, number)."""
    return scope.to_stream(range(worker.index, 10, worker.peers)).map(lambda x: (x % 2, x))


def together(results: list[Any]) -> dict[Any, list[Any]]:
    """Return the captures of all workers together: time -> records, sorted."""
    found: dict[Any, list[Any]] = {}
    for captured in results:
        for time, records in captured if isinstance(captured, list) else captured.extract():
            found.setdefault(time, []).extend(records)
    return {time: sorted(records) for time, records in found.items()}


# Per time, per worker -----------------------------------------------------------------------


def test_ten_numbers_add_up_to_45_and_are_ten() -> None:
    """Case 32."""
    assert example(lambda scope: scope.to_stream(range(10)).accumulate(0, lambda acc, x: acc + x).capture()) == [
        (0, [45])
    ]
    assert example(lambda scope: scope.to_stream(range(10)).count().capture()) == [(0, [10])]


@pytest.mark.parametrize("workers", EVERY)
def test_counts_and_sums_of_the_workers_shares_are_those_of_the_whole(workers: int) -> None:
    """Case 32."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            numbers = scope.to_stream(range(10)).exchange(lambda x: x).delay(lambda x, time: x // 5)
            sums = numbers.accumulate(0, lambda acc, x: acc + x)
            return numbers.count().capture(), sums.capture(), numbers.count().exchange(lambda n: 0).capture()

    results = run_threads(workers, main)
    counts = together([result[0] for result in results])
    sums = together([result[1] for result in results])
    assert {time: sum(each) for time, each in counts.items()} == {0: 5 * workers, 1: 5 * workers}
    assert {time: sum(each) for time, each in sums.items()} == {0: 10 * workers, 1: 35 * workers}
    assert together([result[2] for result in results]) == counts
    for index, (mine, _, _) in enumerate(results):
        shares = [len([x for x in range(5 * time, 5 * time + 5) if x % workers == index]) for time in (0, 1)]
        assert mine.extract() == [(time, [workers * share]) for time, share in enumerate(shares) if share]


def test_a_result_is_sent_when_its_time_is_closed_and_holds_the_frontier_until_then() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        probe = scope.input_from(handle).count().inspect_time(lambda *pair: seen.append(pair)).probe()
    for time, count in ((0, 2), (3, 1), (4, 5)):
        handle.advance_to(time)
        for _ in range(count):
            handle.send(time)
            handle.flush()
            hand.settle()
        assert time not in dict(seen) and probe.frontier.elements == (time,)
    handle.advance_to(9)
    hand.settle()
    assert seen == [(0, 2), (3, 1), (4, 5)] and probe.frontier.elements == (9,)
    handle.close()
    hand.settle()
    assert probe.done() and not worker.installed_dataflows and len(seen) == 3


def test_times_without_records_have_no_result() -> None:
    assert example(lambda scope: scope.empty().count().capture()) == []
    assert example(lambda scope: scope.empty().accumulate(0, lambda acc, x: acc).capture()) == []


def test_each_time_begins_with_its_own_copy_of_the_initial_value() -> None:
    def collect(acc: dict[str, list[int]], x: int) -> dict[str, list[int]]:
        acc["seen"].append(x)
        return acc

    init: dict[str, list[int]] = {"seen": []}
    captured = example(
        lambda scope: scope.to_stream(range(4)).delay(lambda x, time: x // 2).accumulate(init, collect).capture()
    )
    assert captured == [(0, [{"seen": [0, 1]}]), (1, [{"seen": [2, 3]}])] and init == {"seen": []}


def test_accumulate_folds_in_the_order_of_arrival() -> None:
    many = range(3 * BATCH_RECORDS)
    none: list[int] = []
    captured = example(lambda scope: scope.to_stream(many).accumulate(none, lambda acc, x: [*acc, x]).capture())
    assert captured == [(0, [list(many)])]


def test_an_error_of_the_function_is_raised_with_the_record() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        example(lambda scope: scope.to_stream([2, 1, 0]).accumulate(0, lambda acc, x: acc + 1 // x))
    assert caught.value.__notes__[-1].endswith("worker 0, time 0, record 0")
    assert caught.value.__notes__[-1].startswith("in operator 'Accumulate'")


def add_up(total: int, batch: Any) -> int:
    for x in batch:
        total += x
    return total


@pytest.mark.parametrize(
    ("init", "f", "words"),
    [
        (0, add_up, "gets one record at a time, not a batch"),
        (0, lambda total, batch: total + sum(batch), "gets one record at a time, not a batch"),
        (0, lambda total, batch: total + len(batch), "gets one record at a time, not a batch"),
        ([], lambda total, x: total.append(x), "returned None for the record before; it must return the new value"),
    ],
)
def test_accumulate_says_how_it_calls_its_function(init: Any, f: Any, words: str) -> None:
    with pytest.raises((AttributeError, TypeError)) as caught:
        example(lambda scope: scope.to_stream([1, 2]).accumulate(init, f))
    [note, _] = caught.value.__notes__
    assert note.startswith("accumulate calls f(accumulated, record), ") and words in note


# Per time and key ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", EVERY)
def test_aggregate_folds_each_key_wherever_its_values_come_from(workers: int) -> None:
    """Case 32."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            pairs = by_parity(worker, scope)
            return pairs.aggregate(add, pair).capture(), pairs.aggregate(append, lambda k, xs: (k, len(xs))).capture()

    results = run_threads(workers, main)
    assert together([sums for sums, _ in results]) == {0: [(0, 20), (1, 25)]}
    assert together([lengths for _, lengths in results]) == {0: [(0, 5), (1, 5)]}


def aggregate_and_machine(worker: Worker) -> Any:
    with worker.dataflow() as scope:
        pairs = by_parity(worker, scope)
        return pairs.aggregate(add, pair).capture(), pairs.state_machine(running).capture()


@pytest.mark.cluster
def test_aggregate_and_state_machine_find_their_keys_across_processes() -> None:
    """Case 32."""
    results = run_processes(aggregate_and_machine)
    check_equal(together([sums for sums, _ in results]), {0: [(0, 20), (1, 25)]})
    machine = together([outputs for _, outputs in results])[0]
    check_equal(len(machine), 10)
    check_equal([max(total for key, total in machine if key == each) for each in (0, 1)], [20, 25])


@pytest.mark.parametrize("workers", EVERY)
def test_aggregate_forgets_its_keys_with_the_time(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            pairs = by_parity(worker, scope).delay(lambda record, time: record[1] // 4)
            return pairs.aggregate(add, pair).capture()

    wanted = {0: [(0, 0 + 2), (1, 1 + 3)], 1: [(0, 4 + 6), (1, 5 + 7)], 2: [(0, 8), (1, 9)]}
    assert together(run_threads(workers, main)) == wanted


def test_many_keys_leave_in_batches() -> None:
    many, sizes = 3 * BATCH_RECORDS + 5, list[int]()

    def build(scope: Scope) -> Any:
        results = scope.to_stream(range(many)).map(lambda x: (x, x)).aggregate(add, pair)
        return results.inspect_batch(lambda time, batch: sizes.append(len(batch))).capture()

    assert example(build) == [(0, [(x, x) for x in range(many)])]
    assert sizes == [BATCH_RECORDS] * 3 + [5]


@pytest.mark.parametrize("operator", ["aggregate", "state_machine"])
@pytest.mark.parametrize("workers", EVERY)
def test_a_key_is_at_the_founder_that_its_hash_names(operator: str, workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            pairs = scope.to_stream(range(20)).map(lambda x: (x, 1))
            if operator == "aggregate":
                totals = pairs.aggregate(add, pair, lambda key: key + 1)
            else:
                totals = pairs.state_machine(running, lambda key: key + 1)
            return totals.capture()

    for index, captured in enumerate(run_threads(workers, main)):
        keys = {key for _, records in captured.extract() for key, _ in records}
        assert keys == {key for key in range(20) if (key + 1) % workers == index}


@pytest.mark.parametrize("operator", ["aggregate", "state_machine"])
def test_keys_that_a_dict_takes_for_one_are_one(operator: str) -> None:
    keys = [1, 1.0, True]

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            pairs = scope.to_stream([(keys[worker.index], 1)])
            totals = pairs.aggregate(add, pair) if operator == "aggregate" else pairs.state_machine(running)
            return totals.map(lambda pair: pair[1]).capture()

    found = [n for captured in run_threads(3, main) for _, totals in captured.extract() for n in totals]
    assert max(found) == 3


# Over all times -----------------------------------------------------------------------------


def test_state_machine_gives_running_totals_in_order() -> None:
    """Case 32."""
    seen: list[Any] = []
    pairs = [(x % 2, x) for x in range(10)]
    example(lambda scope: scope.to_stream(pairs).state_machine(running).inspect(seen.append))
    assert [total for key, total in seen if key == 0] == [0, 2, 6, 12, 20]
    assert [total for key, total in seen if key == 1] == [1, 4, 9, 16, 25]


def test_returning_none_forgets_the_key() -> None:
    def fold(key: str, value: int, state: int | None) -> tuple[int | None, list[Any]]:
        return (None if value < 0 else value), [(key, state)]

    pairs = [("a", 1), ("a", 2), ("a", -1), ("a", 3), ("b", -1), ("a", 0), ("a", 9)]
    seen: list[Any] = []
    example(lambda scope: scope.to_stream(pairs).state_machine(fold).inspect(seen.append))
    assert seen == [("a", None), ("a", 1), ("a", 2), ("a", None), ("b", None), ("a", 3), ("a", 0)]


def test_outputs_may_be_any_iterable_and_have_the_time_of_their_record() -> None:
    def fold(key: int, value: int, state: None) -> tuple[None, Any]:
        return None, (key + i for i in range(value))

    def build(scope: Scope) -> Any:
        return scope.to_stream([(10, 2), (20, 0), (30, 1)]).delay(lambda record, time: record[0]).state_machine(
            fold
        ).capture()

    assert example(build) == [(10, [10, 11]), (30, [30])]


def in_order_of_time(key: Any, value: Any, last: Any) -> tuple[Any, list[Any]]:
    """Emit the previous value and this one; a value is (time, number)."""
    return value, [(key, last, value)]


def test_values_are_applied_in_time_order_and_those_that_waited_come_first() -> None:
    """Values that wait for their time are applied before those that arrive once the time has come."""
    hand, worker = by_hand()
    early, late = InputHandle[Any](), InputHandle[Any]()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        both = scope.input_from(early).concat(scope.input_from(late))
        probe = both.state_machine(in_order_of_time).inspect(seen.append).probe()
    late.advance_to(5)
    late.send(("k", "first at 5"))
    late.flush()
    hand.settle()
    assert seen == [] and probe.frontier.elements == (0,)
    early.send(("k", "at 0"))
    early.flush()
    hand.settle()
    assert seen == [("k", None, "at 0")], "nothing can come from before"
    late.send(("k", "second at 5"))
    late.advance_to(7)
    early.advance_to(5)
    early.send(("k", "third at 5"))
    early.flush()
    hand.settle()
    order = [value for _, _, value in seen]
    assert order[:2] == ["at 0", "first at 5"] and sorted(order[2:]) == ["second at 5", "third at 5"]
    assert probe.frontier.elements == (5,)
    early.close()
    late.close()
    hand.settle()
    assert probe.done() and len(seen) == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_state_machine_is_exact_whatever_the_delivery(seed: int) -> None:
    """Case 25: each count of a word that all workers send is seen once, at its time."""
    feeds = {worker: [(time, ("round", 1)) for time in range(10)] for worker in range(3)}
    outputs = EngineCluster(seed).run(lambda worker, records, commands: records.state_machine(running), feeds)
    assert sorted(outputs) == [(time, ("round", 3 * time + i)) for time in range(10) for i in (1, 2, 3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_results_of_closed_times_are_exact_whatever_the_delivery(seed: int) -> None:
    """Case 26: words and their retractions; each count is sent once, at its time."""
    words = ["the", "quick", "brown", "fox", "the", "lazy", "dog", "the"]
    updates = [(time, (words[(time + i) % 8], 1)) for time in range(12) for i in range(4)]
    updates += [(time + 3, (word, -1)) for time, (word, _) in updates if time < 9]
    updates.sort(key=lambda update: update[0])
    feeds = {worker: updates[worker::3] for worker in range(3)}
    outputs = EngineCluster(seed).run(lambda worker, records, commands: records.aggregate(add, pair), feeds)
    model: dict[int, Counter[str]] = {}
    for time, (word, difference) in updates:
        model.setdefault(time, Counter())[word] += difference
    assert sorted(outputs) == sorted((time, each) for time, totals in model.items() for each in totals.items())


# Times of nested scopes -------------------------------------------------------------------


def nested(scope: Scope, fold: Callable[[Stream[Any]], Stream[Any]]) -> Any:
    """Fold pairs (key, Product) at those times; some of them have no order."""
    times = [Product(outer, inner) for outer in range(3) for inner in range(3)]
    with scope.iterative() as inner:
        stream = scope.to_stream(times[::-1] * 2).enter(inner).delay(lambda time, _: time)
        return fold(stream.map(lambda time: ("k", time))).capture()


def test_per_time_folds_work_on_times_without_an_order() -> None:
    times = [Product(outer, inner) for outer in range(3) for inner in range(3)]
    assert example(lambda scope: nested(scope, lambda stream: stream.count())) == [(time, [2]) for time in times]
    folded = example(lambda scope: nested(scope, lambda stream: stream.aggregate(append, pair)))
    assert folded == [(time, [("k", [time, time])]) for time in times]
    sums = example(lambda scope: nested(scope, lambda stream: stream.accumulate(0, lambda acc, record: acc + 1)))
    assert sums == [(time, [2]) for time in times]


def test_state_machine_never_applies_a_time_before_an_earlier_one() -> None:
    seen: list[Any] = []

    def fold(key: str, time: Product, state: None) -> tuple[None, list[Any]]:
        assert not any(less_than(time, earlier) for earlier in seen), "an earlier time was applied later"
        seen.append(time)
        return None, [time]

    captured = example(lambda scope: nested(scope, lambda stream: stream.state_machine(fold)))
    times = [Product(outer, inner) for outer in range(3) for inner in range(3)]
    assert captured == [(time, [time, time]) for time in times] and len(seen) == 18


def test_a_count_inside_a_loop_is_sent_round_by_round() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as inner:
            handle, variable = inner.loop_variable(1)
            rounds = scope.to_stream(range(5)).enter(inner).concat(variable)
            rounds = rounds.filter(lambda x: x > 1).map(lambda x: x - 1)
            rounds.connect_loop(handle)
            return rounds.count().capture()

    assert example(build) == [(Product(0, 0), [3]), (Product(0, 1), [2]), (Product(0, 2), [1])]


# Mistakes -----------------------------------------------------------------------------------


def keyed(operator: str, **wrong: Any) -> Callable[[Scope], Any]:
    def build(scope: Scope) -> None:
        stream = scope.to_stream([wrong.get("record", ("k", 1))])
        hash = wrong.get("hash", stable_hash)
        if operator == "aggregate":
            stream.aggregate(wrong.get("fold", add), wrong.get("emit", pair), hash)
        else:
            stream.state_machine(wrong.get("fold", running), hash)

    return build


OPERATORS = pytest.mark.parametrize("operator", ["aggregate", "state_machine"])


@OPERATORS
@pytest.mark.parametrize("record", [5, ("k",), ("k", 1, 2), None, "DE", {"k": 1, "v": 2}, {1, 2}, b"ab", ["k"]])
def test_a_record_that_is_no_pair_is_refused(operator: str, record: Any) -> None:
    with pytest.raises(ProgramError, match=rf"{operator}: records must be \(key, value\) pairs, but one is ") as caught:
        example(keyed(operator, record=record))
    assert f"one is {record!r}, a {type(record).__name__}; name the key with key=" in str(caught.value)


@OPERATORS
def test_a_key_that_no_dict_takes_is_refused(operator: str) -> None:
    with pytest.raises(ProgramError, match=rf"{operator}: the key \[1\] is a list, which cannot be a key"):
        example(keyed(operator, record=([1], 1), hash=lambda key: 7))


@OPERATORS
def test_a_hash_that_is_no_int_is_refused(operator: str) -> None:
    with pytest.raises(ProgramError, match=r"the key of \('k', 1\) is 'k', a str; it must be an int"):
        example(keyed(operator, hash=lambda key: key))


@OPERATORS
def test_a_fold_with_other_arguments_is_refused(operator: str) -> None:
    with pytest.raises(ProgramError, match=rf"{operator}: .*called as fold\(key, value, state\).*takes 1 positional"):
        example(keyed(operator, fold=lambda key: key))


@pytest.mark.parametrize("returned", [None, 5, (1, 2, 3), (1, None)])
def test_a_state_machine_fold_that_returns_no_pair_is_refused(returned: Any) -> None:
    with pytest.raises(ProgramError, match=r"must return \(new state, outputs\)") as caught:
        example(keyed("state_machine", fold=lambda key, value, state: returned))
    assert caught.value.__notes__[-1].endswith("time 0, record ('k', 1)")


@OPERATORS
def test_an_error_of_the_fold_is_raised_as_it_is_with_its_record(operator: str) -> None:
    error = TypeError("mine")

    def fold(key: str, value: int, state: Any) -> Any:
        raise error

    with pytest.raises(TypeError) as caught:
        example(keyed(operator, fold=fold))
    assert caught.value is error and error.__notes__[-1].endswith("worker 0, time 0, record ('k', 1)")


def test_an_error_of_emit_is_raised_with_key_and_state() -> None:
    def emit(key: str, state: int) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        example(keyed("aggregate", emit=emit))
    assert caught.value.__notes__[-1].endswith("time 0, record ('k', 1)")
