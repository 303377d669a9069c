"""Progress batches when workers join: initial sums, capabilities minted for others, and their gates."""

from collections import deque
from typing import Any

import pytest

from megaflow.errors import ProtocolError
from megaflow.timely.communication.channel import Envelope
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.log import Log
from megaflow.timely.order import Time
from megaflow.timely.progcaster import Changes, Progcaster
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.progress.reachability import GraphBuilder, Tracker

SOURCE, TARGET = 0, 1
Body = tuple[int, list[tuple[int, Time, int]]]


class Three:
    """A source and its downstream, on workers that founded it and on one, the last, that did not."""

    def __init__(self, founders: int = 2, joined: int = 1) -> None:
        self.everybody = range(founders + joined)
        self.fabric = LocalFabric(self.everybody)
        self.trackers: dict[int, Tracker] = {}
        self.casters: dict[int, Progcaster] = {}
        self.lanes: dict[tuple[int, int], deque[Body]] = {}
        self.founders = founders
        for index in self.everybody:
            self.add(index)

    def add(self, index: int) -> None:
        graph = GraphBuilder()
        graph.add_edge(graph.add_location(), graph.add_location())
        self.trackers[index] = graph.build([(SOURCE, 0, self.founders)])
        own: Changes = ChangeBatch([((SOURCE, 0), 1)] if index < self.founders else [])
        self.casters[index] = Progcaster(
            0,
            self.fabric.allocator(index),
            lambda: tuple(self.everybody),
            self.trackers[index],
            Log(),
            own=own,
            sources=[SOURCE],
            eager=True,
        )

    def do(self, worker: int, *changes: tuple[int, Time, int]) -> None:
        """Apply one invocation of a worker's operators."""
        self.casters[worker].offer(ChangeBatch(((location, time), delta) for location, time, delta in changes))

    def arrive(self, source: int, target: int) -> None:
        """Deliver the next batch of one worker to another."""
        for envelope in self.fabric.inboxes[target].drain():
            self.lanes.setdefault((envelope.source, target), deque()).append(self.body(envelope))
        self.casters[target].receive(source, self.lanes[source, target].popleft())

    def body(self, envelope: Envelope) -> Body:
        body: Body = envelope.body
        return body

    def frontier(self, worker: int) -> list[Time]:
        """Return the frontier that the worker shows behind the source."""
        self.trackers[worker].propagate()
        return list(self.trackers[worker].frontier(TARGET))


# The interleaving of design section 4: minter 0, third worker 1, joiner 2 --------------------


def overtaking(gated: bool) -> tuple[Three, list[list[Time]]]:
    """Worker 0 holds time 0 throughout. Return what worker 1 shows after each message that reaches it."""
    three = Three()
    three.do(1, (SOURCE, 0, -1))
    three.arrive(1, 0)
    three.arrive(1, 2)
    number = three.casters[0].mint(SOURCE, 0)
    three.arrive(0, 2)
    three.casters[2].receive_capability(SOURCE, 0)
    three.do(2, (SOURCE, 0, -1), (SOURCE, 5, 1))
    if gated:
        three.casters[1].gate(2, 0, number)
    shown = [three.frontier(1)]
    three.arrive(2, 1)  # the joiner's, before the batch that minted its capability
    shown.append(three.frontier(1))
    three.arrive(0, 1)
    shown.append(three.frontier(1))
    return three, shown


def test_without_a_gate_a_newcomers_release_overtakes_its_minting_and_cancels_the_minters_own_count() -> None:
    _, shown = overtaking(gated=False)
    assert shown == [[0], [5], [0]], "worker 0 holds time 0 all the time, and yet it seemed over"


def test_behind_its_gate_a_newcomers_release_waits_for_its_minting() -> None:
    three, shown = overtaking(gated=True)
    assert shown == [[0], [0], [0]]
    three.do(0, (SOURCE, 0, -1))
    three.arrive(0, 1)
    assert three.frontier(1) == [5], "and is not lost"
    three.do(2, (SOURCE, 5, -1))
    three.arrive(2, 1)
    assert three.frontier(1) == []


