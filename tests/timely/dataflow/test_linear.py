"""Stateless operators: their outputs and the times of these."""

import inspect
import threading
from copy import deepcopy
from typing import Any

import pytest

from megaflow.errors import ProgramError
from megaflow.program import Worker
from megaflow.timely import InputHandle, example
from megaflow.timely.dataflow.builder import BATCH_RECORDS
from tests.timely.workers import EVERY, by_hand, drain, run


def test_map_flat_map_and_filter_do_what_the_builtins_do() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream(range(10))
        return (
            stream.map(lambda x: x * x).capture(),
            stream.filter(lambda x: x % 3 == 0).capture(),
            stream.flat_map(lambda x: "ab" * (x == 1)).capture(),
        )

    assert example(build) == ([(0, [x * x for x in range(10)])], [(0, [0, 3, 6, 9])], [(0, ["a", "b"])])


def test_flat_map_of_the_book_gives_36_records() -> None:
    """Case 29."""
    [(time, records)] = example(lambda scope: scope.to_stream(range(9)).flat_map(range).capture())
    assert time == 0 and len(records) == 36
    assert {x: records.count(x) for x in records} == {x: 8 - x for x in range(8)}


def test_flat_map_takes_generators_and_large_results() -> None:
    many = 10 * BATCH_RECORDS + 3
    seen: list[int] = []
    sizes: list[int] = []

    def build(scope: Any) -> None:
        stream = scope.to_stream([many, 0, 2]).flat_map(lambda n: (i for i in range(n)))
        stream.inspect(seen.append).inspect_batch(lambda time, batch: sizes.append(len(batch)))

    example(build)
    assert seen == [*range(many), 0, 1]
    assert max(sizes) <= 4 * BATCH_RECORDS


def test_a_filter_that_keeps_nothing_still_lets_time_pass() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    batches: list[Any] = []
    with worker.dataflow() as scope:
        stream = scope.input_from(handle).filter(lambda x: False)
        probe = stream.inspect_batch(lambda time, batch: batches.append(batch)).probe()
    handle.send(1)
    handle.advance_to(1)
    hand.settle()
    assert probe.frontier.elements == (1,)
    assert batches == []


def test_inspections_see_records_with_their_times_and_pass_them_on() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    seen: list[Any] = []
    with worker.dataflow() as scope:
        stream = scope.input_from(handle).inspect(lambda x: seen.append(x))
        stream = stream.inspect_time(lambda time, x: seen.append((time, x)))
        captured = stream.inspect_batch(lambda time, xs: seen.append((time, xs))).capture()
    handle.advance_to(3)
    handle.send_batch([1, 2])
    handle.close()
    hand.settle()
    assert seen == [1, 2, (3, 1), (3, 2), (3, [1, 2])]
    assert captured.extract() == [(3, [1, 2])]


def test_a_batch_given_to_inspect_batch_is_a_copy() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream([1, 2])
        stream.inspect_batch(lambda time, batch: batch.clear())
        return stream.inspect_batch(lambda time, batch: batch.append(3)).capture()

    assert example(build) == [(0, [1, 2])]


def test_map_in_place_changes_the_records_themselves() -> None:
    records = [[1], [2]]
    captured = example(lambda scope: scope.to_stream(records).map_in_place(lambda record: record.append(0)).capture())
    assert captured == [(0, [[1, 0], [2, 0]])]


