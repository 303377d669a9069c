"""The agenda runs each operator at most once a pass: drainers of full queues first, then in the order of the graph."""

from dataclasses import dataclass

import pytest

from megaflow.timely.dataflow.run_queue import Agenda


@dataclass(eq=False)
class Queue:
    """A queue over its mark."""

    records: int


def passes(agenda: Agenda, also: dict[int, list[int]]) -> list[list[int]]:
    """Run passes until none is left; running `n` adds `also[n]`, once."""
    result = []
    while agenda:
        ran: list[int] = []

        def invoke(index: int, ran: list[int] = ran) -> None:
            ran.append(index)
            for other in also.pop(index, []):
                agenda.add(other)

        agenda.run(invoke)
        result.append(ran)
    return result


def test_operators_run_in_increasing_order_whatever_the_order_of_adding() -> None:
    agenda = Agenda()
    for index in (5, 1, 3):
        agenda.add(index)
    assert passes(agenda, {}) == [[1, 3, 5]]


def test_adding_twice_runs_once() -> None:
    agenda = Agenda()
    for _ in range(3):
        agenda.add(2)
    assert passes(agenda, {}) == [[2]]


def test_what_comes_after_the_running_one_runs_in_the_same_pass() -> None:
    agenda = Agenda()
    agenda.add(0)
    assert passes(agenda, {0: [1], 1: [2], 2: [9, 3]}) == [[0, 1, 2, 3, 9]]


def test_what_comes_before_the_running_one_and_itself_wait_for_the_next_pass() -> None:
    agenda = Agenda()
    agenda.add(3)
    assert passes(agenda, {3: [3, 1]}) == [[3], [1, 3]]


def test_an_agenda_is_true_only_while_something_is_on_it() -> None:
    agenda = Agenda()
    assert not agenda
    agenda.add(0)
    assert agenda
    agenda.run(lambda index: None)
    assert not agenda


def test_an_exception_ends_the_pass_and_passes_through() -> None:
    agenda = Agenda()
    agenda.add(1)

    def fail(index: int) -> None:
        raise ValueError(index)

    with pytest.raises(ValueError, match="1"):
        agenda.run(fail)
    agenda.add(2)
    assert passes(agenda, {}) == [[2]]


def test_who_drains_the_fullest_queue_runs_first_if_it_is_on_the_agenda() -> None:
    agenda = Agenda()
    for index in (1, 2, 3, 4):
        agenda.add(index)
    agenda.crowded.update({Queue(10): 3, Queue(30): 4, Queue(20): 3, Queue(99): 8})
    assert passes(agenda, {}) == [[4, 3, 1, 2]]


def test_who_has_run_out_of_turn_does_not_run_again_in_the_same_pass() -> None:
    agenda = Agenda()
    agenda.add(1)
    agenda.add(5)
    agenda.crowded[Queue(10)] = 5
    assert passes(agenda, {5: [3, 7], 1: [5], 3: [1]}) == [[5, 1, 3, 7], [5, 1]]


def test_a_queue_that_fills_up_during_the_pass_is_drained_next() -> None:
    agenda = Agenda()
    ran = []

    def invoke(index: int) -> None:
        ran.append(index)
        if index == 1:
            agenda.add(9)
            agenda.crowded[Queue(3)] = 9

    for index in (1, 2, 3):
        agenda.add(index)
    agenda.run(invoke)
    assert ran == [1, 9, 2, 3] and not agenda


def test_what_is_taken_off_in_the_middle_of_a_pass_does_not_run() -> None:
    agenda = Agenda()
    for index in (1, 2, 3):
        agenda.add(index)
    ran = []
    agenda.crowded[Queue(3)] = 2

    def invoke(index: int) -> None:
        ran.append(index)
        if index == 1:
            agenda.clear()

    agenda.run(invoke)
    assert ran == [2, 1] and not agenda
