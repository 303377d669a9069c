"""Leaving: all work of a leaver is completed, no member drops it too soon, and workers that must stay stay."""

from typing import Any

import pytest

from megaflow.errors import CommandRefused
from megaflow.program import Worker
from megaflow.timely import Capability, Exchange, InputHandle, OperatorInfo, Pipeline
from megaflow.timely.communication.channel import Lane
from megaflow.timely.rescale.messages import Left
from tests.timely.rescale.by_hand import Hands, Route
from tests.timely.rescale.parts import close, hello


def gone(hands: Hands, *ids: int) -> None:
    """Check that these have left: all workers reported it and dropped them."""
    rest = tuple(index for index in hands.workers if index not in ids)
    for index in ids:
        assert hands.workers[index].rescaling.left and hands.workers[index].installed_dataflows == {}
    for index in rest:
        assert hands.workers[index].peer_ids == hands.workers[index].rescaling.audience == rest
        left = hands.events[index][-1]
        assert isinstance(left, Left) and left.ids == ids and left.membership.ids == rest
        assert (index, ids) in hands.parted
    for index in ids:
        del hands.workers[index]


def test_a_member_leaves_and_the_others_take_its_share() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    parts[0].numbers.send_batch([0, 1, 2])
    hands.settle()
    hands.workers[2].retire()
    hands.settle()
    assert parts[2].numbers.closed and parts[2].seen == [2]
    gone(hands, 2)
    parts[0].numbers.send_batch([0, 1, 2, 3])
    close(hands, parts[0], parts[1])
    assert parts[0].seen == [0, 0, 2] and parts[1].seen == [1, 1, 3]


def test_what_a_leaver_had_sent_and_what_was_on_its_way_to_it_is_not_lost() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    parts[2].numbers.send_batch([0, 1, 2])
    parts[0].numbers.send_batch([5])
    hands.held = lambda route: route[2] is Lane.DATA
    hands.workers[2].rescaling.ask_leave(2, lambda reason: None)
    hands.settle()
    assert hands.workers[2].retiring and not hands.workers[2].rescaling.left
    assert hands.workers[0].peer_ids == (0, 1), "it is no member, but nobody has let go of it"
    assert hands.parted == []
    hands.held = lambda route: False
    hands.settle()
    gone(hands, 2)
    close(hands, parts[0], parts[1])
    assert [part.seen for part in parts.values()] == [[0], [1], [2, 5]]


@pytest.mark.parametrize(
    "held",
    [
        (source, target, lane)
        for other in (0, 1)
        for source, target in ((other, 2), (2, other))
        for lane in Lane
        if lane is not Lane.PROGRESS or source == 2  # it no longer needs the others' progress
    ],
)
def test_nobody_lets_go_of_a_leaver_before_the_end_of_each_of_its_lanes(held: Route) -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    parts[2].numbers.send_batch([0, 1, 2])
    hands.settle()
    leaver = hands.workers[2].rescaling
    leaver.ask_leave(2, lambda reason: None)
    hands.held = lambda route: route == held and leaver.membership.version == 1
    hands.settle()
    assert hands.workers[0].peer_ids == (0, 1)
    assert hands.parted == [] and not leaver.left
    hands.held = lambda route: False
    hands.settle()
    gone(hands, 2)
    close(hands, parts[0], parts[1])


def sums(worker: Worker) -> tuple[InputHandle[int], list[Any]]:
    """Add up the numbers of a time on the worker that receives them, once the time is over."""
    seen: list[Any] = []
    numbers: InputHandle[int] = InputHandle()
    totals: dict[int, int] = {}

    def logic(source: Any, output: Any, notificator: Any) -> None:
        for time, batch in source:
            if time.time not in totals:
                notificator.notify_at(time.retain())
            totals[time.time] = totals.get(time.time, 0) + sum(batch)
        notificator.for_each([source.frontier], lambda at, _: seen.append((at.time, totals.pop(at.time))))

    with worker.dataflow("sums") as scope:
        scope.input_from(numbers).exchange(lambda x: x).unary_notify(Pipeline(), "Sum", logic)
    return numbers, seen


