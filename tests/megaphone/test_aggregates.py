"""Aggregates: one output per key and time, equal to a plain loop's, in an order independent of arrival; errors."""

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any, assert_type

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import Move, Stream
from megaflow.durable.restored import unchanged
from megaflow.errors import BuildError, CannotTravel, ProgramError, UsageError
from megaflow.megaphone.folds import partial_results
from megaflow.megaphone.folds.aggregates import LAST_TIME
from megaflow.megaphone.folds.combining import SUM_BY_KEY
from megaflow.megaphone.folds.partial_results import Partials
from megaflow.scope import Scope
from megaflow.testing import EngineCluster
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.simulation.by_hand import ByHand, key_of, keys_of

BINS = 4  # with two workers bins 0 and 2 are worker 0's
KEY = key_of(0, BINS)

Build = Callable[[Any], Any]


def run(build: Build, feeds: dict[int, list[tuple[int, Any]]], workers: int = 0) -> list[tuple[Any, Any]]:
    """Return (time, output) of a dataflow, with as many workers as have inputs."""
    cluster = EngineCluster(5, workers or len(feeds))
    return cluster.run(lambda worker, records, commands: build(records), feeds)


def by_hand(build: Build, workers: int = 2) -> ByHand:
    return ByHand(lambda worker, records, commands: build(records), workers)


def count_by_value(records: Stream[Any]) -> Any:
    return records.count_by_value(bins=BINS)


# Outputs --------------------------------------------------------------------------------------


def test_each_key_has_one_output_for_each_time_at_which_it_has_records() -> None:
    outputs = run(count_by_value, {0: [(0, "a"), (0, "b"), (0, "a"), (2, "a")], 1: [(0, "a"), (1, "b")]})
    assert Counter(outputs) == Counter([(0, ("a", 3)), (0, ("b", 1)), (1, ("b", 2)), (2, ("a", 4))])


def test_counts_sums_and_folds_of_pairs() -> None:
    pairs = [(0, ("a", 2)), (0, ("b", 5)), (0, ("a", 3)), (1, ("a", 1))]
    assert run(lambda records: records.count_by_key(), {0: pairs}) == [(0, ("a", 2)), (0, ("b", 1)), (1, ("a", 3))]
    assert run(lambda records: records.sum_by_key(), {0: pairs}) == [(0, ("a", 5)), (0, ("b", 5)), (1, ("a", 6))]
    largest = run(lambda records: records.aggregate_by_key(None, lambda most, value: max(most or 0, value), max),
                  {0: pairs})  # fmt: skip
    assert largest == [(0, ("a", 3)), (0, ("b", 5)), (1, ("a", 3))]


def test_each_key_and_time_begins_with_a_copy_of_init() -> None:
    def add(values: list[int], value: int) -> list[int]:
        values.append(value)
        return values

    init: list[int] = []
    pairs = [(0, ("a", 1)), (0, ("b", 2)), (0, ("a", 3)), (1, ("a", 4))]
    outputs = run(lambda records: records.aggregate_by_key(init, add, lambda a, b: a + b), {0: pairs})
    assert outputs == [(0, ("a", [1, 3])), (0, ("b", [2])), (1, ("a", [1, 3, 4]))] and init == []


def test_sums_are_numbers_of_the_kind_that_addition_gives() -> None:
    outputs = run(lambda records: records.sum_by_key(), {0: [(0, ("a", True)), (0, ("b", 0.5))]})
    assert repr(outputs) == "[(0, ('a', 1)), (0, ('b', 0.5))]"
    decimals = run(lambda records: records.sum_by_key(), {0: [(0, ("a", Decimal("0.1")))], 1: [(0, ("a", 2))]})
    assert decimals == [(0, ("a", Decimal("2.1")))]


@pytest.mark.parametrize(("kind", "value"), [(numpy.int32, 2_000_000_000), (numpy.uint8, 200), (numpy.float16, 60_000)])
def test_sums_of_narrow_numbers_of_numpy_are_exact(kind: Any, value: int) -> None:
    pair = "a", kind(value)
    feed = {0: [(0, pair), (0, pair)], 1: [(0, pair), (1, pair)]}
    outputs = run(lambda records: records.sum_by_key(), feed)
    assert outputs == [(0, ("a", 3 * value)), (1, ("a", 4 * value))]
    assert all(type(total) in (int, float) for _, (_, total) in outputs)


