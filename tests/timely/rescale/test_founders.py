"""Founders of a dataflow that is built during a change of the membership, and how late builders find their place."""

import pytest

from megaflow.errors import BuildError, CapabilityError, CommandRefused
from megaflow.timely.communication.channel import Lane
from megaflow.timely.membership import founding
from megaflow.timely.rescale.founders import Founders
from tests.timely.rescale.by_hand import Hands
from tests.timely.rescale.parts import begin, close, hello


def founders(hands: Hands, dataflow: int) -> dict[int, tuple[int, ...]]:
    return {
        index: graph.founders.ids
        for index, worker in hands.workers.items()
        for graph in worker.graphs()
        if graph.number == dataflow
    }


def test_a_dataflow_built_in_the_middle_of_a_join_is_founded_by_the_members_before_it() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    joiner, parts[2] = begin(hands)
    hands.held = lambda route: route[:2] == (1, 2)  # its marker: the join has to wait
    hands.settle()
    later = {0: hello(hands.workers[0], "later")}
    later[0].numbers.send_batch([0, 1, 2])
    hands.settle()
    hands.held = lambda route: False
    later[1] = hello(hands.workers[1], "later")
    assert joiner.bootstrap()
    hands.settle()
    assert founders(hands, 1) == {0: (0, 1), 1: (0, 1)}
    later[0].numbers.send_batch([3, 4, 5])
    hands.settle()
    later[2] = hello(joiner, "later")  # records for it have already arrived
    assert founders(hands, 1)[2] == (0, 1)
    hands.settle()
    assert [part.seen for part in later.values()] == [[0, 2, 3], [1, 4], [5]]
    close(hands, *parts.values(), *later.values())


def test_a_newcomer_that_builds_a_dataflow_of_its_elders_late_gets_no_capability_and_says_so() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    later = hands.everywhere(lambda worker: hello(worker, "later"))
    parts[2] = hands.join(hello)
    hands.settle()
    later[2] = hello(hands.workers[2], "later")
    hands.settle()
    with pytest.raises(CapabilityError, match="the input was closed"):
        later[2].numbers.send(1)
    later[0].numbers.send_batch([0, 1, 2])
    close(hands, *parts.values(), *later.values())
    assert [part.seen for part in later.values()] == [[0], [1], [2]]


def test_what_is_asked_before_the_commit_is_founded_by_the_old_members_also_if_nobody_had_begun_it() -> None:
    """Worker 1 asks after it has reported how much it has built, and receives the answer after the commit."""
    hands = Hands(2)
    parts = hands.everywhere(hello)
    joiner, parts[2] = begin(hands)
    hands.held = lambda route: route[:2] == (0, 2)
    hands.settle()
    assert hands.workers[1].rescaling.founders(1) is None
    hands.held = lambda route: route[:2] in [(0, 2), (0, 1)]
    hands.settle()
    hands.held = lambda route: route[:2] == (0, 1)
    hands.settle()
    hands.held = lambda route: False
    later = {1: hello(hands.workers[1], "later")}
    assert joiner.bootstrap()
    hands.settle()
    later[0] = hello(hands.workers[0], "later")
    later[2] = hello(joiner, "later")
    assert founders(hands, 1) == dict.fromkeys((0, 1, 2), (0, 1))
    close(hands, *parts.values(), *later.values())


def test_two_workers_that_ask_before_and_after_the_commit_are_told_the_same() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    joiner, parts[3] = begin(hands)
    hands.held = lambda route: route[:2] in [(0, 3), (1, 0)]
    hands.settle()
    later = {2: hello(hands.workers[2], "later")}
    hands.held = lambda route: False
    assert joiner.bootstrap()
    hands.settle()
    for index in (0, 1, 3):
        later[index] = hello(hands.workers[index], "later")
    assert founders(hands, 1) == dict.fromkeys(range(4), (0, 1, 2))
    close(hands, *parts.values(), *later.values())


def test_a_question_is_asked_again_when_the_next_change_has_begun_before_the_answer_was_looked_at() -> None:
    """In one step, worker 1 receives the answer, that the change is cancelled, and that the next one begins."""
    hands = Hands(2)
    parts = hands.everywhere(hello)
    begin(hands, port=50)
    hands.held = lambda route: route[:2] == (1, 2)
    hands.settle()
    assert hands.workers[1].rescaling.founders(1) is None
    hands.held = lambda route: route[:2] in [(1, 2), (0, 1)]
    hands.settle()  # asked and answered
    hands.die(2)
    hands.settle()
    joiner, parts[3] = begin(hands, port=51)
    hands.held = lambda route: route[:2] in [(1, 3), (0, 1)]
    hands.settle()
    while hands.waiting(0, 1, Lane.MAIL):
        hands.deliver(0, 1, Lane.MAIL)
    hands.held = lambda route: route[:2] == (1, 3)
    later = {1: hello(hands.workers[1], "later")}
    hands.held = lambda route: False
    assert joiner.bootstrap()
    hands.settle()
    for index in (0, 3):
        later[index] = hello(hands.workers[index], "later")
    assert founders(hands, 1) == {1: (0, 1), 0: (0, 1), 3: (0, 1)}
    close(hands, *parts.values(), *later.values())