def test_a_leaver_that_holds_a_capability_waits_until_its_time_is_over() -> None:
    hands = Hands(2)
    parts = hands.everywhere(sums)
    parts[0][0].send_batch([1, 3, 4])
    parts[1][0].send(5)
    hands.workers[1].rescaling.ask_leave(1, lambda reason: None)
    hands.settle()
    assert not hands.workers[1].rescaling.left and parts[1][1] == []
    parts[0][0].advance_to(1)
    hands.settle()
    assert parts[1][1] == [(0, 9)]
    gone(hands, 1)
    parts[0][0].send_batch([1, 2])
    parts[0][0].close()
    hands.settle()
    assert parts[0][1] == [(0, 4), (1, 3)] and hands.done()


def test_a_dataflow_that_is_dropped_while_somebody_leaves_lets_it_go() -> None:
    hands = Hands(3)
    parts = hands.everywhere(sums)
    parts[0][0].send_batch([2])
    hands.workers[2].rescaling.ask_leave(2, lambda reason: None)
    hands.settle()
    assert hands.workers[0].peer_ids == (0, 1) and not hands.workers[2].rescaling.left
    hands.workers[1].drop_dataflow(0)
    hands.settle()
    gone(hands, 2)
    assert hands.done()


def test_both_workers_of_a_process_leave_whichever_asks_also_if_both_do() -> None:
    hands = Hands(4, each=2)
    parts = hands.everywhere(hello)
    parts[3].numbers.send_batch([0, 1, 2, 3])
    answers: list[str | None] = []
    hands.workers[3].rescaling.ask_leave(3, answers.append)
    hands.workers[2].retire()
    hands.settle()
    assert hands.workers[3].rescaling.left
    gone(hands, 2, 3)
    close(hands, parts[0], parts[1])
    assert [part.seen for part in parts.values()] == [[0], [1], [2], [3]]


def test_grow_shrink_and_grow_again() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    parts[2] = hands.join(hello, port=50)
    parts[3] = hands.join(hello, server=2, port=51)
    hands.workers[2].retire()  # it was a server once
    hands.settle()
    gone(hands, 2)
    del parts[2]
    parts[4] = hands.join(hello, server=3, via=3, port=50)
    for part in parts.values():
        part.numbers.send_batch([0, 1, 2, 3])
    close(hands, *parts.values())
    assert {index: part.seen for index, part in parts.items()} == {0: [0] * 4, 1: [1] * 4, 3: [2] * 4, 4: [3] * 4}


# Workers that must stay ----------------------------------------------------------------------


def stays(hands: Hands, worker: int, said: str) -> None:
    with pytest.raises(CommandRefused, match=rf"worker {worker} cannot retire: {said}"):
        hands.workers[worker].retire()
    hands.settle()
    assert not any(each.retiring for each in hands.workers.values())


def test_a_worker_stays_to_which_an_operator_has_pinned_records() -> None:
    def remember(capability: Capability, info: OperatorInfo) -> Any:
        capability.release()
        return lambda source, output: None

    def pinned(worker: Worker) -> None:
        with worker.dataflow("pinned") as scope:
            scope.input_from(InputHandle()).unary(Exchange(lambda x: x), "Remember", remember)

    hands = Hands(2)
    hands.everywhere(pinned)
    hands.join(pinned)
    stays(hands, 1, "dataflow 'pinned' has operators whose records go to its founding workers: Remember")
    hands.workers[2].retire()
    hands.settle()
    gone(hands, 2)


def test_the_last_process_stays() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    hands.workers[1].retire()
    hands.settle()
    gone(hands, 1)
    stays(hands, 0, "worker 0 is in the only process")
    close(hands, parts[0])


def test_a_leave_that_is_given_up_leaves_the_worker_a_member_with_closed_inputs() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    answers: list[str | None] = []
    hands.workers[1].rescaling.ask_leave(1, answers.append)
    hands.held = lambda route: route == (1, 0, Lane.MAIL) and hands.workers[1].retiring
    hands.settle()
    hands.workers[0].rescaling.coordination.give_up("the job stops")
    hands.held = lambda route: False
    hands.settle()
    assert answers == ["the job stops"] and not hands.workers[1].retiring and parts[1].numbers.closed
    parts[0].numbers.send_batch([0, 1])
    hands.settle()
    assert parts[1].seen == [1]
    hands.workers[1].retire()
    hands.settle()
    gone(hands, 1)
    close(hands, parts[0])