def test_stored_sums_of_numpy_numbers_become_python_numbers() -> None:
    adapt = SUM_BY_KEY.form.adapter("sums")  # of an earlier megaflow
    assert adapt is not None
    total = adapt(numpy.int32(2_000_000_000))
    assert type(total) is int and SUM_BY_KEY.merge(total, 2_000_000_000) == 4_000_000_000
    assert SUM_BY_KEY.form.adapter(SUM_BY_KEY.form.text()) is unchanged
    assert SUM_BY_KEY.form.adapter("counts") is None


def test_bests_by_key_are_of_types_that_the_values_have() -> None:
    def build(worker: Any, records: Stream[tuple[str, float]], commands: Stream[Any]) -> Stream[tuple[str, float]]:
        assert_type(records.top_by_key(2, by=str, emit="end"), Stream[tuple[str, list[float]]])
        assert_type(records.min_by_key(key=str, value=len, name="lengths"), Stream[tuple[str, int]])
        return records.max_by_key(by=abs, name="greatest")

    feeds = {0: [(0, ("a", 1.5)), (0, ("a", float("nan")))], 1: [(0, ("a", -2.5)), (0, ("b", -1))]}
    outputs = EngineCluster(1, 2).run(build, feeds)
    assert repr(sorted(outputs, key=repr)) == "[(0, ('a', nan)), (0, ('b', -1))]"


def test_none_is_a_key_like_others() -> None:
    assert run(count_by_value, {0: [(0, None), (0, None)]}) == [(0, (None, 2))]


def test_equal_keys_of_different_types_are_one_key() -> None:
    [(time, (key, count))] = run(count_by_value, {0: [(0, 1), (0, True)], 1: [(0, 1.0)]})
    assert (time, key, count) == (0, 1, 3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(-9))), min_size=1, max_size=3),
    st.sampled_from(["count_by_value", "count_by_key", "sum_by_key", "aggregate_by_key"]),
    st.booleans(),
)
def test_outputs_are_those_of_a_plain_loop(
    given: list[list[tuple[int, str, int]]], kind: str, at_end: bool
) -> None:
    feeds = {worker: [(time, (key, value)) for time, key, value in sorted(some, key=lambda each: each[0])]
             for worker, some in enumerate(given)}  # fmt: skip
    expected, totals = [], Counter[Any]()
    for now in range(4):
        records = [record for feed in feeds.values() for time, record in feed if time == now]
        keys = [record if kind == "count_by_value" else record[0] for record in records]
        for key, (_, value) in zip(keys, records):
            totals[key] += value if kind in ("sum_by_key", "aggregate_by_key") else 1
        expected += [(now, (key, totals[key])) for key in set(keys)]

    placing: dict[str, Any] = {"bins": BINS, "emit": "end"} if at_end else {"bins": BINS}
    if at_end:
        expected = [(LAST_TIME, (key, total)) for key, total in dict(output for _, output in expected).items()]

    def build(records: Any) -> Any:
        if kind == "aggregate_by_key":
            return records.aggregate_by_key(0, lambda total, value: total + value, lambda a, b: a + b, **placing)
        return getattr(records, kind)(**placing)

    assert Counter(run(build, feeds)) == Counter(expected)


def rank(value: int) -> int:
    return value % 3


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 9))), min_size=1, max_size=3),
    st.sampled_from(["min", "max", "top"]), st.sampled_from([None, rank]), st.sampled_from(["epoch", "end"]),
)  # fmt: skip
def test_the_best_values_are_those_of_a_plain_loop(
    given: list[list[tuple[int, str, int]]], verb: str, by: Any, emit: Any
) -> None:
    feeds = {worker: [(time, (key, value)) for time, key, value in sorted(some, key=lambda each: each[0])]
             for worker, some in enumerate(given)}  # fmt: skip
    expected: list[Any] = []
    kept: dict[str, list[int]] = {}
    for now in range(4):
        records = [record for feed in feeds.values() for time, record in feed if time == now]
        for key, value in records:
            kept.setdefault(key, []).append(value)
        for key in {key for key, _ in records}:
            ranked = sorted(kept[key], key=lambda value: ((by or int)(value) * (1 if verb == "min" else -1), value))
            expected.append((now, (key, ranked[:3] if verb == "top" else ranked[0])))
    if emit == "end":
        expected = [(LAST_TIME, (key, found)) for key, found in dict(output for _, output in expected).items()]
    n = (3,) * (verb == "top")
    outputs = run(lambda records: getattr(records, f"{verb}_by_key")(*n, by=by, bins=BINS, emit=emit), feeds)
    assert sorted(outputs) == sorted(expected)


