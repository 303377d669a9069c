"""The agenda runs each operator at most once a pass, in the order of the graph."""

import pytest

from megaflow.timely.dataflow.agenda import Agenda


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
