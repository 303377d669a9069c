"""One worker's input gives its right to send to another's: no worker's frontier is ever ahead or left behind."""

from collections.abc import Iterator
from itertools import permutations

import pytest

from megaflow.errors import CapabilityError, TimeError
from megaflow.timely import InputHandle
from megaflow.timely.communication.channel import Lane
from tests.timely.rescale.by_hand import Hands
from tests.timely.rescale.parts import Part, close, hello

GIVER, TAKER, THIRD, HOLDER = 0, 1, 2, 3


def given_away() -> tuple[Hands, dict[int, Part]]:
    """Worker 0 advanced to time 3 step by step and gave its right to 1, which advanced to 5. Worker 3 reached 3 by
    itself.

    Worker 2 has not received any of this yet.
    """
    hands = Hands(4)
    parts = hands.everywhere(hello)
    parts[TAKER].numbers.close()
    parts[THIRD].numbers.close()
    hands.settle()
    hands.held = lambda route: route[1] == THIRD and route[2] is Lane.PROGRESS
    giver, taker = parts[GIVER].numbers, parts[TAKER].numbers
    for time in (1, 2, 3):
        giver.advance_to(time)
        hands.settle()
        if time == 2:
            parts[HOLDER].numbers.advance_to(3)
            hands.settle()
    taker.receive(giver.give_away())
    for time in (4, 5):
        taker.advance_to(time)
        hands.settle()
    return hands, parts


def told(hands: Hands) -> list[int]:
    """Return the senders of batches that have not reached worker 2, one entry for each batch."""
    return [source for (source, _, _), queue in hands.network._routes.items() for _ in queue]


def merges(senders: list[int]) -> Iterator[tuple[int, ...]]:
    """Return all orders in which the batches may arrive."""
    return iter(sorted(set(permutations(senders))))


def test_however_the_batches_of_both_come_together_nobody_sees_a_time_pass_that_is_held() -> None:
    hands, parts = given_away()
    senders = told(hands)
    assert set(senders) == {GIVER, TAKER, HOLDER} and senders.count(GIVER) > 2
    for order in merges(senders):
        hands, parts = given_away()
        for source in order:
            hands.deliver(source, THIRD, Lane.PROGRESS)
            hands.workers[THIRD].step()
            assert parts[THIRD].probe.less_equal(3), f"{order}: worker 3 may still send at 3"
        assert not parts[THIRD].probe.less_than(3), f"{order}: nobody may send before 3"
        hands.held = lambda route: False
        parts[HOLDER].numbers.close()
        hands.settle()
        assert parts[THIRD].probe.frontier.elements == (5,)
    close(hands, *parts.values())


def test_the_handle_is_closed_here_and_open_there_and_both_ways() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    first, second = parts[0].numbers, parts[1].numbers
    for part in (parts[1], parts[2]):
        part.numbers.close()
    first.advance_to(7)
    first.send(1)
    for giver, taker in ((first, second), (second, first), (first, second)):
        time = giver.give_away()
        assert time == giver.time and giver.closed
        taker.receive(time)
        assert taker.time == time and not taker.closed
        assert [[feed.capability.held for feed in handle._known] for handle in (giver, taker)] == [[False], [True]]
        taker.send(2)
        hands.settle()
        assert all(part.probe.frontier.elements == (time,) for part in parts.values())
        taker.advance_to(time + 1)
    with pytest.raises(CapabilityError, match="send: the input was closed at time 9"):
        first.send(1)
    first.close()
    close(hands, parts[1])
    assert (parts[1].seen, parts[2].seen) == ([1], [2, 2, 2])


def test_all_that_was_done_with_the_right_is_told_before_it_goes() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    hands.settle()
    parts[0].numbers.advance_to(1)
    hands.settle()
    parts[0].numbers.advance_to(2)  # which no worker needs to hear while worker 1 is at 0
    hands.settle()
    [graph] = hands.workers[0].graphs()
    assert not graph.progress.caster.held.is_empty()
    parts[0].numbers.give_away()
    assert graph.progress.caster.held.is_empty() and list(graph.progress.caster.capabilities()) == []


def test_what_cannot_be_given_or_received_is_refused() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    with pytest.raises(CapabilityError, match=r"receive\(3\): the input is open, at time 0: close it first"):
        parts[0].numbers.receive(3)
    closed: InputHandle[int] = InputHandle()
    closed.close()
    with pytest.raises(CapabilityError, match=r"receive\(3\): the input feeds no running dataflow"):
        closed.receive(3)
    with pytest.raises(CapabilityError, match="give_away: the input was closed at time 0"):
        closed.give_away()
    parts[1].numbers.close()
    with pytest.raises(TimeError, match=r"receive\('3'\)"):
        parts[1].numbers.receive("3")  # type: ignore[arg-type]
    close(hands, parts[0])


def test_who_holds_a_time_back_is_who_holds_the_right_now() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    for part in (parts[1], parts[2]):
        part.numbers.close()
    parts[0].numbers.advance_to(5)
    for taker in (1, 2):
        parts[taker].numbers.receive(parts[taker - 1].numbers.give_away())
        hands.settle()
        [holding] = hands.workers[0].explain(parts[0].probe, 5)
        assert (holding.worker, holding.time, holding.count, holding.kind) == (taker, 5, 1, "capability")
    close(hands, parts[2])
