"""New workers of engine programs learn the routing without a Bootstrap, whichever worker injects commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from megaflow import Bootstrap, Move
from megaflow.errors import ProtocolError
from megaflow.megaphone.base.routing import Numbered
from megaflow.megaphone.router.bootstrap import RoutingState
from megaflow.megaphone.router.introduction import Introduction, Numbering
from megaflow.testing import EngineCluster, Join
from megaflow.timely.communication.channel import Channel, Lane
from megaflow.timely.dataflow.flow_control.input_queue import InputQueue
from megaflow.timely.dataflow.run_queue import RunQueue
from megaflow.timely.membership import founding
from tests.simulation.by_hand import ByHand, Histories, key_of
from tests.simulation.introductions import BINS, TIMES, build_steering, draw, run, run_own

# In a cluster -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(5, 105, 20))])
def test_counts_are_those_of_one_worker_though_nobody_sends_a_bootstrap(first: int) -> None:
    for seed in range(first, first + (20 if first else 5)):
        run(seed)


def test_in_those_runs_newcomers_are_moved_to_and_some_join_after_the_last_command() -> None:
    named, late = 0, 0
    for seed in range(40):
        workers, feeds = draw(seed)
        log: list[tuple[int, Any]] = []
        cluster = EngineCluster(seed, workers, monitor=False)
        cluster.at(workers * TIMES // 2, Join())
        cluster.run(build_steering(log), feeds)
        named += any(len(peers) > workers for _, peers in log)
        late += all(len(peers) == workers for _, peers in log)
        if named and late:
            return
    raise AssertionError(f"{named} runs in which newcomers are named, {late} in which they come after all commands")


@pytest.mark.parametrize("seeds", [(38,), pytest.param(range(60), marks=pytest.mark.slow)])
def test_a_newcomer_may_move_bins_to_itself_before_all_have_heard_that_it_has_joined(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_own(seed)


# By hand ----------------------------------------------------------------------------------------


class Office:
    """Introductions of one dataflow, on workers that exchange messages at once, or when `held` is released."""

    def __init__(self, founders: int, *newcomers: int) -> None:
        self.members = founding(range(founders))
        self.everybody = (*range(founders), *newcomers)
        self.graphs = {worker: FakeGraph(self, worker, founders) for worker in self.everybody}
        self.numberings = {
            worker: Numbering(lambda: self.members, worker, tuple(range(founders))) for worker in self.everybody
        }
        self.parts = {
            worker: Introduction(self.graphs[worker], 7, self.numberings[worker], state)  # type: ignore[arg-type]
            for worker in self.everybody
        }
        self.sent: list[tuple[int, int, int, bool]] = []  # (from, to, next of the state, given by sender)

    def join(self, *newcomers: int) -> None:
        self.members = founding(self.members.ids + newcomers)

    def follow(self) -> None:
        """Tell all workers that the change is done."""
        for worker in self.members.ids:
            self.parts[worker].follow()


class FakeGraph:
    """The parts of a graph, a context and an allocator that an Introduction needs."""

    def __init__(self, office: Office, worker: int, founders: int) -> None:
        self.number, self.index, self.founders = 3, worker, founding(range(founders))
        self.context = self.allocator = self.run_queue = self
        self.handlers: dict[Any, Any] = {}
        self.office = office
        self.extensions: dict[type, Any] = {}

    def extension(self, kind: type) -> Any:
        return self.extensions.setdefault(kind, kind())

    def audience(self) -> tuple[int, ...]:
        return self.office.everybody

    def add(self, node: int) -> None:
        assert node == 7

    def send(self, target: int, channel: Channel, body: Any) -> None:
        told, given = body[1]
        self.office.sent.append((self.index, target, told.next, given))
        self.office.graphs[target].handlers[channel](self.index, body)


def state(number: int) -> RoutingState:
    return RoutingState((0, 1), None, (), (), number)


def test_a_newcomer_starts_with_the_state_of_who_injects_once_it_has_heard_everybody() -> None:
    office = Office(3, 8)
    office.numberings[1].next = 5
    for worker, obeyed in ((0, 2), (1, 4), (2, 0)):
        office.numberings[worker].passed = obeyed
        office.parts[worker].obeyed(obeyed)
    office.join(8)
    office.follow()
    assert sorted(office.sent) == [(0, 8, 2, False), (2, 8, 0, False)]
    assert office.parts[8].answer() is None, "the one that injects has still to obey its own"
    office.parts[1].obeyed(5)
    assert office.parts[8].answer() == state(5)
    office.parts[1].obeyed(6)
    office.follow()
    assert office.sent[2:] == [(1, 8, 5, True)], "each tells once"


def test_if_who_injected_has_left_the_newcomer_starts_after_all_that_came_from_there() -> None:
    office = Office(2, 8)
    queue = InputQueue("Broadcast", "", 0, RunQueue())
    queue.batches += [(0, [Numbered(3, Move(0, 0)), Numbered(4, Move(0, 1))])]
    for worker, passed, obeyed in ((0, 5, 5), (1, 3, 2)):
        office.numberings[worker].passed = passed
        office.parts[worker].obeyed(obeyed)
    office.numberings[1].queue = queue
    office.join(8)
    office.follow()
    assert office.parts[8].answer() is None, "of one the commands are still in a queue"
    office.parts[1].obeyed(4)
    office.parts[1].obeyed(5)
    assert sorted(office.sent) == [(0, 8, 5, False), (1, 8, 5, False)] and office.parts[8].answer() == state(5)


def test_who_injects_later_than_it_looked_is_followed_from_its_first_command() -> None:
    office = Office(2, 8)
    office.join(8)
    office.numberings[1].look()
    office.numberings[1].next = 2
    for worker in (0, 1):
        office.numberings[worker].passed = 2
        office.parts[worker].obeyed(2)
    office.follow()
    assert sorted(office.sent) == [(0, 8, 2, False), (1, 8, 0, False)] and office.parts[8].answer() == state(0)


def test_a_command_that_is_injected_before_the_change_is_done_is_one_that_the_newcomer_reads() -> None:
    office = Office(2, 8)
    office.join(8)
    office.numberings[0].look()  # as it does before each command
    office.numberings[0].next = office.numberings[1].passed = 1
    for worker in (0, 1):
        office.parts[worker].obeyed(1)
    office.follow()
    assert office.sent == [(0, 8, 0, False), (1, 8, 1, False)] and office.parts[8].answer() == state(0)


def test_two_newcomers_do_not_wait_for_each_other_and_may_tell_a_third() -> None:
    office = Office(1, 8, 9)
    office.join(8, 9)
    office.follow()
    assert office.parts[8].answer() == state(0) and office.parts[9].answer() is None, "9 waits for 8, and not 8 for 9"
    office.parts[8].obeyed(0)
    assert office.parts[9].answer() == state(0)
    for part in (office.parts[0], office.parts[8], office.parts[9]):
        part.obeyed(4)
    for worker in (0, 8, 9):
        office.numberings[worker].passed = 4
    office.numberings[8].next = 4
    office.everybody += (10,)
    office.numberings[10] = Numbering(lambda: office.members, 10, (0,))
    office.graphs[10] = FakeGraph(office, 10, 1)
    office.parts[10] = Introduction(office.graphs[10], 7, office.numberings[10], state)  # type: ignore[arg-type]
    office.join(10)
    office.follow()
    assert office.parts[10].answer() == state(4)


def test_who_was_given_up_is_awaited_no_more() -> None:
    office = Office(2, 8, 9)
    office.join(9)
    office.follow()
    assert office.parts[9].answer() is None, "8 is on its way in"
    office.everybody = (0, 1, 9)
    office.follow()
    assert office.parts[9].answer() == state(0)


def test_who_has_left_is_told_nothing_any_more() -> None:
    office = Office(1, 8)
    office.numberings[0].next = 1
    office.join(8)
    office.follow()
    office.everybody = (0,)
    office.parts[0].follow()
    office.parts[0].obeyed(1)
    assert office.sent == []


def test_a_newcomer_that_nobody_can_tell_says_so() -> None:
    office = Office(1, 8)
    office.everybody = (8,)
    office.members = founding([8])
    office.follow()
    with pytest.raises(ProtocolError, match="no other worker has sent it the routing table"):
        office.parts[8].answer()


# Other programs ----------------------------------------------------------------------------------


def test_a_bootstrap_changes_nothing_and_is_checked() -> None:
    histories = Histories(BINS)
    hands = ByHand(histories.build, 3)
    hands.command(1, Bootstrap(0, 2), Move(0, 2), Bootstrap(2, 1))
    hands.records[0].send((key_of(0, BINS), "early"))
    hands.advance_to(2)
    hands.records[1].send((key_of(0, BINS), "late"))
    hands.finish()
    assert (histories.where("early"), histories.where("late")) == (0, 2)
    assert Lane.STATE in {lane for _, _, lane, _, _ in hands.delivered}
