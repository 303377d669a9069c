"""The members of a job and the tasks that each may be given. Refusals have reasons, and the roster stays consistent."""

import random
from copy import deepcopy

import pytest

from megaflow.control.coordinator.base.roster import Roster
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import Bootstrap, Map, Move
from megaflow.timely.membership import Membership, founding


def roster(*ids: int) -> Roster:
    return Roster(founding(ids), ports=[(worker, "h", worker) for worker in ids])


def grown(before: Roster, *ids: int) -> Roster:
    members = before.members
    before.joined(ids, Membership(members.version + 1, members.workers | set(ids), members.coordinator), "h", 99)
    return before


def test_a_founder_may_own_bins_and_take_lines_at_once() -> None:
    founders = roster(0, 3)
    assert founders.owners == {0, 3} and founders.readers == (0, 3)
    assert founders.ports == [(0, "h", 0), (3, "h", 3)] and founders.unbootstrapped == ()
    assert [founders.state_of(worker) for worker in (0, 3)] == ["running", "running"]


def test_a_joiner_may_own_bins_and_take_lines_only_when_it_knows_its_table() -> None:
    some = grown(roster(0), 5, 6)
    assert some.owners == {0} and some.readers == (0,) and some.unbootstrapped == (5, 6)
    with pytest.raises(CommandRefused, match="bootstrap --server 0 --worker 5"):
        some.check_commands([Move(0, 5)], 4)
    assert some.bootstrap(0, [5]) == [Bootstrap(0, 5)] and some.unbootstrapped == (6,)
    with pytest.raises(CommandRefused, match="will receive one soon"):
        some.check_commands([Map((0, 0, 5, 0))], 4)
    some.routed(5)
    some._check()
    some.check_commands([Move(0, 5)], 4)
    assert some.owners == {0, 5} and some.ports == [(0, "h", 0), (5, "h", 99)]
    assert (some.state_of(5), some.state_of(6)) == ("running", "joined")


def test_the_workers_of_a_process_leave_together_and_nobody_else() -> None:
    some = Roster(founding([0, 1, 2, 3]), [(0, 1), (2, 3)])
    assert some.check_leave(2) == some.check_leave(3) == (2, 3)
    assert some.check_leave(0) == some.check_leave(1) == (0, 1) and some.successor == 2
    with pytest.raises(CommandRefused, match="no worker 9"):
        some.check_leave(9)
    some.leaving = (2, 3)
    assert some.owners == {0, 1}
    with pytest.raises(CommandRefused, match="workers 2, 3 are leaving"):
        some.check_commands([Move(0, 1)], 4)


def test_sources_are_told_once_to_close_and_lines_of_theirs_are_not_committed() -> None:
    some = roster(0, 1)
    assert some.close((1,)) == (1,) and some.close((1,)) == ()
    assert some.readers == some.stagers == (0,) and some.owners == {0, 1} and not some.are_closed((1,))
    some.closed(1)
    assert some.are_closed((1,))
    some.left((1,), founding([0]))
    some._check()


def test_the_coordinator_leaves_only_if_its_successor_knows_the_routing_table() -> None:
    some = grown(roster(3), 5)
    with pytest.raises(CommandRefused, match="worker 5, which would become the coordinator, has no routing table"):
        some.check_leave(3)
    some.routed(5)
    assert some.check_leave(3) == (3,)


def succeeded(some: Roster) -> Roster:
    """Return the roster that a successor builds from it."""
    members = some.members
    other = Roster(Membership(members.version + 1, members.workers, some.successor))
    other.state = deepcopy(some.state)
    assert other.members.coordinator == some.successor
    for each in ("owners", "readers", "stagers", "ports"):
        assert getattr(other, each) == getattr(some, each)
    return other


@pytest.mark.parametrize("seed", range(20))
def test_the_books_stay_right_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    some, next_id = roster(0, 1), 2
    for _ in range(200):
        worker = dice.choice(some.members.ids)
        match dice.randrange(5):
            case 0:
                some = grown(some, next_id, next_id + 1)
                next_id += 2
            case 1:
                some.bootstrap(0, some.unbootstrapped[:1])
            case 2:
                some.routed(worker)
            case 3:
                for each in some.close((worker,)):
                    some.closed(each)
            case 4:
                try:
                    some.leaving = some.check_leave(worker)
                except CommandRefused:
                    continue
                gone, some.leaving = some.leaving, ()
                if some.members.coordinator in gone:
                    some = succeeded(some)
                some.leaving, members = gone, some.members
                assert some.owners.isdisjoint(some.leaving)
                rest = members.workers - set(gone)
                some.left(gone, Membership(members.version + 1, rest, members.coordinator))
        some._check()
        assert some.owners <= some.members.workers and set(some.readers) <= some.owners
        assert {worker for worker, _, _ in some.ports} <= set(some.readers)