def test_minting_at_a_time_that_one_only_sees_open_brings_back_what_was_over_elsewhere() -> None:
    """The reason why the minter must hold a capability itself: worker 1 holds none, and does not know of worker 0's
    release.
    """
    three = Three()
    three.do(1, (SOURCE, 0, -1))
    three.arrive(1, 0)
    three.arrive(1, 2)
    three.do(0, (SOURCE, 0, -1))
    three.arrive(0, 2)
    assert three.frontier(2) == [] and three.frontier(1) == [0]
    three.casters[1].mint(SOURCE, 0)
    three.arrive(1, 2)
    assert three.frontier(2) == [0], "worker 2 has seen the end already"


# Gates --------------------------------------------------------------------------------------


def test_behind_a_gate_all_batches_wait_in_their_order() -> None:
    three = Three()
    number = three.casters[0].mint(SOURCE, 0)
    three.casters[1].gate(2, 0, number)
    for time in (1, 2, 3):
        three.do(2, (SOURCE, time, 1), (SOURCE, time - 1, -1))
        three.arrive(2, 1)
    assert not three.casters[1].has_folded(2, 0)
    three.arrive(0, 1)
    assert three.casters[1].has_folded(2, 2) and three.casters[1].following() == {0: 1, 1: 0, 2: 3}


def test_of_several_gates_all_must_be_passed() -> None:
    three = Three(founders=3)
    numbers = [three.casters[minter].mint(SOURCE, 0) for minter in (0, 2)]
    three.casters[1].gate(3, 0, numbers[0])
    three.casters[1].gate(3, 2, numbers[1])
    three.do(3, (SOURCE, 0, -1))
    three.arrive(3, 1)
    three.arrive(2, 1)
    assert not three.casters[1].has_folded(3, 0)
    three.arrive(0, 1)
    assert three.casters[1].has_folded(3, 0)


def test_gates_may_stand_behind_one_another() -> None:
    """Joiner 3's capability was minted by joiner 2, whose own batches still wait."""
    three = Three(founders=2, joined=2)
    first = three.casters[0].mint(SOURCE, 0)
    three.casters[2].receive_capability(SOURCE, 0)
    second = three.casters[2].mint(SOURCE, 0)
    three.casters[1].gate(2, 0, first)
    three.casters[1].gate(3, 2, second)
    three.do(3, (SOURCE, 0, -1), (SOURCE, 4, 1))
    three.arrive(3, 1)
    three.arrive(2, 1)
    assert three.frontier(1) == [0] and not three.casters[1].has_folded(3, 0)
    three.arrive(0, 1)
    assert three.casters[1].has_folded(2, second) and three.casters[1].has_folded(3, 0)


def test_a_gate_that_is_passed_already_holds_nobody_up() -> None:
    three = Three()
    number = three.casters[0].mint(SOURCE, 0)
    three.arrive(0, 1)
    three.casters[1].gate(2, 0, number)
    three.do(2, (SOURCE, 0, -1))
    three.arrive(2, 1)
    assert three.casters[1].has_folded(2, 0)


def test_the_minter_itself_needs_no_gate() -> None:
    three = Three()
    number = three.casters[0].mint(SOURCE, 0)
    assert three.casters[0].has_folded(0, number) and not three.casters[0].has_folded(0, number + 1)
    three.casters[0].gate(2, 0, number)
    three.do(2, (SOURCE, 0, -1))
    three.arrive(2, 0)
    assert three.casters[0].has_folded(2, 0)


# Minting ------------------------------------------------------------------------------------