def test_results_at_the_end_come_from_the_last_owners() -> None:
    probes: list[Any] = []

    def build(worker: Any, records: Any, commands: Any) -> Any:
        counts = records.count_by_key(control=commands, bins=BINS, emit="end")
        probes.append(counts.probe())
        return counts

    hands = ByHand(build, 2)
    hands.records[0].send((KEY, 1))
    hands.records[0].send((key_of(1, BINS), 1))
    hands.command(3, Move(0, 1))
    hands.advance_to(2)
    hands.records[0].send((KEY, 1))
    hands.advance_to(5)
    hands.commands.advance_to(5)
    hands.settle()
    assert hands.owned() == [[2], [0, 1, 3]] and not hands.outputs and not probes[0].less_than(5)
    hands.records[1].send((KEY, 1))
    hands.finish()
    assert sorted(hands.outputs) == sorted([(LAST_TIME, (KEY, 3)), (LAST_TIME, (key_of(1, BINS), 1))])
    assert [worker.stateful[0].keys() for worker in hands.workers] == [0, 2], "states stay"


@pytest.mark.parametrize("before", [{}, {0: [(0, ("b", "x"))]}], ids=["alone", "beside earlier records"])
@pytest.mark.parametrize("later", [0, 1])
def test_an_aggregate_at_the_end_takes_the_results_of_another(before: Any, later: int) -> None:
    def build(records: Any) -> Any:
        words = records.count_by_key(bins=BINS, emit="end").delay(lambda count, time: time + later)
        some = records.filter(lambda record: record[1] == "x").map(lambda record: ("all", 100))
        return words.map(lambda count: ("all", count[1])).concat(some).sum_by_key(bins=BINS, emit="end", name="sum")

    feeds = {worker: [(0, ("a", 1)), (1, ("b", 1)), *before.get(worker, [])] for worker in (0, 1)}
    feeds = {worker: sorted(feed, key=lambda each: each[0]) for worker, feed in feeds.items()}
    outputs = run(build, feeds)
    counts = sum(len(feed) for feed in feeds.values())
    assert outputs[-1] == (LAST_TIME + later, ("all", counts + (100 if before else 0)))
    assert len(outputs) == (2 if before and later else 1)


@pytest.mark.parametrize("first", [0, 1])
def test_partial_results_are_merged_in_the_order_of_workers_whichever_comes_first(first: int) -> None:
    def joined(records: Any) -> Any:
        return records.aggregate_by_key("", lambda text, value: text + value, lambda a, b: a + b, bins=BINS)

    hands = by_hand(joined, 3)
    one, other = keys_of(0, BINS, 2)
    hands.held = [Lane.DATA]
    for worker in (2, 1):
        hands.records[worker].send((one, str(worker)))
        hands.records[worker].send((other if worker == 1 else "none", "x"))
    hands.records[0].send((one, "0"))
    for records in hands.records:
        records.close()
    hands.settle()
    for source in (1, 2) if first == 0 else (2, 1):
        while (source, 0) in hands.waiting(Lane.DATA):
            hands.deliver(source, 0, Lane.DATA)
            hands.held = [Lane.DATA, Lane.STATE]
            hands.settle()
            hands.held = [Lane.DATA]
    hands.finish()
    assert [output for _, output in hands.outputs if output[0] in (one, other)] == [(one, "012"), (other, "x")]


def test_more_keys_than_one_message_has_come_out_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_results, "BATCH_KEYS_MAX", 8)
    words = [(0, f"word{number}") for number in range(35)]
    outputs = run(count_by_value, {0: words, 1: words[:10]})
    assert Counter(outputs) == Counter((0, (word, 1 + (number < 10))) for number, (_, word) in enumerate(words))


def test_aggregates_in_a_loop_see_each_round_as_a_time() -> None:
    def build(records: Any) -> Any:
        with Scope(records.port.scope).scoped("loop") as loop:
            handle, back = loop.feedback(1)
            counted = records.enter(loop).concat(back).count_by_value(bins=BINS)
            again = counted.filter(lambda output: output[1] < 3).map(lambda output: output[0])
            again.connect_loop(handle)
            return counted.leave()

    outputs = run(build, {0: [(0, "a"), (1, "b")], 1: [(0, "a")]})
    assert outputs == [(0, ("a", 2)), (0, ("a", 3)), (1, ("b", 1)), (1, ("b", 2)), (1, ("b", 3))]