@pytest.mark.parametrize("fusion", ["on", "off"])
@pytest.mark.parametrize("way", ["beside", "above", "broadcast"])
def test_what_one_branch_changes_in_place_another_one_does_not_see(
    way: str, fusion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_FUSION", fusion)

    def build(scope: Any) -> Any:
        stream = scope.to_stream([[1], [2]])
        match way:
            case "beside":
                before, after = stream.inspect(seen.append), stream
            case "above":
                before, after = stream.map(lambda record: record), stream.filter(len).map(lambda record: record)
            case _:
                before, after = stream, stream.broadcast()
        branches = [after.map_in_place(lambda record: record.append(0)), before.map(list), after.map(list)]
        return [branch.capture() for branch in branches]

    seen: list[Any] = []
    changed, *others = example(build)
    assert changed == [(0, [[1, 0], [2, 0]])]
    assert others == [[(0, [[1], [2]])]] * 2
    assert seen in ([], [[1], [2]])


def test_what_nobody_else_has_is_changed_itself() -> None:
    given = [[1]]
    example(lambda scope: scope.to_stream(given).filter(len).map_in_place(lambda record: record.append(0)).capture())
    assert given == [[1, 0]]


def test_a_record_that_cannot_be_copied_is_named_with_the_remedy() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream([threading.Lock()])
        return [stream.map_in_place(lambda lock: None).capture(), stream.capture()]

    with pytest.raises(ProgramError, match=r"has several consumers, .* a lock, cannot be copied .*__deepcopy__"):
        example(build)


def test_consumers_of_one_stream_do_not_disturb_each_other() -> None:
    def build(scope: Any) -> Any:
        stream = scope.to_stream(range(3))
        return [stream.map(str).capture(), stream.capture(), stream.concat(stream).capture()]

    assert example(build) == [[(0, ["0", "1", "2"])], [(0, [0, 1, 2])], [(0, [0, 0, 1, 1, 2, 2])]]


@pytest.mark.parametrize("workers", EVERY)
def test_records_that_cannot_be_encoded_stay_usable_within_a_process(workers: int) -> None:  # engine case 54
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            locks = scope.to_stream([threading.Lock()]).exchange(lambda lock: worker.index + 1)
            return locks.map(lambda lock: lock.acquire(blocking=False)).capture()

    assert run(workers, main) == [[(0, [True])]] * workers


def test_a_stream_of_a_running_dataflow_takes_no_more_operators() -> None:
    _, worker = by_hand()
    with worker.dataflow("words") as scope:
        stream = scope.to_stream([1])
    with pytest.raises(Exception, match="Map: the dataflow 'words' is already running; operators cannot be added"):
        stream.map(abs)


def in_place(f: Any, record: Any, fused: bool) -> list[Any]:
    """Return what `map_in_place` makes of two such records, alone or in a group of operators."""
    _, worker = by_hand()
    with worker.dataflow(fusion=fused) as scope:
        stream = scope.to_stream([0, 1]).map(lambda x: deepcopy(record))
        captured = stream.map_in_place(f).filter(lambda x: True).capture()
    drain(worker)
    return [record for _, records in captured.extract() for record in records]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("record", "f"),
    [
        (1, lambda x: x + 1), (None, str), (True, lambda x: not x), ("ab", lambda x: x[:1]), ("ab", str.upper),
        (b"ab", bytes.hex), ((1, 2), lambda x: (x[0], 0)), ({"a": 1}, lambda x: {**x, "b": 2}), ([2, 1], sorted),
        ({1}, lambda x: x | {2}), ((), lambda x: 3),
    ],
)  # fmt: skip
def test_map_in_place_refuses_a_function_that_makes_a_new_record(record: Any, f: Any, fused: bool) -> None:
    with pytest.raises(ProgramError, match=r"map_in_place: .* left the record .* write map\(f\)") as caught:
        in_place(f, record, fused)
    assert "in operator 'MapInPlace'" in caught.value.__notes__[0]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("record", "f", "wanted"),
    [
        ([1], lambda x: x.append(2), [1, 2]), ([1], lambda x: x.append(2) or x, [1, 2]), ([1, 2], list.pop, [1]),
        ({"a": 1}, lambda x: x.pop("a"), {}), ({"a": 1}, lambda x: x.setdefault("a", 2), {"a": 1}),
        ({"a": {}}, lambda x: x["a"].setdefault("b", {}), {"a": {"b": {}}}), ((1, [2]), lambda x: x[1].pop(), (1, [])),
        ([[3]], lambda x: [*x], [[3]]), (1, lambda x: None, 1), ({"a": 1}, lambda x: x, {"a": 1}),
    ],
)  # fmt: skip
def test_map_in_place_ignores_results_of_functions_that_change(
    record: Any, f: Any, wanted: Any, fused: bool
) -> None:
    assert in_place(f, record, fused) == [wanted, wanted]


@pytest.mark.parametrize("fused", [True, False])
def test_map_in_place_looks_at_the_first_record_only(fused: bool) -> None:
    callers: list[str] = []

    def f(record: list[int]) -> None:
        callers.append(inspect.stack(0)[1].function)

    in_place(f, [], fused)
    assert callers == ["first", "fused"]
