"""Capture: a stream's records, by time."""

import pytest

from megaflow.program import Worker
from megaflow.timely import InputHandle, example
from megaflow.timely.dataflow.capture.capture import Captured
from tests.timely.workers import EVERY, by_hand, run


def test_the_example_of_the_page() -> None:
    assert example(lambda scope: scope.to_stream(range(3)).capture()) == [(0, [0, 1, 2])]


def test_records_are_gathered_by_time_and_sorted() -> None:
    captured: Captured[int] = Captured()
    for time, batch in [(2, [5]), (0, [3, 1]), (2, [4]), (10, [])]:
        captured.add(time, batch)
    assert captured.extract() == [(0, [1, 3]), (2, [4, 5]), (10, [])]


def test_records_without_an_order_stay_as_they_came() -> None:
    captured: Captured[object] = Captured()
    captured.add(0, ["b", 1, None])
    captured.add(0, ["a"])
    assert captured.extract() == [(0, ["b", 1, None, "a"])]


def test_a_capture_can_be_read_while_the_dataflow_runs() -> None:
    hand, worker = by_hand()
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow() as scope:
        captured = scope.input_from(handle).capture()
    assert captured.extract() == []
    handle.send(1)
    handle.advance_to(1)
    hand.settle()
    first = captured.extract()
    handle.send(2)
    handle.advance_to(2)
    hand.settle()
    assert first == [(0, [1])] and captured.extract() == [(0, [1]), (1, [2])]


@pytest.mark.parametrize("workers", EVERY)
def test_each_worker_keeps_its_own_part(workers: int) -> None:
    def main(worker: Worker) -> Captured[int]:
        with worker.dataflow() as scope:
            return scope.to_stream([worker.index]).capture()

    assert run(workers, main) == [[(0, [index])] for index in range(workers)]