def test_results_at_the_end_are_refused_in_a_loop() -> None:
    def build(records: Any) -> Any:
        with Scope(records.port.scope).scoped("loop") as loop:
            return records.enter(loop).count_by_value(emit="end").leave()

    with pytest.raises(BuildError, match=r'count_by_value .*: emit="end" is not possible in a nested scope.*leave'):
        run(build, {0: []})


def test_types_are_inferred() -> None:
    def build(worker: Any, records: Stream[str], commands: Stream[Any]) -> Stream[tuple[str, float]]:
        counts = records.count_by_value(control=commands, bins=BINS, hash=len)
        assert_type(counts, Stream[tuple[str, int]])
        assert_type(counts.count_by_key(name="changes"), Stream[tuple[str, int]])
        lengths = counts.map(lambda pair: (pair[0][0], pair[1] / 2))
        assert_type(lengths.aggregate_by_key(0.0, max, max), Stream[tuple[str, float]])
        return lengths.sum_by_key()

    outputs = EngineCluster(1, 2).run(build, {0: [(0, "ab"), (0, "a"), (1, "ab")]})
    assert outputs == [(0, ("a", 1.0)), (1, ("a", 2.0))]


# Times, and what travels ----------------------------------------------------------------------


def test_one_partial_result_a_key_and_time_travels() -> None:
    hands = by_hand(count_by_value)
    for _ in range(50):
        hands.records[1].send(KEY)
        hands.records[1].flush()
        hands.settle()
    assert not [lane for _, _, lane, _, _ in hands.delivered if lane is Lane.DATA], "time 0 is open"
    hands.finish()
    assert [(source, target, time, len(batch)) for source, target, lane, time, batch in hands.delivered
            if lane is Lane.DATA] == [(1, 0, 0, 1)]  # fmt: skip
    assert hands.outputs == [(0, (KEY, 50))]


def test_states_move_and_what_was_combined_for_a_time_goes_to_its_owner_then() -> None:
    hands = ByHand(lambda worker, records, commands: records.count_by_value(control=commands, bins=BINS), 2)
    hands.records[0].send(KEY)
    hands.command(3, Move(0, 1))
    hands.advance_to(2)
    hands.records[0].send(KEY)
    hands.advance_to(3)
    hands.records[0].send(KEY)
    hands.settle()
    assert hands.owned() == [[2], [0, 1, 3]]
    hands.finish()
    assert hands.outputs == [(0, (KEY, 1)), (2, (KEY, 2)), (3, (KEY, 3))]
    assert [worker.stateful[0].keys() for worker in hands.workers] == [0, 1]


def test_partial_results_survive_their_way() -> None:
    partials = Partials(3, ["a", ("b", 1)], [1, Decimal("2.5")])
    for each in (decode(encode(partials)), partials.copy()):
        assert type(each) is Partials and repr(each) == repr(partials)
    more = partials.copy()
    more.extend(Partials(3, ["c"], [4]))
    assert len(more) == 3 and len(partials) == 2


# Errors in a program --------------------------------------------------------------------------


def adds(total: Any, value: Any) -> Any:
    return total + value


ERRORS: list[tuple[Build, Any, type[Exception], str]] = [
    (lambda records: records.count_by_value(), ["a"], ProgramError,
     "count_by_value: the record ['a'] is a list, which cannot be a key"),
    (lambda records: records.count_by_value(name="words"), {"a": 1}, ProgramError, "words: the record {'a': 1} is a"),
    (lambda records: records.count_by_value(), float("nan"), UsageError, "NaN cannot be a key"),
    (lambda records: records.count_by_value(), object(), UsageError, "has no stable hash"),
    (lambda records: records.count_by_value(hash=lambda key: "x"), "a", UsageError, "gave 'x' of type str"),
    (lambda records: records.count_by_value(hash=lambda key: 1), object(), CannotTravel, "object"),
    (lambda records: records.count_by_key(), "abc", ProgramError,
     "count_by_key: records must be (key, value) pairs, but one is 'abc', a str"),
    (lambda records: records.count_by_key(), (["a"], 1), ProgramError, "the key ['a'] is a list, which cannot be"),
    (lambda records: records.sum_by_key(), ("a", None), ProgramError,
     "sum_by_key: the value None of key 'a' is a NoneType, but only numbers have a sum"),
    (lambda records: records.sum_by_key(), ("a", "1"), ProgramError,
     "the value '1' of key 'a' is a str, but only numbers"),
    (lambda records: records.sum_by_key(), (["a"], 1), ProgramError, "the key ['a'] is a list"),
    (lambda records: records.sum_by_key(), 7, ProgramError, "records must be (key, value) pairs, but one is 7, a int"),
    (lambda records: records.aggregate_by_key(0, lambda total, value: None, adds), ("a", 1), ProgramError,
     "aggregate_by_key: add(accumulated, 1) returned None for key 'a'"),
    (lambda records: records.aggregate_by_key(0, lambda value: value, adds), ("a", 1), ProgramError,
     "add is called as add(accumulated, value)"),
    (lambda records: records.aggregate_by_key(0, adds, adds), ({}, 1), ProgramError, "the key {} is a dict"),
    (lambda records: records.max_by_key(by=lambda value: None), ("a", 3), ProgramError,
     "max_by_key: by= returned None for the value 3, which cannot be ordered"),
    (lambda records: records.max_by_key(by=lambda value: 1), ("a", None), ProgramError, "the value None of key 'a'"),
    (lambda records: records.top_by_key(2, by=len), ("a", 3), TypeError, "key 'a', value 3"),
    (lambda records: records.min_by_key(), (["a"], 1), ProgramError, "the key ['a'] is a list"),
    (lambda records: records.aggregate_by_key(0, lambda total, value: adds, adds), ("a", 1), CannotTravel, "key"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ERRORS)))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_record_that_cannot_be_counted_stops_the_job_by_an_error_that_shows_it(number: int, workers: int) -> None:
    build, record, kind, words = ERRORS[number]
    with pytest.raises(kind) as caught:
        run(build, {0: [(0, record)]}, workers)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert words in told and ("_by_" in told or "words" in told)