# While a worker leaves ----------------------------------------------------------------------


def test_a_leave_waits_for_no_dataflow_that_the_leaver_has_yet_to_build_but_is_refused() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    hello(hands.workers[0], "later")
    with pytest.raises(CommandRefused, match="worker 1 has not built dataflow 1 yet"):
        hands.workers[1].retire()


def test_a_newcomer_that_has_yet_to_build_a_dataflow_of_its_elders_may_not_leave() -> None:
    """Records for it may be waiting here, and nothing would ever read them."""
    hands = Hands(2)
    parts = hands.everywhere(hello)
    later = hands.everywhere(lambda worker: hello(worker, "later"))
    parts[2] = hands.join(hello)
    later[0].numbers.send_batch([0, 1, 2])
    hands.settle()
    with pytest.raises(CommandRefused, match="worker 2 has not built dataflow 1 yet"):
        hands.workers[2].retire()
    later[2] = hello(hands.workers[2], "later")
    hands.workers[2].retire()
    hands.settle()
    del hands.workers[2]
    close(hands, parts[0], parts[1], later[0], later[1])


def test_a_dataflow_asked_about_while_members_are_asked_keeps_a_leaver_that_has_not_built_it() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    answers: list[str | None] = []
    hands.workers[2].rescaling.ask_leave(2, answers.append)
    hands.held = lambda route: route == (1, 0, Lane.MAIL)  # worker 1's report of it
    hands.settle()
    later = {0: hello(hands.workers[0], "later")}
    hands.held = lambda route: False
    hands.settle()
    assert answers == ["worker 2 has not built dataflow 1 yet"]
    for index in (1, 2):
        later[index] = hello(hands.workers[index], "later")
    assert founders(hands, 1) == dict.fromkeys(range(3), (0, 1, 2))
    close(hands, *parts.values(), *later.values())


def test_a_dataflow_asked_about_while_a_leaver_closes_its_inputs_is_founded_without_it() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    answers: list[str | None] = []
    hands.workers[2].rescaling.ask_leave(2, answers.append)
    hands.held = lambda route: route == (2, 0, Lane.MAIL) and hands.workers[2].retiring
    hands.settle()
    assert hands.workers[2].retiring and answers == []
    assert hands.workers[1].rescaling.founders(1) is None
    hands.settle()
    hands.held = lambda route: False
    later = {1: hello(hands.workers[1], "later")}
    hands.settle()
    later[0] = hello(hands.workers[0], "later")
    hands.settle()
    assert answers == [None]
    assert founders(hands, 1) == dict.fromkeys((0, 1), (0, 1))
    close(hands, *parts.values(), *later.values())


def test_a_worker_that_is_leaving_builds_nothing_any_more() -> None:
    hands = Hands(2)
    hands.everywhere(hello)
    hands.settle()
    hands.workers[1].rescaling.ask_leave(1, lambda reason: None)
    hands.held = lambda route: route == (1, 0, Lane.MAIL) and hands.workers[1].retiring
    hands.settle()
    assert hands.workers[1].retiring
    with pytest.raises(BuildError, match="this worker is leaving"):
        hello(hands.workers[1], "later")
    hands.held = lambda route: False
    hands.settle()
    with pytest.raises(BuildError, match="this worker is leaving"):
        hello(hands.workers[1], "later")


# The table ----------------------------------------------------------------------------------


def test_a_change_that_is_off_leaves_the_table_as_it_was() -> None:
    two, three = founding([0, 1]), founding([0, 1, 2])
    table = Founders(((0, two),))
    assert table.of(7) == two
    table.open()
    assert table.of(7) is None
    table.fix(7, two)
    assert table.of(7) == two and table.of(8) is None
    table.close()
    assert table.of(8) == two
    table.open()
    assert table.of(7) is None, "the word of an earlier change is worth nothing"
    table.commit(9, three)
    assert [table.of(number) for number in (7, 8, 9, 10)] == [two, two, three, three]


def test_a_later_change_that_founds_from_the_same_dataflow_on_replaces_the_row() -> None:
    table = Founders(((0, founding([0, 1])),))
    table.commit(1, founding([0, 1, 2]))
    table.commit(1, founding([0, 1, 2, 3]))
    assert [table.of(number) for number in (0, 1)] == [founding([0, 1]), founding([0, 1, 2, 3])]
