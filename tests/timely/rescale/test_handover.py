"""Hand-overs in any order of delivery: nothing is lost, and messages of each member are heard in order."""

from collections import deque
from random import Random

import pytest

from megaflow.errors import CommandRefused
from megaflow.timely.membership import WorkerId, founding
from megaflow.timely.rescale.change_stages import Mail
from megaflow.timely.rescale.handover import Role
from megaflow.timely.rescale.messages import Fence, FoundersAnswer, FoundersAsk, Handover
from megaflow.timely.rescale.sequencer import Sequencer

WORKERS, QUESTIONS, HAND_OVERS = 4, 12, 3


class Cluster:
    """Members that send numbered questions to their supposed coordinator; mail is FIFO for each pair."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        members = founding(range(WORKERS))
        processes = {each: ("h", each, (each,)) for each in members.ids}
        first = Sequencer(members, processes, ((0, members),))
        self.roles = {each: Role(each, None if each else first) for each in members.ids}
        self.known = dict.fromkeys(members.ids, 0)  # member -> the coordinator that it knows
        self.lanes: dict[tuple[WorkerId, WorkerId], deque[object]] = {}
        self.asked = dict.fromkeys(members.ids, 0)
        self.answered: dict[WorkerId, list[int]] = {each: [] for each in members.ids}
        self.heard: dict[WorkerId, list[int]] = {each: [] for each in members.ids}  # by any coordinator
        self.luggage: list[object] = []  # as it arrived
        self.hand_overs = 0

    def post(self, source: WorkerId, mail: Mail) -> None:
        for target, message in mail:
            if isinstance(message, FoundersAnswer):
                self.heard[target].append(message.dataflow)
            self.lanes.setdefault((source, target), deque()).append(message)

    def run(self) -> None:
        while True:
            lanes = [lane for lane, queue in self.lanes.items() if queue]
            asking = [each for each, asked in self.asked.items() if asked < QUESTIONS]
            free = [each for each, role in self.roles.items() if role.sequencer and self.hand_overs < HAND_OVERS]
            actions = [*((self.deliver, lane) for lane in lanes), *((self.ask, each) for each in asking)]
            actions += [(self.hand_over, each) for each in free]
            if not actions:
                return
            act, what = self.random.choice(actions)
            act(what)  # type: ignore[operator]

    def ask(self, member: WorkerId) -> None:
        self.post(member, [(self.known[member], FoundersAsk(self.asked[member]))])
        self.asked[member] += 1

    def hand_over(self, coordinator: WorkerId) -> None:
        self.hand_overs += 1
        self.post(coordinator, self.roles[coordinator].hand_over(self.hand_overs, (), 0.0))

    def deliver(self, lane: tuple[WorkerId, WorkerId]) -> None:
        (source, target), message = lane, self.lanes[lane].popleft()
        match message:
            case FoundersAnswer(number, _):
                self.answered[target].append(number)
            case Handover(membership):
                self.known[target] = membership.coordinator
                self.post(target, [(source, Fence())])
            case _:
                role = self.roles[target]
                self.post(target, role.hear(source, message, 0.0))
                if role.come_over is not None:
                    self.luggage.append(role.come_over.luggage)
                    self.post(target, role.begin(0.0))


@pytest.mark.parametrize("seed", range(100))
def test_of_each_member_everything_is_heard_in_the_order_in_which_it_was_sent(seed: int) -> None:
    cluster = Cluster(seed)
    cluster.run()
    assert cluster.luggage == list(range(1, HAND_OVERS + 1))
    coordinators = {each for each, role in cluster.roles.items() if role.sequencer is not None}
    assert coordinators == set(cluster.known.values()) and len(coordinators) == 1
    heard = {member: list(range(QUESTIONS)) for member in cluster.roles}
    assert cluster.heard == heard
    assert {member: sorted(numbers) for member, numbers in cluster.answered.items()} == heard


def test_a_new_coordinator_may_hand_over_only_when_it_has_begun() -> None:
    cluster = Cluster(0)
    cluster.hand_over(0)
    for each in range(WORKERS):
        with pytest.raises(CommandRefused, match=f"worker {each} is not the coordinator of the cluster"):
            cluster.roles[each].hand_over(None, (), 0.0)
