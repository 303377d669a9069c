"""Messages that arrive between two waits are handled before the second one begins."""

from megaflow.program import Worker
from megaflow.timely import InputHandle
from megaflow.timely.communication.channel import Lane
from megaflow.timely.rescale.messages import TOPIC, MayEnd, RangeAsk
from tests.timely.rescale.by_hand import Hands


def numbers(worker: Worker) -> InputHandle[int]:
    handle: InputHandle[int] = InputHandle()
    with worker.dataflow("numbers") as scope:
        scope.input_from(handle).exchange(lambda x: x)
    return handle


def test_the_word_that_a_worker_may_end_is_heard_also_when_nothing_follows_it() -> None:
    hands = Hands(2)
    hands.workers[0].post(1, TOPIC, MayEnd())
    hands.deliver(0, 1, Lane.MAIL)
    hands.held = lambda route: True
    hands.workers[1].part()


def test_a_newcomer_that_is_given_everything_at_once_joins() -> None:
    hands = Hands(2)
    hands.everywhere(numbers)
    [joiner] = hands.start(hands.admitted())
    numbers(joiner)
    assert joiner.rescaling.joiner is not None
    joiner.rescaling.joiner.begin()
    with hands.holding(lambda route: route[1] == 2 and joiner.rescaling.membership.version == 1):
        hands.settle()
    for route in [(1, 2, Lane.PROGRESS), (0, 2, Lane.PROGRESS), (0, 2, Lane.MAIL)]:
        while hands.waiting(*route):
            hands.deliver(*route)
    hands.held = lambda route: True
    assert joiner.bootstrap()


def test_a_parked_server_answers_at_once() -> None:
    hands = Hands(2)
    hands.everywhere(numbers)
    hands.settle()
    [joiner] = hands.start(hands.admitted(server=1))
    numbers(joiner)
    assert joiner.rescaling.joiner is not None
    joiner.rescaling.joiner.begin()
    hands.held = lambda route: route[1] == 2
    hands.settle()
    joiner.post(1, TOPIC, RangeAsk(1, 0, 0, 0, 0))
    hands.deliver(2, 1, Lane.MAIL)
    hands.deliver(1, 2, Lane.MAIL)  # the snapshot
    hands.held = lambda route: True
    assert not hands.waiting(1, 2, Lane.MAIL)
    hands.workers[1].step_or_park(None)
    assert hands.waiting(1, 2, Lane.MAIL)


def test_the_word_that_a_worker_has_left_is_heard_also_when_nothing_follows_it() -> None:
    hands = Hands(2)
    hands.everywhere(numbers)
    hands.settle()
    hands.workers[1].rescaling.ask_leave(1, lambda reason: None)
    hands.held = lambda route: route == (0, 1, Lane.MAIL) and hands.workers[1].rescaling._leaver is not None and (
        hands.workers[1].rescaling._leaver.gone
    )
    hands.settle()
    while hands.waiting(0, 1, Lane.MAIL):
        hands.deliver(0, 1, Lane.MAIL)
    hands.held = lambda route: True
    assert not hands.workers[1].rescaling.left
    hands.workers[1].retire()
    assert hands.workers[1].rescaling.left