@pytest.mark.parametrize(
    "merge, words",
    [(lambda a, b: None, "merge(1, 2) returned None for key 'a'"), (lambda a: a, "merge(")],
)
def test_a_merge_that_is_wrong_is_told(merge: Any, words: str) -> None:
    with pytest.raises(ProgramError, match="aggregate_by_key: ") as caught:
        run(lambda records: records.aggregate_by_key(0, adds, merge), {0: [(0, ("a", 1)), (1, ("a", 2))]})
    assert words in str(caught.value)


def test_a_merge_that_changes_what_was_given_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(a: list[int], b: list[int]) -> list[int]:
        a += b
        return a

    def build(records: Any) -> Any:
        return records.map(lambda pair: (pair[0], [pair[1]])).aggregate_by_key([], adds, merge)

    pairs = [(0, ("a", 1)), (1, ("a", 2))]
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing")
    with pytest.raises(ProgramError, match=r"the fold for key 'a' returned .*\[1\].* it is now .*\[1, 2\]"):
        run(build, {0: pairs})


@pytest.mark.parametrize("times", [(0, 0), (0, 1)])
def test_numbers_that_cannot_be_added_are_told_with_their_key(times: tuple[int, int]) -> None:
    pairs = [(times[0], ("a", Decimal(1))), (times[1], ("a", 0.5))]
    with pytest.raises(ProgramError, match=r"sum_by_key: 0\.5, a float, cannot be added to the sum of key 'a'"):
        run(lambda records: records.sum_by_key(), {0: pairs})


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda records: records.aggregate_by_key(list, adds, adds), "init must be a value, not a function"),
        (lambda records: records.aggregate_by_key(0, 1, adds), "add must be a function, not 1"),
        (lambda records: records.aggregate_by_key(0, adds, None), "merge must be a function, not None"),
        (lambda records: records.aggregate_by_key((x for x in ""), adds, adds), "cannot be copied for each key"),
        (lambda records: records.max_by_key(by=3), "by must be a function, not 3"),
        (lambda records: records.top_by_key(0), "n must be an int of at least 1, not 0"),
        (lambda records: records.count_by_key(emit="every"), 'emit must be "epoch" (a result for each epoch'),
        (lambda records: records.count_by_value(bins=3), "bins=3: the number of bins must be a power of two"),
        (lambda records: records.count_by_value(hash=3), "hash must be a function, not 3"),
        (lambda records: records.count_by_key(control=3), "control= of count_by_key"),
        (lambda records: records.count_by_key(version=0), "version must be an int of at least 1"),
    ],
)
def test_a_wrong_argument_is_refused_while_the_dataflow_is_built(build: Build, words: str) -> None:
    with pytest.raises(BuildError) as caught:
        run(build, {0: []})
    assert words in str(caught.value)


def test_an_argument_that_there_is_not_is_a_type_error_that_names_those_there_are() -> None:
    with pytest.raises(TypeError, match=r"count_by_key\(\) got an unexpected keyword argument 'bin'; it takes hash"):
        run(lambda records: records.count_by_key(bin=3), {0: []})
