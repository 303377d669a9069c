"""Splitting streams: partition, branch, branch_when, ok_err."""

from collections import Counter
from typing import Any

import pytest

from megaflow.errors import BuildError, ProgramError
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely import Err, InputHandle, Ok, Product, example
from tests.timely.workers import EVERY, by_hand, run


@pytest.mark.parametrize("workers", EVERY)
def test_partition_splits_by_number_and_concatenate_joins_again_without_moving_anything(workers: int) -> None:
    """Case 30."""

    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            numbers = scope.to_stream(range(10))
            parts = numbers.partition(3, lambda x: (x % 3, (worker.index, x)))
            return [part.capture() for part in parts], scope.concatenate(parts).capture()

    for index, (parts, whole) in enumerate(run(workers, main)):
        thirds = [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
        assert [part.extract() for part in parts] == [[(0, [(index, x) for x in third])] for third in thirds]
        assert whole.extract() == [(0, [(index, x) for x in range(10)])]


def test_partition_sends_what_the_function_returns_and_keeps_order_and_time() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[tuple[Any, str]] = []
    with worker.dataflow() as scope:
        even, _ = scope.input_from(handle).partition(2, lambda x: (x % 2, f"n{x}"))
        even.inspect_time(lambda time, x: seen.append((time, x)))
    handle.send_batch([4, 3, 2])
    handle.advance_to(7)
    handle.send_batch([0, 1])
    handle.flush()
    hand.settle()
    assert seen == [(0, "n4"), (0, "n2"), (7, "n0")]


def test_the_number_of_a_stream_may_be_any_int_that_a_dict_knows() -> None:
    [false, true] = example(
        lambda scope: [part.capture() for part in scope.to_stream([1, 2]).partition(2, lambda x: (x > 1, x))]
    )
    assert (false, true) == ([(0, [1])], [(0, [2])])


@pytest.mark.parametrize("returned", [(3, "x"), (-1, "x"), ("0", "x"), (None, "x"), ([0], "x"), 0, (0, 1, 2), None])
def test_a_partition_function_that_names_no_stream_is_refused_with_the_record(returned: Any) -> None:
    with pytest.raises(ProgramError, match=r"must return \(number, record\) with .* 0 to 2; for 'r'") as caught:
        example(lambda scope: scope.to_stream(["r"]).partition(3, lambda x: returned))
    [note] = caught.value.__notes__
    assert note.startswith("in operator 'Partition'") and note.endswith("worker 0, time 0, record 'r'")


@pytest.mark.parametrize("error", [KeyError("mine"), ValueError("mine"), TypeError("mine")])
def test_an_error_of_the_partition_function_is_raised_as_it_is(error: Exception) -> None:
    def f(x: int) -> tuple[int, int]:
        raise error

    with pytest.raises(type(error)) as caught:
        example(lambda scope: scope.to_stream([1]).partition(3, f))
    assert caught.value is error


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", True])
def test_a_number_of_streams_that_is_none_is_refused_while_building(count: Any) -> None:
    with pytest.raises(BuildError, match=r"partition\(.*test_branching.py:\d+\).*an int of at least 1"):
        example(lambda scope: scope.to_stream([1]).partition(count, lambda x: (0, x)))


@pytest.mark.parametrize("workers", EVERY)
def test_branch_gives_the_false_ones_first(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            numbers = scope.to_stream(range(worker.index, 2000, worker.peers)).delay(lambda x, time: x % 3)
            small, large = numbers.branch(lambda time, x: x >= 1000 or time == 2)
            return small.capture(), large.capture()

    small: Counter[Any] = Counter()
    large: Counter[Any] = Counter()
    for result in run(workers, main):
        for captured, records in zip(result, (small, large), strict=True):
            records.update((time, x) for time, batch in captured.extract() for x in batch)
    assert small == Counter((x % 3, x) for x in range(1000) if x % 3 < 2)
    assert small + large == Counter((x % 3, x) for x in range(2000))


def test_branch_when_asks_for_times_not_for_records() -> None:
    asked: list[Any] = []

    def is_late(time: Any) -> bool:
        asked.append(time)
        return bool(time >= 1)

    def build(scope: Scope) -> Any:
        early, late = scope.to_stream(range(10)).delay(lambda x, time: x // 5).branch_when(is_late)
        return early.capture(), late.capture()

    assert example(build) == ([(0, [0, 1, 2, 3, 4])], [(1, [5, 6, 7, 8, 9])])
    assert asked == [0, 1]


def test_branch_when_ends_a_loop_in_a_nested_scope() -> None:
    def build(scope: Scope) -> Any:
        with scope.iterative() as inner:
            handle, variable = inner.loop_variable(1)
            rounds = scope.to_stream([7]).enter(inner).concat(variable)
            done, going = rounds.branch_when(lambda time: time.inner < 4)
            going.connect_loop(handle)
            return rounds.capture(), done.leave().capture()

    assert example(build) == ([(Product(0, i), [7]) for i in range(5)], [(0, [7])])


def parse(text: str) -> Ok[int] | Err[str]:
    try:
        return Ok(int(text))
    except ValueError:
        return Err(f"{text} is no number")


def test_ok_err_unwraps_successes_and_failures() -> None:
    def build(scope: Scope) -> Any:
        oks, errs = scope.to_stream(["1", "two", "3"]).ok_err(parse)
        return oks.capture(), errs.capture()

    assert example(build) == ([(0, [1, 3])], [(0, ["two is no number"])])


def test_what_is_neither_ok_nor_err_is_refused_with_the_record() -> None:
    parse_badly: Any = int
    with pytest.raises(ProgramError, match=r"ok_err: the function returned 1 for '1', not Ok\(x\) or Err\(e\)"):
        example(lambda scope: scope.to_stream(["1"]).ok_err(parse_badly))


def test_ok_and_err_are_values() -> None:
    assert len({Ok(1), Ok(1), Err(1)}) == 2 and hash(Ok(1)) == hash(Ok(1))
    assert (Ok("x").value, Err("y").error, repr(Ok(1))) == ("x", "y", "Ok(value=1)")


@pytest.mark.parametrize("split", ["partition", "branch", "branch_when", "ok_err"])
def test_a_split_holds_no_time_back(split: str) -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        numbers = scope.input_from(handle)
        streams: Any = {
            "partition": lambda: numbers.partition(2, lambda x: (0, x)),
            "branch": lambda: numbers.branch(lambda time, x: True),
            "branch_when": lambda: numbers.branch_when(lambda time: False),
            "ok_err": lambda: numbers.ok_err(Ok),
        }[split]()
        probes = [stream.probe() for stream in streams]
    handle.send(1)
    handle.advance_to(3)
    hand.settle()
    assert [probe.frontier.elements for probe in probes] == [(3,), (3,)]
    handle.close()
    hand.settle()
    assert all(probe.done() for probe in probes) and not worker.installed_dataflows
