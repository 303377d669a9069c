"""The run queue runs each operator at most once per pass: drainers of full queues first, then in graph order."""

from dataclasses import dataclass

import pytest

from megaflow.timely.dataflow.run_queue import RunQueue


@dataclass(eq=False)
class Queue:
    """Queue over its mark."""

    records: int


def passes(run_queue: RunQueue, also: dict[int, list[int]]) -> list[list[int]]:
    """Run passes until none is left; running `n` adds `also[n]`, once."""
    result = []
    while run_queue:
        ran: list[int] = []

        def invoke(index: int, ran: list[int] = ran) -> None:
            ran.append(index)
            for other in also.pop(index, []):
                run_queue.add(other)

        run_queue.run(invoke)
        result.append(ran)
    return result


def test_operators_run_in_increasing_order_whatever_the_order_of_adding() -> None:
    run_queue = RunQueue()
    for index in (5, 1, 3):
        run_queue.add(index)
    assert passes(run_queue, {}) == [[1, 3, 5]]


def test_adding_twice_runs_once() -> None:
    run_queue = RunQueue()
    for _ in range(3):
        run_queue.add(2)
    assert passes(run_queue, {}) == [[2]]


def test_after_an_exception_the_others_run_in_the_next_pass() -> None:
    run_queue = RunQueue()
    for index in (1, 2, 5):
        run_queue.add(index)

    def fail_at_two(index: int) -> None:
        run_queue.add(index)
        if index == 2:
            raise ValueError(index)

    with pytest.raises(ValueError, match="2"):
        run_queue.run(fail_at_two)
    run_queue.add(3)
    assert passes(run_queue, {}) == [[1, 2, 3, 5]]


def test_the_owner_hears_of_the_first_operator_between_passes() -> None:
    calls: list[str] = []
    run_queue = RunQueue(lambda: calls.append("stirred"))
    run_queue.add(1)
    run_queue.add(2)
    assert calls == ["stirred"]
    run_queue.run(lambda index: run_queue.add(index))
    assert calls == ["stirred"] and run_queue
    run_queue.run(lambda index: None)
    run_queue.add(2)
    assert calls == ["stirred"] * 2


def test_what_comes_after_the_running_one_runs_in_the_same_pass() -> None:
    run_queue = RunQueue()
    run_queue.add(0)
    assert passes(run_queue, {0: [1], 1: [2], 2: [9, 3]}) == [[0, 1, 2, 3, 9]]


def test_what_comes_before_the_running_one_and_itself_wait_for_the_next_pass() -> None:
    run_queue = RunQueue()
    run_queue.add(3)
    assert passes(run_queue, {3: [3, 1]}) == [[3], [1, 3]]


def test_an_agenda_is_true_only_while_something_is_on_it() -> None:
    run_queue = RunQueue()
    assert not run_queue
    run_queue.add(0)
    assert run_queue
    run_queue.run(lambda index: None)
    assert not run_queue


def test_an_exception_ends_the_pass_and_passes_through() -> None:
    run_queue = RunQueue()
    run_queue.add(1)

    def fail(index: int) -> None:
        raise ValueError(index)

    with pytest.raises(ValueError, match="1"):
        run_queue.run(fail)
    run_queue.add(2)
    assert passes(run_queue, {}) == [[2]]


def test_who_drains_the_fullest_queue_runs_first_if_it_is_on_the_agenda() -> None:
    run_queue = RunQueue()
    for index in (1, 2, 3, 4):
        run_queue.add(index)
    run_queue.crowded.update({Queue(10): 3, Queue(30): 4, Queue(20): 3, Queue(99): 8})
    assert passes(run_queue, {}) == [[4, 3, 1, 2]]


def test_who_has_run_out_of_turn_does_not_run_again_in_the_same_pass() -> None:
    run_queue = RunQueue()
    run_queue.add(1)
    run_queue.add(5)
    run_queue.crowded[Queue(10)] = 5
    assert passes(run_queue, {5: [3, 7], 1: [5], 3: [1]}) == [[5, 1, 3, 7], [5, 1]]


def test_a_queue_that_fills_up_during_the_pass_is_drained_next() -> None:
    run_queue = RunQueue()
    ran = []

    def invoke(index: int) -> None:
        ran.append(index)
        if index == 1:
            run_queue.add(9)
            run_queue.crowded[Queue(3)] = 9

    for index in (1, 2, 3):
        run_queue.add(index)
    run_queue.run(invoke)
    assert ran == [1, 9, 2, 3] and not run_queue


def test_what_is_taken_off_in_the_middle_of_a_pass_does_not_run() -> None:
    run_queue = RunQueue()
    for index in (1, 2, 3):
        run_queue.add(index)
    ran = []
    run_queue.crowded[Queue(3)] = 2

    def invoke(index: int) -> None:
        ran.append(index)
        if index == 1:
            run_queue.clear()

    run_queue.run(invoke)
    assert ran == [2, 1] and not run_queue