def test_what_is_minted_for_another_is_no_capability_of_the_minter() -> None:
    three = Three()
    three.casters[0].mint(SOURCE, 0)
    assert list(three.casters[0].capabilities()) == [((SOURCE, 0), 1)]
    assert list(three.casters[2].capabilities()) == []
    three.arrive(0, 2)
    three.casters[2].receive_capability(SOURCE, 0)
    assert list(three.casters[2].capabilities()) == [((SOURCE, 0), 1)]
    three.do(2, (SOURCE, 0, -1))
    three.do(0, (SOURCE, 0, -1))
    three.do(1, (SOURCE, 0, -1))
    assert list(three.casters[2].capabilities()) == list(three.casters[0].capabilities()) == []
    for source, target in [(0, 1), (0, 1), (2, 1)]:
        three.arrive(source, target)
    assert three.frontier(1) == []


def test_minting_takes_along_what_was_held_back() -> None:
    three = Three()
    three.casters[0].eager = False
    three.do(0, (TARGET, 3, 1))
    assert not three.casters[0].held.is_empty()
    assert three.casters[0].mint(SOURCE, 0) == 0
    assert three.casters[0].held.is_empty()
    three.arrive(0, 1)
    assert three.frontier(1) == [0]
    assert sorted(three.trackers[1].pointstamps()) == [(SOURCE, 0, 3), (TARGET, 3, 1)]


# Beginning with a sum, and recording --------------------------------------------------------


def test_one_that_is_restored_goes_on_from_there_and_drops_what_the_sum_holds() -> None:
    three = Three()
    caster = three.casters[2]
    three.do(0, (SOURCE, 0, -1), (SOURCE, 1, 1))
    three.do(0, (SOURCE, 1, -1), (SOURCE, 2, 1))
    three.do(1, (SOURCE, 0, -1), (SOURCE, 9, 1))
    caster.restore([(SOURCE, 0, -2), (SOURCE, 2, 1), (SOURCE, 9, 1)], {0: 2, 1: 1, 2: 7})
    assert three.frontier(2) == [2]
    assert caster.following() == {0: 2, 1: 1, 2: 0}, "its own batches begin with 0"
    for source in (0, 0, 1):
        three.arrive(source, 2)
    assert three.frontier(2) == [2] and caster.following() == {0: 2, 1: 1, 2: 0}
    three.do(0, (SOURCE, 2, -1), (SOURCE, 5, 1))
    three.arrive(0, 2)
    assert three.frontier(2) == [5]
    with pytest.raises(ProtocolError, match="worker 0 sent progress batch 5 of dataflow 0; 3 was due"):
        caster.receive(0, (5, []))
    with pytest.raises(ProtocolError, match="worker 0 sent progress batch 2 of dataflow 0; 3 was due"):
        caster.receive(0, (2, []))


def test_one_that_begins_with_the_sum_of_all_drops_whatever_comes() -> None:
    three = Three()
    three.casters[2].restore([(SOURCE, 0, -2)], None)
    assert three.trackers[2].is_complete() or three.frontier(2) == []
    three.do(0, (SOURCE, 0, -1), (SOURCE, 1, 1))
    three.do(0, (SOURCE, 1, -1))
    three.lanes[0, 2] = deque([(17, [(SOURCE, 3, 1)]), (4, [])])
    three.arrive(0, 2)
    three.arrive(0, 2)
    assert three.frontier(2) == [] and three.trackers[2].is_complete()


def test_every_batch_is_recorded_as_it_is_folded_its_own_included_and_gated_ones_when_they_pass() -> None:
    three = Three()
    recorded: list[Any] = []
    three.do(0, (SOURCE, 0, -1), (SOURCE, 1, 1))
    three.arrive(0, 1)
    three.casters[1].record = lambda sender, number, batch: recorded.append((sender, number, sorted(batch)))
    number = three.casters[0].mint(SOURCE, 1)
    three.casters[1].gate(2, 0, number)
    three.do(2, (SOURCE, 1, -1))
    three.arrive(2, 1)
    three.do(1, (SOURCE, 0, -1))
    assert recorded == [(1, 0, [(SOURCE, 0, -1)])]
    three.arrive(0, 1)
    assert recorded[1:] == [(0, 1, [(SOURCE, 1, 1)]), (2, 0, [(SOURCE, 1, -1)])]
