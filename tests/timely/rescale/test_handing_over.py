"""Handing over: another worker coordinates, and nothing else changes."""

from megaflow.timely.rescale.messages import HandedOver, Left, Succeeded
from tests.timely.rescale.by_hand import Hands
from tests.timely.rescale.parts import close, hello


def test_another_process_coordinates_and_gets_what_was_given_along() -> None:
    hands = Hands(4, each=2)
    parts = hands.everywhere(hello)
    hands.workers[0].rescaling.hand_over(("cargo", 5))
    assert hands.workers[0].rescaling.coordinator is None
    hands.settle()
    members = hands.workers[2].membership
    assert (members.version, members.coordinator, members.ids) == (1, 2, (0, 1, 2, 3))
    assert all(worker.membership == members for worker in hands.workers.values())
    assert [index for index, worker in hands.workers.items() if worker.rescaling.coordinator is not None] == [2]
    assert hands.events == {
        0: [HandedOver(members)],
        1: [HandedOver(members)],
        2: [HandedOver(members), Succeeded(("cargo", 5), members)],
        3: [HandedOver(members)],
    }
    close(hands, *parts.values())


def test_the_coordinator_leaves_and_the_next_one_after_it() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    for leaving in (0, 1):
        hands.workers[leaving].retire()
        hands.settle()
        assert hands.workers[leaving].rescaling.left and isinstance(hands.events[2][-1], Left)
        del hands.workers[leaving]
    assert hands.workers[2].rescaling.coordinator is not None
    parts[3] = hands.join(hello, via=2)
    parts[3].numbers.send_batch([0, 1])
    close(hands, parts[2], parts[3])
    assert parts[2].seen == [0] and parts[3].seen == [1]
